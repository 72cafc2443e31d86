package plane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
)

func TestOpening(t *testing.T) {
	tp := &tape{in: begun()}
	play(t, tp, 1000)
	want := []string{
		"SETTINGS ack=false [ENABLE_PUSH = 0] [INITIAL_WINDOW_SIZE = 16777216] [MAX_HEADER_LIST_SIZE = 65536]",
		"WINDOW_UPDATE 0 67043329",
		`HEADERS end=false [header field ":method" = "POST" header field ":scheme" = "http"` +
			` header field ":path" = "/weir.plane.v1.Plane/Steps" header field ":authority" = "engine:1"` +
			` header field "content-type" = "application/grpc" header field "te" = "trailers" header field "user-agent" = "weir"]`,
		"DATA end=true 17", // prefix 5, session 9, name 3
	}
	if diff := cmp.Diff(want, spoken(t, tp.out.Bytes())); diff != "" || tp.writes != 1 {
		t.Errorf("%d writes, want 1; -want +got\n%s", tp.writes, diff)
	}
	if defaultWindow+67043329 != connWindow {
		t.Error("the connection's window is another one")
	}
	_, err := openSteps(t.Context(), &tape{}, "engine:1", "", 1000, nil, &planepb.StepsRequest{Gateway: strings.Repeat("g", maxFrame)})
	if err == nil || !strings.Contains(err.Error(), "gateway's name") {
		t.Errorf("error %v of a request that fits no frame", err)
	}
	_, err = openSteps(t.Context(), &tape{refuses: io.ErrClosedPipe}, "engine:1", "", 1000, nil, new(planepb.StepsRequest))
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v of a write that fails", err)
	}
}

