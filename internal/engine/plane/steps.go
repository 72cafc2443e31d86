package plane

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"weir/internal/engine/plane/planepb"
	"weir/internal/trace"
)

// stepStream is the Steps call, on a connection of its own.
//
// It carries one message per engine step, which makes it the hot path of weir: at a
// thousand small steps a second, the fixed cost of a message is a large part of the
// gateway's CPU time. Most of that cost is wake-ups and not decoding: gRPC's client
// reads the socket in one goroutine and passes each message to another, which usually
// sleeps on another thread. Here a single goroutine, the session's reader, reads the
// socket, removes the framing of HTTP/2 and gRPC, and decodes and dispatches the
// messages. There is no wait between the socket and the sinks, and no allocation in
// steady state.
//
// Invariants:
//
//   - Only the reader reads. The reader and the keeper write, under mu, with a
//     deadline, a few bytes at a time. The reader sends all pending acknowledgements in
//     one write before it waits for the socket again.
//   - The cost of the engine's output is proportional to its bytes: pending
//     acknowledgements are bounded by the read buffer, a message by its limit, and a
//     block of headers by maxHeaderList.
//   - Flow-control windows are replenished half a window at a time, so that a compliant
//     engine only ever waits for the reader.
//   - The connection is closed when its context ends, and by nothing else.
type stepStream struct {
	in     inlet
	conn   net.Conn
	framer *http2.Framer // reads are the reader's, writes go to out
	// Fields of every call's header.
	authority, key string

	closed   chan struct{} // the context has ended and the connection is closed
	messages messages
	answer   answer

	// The reader's.
	greeted bool   // the engine's SETTINGS have come
	ended   bool   // END_STREAM came with DATA
	window  uint32 // bytes received that were not given back yet
	goAway  error  // what the engine has said about its leaving

	// The stream that hands in requests.
	subs     *submissions
	handing  answer
	forsaken func(error) // called when the engine ends it; nil while there is none
	over     bool        // it has ended
	initial  uint32      // window that the engine gives a new stream
	streams  uint32      // that the engine takes at a time

	unacked atomic.Int32 // SETTINGS of ours that were not acknowledged yet

	mu  sync.Mutex
	out bytes.Buffer // frames that are to be written
}

// The one stream of the connection.
const stepsStream = 1

const (
	// maxHeaderList bounds the engine's headers and trailers, decoded.
	maxHeaderList = 64 << 10
	// maxFrame is HTTP/2's default, of which no engine may send more without our
	// leave. A larger one would save a copy and cost a buffer.
	maxFrame = 16 << 10
	// writeTimeout is how long a write may take. Only an engine that has long
	// stopped to read makes one wait at all.
	writeTimeout = 5 * time.Second
	// defaultWindow is the window that HTTP/2 gives a connection to begin with.
	defaultWindow = 1<<16 - 1
)

// openSteps makes the call on a new connection, in one write; the first recv returns the
// outcome. key is the authorization, or empty. The stream owns the connection from now on,
// also if openSteps fails. heard counts reads.
func openSteps(ctx context.Context, conn net.Conn, authority, key string, limit int, heard *atomic.Uint64, req *planepb.StepsRequest) (*stepStream, error) {
	s := &stepStream{
		conn: conn, authority: authority, key: key, closed: make(chan struct{}), messages: messages{limit: limit},
		initial: defaultWindow, streams: math.MaxUint32,
	}
	context.AfterFunc(ctx, func() {
		defer close(s.closed)
		conn.Close()
	})
	s.in = inlet{conn: conn, heard: heard, before: s.settle}
	s.framer = http2.NewFramer(&s.out, bufio.NewReaderSize(&s.in, readBuffer))
	s.framer.SetReuseFrames()
	s.framer.SetMaxReadFrameSize(maxFrame)
	s.framer.MaxHeaderListSize = maxHeaderList
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)

	message, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, messagePrefix), req)
	if err != nil {
		return s, err
	}
	n := len(message) - messagePrefix
	if len(message) > maxFrame {
		return s, fmt.Errorf("a request of %d bytes, of at most %d; shorten the gateway's name", n, maxFrame-messagePrefix)
	}
	message[1], message[2], message[3], message[4] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for _, f := range s.header(planepb.Plane_Steps_FullMethodName) {
		if err := fields.WriteField(f); err != nil {
			return s, err
		}
	}
	s.unacked.Store(1)
	s.subs = &submissions{steps: s, wake: make(chan struct{}, 1), room: defaultWindow, conn: window(defaultWindow - len(message))}
	return s, s.write(func(f *http2.Framer) error {
		s.out.WriteString(http2.ClientPreface)
		return errors.Join(
			f.WriteSettings(
				http2.Setting{ID: http2.SettingEnablePush, Val: 0},
				http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
				http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHeaderList}),
			f.WriteWindowUpdate(0, connWindow-defaultWindow),
			f.WriteHeaders(http2.HeadersFrameParam{StreamID: stepsStream, BlockFragment: block.Bytes(), EndHeaders: true}),
			f.WriteData(stepsStream, true, message))
	})
}

