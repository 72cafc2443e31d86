package plane

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"weir/internal/engine/plane/planepb"
)

// wire writes an engine's end of the connection of the steps, right or wrong.
type wire struct {
	*http2.Framer
	bytes.Buffer
	block  bytes.Buffer
	fields *hpack.Encoder
}

func newWire() *wire {
	w := new(wire)
	w.Framer = http2.NewFramer(&w.Buffer, nil)
	w.AllowIllegalWrites = true
	w.fields = hpack.NewEncoder(&w.block)
	return w
}

// begun is a wire on which the call has begun well.
func begun() *wire {
	w := newWire()
	w.WriteSettings()
	w.WriteSettingsAck()
	w.head(false, ":status", "200", "content-type", "application/grpc")
	return w
}

// head writes a block of fields, given as names and values.
func (w *wire) head(end bool, fields ...string) {
	w.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stepsStream, BlockFragment: w.encode(fields...), EndHeaders: true, EndStream: end,
	})
}

func (w *wire) encode(fields ...string) []byte {
	w.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		w.fields.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return slices.Clone(w.block.Bytes())
}

// step writes a step in a DATA frame of its own.
func (w *wire) step(sequence uint64) {
	w.WriteData(stepsStream, false, prefixed(marshal(&planepb.Step{Sequence: sequence})))
}

func marshal(s *planepb.Step) []byte {
	b, err := proto.Marshal(s)
	if err != nil {
		panic(err)
	}
	return b
}

func prefixed(message []byte) []byte {
	b := append(make([]byte, messagePrefix), message...)
	binary.BigEndian.PutUint32(b[1:], uint32(len(message)))
	return b
}

// tape is a connection whose other end was recorded beforehand.
type tape struct {
	in      io.Reader
	chunk   func(int) int // how much of a read is served; nil: all
	out     bytes.Buffer
	writes  int
	refuses error // what writing fails with
}

func (t *tape) Read(p []byte) (int, error) {
	if t.chunk != nil {
		p = p[:t.chunk(len(p))]
	}
	return t.in.Read(p)
}

func (t *tape) Write(p []byte) (int, error) {
	if t.refuses != nil {
		return 0, t.refuses
	}
	t.writes++
	return t.out.Write(p)
}

func (t *tape) Close() error                     { return nil }
func (t *tape) LocalAddr() net.Addr              { return nil }
func (t *tape) RemoteAddr() net.Addr             { return nil }
func (t *tape) SetDeadline(time.Time) error      { return nil }
func (t *tape) SetReadDeadline(time.Time) error  { return nil }
func (t *tape) SetWriteDeadline(time.Time) error { return nil }

// play opens a call on a tape.
func play(t testing.TB, tp *tape, limit int) *stepStream {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := openSteps(ctx, tp, "engine:1", "", limit, new(atomic.Uint64), &planepb.StepsRequest{Session: 7, Gateway: "g"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); <-s.closed })
	return s
}

// spoken says in words what weir has written after the opening of the call.
func spoken(t testing.TB, out []byte) []string {
	t.Helper()
	b, ok := bytes.CutPrefix(out, []byte(http2.ClientPreface))
	if !ok {
		t.Fatalf("no preface: %q", out)
	}
	f := http2.NewFramer(nil, bytes.NewReader(b))
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var all []string
	for {
		x, err := f.ReadFrame()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("weir wrote what is no frame: %v", err)
		}
		switch x := x.(type) {
		case *http2.SettingsFrame:
			var each []string
			x.ForeachSetting(func(s http2.Setting) error {
				each = append(each, s.String())
				return nil
			})
			all = append(all, fmt.Sprintf("SETTINGS ack=%v %s", x.IsAck(), strings.Join(each, " ")))
		case *http2.PingFrame:
			all = append(all, fmt.Sprintf("PING ack=%v %s", x.IsAck(), x.Data[:]))
		case *http2.WindowUpdateFrame:
			all = append(all, fmt.Sprintf("WINDOW_UPDATE %d %d", x.StreamID, x.Increment))
		case *http2.MetaHeadersFrame:
			all = append(all, fmt.Sprintf("HEADERS end=%v %v", x.StreamEnded(), x.Fields))
		case *http2.DataFrame:
			all = append(all, fmt.Sprintf("DATA end=%v %d", x.StreamEnded(), len(x.Data())))
		default:
			t.Fatalf("weir wrote %v", x)
		}
	}
	return all
}

// opening is how many frames open the call.
const opening = 4