// Each kind of frame: how many steps come of it, how the stream ends, and what
// weir answers.
func TestFrames(t *testing.T) {
	const limit = 1000
	ping := [8]byte([]byte("01234567"))
	eof := func(err error) bool { return err == io.EOF }
	is := func(code codes.Code, words string) func(error) bool {
		return func(err error) bool {
			_, ok := status.FromError(err)
			return ok && status.Code(err) == code && strings.Contains(err.Error(), words)
		}
	}
	oversized := func(err error) bool {
		var f *mux.Fault
		return errors.As(err, &f) && f.Reason == FaultOversized
	}
	well := func(w *wire) { w.head(true, "grpc-status", "0") }
	broke := is(codes.Unavailable, "EOF")
	ack := "SETTINGS ack=true "
	for _, c := range []struct {
		name  string
		wire  func(w *wire) // after a good beginning, or with bare: all of it
		bare  bool
		steps int
		end   func(error) bool
		says  []string // beyond the acknowledgement of the first SETTINGS
	}{
		{name: "clean end", wire: func(w *wire) { w.step(0); w.step(1); well(w) }, steps: 2, end: eof},
		{name: "several messages in a frame", wire: func(w *wire) {
			one := prefixed(marshal(&planepb.Step{Sequence: 0}))
			w.WriteData(stepsStream, false, slices.Concat(one, prefixed([]byte{8, 1}), prefixed([]byte{8, 2})))
			well(w)
		}, steps: 3, end: eof},
		{name: "a message over several frames", wire: func(w *wire) {
			b := slices.Concat(prefixed(nil), prefixed([]byte{8, 1}))
			for i := range b {
				w.WriteData(stepsStream, false, b[i:i+1])
				w.WriteData(stepsStream, false, nil)
			}
			well(w)
		}, steps: 2, end: eof},
		{name: "padding", wire: func(w *wire) {
			w.WriteDataPadded(stepsStream, false, prefixed(nil), make([]byte, 255))
			well(w)
		}, steps: 1, end: eof},
		{name: "padding beyond the frame", wire: func(w *wire) {
			w.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, stepsStream, []byte{9, 0})
		}, end: is(codes.Unavailable, "pad size")},
		{name: "compressed", wire: func(w *wire) { w.WriteData(stepsStream, false, []byte{1, 0, 0, 0, 0}) },
			end: is(codes.Internal, "compressed")},
		{name: "compressed, in pieces", wire: func(w *wire) {
			w.WriteData(stepsStream, false, []byte{1})
			w.WriteData(stepsStream, false, []byte{0, 0, 0, 0})
		}, end: is(codes.Internal, "compressed")},
		{name: "at the limit", wire: func(w *wire) {
			w.WriteData(stepsStream, false, prefixed(make([]byte, limit)))
			well(w)
		}, steps: 1, end: eof},
		{name: "over the limit", wire: func(w *wire) {
			w.step(0)
			w.WriteData(stepsStream, false, []byte{0, 0, 0, (limit + 1) >> 8, (limit + 1) & 0xff})
		}, steps: 1, end: oversized},
		{name: "over the limit, in pieces", wire: func(w *wire) {
			w.WriteData(stepsStream, false, []byte{0, 0xff, 0xff})
			w.WriteData(stepsStream, false, []byte{0xff, 0xff})
		}, end: oversized},

		{name: "SETTINGS", wire: func(w *wire) {
			w.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1}, http2.Setting{ID: 0x99, Val: 5})
			w.WriteSettings()
			w.step(0)
		}, steps: 1, end: broke, says: []string{ack, ack}},
		{name: "SETTINGS out of range", wire: func(w *wire) {
			w.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1})
		}, end: is(codes.Unavailable, "SETTINGS")},
		{name: "SETTINGS with half a setting", wire: func(w *wire) {
			w.WriteRawFrame(http2.FrameSettings, 0, 0, []byte{0, 1, 0})
		}, end: is(codes.Unavailable, "FRAME_SIZE_ERROR")},
		{name: "PING", wire: func(w *wire) {
			w.WritePing(false, ping)
			w.WritePing(true, [8]byte{}) // which nobody asked for
			w.step(0)
		}, steps: 1, end: broke, says: []string{"PING ack=true 01234567"}},
		{name: "WINDOW_UPDATE, PRIORITY and what is unknown", wire: func(w *wire) {
			w.WriteWindowUpdate(0, 1<<31-1)
			w.WriteWindowUpdate(0, 1<<31-1)
			w.WriteWindowUpdate(stepsStream, 1)
			w.WriteWindowUpdate(9, 1)
			w.WriteWindowUpdate(9, 0)
			w.WritePriority(stepsStream, http2.PriorityParam{StreamDep: 3, Weight: 1})
			w.WriteRawFrame(0xee, 0xff, stepsStream, []byte("later"))
			w.WriteRawFrame(0xee, 0xff, 0, []byte("later"))
			w.step(0)
		}, steps: 1, end: broke},
		{name: "WINDOW_UPDATE of nothing", wire: func(w *wire) { w.WriteWindowUpdate(stepsStream, 0) },
			end: is(codes.Internal, "PROTOCOL_ERROR")},

		{name: "GOAWAY that serves the stream", wire: func(w *wire) {
			w.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
			w.step(0)
			w.WriteGoAway(stepsStream, http2.ErrCodeNo, nil)
			w.step(1)
			well(w)
		}, steps: 2, end: eof},
		{name: "GOAWAY, and gone", wire: func(w *wire) {
			w.WriteGoAway(stepsStream, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings"))
			w.step(0)
		}, steps: 1, end: is(codes.Unavailable, `GOAWAY ENHANCE_YOUR_CALM "too_many_pings"`)},
		{name: "GOAWAY below the stream", wire: func(w *wire) {
			w.WriteGoAway(0, http2.ErrCodeNo, []byte("bye"))
			w.step(0)
		}, end: is(codes.Unavailable, "bye")},
		{name: "RST_STREAM CANCEL", wire: func(w *wire) { w.WriteRSTStream(stepsStream, http2.ErrCodeCancel) },
			end: is(codes.Canceled, "CANCEL")},
		{name: "RST_STREAM REFUSED_STREAM", wire: func(w *wire) { w.WriteRSTStream(stepsStream, http2.ErrCodeRefusedStream) },
			end: is(codes.Unavailable, "REFUSED_STREAM")},
		{name: "RST_STREAM INTERNAL_ERROR", wire: func(w *wire) { w.WriteRSTStream(stepsStream, http2.ErrCodeInternal) },
			end: is(codes.Internal, "INTERNAL_ERROR")},
		{name: "PUSH_PROMISE", wire: func(w *wire) {
			w.WritePushPromise(http2.PushPromiseParam{StreamID: stepsStream, PromiseID: 2, EndHeaders: true})
		}, end: is(codes.Unavailable, "PUSH_PROMISE")},
		{name: "DATA of a stranger", wire: func(w *wire) { w.WriteData(3, false, nil) }, end: is(codes.Unavailable, "stream 3")},
		{name: "HEADERS of a stranger", wire: func(w *wire) {
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: 2, BlockFragment: w.encode(":status", "200"), EndHeaders: true})
		}, end: is(codes.Unavailable, "stream 2")},
		{name: "RST_STREAM of a stranger", wire: func(w *wire) { w.WriteRSTStream(5, http2.ErrCodeCancel) },
			end: is(codes.Unavailable, "stream 5")},
		{name: "a frame too large", wire: func(w *wire) { w.WriteData(stepsStream, false, make([]byte, maxFrame+1)) },
			end: is(codes.Unavailable, "frame too large")},

		{name: "trailers", wire: func(w *wire) {
			w.step(0)
			w.head(true, "grpc-status", "14", "grpc-message", "caf%C3%A9 100%25", "later", "x")
		}, steps: 1, end: is(codes.Unavailable, "café 100%")},
		{name: "trailers with a message that is not escaped", wire: func(w *wire) {
			w.head(true, "grpc-status", "13", "grpc-message", "100% of it%")
		}, end: is(codes.Internal, "100% of it%")},
		{name: "trailers of a code beyond all", wire: func(w *wire) { w.head(true, "grpc-status", "4000000000") },
			end: is(4000000000, "")},
		{name: "trailers without status", wire: func(w *wire) { w.head(true, "grpc-message", "x") },
			end: is(codes.Internal, "grpc-status")},
		{name: "trailers with a status that is no number", wire: func(w *wire) { w.head(true, "grpc-status", "-1") },
			end: is(codes.Internal, `"-1"`)},
		{name: "trailers inside a message", wire: func(w *wire) {
			w.WriteData(stepsStream, false, []byte{0, 0, 0, 0, 2, 8})
			well(w)
		}, end: is(codes.Internal, "inside a message")},
		{name: "trailers in the middle", wire: func(w *wire) { w.head(false, "grpc-status", "0") },
			end: is(codes.Internal, "middle")},
		{name: "no trailers", wire: func(w *wire) { w.WriteData(stepsStream, true, prefixed(nil)) },
			steps: 1, end: is(codes.Internal, "without trailers")},
		{name: "trailers with CONTINUATION", wire: func(w *wire) {
			b := w.encode("grpc-status", "5", "grpc-message", "gone")
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: stepsStream, BlockFragment: b[:3], EndStream: true})
			w.WriteContinuation(stepsStream, false, nil)
			w.WriteContinuation(stepsStream, true, b[3:])
		}, end: is(codes.NotFound, "gone")},
		{name: "CONTINUATION of a stranger", wire: func(w *wire) {
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: stepsStream, BlockFragment: w.encode("a", "b")})
			w.WriteContinuation(3, true, nil)
		}, end: is(codes.Unavailable, "CONTINUATION")},
		{name: "DATA inside of headers", wire: func(w *wire) {
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: stepsStream, BlockFragment: w.encode("a", "b")})
			w.step(0)
		}, end: is(codes.Unavailable, "expected CONTINUATION")},
		{name: "CONTINUATION out of nowhere", wire: func(w *wire) { w.WriteContinuation(stepsStream, true, nil) },
			end: is(codes.Unavailable, "unexpected CONTINUATION")},
		{name: "CONTINUATION without end", wire: func(w *wire) {
			b := w.encode("a", strings.Repeat("b", 10_000))
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: stepsStream, BlockFragment: b, EndStream: true})
			for range 1000 {
				w.WriteContinuation(stepsStream, false, b)
			}
		}, end: is(codes.Unavailable, "PROTOCOL_ERROR")},
		{name: "a header list too long", wire: func(w *wire) {
			var fields []string
			for i := range maxHeaderList/4000 + 1 {
				fields = append(fields, fmt.Sprint("a", i), strings.Repeat("b", 4000))
			}
			b := w.encode(append(fields, "grpc-status", "0")...)
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: stepsStream, BlockFragment: b[:maxFrame], EndStream: true})
			for b = b[maxFrame:]; len(b) > maxFrame; b = b[maxFrame:] {
				w.WriteContinuation(stepsStream, false, b[:maxFrame])
			}
			w.WriteContinuation(stepsStream, true, b)
		}, end: is(codes.Internal, "header list of more than")},
		{name: "fields that do not decode", wire: func(w *wire) {
			w.WriteHeaders(http2.HeadersFrameParam{StreamID: stepsStream, BlockFragment: []byte{0xff, 0xff, 0xff}, EndHeaders: true})
		}, end: is(codes.Unavailable, "COMPRESSION_ERROR")},
		{name: "a field that is not valid", wire: func(w *wire) { w.head(true, "Grpc-Status", "0") },
			end: is(codes.Internal, "PROTOCOL_ERROR")},

		{name: "trailers only", bare: true, wire: func(w *wire) {
			w.WriteSettings()
			w.head(true, ":status", "200", "content-type", "application/grpc+proto", "grpc-status", "12", "grpc-message", "no such method")
		}, end: is(codes.Unimplemented, "no such method")},
		{name: "informational headers", bare: true, wire: func(w *wire) {
			w.WriteSettings()
			w.head(false, ":status", "103", "link", "x")
			w.head(false, ":status", "200", "content-type", "application/grpc;charset=utf-8")
			w.step(0)
			well(w)
		}, steps: 1, end: eof},
		{name: "a proxy that cannot reach the engine", bare: true, wire: func(w *wire) {
			w.WriteSettings()
			w.head(false, ":status", "503", "content-type", "text/html")
		}, end: is(codes.Unavailable, `"503", content type "text/html"`)},
		{name: "not found", bare: true, wire: func(w *wire) {
			w.WriteSettings()
			w.head(true, ":status", "404")
		}, end: is(codes.Unknown, `"404"`)},
		{name: "another content type", bare: true, wire: func(w *wire) {
			w.WriteSettings()
			w.head(false, ":status", "200", "content-type", "application/grpc-web")
		}, end: is(codes.Unknown, "application/grpc-web")},
		{name: "data before the headers", bare: true, wire: func(w *wire) {
			w.WriteSettings()
			w.step(0)
		}, end: is(codes.Internal, "before the headers")},
		{name: "no SETTINGS at first", bare: true, wire: func(w *wire) { w.WritePing(false, ping) },
			end: is(codes.Unavailable, "begins with PING"), says: []string{}},
		{name: "acknowledged SETTINGS at first", bare: true, wire: func(w *wire) { w.WriteSettingsAck() },
			end: is(codes.Unavailable, "instead of SETTINGS"), says: []string{}},
		{name: "HTTP/1.1", bare: true, wire: func(w *wire) { w.WriteString("HTTP/1.1 400 Bad Request\r\n\r\n") },
			end: is(codes.Unavailable, "HTTP/1.1"), says: []string{}},
		{name: "nothing", bare: true, wire: func(*wire) {}, end: broke, says: []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWire()
			if !c.bare {
				w = begun()
			}
			c.wire(w)
			tp := &tape{in: &w.Buffer}
			s := play(t, tp, limit)
			var f frame
			var err error
			steps := 0
			for err = s.recv(&f); err == nil; err = s.recv(&f) {
				if f.received == 0 {
					t.Fatal("a step without the time it was received")
				}
				steps++
			}
			if steps != c.steps || !c.end(err) {
				t.Errorf("%d steps, want %d, then %v", steps, c.steps, err)
			}
			// Pending acknowledgements are sent before the next wait for the socket, and so not
			// when there is no wait.
			if err := s.settle(); err != nil {
				t.Fatal(err)
			}
			says := spoken(t, tp.out.Bytes())[opening:]
			want := append([]string{ack}, c.says...)
			if c.says != nil && len(c.says) == 0 {
				want = []string{}
			}
			if diff := cmp.Diff(want, append([]string{}, says...)); diff != "" {
				t.Errorf("said, -want +got\n%s", diff)
			}
		})
	}
}