// header is that of a call.
func (s *stepStream) header(path string) []hpack.HeaderField {
	scheme := "http"
	if _, ok := s.conn.(*tls.Conn); ok {
		scheme = "https"
	}
	header := []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: scheme},
		{Name: ":path", Value: path},
		{Name: ":authority", Value: s.authority},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
		{Name: "user-agent", Value: "weir"},
	}
	if s.key != "" {
		header = append(header, hpack.HeaderField{Name: "authorization", Value: s.key, Sensitive: true})
	}
	return header
}

// recv reads the next message into f; one that is malformed is noted in f, for
// the dispatcher to judge. An error ends the stream: io.EOF, a status, as gRPC's
// own client would give them, or a *Fault without evidence.
func (s *stepStream) recv(f *frame) error {
	for {
		msg, ok, err := s.messages.next()
		if err != nil {
			return err
		}
		if ok {
			f.received, f.size = s.in.at, len(msg)
			f.err = f.decode(msg)
			return nil
		}
		if err := s.advance(); err != nil {
			return err
		}
	}
}

// advance reads one frame of HTTP/2 and does what it asks for.
func (s *stepStream) advance() error {
	if s.ended {
		return status.Error(codes.Internal, "the stream ended without trailers")
	}
	f, err := s.framer.ReadFrame()
	if err != nil {
		return s.broken(err)
	}
	if !s.greeted {
		if x, ok := f.(*http2.SettingsFrame); !ok || x.IsAck() {
			return violation("the connection begins with %v instead of SETTINGS", f.Header().Type)
		}
		s.greeted = true
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		return s.data(f)
	case *http2.MetaHeadersFrame:
		if s.isSubmissions(f.StreamID) {
			if err := s.handing.headers(f); err != nil {
				return s.forsake(err)
			}
			return nil
		}
		if f.StreamID != stepsStream {
			return stranger(f.FrameHeader)
		}
		if err := s.answer.headers(f); err != nil {
			return s.last(err)
		}
	case *http2.RSTStreamFrame:
		if s.isSubmissions(f.StreamID) {
			return s.forsake(status.Errorf(resetCode(f.ErrCode), "the engine reset the call of submissions: %v", f.ErrCode))
		}
		if f.StreamID != stepsStream {
			return stranger(f.FrameHeader)
		}
		return status.Errorf(resetCode(f.ErrCode), "the engine reset the stream: %v", f.ErrCode)
	case *http2.PushPromiseFrame:
		return violation("a PUSH_PROMISE, which is switched off")
	case *http2.SettingsFrame:
		if f.IsAck() {
			s.unacked.Add(-1)
			return nil
		}
		if err := f.ForeachSetting(http2.Setting.Valid); err != nil {
			return violation("SETTINGS that are not valid: %v", err)
		}
		s.settings(f)
		return s.owe(func(w *http2.Framer) error { return w.WriteSettingsAck() })
	case *http2.PingFrame:
		if !f.IsAck() {
			return s.owe(func(w *http2.Framer) error { return w.WritePing(true, f.Data) })
		}
	case *http2.GoAwayFrame:
		s.goAway = fmt.Errorf("GOAWAY %v %q", f.ErrCode, f.DebugData())
		if f.LastStreamID < stepsStream {
			return status.Errorf(codes.Unavailable, "the engine refused the stream: %v", s.goAway)
		}
		// It is leaving, but serves what it has. A new request gets its answer from Submit.
		s.subs.end()
		if f.LastStreamID < submissionsStream {
			return s.forsake(status.Errorf(codes.Unavailable, "the engine refused the call of submissions: %v", s.goAway))
		}
	case *http2.WindowUpdateFrame:
		s.subs.widen(f.StreamID, f.Increment)
	}
	// PRIORITY and unknown frames may be ignored.
	return nil
}

// isSubmissions reports whether a frame belongs to the stream that hands in requests.
func (s *stepStream) isSubmissions(stream uint32) bool {
	return stream == submissionsStream && s.forsaken != nil
}

// forsake ends the stream that hands in requests, because the engine has. The steps go on.
func (s *stepStream) forsake(why error) error {
	if s.over || s.forsaken == nil {
		return nil
	}
	s.over = true
	s.forsaken(why)
	return nil
}

