package plane

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that grpcCodec falls back to
	"google.golang.org/grpc/mem"

	"weir/internal/engine/plane/planepb"
	"weir/internal/trace"
	"weir/internal/wire/sock"
)

// BenchmarkSteps is what it costs to receive a step of 100 slots, weir's way and
// with gRPC's client, from another process: flat out, and a thousand a second,
// which is what a gateway sees of an engine. There the time is the engine's, and
// the figure that counts is this process's CPU per message.
func BenchmarkSteps(b *testing.B) {
	for _, pace := range []time.Duration{0, time.Millisecond} {
		for name, open := range map[string]func(b *testing.B, addr string) func(f *frame) error{
			"own": ownReader, "grpc": grpcReader,
		} {
			b.Run(fmt.Sprintf("pace=%v/%s", pace, name), func(b *testing.B) {
				recv := open(b, startSender(b, pace))
				var f frame
				next := func() {
					if err := recv(&f); err != nil {
						b.Fatal(err)
					}
					if f.err != nil || len(f.id) != 100 {
						b.Fatalf("%d ids, %v", len(f.id), f.err)
					}
				}
				for range 200 {
					next()
				}
				b.ReportAllocs()
				b.ResetTimer()
				before := cpuTime(b)
				for range b.N {
					next()
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func ownReader(b *testing.B, addr string) func(*frame) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := openSteps(ctx, sock.Reads(conn), addr, "", 1<<20, new(atomic.Uint64), new(planepb.StepsRequest))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cancel(); <-s.closed })
	return s.recv
}

func grpcReader(b *testing.B, addr string) func(*frame) error {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			return sock.Reads(conn), nil
		}),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(readBuffer))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	steps, err := planepb.NewPlaneClient(conn).Steps(b.Context(), new(planepb.StepsRequest),
		grpc.ForceCodecV2(grpcCodec{encoding.GetCodecV2("proto")}))
	if err != nil {
		b.Fatal(err)
	}
	return func(f *frame) error { return steps.RecvMsg(f) }
}

// grpcCodec decodes into a frame, as fast as gRPC's client lets one.
type grpcCodec struct{ encoding.CodecV2 }

func (c grpcCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f := v.(*frame)
	f.received, f.size = trace.Now(), data.Len()
	if len(data) == 1 {
		f.err = f.decode(data[0].ReadOnlyData())
	} else {
		f.err = f.decode(data.Materialize())
	}
	return nil
}

// senderPace is the environment's word that makes the test binary a sender.
const senderPace = "WEIR_TEST_STEPS_PACE"

// startSender runs a sender in a process of its own and gives its address.
func startSender(b *testing.B, pace time.Duration) string {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), senderPace+"="+pace.String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// send is the sender's process: it accepts one connection and one call, and
// sends the same step without end, one a pace.
func send(pace time.Duration) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	var windows struct {
		sync.Mutex
		sync.Cond
		conn, stream int64
	}
	windows.L = &windows.Mutex
	windows.conn, windows.stream = defaultWindow, defaultWindow
	called := make(chan struct{})
	in := bufio.NewReader(conn)
	if _, err := in.Discard(len(http2.ClientPreface)); err != nil {
		return err
	}
	out := http2.NewFramer(conn, in)
	go func() {
		for {
			f, err := out.ReadFrame()
			if err != nil {
				os.Exit(0) // the reader has left
			}
			windows.Lock()
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
					windows.stream += int64(v) - defaultWindow
				}
			case *http2.WindowUpdateFrame:
				if f.StreamID == 0 {
					windows.conn += int64(f.Increment)
				} else {
					windows.stream += int64(f.Increment)
				}
			case *http2.HeadersFrame:
				close(called)
			}
			windows.Unlock()
			windows.Broadcast()
		}
	}()
	if err := out.WriteSettings(); err != nil {
		return err
	}
	<-called
	w := newWire()
	w.WriteSettingsAck()
	w.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stepsStream, EndHeaders: true,
		BlockFragment: w.encode(":status", "200", "content-type", "application/grpc"),
	})
	if _, err := conn.Write(w.Bytes()); err != nil {
		return err
	}
	step := &planepb.Step{Sequence: 1, SendTime: 1, Running: 2048}
	for i := range uint32(100) {
		step.Slot = append(step.Slot, i*20)
		step.Total = append(step.Total, 100+i)
		step.Id = append(step.Id, i*1000)
	}
	message := prefixed(marshal(step))
	n := int64(len(message))
	for at := time.Now(); ; at = at.Add(pace) {
		time.Sleep(time.Until(at))
		windows.Lock()
		for windows.conn < n || windows.stream < n {
			windows.Wait()
		}
		windows.conn, windows.stream = windows.conn-n, windows.stream-n
		windows.Unlock()
		if err := out.WriteData(stepsStream, false, message); err != nil {
			return nil // the reader has left
		}
	}
}