// However a good stream is cut into DATA frames, padded, mixed with other
// frames, and read in pieces, the same steps come out of it, and everything that
// asks for an answer gets it, in order.
func TestAnySplit(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		w := begun()
		var want []*planepb.Step
		var body []byte
		for i := range rapid.IntRange(1, 6).Draw(t, "steps") {
			step := &planepb.Step{Sequence: uint64(i), Running: rapid.Uint32().Draw(t, "running")}
			// Some are larger than a frame.
			n := rapid.OneOf(rapid.IntRange(0, 30), rapid.IntRange(0, 12_000)).Draw(t, "ids")
			for k := range n {
				step.Id = append(step.Id, uint32(k*7919))
			}
			want = append(want, step)
			body = append(body, prefixed(marshal(step))...)
		}
		var answers []string
		for len(body) > 0 {
			switch rapid.IntRange(0, 9).Draw(t, "frame") {
			case 0:
				data := [8]byte([]byte(rapid.StringMatching("[a-z]{8}").Draw(t, "ping")))
				w.WritePing(false, data)
				answers = append(answers, fmt.Sprintf("PING ack=true %s", data))
			case 1:
				w.WriteSettings()
				answers = append(answers, "SETTINGS ack=true ")
			case 2:
				w.WriteWindowUpdate(0, 1)
			case 3:
				w.WriteRawFrame(0x77, 0, stepsStream, []byte("whatever"))
			default:
				n := rapid.OneOf(rapid.IntRange(0, 9), rapid.IntRange(0, maxFrame-256)).Draw(t, "data")
				n = min(n, len(body))
				pad := make([]byte, rapid.SampledFrom([]int{0, 0, 1, 255}).Draw(t, "pad"))
				if len(pad) == 0 {
					pad = nil
				}
				w.WriteDataPadded(stepsStream, false, body[:n], pad)
				body = body[n:]
			}
		}
		w.head(true, "grpc-status", "0")
		whole := rapid.Bool().Draw(t, "whole reads")
		tp := &tape{in: &w.Buffer, chunk: func(n int) int {
			if whole {
				return n
			}
			return min(n, rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(1, 40_000)).Draw(t, "read"))
		}}
		s := play(outer, tp, 1<<20)
		var f frame
		for i := 0; ; i++ {
			err := s.recv(&f)
			if i == len(want) {
				if err != io.EOF {
					t.Fatalf("the stream ended with %v", err)
				}
				break
			}
			if err != nil || f.err != nil {
				t.Fatalf("step %d: %v, %v", i, err, f.err)
			}
			if f.size != proto.Size(want[i]) || f.received == 0 {
				t.Fatalf("size %d of %d, received %d", f.size, proto.Size(want[i]), f.received)
			}
			sameAsGenerated(t, &f, want[i])
		}
		if err := s.settle(); err != nil {
			t.Fatal(err)
		}
		says := spoken(outer, tp.out.Bytes())[opening+1:]
		if !slices.Equal(says, answers) {
			t.Fatalf("said %q, want %q", says, answers)
		}
	})
}

