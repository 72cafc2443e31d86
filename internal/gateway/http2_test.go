package gateway

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"weir/internal/gateway/front"
	"weir/internal/infer"
)

// streams is one connection to the gateway that speaks HTTP/2 by its frames.
type streams struct {
	b      *bench
	conn   *memConn
	stream uint32 // the latest
	in     []byte
	goAway bool
	data   map[uint32][]byte
	ended  map[uint32]bool
	reset  map[uint32]bool
}

// dialHTTP2 opens a connection.
func (b *bench) dialHTTP2() *streams {
	b.protocols.SetUnencryptedHTTP2(true)
	s := &streams{b: b, conn: b.net.dial(4 << 20), data: map[uint32][]byte{}, ended: map[uint32]bool{}, reset: map[uint32]bool{}}
	s.write(func(f *http2.Framer) error {
		return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	}, http2.ClientPreface)
	return s
}

// write writes frames, behind some bytes.
func (s *streams) write(frames func(f *http2.Framer) error, before ...string) {
	s.b.t.Helper()
	var out bytes.Buffer
	for _, b := range before {
		out.WriteString(b)
	}
	if err := frames(http2.NewFramer(&out, nil)); err != nil {
		s.b.t.Fatal(err)
	}
	if _, err := s.conn.Write(out.Bytes()); err != nil {
		s.b.t.Errorf("client's write: %v", err)
	}
}

// open begins a request, whose body is declared whole and of which as much is sent as
// there is; c is it, for its record.
func (s *streams) open(path, body string, declared int) (c *caller, stream uint32) {
	c, stream, ask := s.request(path, body, declared)
	s.write(ask)
	return c, stream
}

// request is one to be opened, as frames.
func (s *streams) request(path, body string, declared int) (c *caller, stream uint32, ask func(f *http2.Framer) error) {
	s.b.nextID++
	c = &caller{b: s.b, conn: s.conn, id: fmt.Sprintf("test-%d", s.b.nextID), method: "POST"}
	s.b.sent[c.id]++
	s.stream = max(1, s.stream+2)
	if s.stream%2 == 0 {
		s.stream++
	}
	stream = s.stream
	var head bytes.Buffer
	fields := hpack.NewEncoder(&head)
	fields.SetMaxDynamicTableSize(0)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "weir"}, {":path", path},
		{"content-type", "application/json"}, {"content-length", strconv.Itoa(declared)}, {"x-request-id", c.id}} {
		if err := fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			s.b.t.Fatal(err)
		}
	}
	return c, stream, func(f *http2.Framer) error {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: true}); err != nil {
			return err
		}
		for len(body) > 0 {
			part := body[:min(len(body), 16<<10)]
			declared -= len(part)
			if err := f.WriteData(stream, declared == 0, []byte(part)); err != nil {
				return err
			}
			body = body[len(part):]
		}
		return nil
	}
}

// cancel resets a stream.
func (s *streams) cancel(stream uint32) {
	s.write(func(f *http2.Framer) error { return f.WriteRSTStream(stream, http2.ErrCodeCancel) })
}

// read takes the frames that have arrived once everybody waits.
func (s *streams) read() {
	s.b.t.Helper()
	synctest.Wait()
	arrived, _ := s.conn.drain()
	s.in = append(s.in, arrived...)
	for {
		r := bytes.NewReader(s.in)
		f, err := http2.NewFramer(nil, r).ReadFrame()
		if err != nil {
			return // not all of it is here
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			s.goAway = true
		case *http2.DataFrame:
			s.data[f.StreamID] = append(s.data[f.StreamID], f.Data()...)
			s.ended[f.StreamID] = s.ended[f.StreamID] || f.StreamEnded()
		case *http2.RSTStreamFrame:
			s.reset[f.StreamID] = true
		}
		s.in = s.in[len(s.in)-r.Len():]
	}
}

// A connection that resets streams as they begin is told to go away; its other streams
// come to their end, and none begins. One that cancels often is not, nor one whose
// streams mostly come to something.
func TestRapidReset(t *testing.T) {
	e := &tokenEngine{name: "a"}
	begin := func(s *streams, n int) {
		var opened []uint32
		for range n {
			_, stream := s.open(chatPath, "", 1) // whose body does not come: the cheapest to begin
			opened = append(opened, stream)
		}
		synctest.Wait()
		for _, stream := range opened {
			s.cancel(stream)
		}
		s.read()
	}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		s := b.dialHTTP2()
		defer s.conn.Close()
		_, good := s.open(chatPath, askStream(``), len(askStream(``)))
		stays := e.call(t, 1)
		for range 25 { // more than may come at once, at nine tenths of the rate
			begin(s, front.ResetRate*9/10)
			time.Sleep(time.Second)
		}
		begin(s, front.MaxStreams-1) // and once all that a client can have open
		if s.read(); s.goAway {
			t.Fatal("a client that cancels often is told to go away")
		}
		n := 0
		for ; !s.goAway && n < 4*front.ResetBurst; n += 100 {
			begin(s, 100)
		}
		if !s.goAway || n < front.ResetBurst-front.MaxStreams || n > front.ResetBurst {
			t.Fatalf("go away %v after %d more resets", s.goAway, n)
		}
		calls := len(e.handed())
		_, late := s.open(chatPath, askStream(``), len(askStream(``)))
		if s.read(); len(e.handed()) != calls || len(s.data[late]) > 0 {
			t.Errorf("a stream has begun behind the GOAWAY")
		}
		b.sent[fmt.Sprintf("test-%d", b.nextID)]--
		stays.end(infer.ReasonStop, words()[0])
		if s.read(); !s.ended[good] || !bytes.Contains(s.data[good], []byte("[DONE]")) {
			t.Errorf("the stream that was open: ended %v, %q", s.ended[good], s.data[good])
		}
	})
}

// Streams that are reset right behind their requests, in the same bytes, never begin: none
// is received, no engine has any of them, and they are counted. One among them that is
// not reset is served.
func TestResetBeforeItBegins(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		s := b.dialHTTP2()
		defer s.conn.Close()
		var stays uint32
		s.write(func(f *http2.Framer) error {
			for i := range 101 {
				c, stream, ask := s.request(chatPath, askStream(``), len(askStream(``)))
				if err := ask(f); err != nil {
					return err
				}
				if i == 70 {
					stays = stream
					continue
				}
				b.sent[c.id]--
				if err := f.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
					return err
				}
			}
			return nil
		})
		s.read()
		if n := b.sum("weir_requests_received_total"); n != 1 || e.count() != 1 {
			t.Fatalf("%v requests received and %d at the engine, want the one that was not reset", n, e.count())
		}
		if all := b.metric("weir_http2_streams_cancelled_total"); len(all) != 1 || all[0].value != 100 || all[0].labels["begun"] != "false" {
			t.Errorf("counted %v, want 100 streams that never began", all)
		}
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		if s.read(); !s.ended[stays] {
			t.Error("the stream that was not reset has no end")
		}
	})
}