// settings takes in those of the engine that matter to weir's requests.
func (s *stepStream) settings(f *http2.SettingsFrame) {
	_ = f.ForeachSetting(func(x http2.Setting) error {
		switch x.ID {
		case http2.SettingInitialWindowSize:
			s.subs.resize(int64(x.Val) - int64(s.initial))
			s.initial = x.Val
		case http2.SettingMaxConcurrentStreams:
			s.streams = x.Val
		}
		return nil
	})
}

// data takes in a DATA frame. Its padding counts against the windows too.
func (s *stepStream) data(f *http2.DataFrame) error {
	switch {
	case s.isSubmissions(f.StreamID): // the call's reply, which says nothing
		if f.StreamEnded() {
			return s.forsake(status.Error(codes.Internal, "the call of submissions ended without trailers"))
		}
	case f.StreamID != stepsStream:
		return stranger(f.FrameHeader)
	case !s.answer.began:
		return status.Error(codes.Internal, "data before the headers")
	}
	if f.StreamID == stepsStream {
		s.messages.feed(f.Data())
		s.ended = f.StreamEnded()
	}
	if s.window += f.Length; s.window < streamWindow/2 {
		return nil
	}
	given := s.window
	s.window = 0
	return s.owe(func(w *http2.Framer) error {
		return errors.Join(w.WriteWindowUpdate(0, given), w.WriteWindowUpdate(stepsStream, given))
	})
}

// last judges the trailers' verdict: an end that is well must not come inside a
// message.
func (s *stepStream) last(err error) error {
	if err == io.EOF && s.messages.partial() {
		return status.Error(codes.Internal, "the stream ended inside a message")
	}
	return err
}

// broken judges an error of reading a frame. One that concerns a stream which
// does not exist is none.
func (s *stepStream) broken(err error) error {
	var stream http2.StreamError
	if errors.As(err, &stream) {
		if s.isSubmissions(stream.StreamID) {
			return s.forsake(status.Errorf(codes.Internal, "not valid HTTP/2: %v", err))
		}
		if stream.StreamID != stepsStream {
			return nil
		}
		return status.Errorf(codes.Internal, "not valid HTTP/2: %v", err)
	}
	if detail := s.framer.ErrorDetail(); detail != nil {
		err = fmt.Errorf("%w: %w", err, detail)
	}
	if s.goAway != nil {
		err = fmt.Errorf("%w, after %w", err, s.goAway)
	}
	return status.Errorf(codes.Unavailable, "the connection of the steps broke: %v", err)
}

// violation returns the error that ends a connection whose peer violates HTTP/2,
// because no later frame can be trusted.
func violation(format string, args ...any) error {
	return status.Errorf(codes.Unavailable, "not valid HTTP/2: "+format, args...)
}

func stranger(h http2.FrameHeader) error {
	return violation("%v for stream %d, which does not exist", h.Type, h.StreamID)
}

// owe puts frames of the reader's with what is to be written before it next
// waits for the socket.
func (s *stepStream) owe(frames func(*http2.Framer) error) error {
	s.in.owes = true
	s.mu.Lock()
	defer s.mu.Unlock()
	return frames(s.framer)
}

// settle writes what the reader owes.
func (s *stepStream) settle() error {
	return s.write(func(*http2.Framer) error { return nil })
}

// write writes frames at once, after those that are owed.
func (s *stepStream) write(frames func(*http2.Framer) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := frames(s.framer); err != nil {
		return err
	}
	if s.out.Len() == 0 {
		return nil
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := s.out.WriteTo(s.conn)
	return err
}

// probe requests a sign of life, unless an earlier one is still due.
//
// It sends an empty SETTINGS, which the other end of any HTTP/2 connection must
// acknowledge at once, where one would expect a PING. But gRPC's servers count PINGs:
// by default they end a connection that brings more than two of them within 5 minutes
// of each other while the server itself sends nothing, as an idle engine does. TCP's
// keep-alive would also work between two hosts, but not through a TCP proxy, and not
// every connection that Options.Dial returns has it.
func (s *stepStream) probe() {
	if s.unacked.Load() > 0 {
		return
	}
	s.unacked.Add(1)
	// When it fails the reader knows why, or the watchdog soon will.
	_ = s.write(func(w *http2.Framer) error { return w.WriteSettings() })
}

// inlet is the socket's reading end. It stamps what it reads.
type inlet struct {
	conn   net.Conn
	heard  *atomic.Uint64 // reads that gave something
	before func() error   // called before waiting, when owes is set
	owes   bool
	at     int64 // when the last read returned, trace.Now
}

func (in *inlet) Read(p []byte) (int, error) {
	if in.owes {
		in.owes = false
		if err := in.before(); err != nil {
			return 0, err
		}
	}
	n, err := in.conn.Read(p)
	in.at = trace.Now()
	if n > 0 {
		in.heard.Add(1)
	}
	return n, err
}