// Arbitrary bytes never panic the reader, never keep it, and never make it write
// what is no HTTP/2, or more than it was sent.
func FuzzSteps(f *testing.F) {
	add := func(build func(w *wire)) {
		w := begun()
		build(w)
		f.Add(w.Bytes(), uint16(0))
		f.Add(w.Bytes(), uint16(1))
		f.Add(w.Bytes()[:w.Len()*2/3], uint16(7))
	}
	add(func(w *wire) {
		w.step(0)
		w.step(1)
		w.head(true, "grpc-status", "14", "grpc-message", "%C3%A9")
	})
	add(func(w *wire) {
		w.WritePing(false, [8]byte{1})
		w.WriteDataPadded(stepsStream, false, prefixed([]byte{8, 1})[:4], []byte{0, 0})
		w.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
		w.WriteData(stepsStream, true, prefixed([]byte{8, 1})[4:])
	})
	add(func(w *wire) {
		w.WriteGoAway(1, http2.ErrCodeNo, []byte("x"))
		w.WriteWindowUpdate(3, 0)
		b := w.encode("grpc-status", "0")
		w.WriteHeaders(http2.HeadersFrameParam{StreamID: stepsStream, BlockFragment: b[:2], EndStream: true})
		w.WriteContinuation(stepsStream, true, b[2:])
	})
	add(func(w *wire) { w.WriteRSTStream(stepsStream, http2.ErrCodeCancel) })
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), uint16(0))
	f.Add([]byte(nil), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, chunk uint16) {
		tp := &tape{in: bytes.NewReader(b)}
		if chunk > 0 {
			tp.chunk = func(n int) int { return min(n, int(chunk)) }
		}
		s := play(t, tp, 1<<16)
		before := tp.out.Len()
		var fr frame
		var err error
		n := 0
		for err = s.recv(&fr); err == nil; err = s.recv(&fr) {
			if n++; n > len(b)/messagePrefix {
				t.Fatalf("%d steps of %d bytes", n, len(b))
			}
		}
		if _, ok := status.FromError(err); !ok && err != io.EOF && !errors.As(err, new(*mux.Fault)) {
			t.Fatalf("the stream ended with %v (%T)", err, err)
		}
		if err := s.settle(); err != nil {
			t.Fatal(err)
		}
		spoken(t, tp.out.Bytes())
		if got := tp.out.Len() - before; got > len(b) {
			t.Fatalf("%d bytes written for %d read", got, len(b))
		}
	})
}

// A flood of what must be answered is answered in few writes, and never holds
// more than a read buffer's worth.
func TestFloods(t *testing.T) {
	const n = 60_000
	w := begun()
	for i := range n / 2 {
		w.WritePing(false, [8]byte{byte(i)})
		w.WriteSettings()
	}
	w.step(0)
	size := w.Len()
	tp := &tape{in: &w.Buffer}
	s := play(t, tp, 1000)
	var f frame
	if err := s.recv(&f); err != nil {
		t.Fatal(err)
	}
	if most := size/readBuffer + 2; tp.writes > most || s.out.Cap() > 2*readBuffer {
		t.Errorf("%d writes, want at most %d; %d bytes kept", tp.writes, most, s.out.Cap())
	}
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	if got := len(spoken(t, tp.out.Bytes())) - opening; got != n+1 {
		t.Errorf("%d answers to %d", got, n+1)
	}
	// An engine that asks and does not read what it asked for is given up.
	w = begun()
	for range n {
		w.WritePing(false, [8]byte{})
	}
	tp = &tape{in: &w.Buffer}
	s = play(t, tp, 1000)
	tp.refuses = errors.New("i/o timeout")
	if err := s.recv(&f); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("error %v", err)
	}
}

// sender is an engine that keeps to the windows to the byte.
type sender struct {
	tape
	t            *testing.T
	conn, stream int // what may be sent
	read         *http2.Framer
	left         int // DATA frames to come
	sent         int
	next         func(i int) (data, pad []byte)
	w            *wire
}

func (e *sender) Read(p []byte) (int, error) {
	for {
		f, err := e.read.ReadFrame()
		if err != nil {
			break
		}
		if u, ok := f.(*http2.WindowUpdateFrame); ok {
			if u.StreamID == 0 {
				e.conn += int(u.Increment)
			} else {
				e.stream += int(u.Increment)
			}
			if e.conn > connWindow || e.stream > streamWindow {
				e.t.Fatalf("more was given back than taken: %d, %d", e.conn, e.stream)
			}
		}
	}
	for e.w.Len() == 0 {
		if e.left == 0 {
			return 0, io.EOF
		}
		data, pad := e.next(e.sent)
		n := len(data)
		if pad != nil {
			n += len(pad) + 1
		}
		if e.conn < n || e.stream < n {
			e.t.Fatalf("the sender stalls after %d frames: %d, %d left", e.sent, e.conn, e.stream)
		}
		e.conn, e.stream = e.conn-n, e.stream-n
		e.w.WriteDataPadded(stepsStream, false, data, pad)
		e.left--
		e.sent++
	}
	return e.w.Buffer.Read(p)
}

// Windows are given back in large portions, and before a sender that keeps to
// them has to wait.
func TestWindows(t *testing.T) {
	const limit = 16 << 20
	for name, next := range map[string]func(i int) (data, pad []byte){
		"large frames": func(i int) ([]byte, []byte) {
			const last = 1024 // the 1025th frame ends a message of 16 MiB
			b := make([]byte, maxFrame)
			switch i % (last + 1) {
			case 0:
				copy(b, []byte{0, limit >> 24, limit >> 16 & 0xff, limit >> 8 & 0xff, limit & 0xff})
			case last:
				b = b[:messagePrefix]
			}
			return b, nil
		},
		"mostly padding": func(int) ([]byte, []byte) { return prefixed([]byte{8, 1}), make([]byte, 255) },
	} {
		t.Run(name, func(t *testing.T) {
			frames := 6 * 1025
			if name != "large frames" {
				frames = 130_000
			}
			e := &sender{t: t, conn: defaultWindow, stream: streamWindow, left: frames, next: next, w: begun()}
			e.read = http2.NewFramer(nil, &e.out)
			s := play(t, &e.tape, limit)
			s.in.conn = e
			e.out.Next(len(http2.ClientPreface))
			var f frame
			var err error
			for err = s.recv(&f); err == nil; err = s.recv(&f) {
			}
			if !strings.Contains(err.Error(), "EOF") || e.sent != frames {
				t.Fatalf("%v after %d frames", err, e.sent)
			}
			if e.writes > 1+1+40 {
				t.Errorf("%d writes", e.writes)
			}
		})
	}
}

// endless plays the same bytes for ever, after a beginning.
type endless struct {
	tape
	begin *bytes.Buffer
	again []byte
	at    int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.begin.Len() > 0 {
		return e.begin.Read(p)
	}
	n := 0
	for n < len(p) {
		k := copy(p[n:], e.again[e.at:])
		n += k
		e.at = (e.at + k) % len(e.again)
	}
	return n, nil
}

// repeat is a stream that goes on as w does for ever.
func repeat(t testing.TB, w *wire) *stepStream {
	e := &endless{begin: &begun().Buffer, again: w.Bytes()}
	s := play(t, &e.tape, 1<<20)
	s.in.conn = e
	return s
}

func TestReaderDoesNotAllocate(t *testing.T) {
	w := newWire()
	var large []uint32
	for i := range uint32(20_000) {
		large = append(large, i)
	}
	body := slices.Concat(
		prefixed(marshal(&planepb.Step{Sequence: 1, Slot: []uint32{5}, Total: []uint32{6}, Id: []uint32{7}})),
		prefixed(marshal(&planepb.Step{Sequence: 2, Id: large})),
		prefixed(marshal(&planepb.Step{Sequence: 3, Slot: []uint32{5}, Total: []uint32{6}, Id: []uint32{7}})))
	for b := range slices.Chunk(body, maxFrame) {
		w.WriteData(stepsStream, false, b)
	}
	s := repeat(t, w)
	var f frame
	if n := testing.AllocsPerRun(300, func() {
		if err := s.recv(&f); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per step", n)
	}
}

func TestIsGRPC(t *testing.T) {
	for kind, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "Application/GRPC": true, "application/grpc; a=b": true,
		"application/grpc-web": false, "application/grpcs": false, "application/json": false, "": false,
	} {
		if isGRPC(kind) != want {
			t.Errorf("%q: %v", kind, !want)
		}
	}
}
