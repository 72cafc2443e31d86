//go:build linux

package neighbour

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// Kind is a way to be a bad neighbour.
type Kind string

// The kinds.
const (
	SlowUpload    Kind = "slow upload"         // bodies begin well, and then come a byte at a time
	StalledReader Kind = "stalled reader"      // streams that nobody reads
	HalfClose     Kind = "half-close"          // the sending side ends behind the request
	BytesAhead    Kind = "bytes ahead"         // more bytes behind the request, and a hang-up behind those
	Reset         Kind = "reset"               // connections, of HTTP/2 streams too, reset at every point of a request
	HugeField     Kind = "huge field"          // fields and heads as long as they may be, and longer
	NoDescriptors Kind = "missing descriptors" // more connections than the gateway has descriptors for
	FullDisk      Kind = "full disk"           // requests whose records find no room
	Idle          Kind = "idle connections"    // as many as there may be
)

// Kinds are all of them.
var Kinds = []Kind{SlowUpload, StalledReader, HalfClose, BytesAhead, Reset, HugeField, NoDescriptors, FullDisk, Idle}

// badOrder describes the behaviour of a bad neighbour.
type badOrder struct {
	Kind Kind
	Scale
}

// badState is what a bad neighbour prints.
type badState struct {
	Standing int            // uploads, streams or connections that stand now
	Done     int            // that came and went
	Answers  map[string]int // statuses, and errors of a kind
}

// bad is a bad neighbour.
type bad struct {
	target
	order     badOrder
	dialer    *dialer
	transport *http.Transport
	slots     chan struct{} // of those that connect to stay

	mu    sync.Mutex
	state badState
}

// runBad misbehaves until standard input ends.
func runBad(g target, o badOrder) error {
	b := &bad{target: g, order: o, slots: make(chan struct{}, 64), state: badState{Answers: map[string]int{}}}
	var err error
	if b.dialer, err = g.dialer(); err != nil {
		return err
	}
	if b.transport, err = g.transport(); err != nil {
		return err
	}
	b.dialer.narrow = o.Kind == StalledReader
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range o.Many {
		all.Go(func() {
			for turn := i; ctx.Err() == nil; turn += o.Many {
				b.count(b.one(ctx, turn))
				pause(ctx, o.Pace)
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			cancel()
			all.Wait()
			return nil
		case <-tick.C:
			b.mu.Lock()
			print(b.state)
			b.mu.Unlock()
		}
	}
}

// pause waits, or until the neighbour is to end.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (b *bad) count(answer string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Done++
	b.state.Answers[answer]++
}

// stands counts one that stands while it does.
func (b *bad) stands() (over func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Standing++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.state.Standing--
	}
}

// one does it once, and gives the answer in a word.
func (b *bad) one(ctx context.Context, turn int) string {
	switch b.order.Kind {
	case SlowUpload:
		return b.slowUpload(ctx)
	case HugeField:
		return b.hugeField(ctx, turn)
	case FullDisk:
		return b.post(ctx, strings.NewReader(chat(2, false, "hi")))
	}
	free := func() {}
	if b.order.Kind == Idle { // thousands at once would find the backlog full
		select {
		case b.slots <- struct{}{}:
			free = sync.OnceFunc(func() { <-b.slots })
			defer free()
		case <-ctx.Done():
			return word(ctx.Err())
		}
	}
	return b.over(ctx, func(conn *bare) string {
		switch b.order.Kind {
		case StalledReader:
			return b.stalledReader(ctx, conn)
		case HalfClose:
			return b.halfClose(conn)
		case BytesAhead:
			return b.bytesAhead(conn)
		case Reset:
			return b.resets(conn, turn)
		default:
			return b.idle(ctx, conn, free)
		}
	})
}

// over does something over a connection of its own, which ends with ctx.
func (b *bad) over(ctx context.Context, do func(conn *bare) string) string {
	conn, err := b.dialer.dial(ctx)
	if err != nil {
		return word(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.tcp.Close() })
	defer stop()
	return do(conn)
}

// word returns an error in a word.
func word(err error) string {
	if errors.Is(err, context.Canceled) {
		return "over"
	}
	return "error"
}

// chat is the body of a request.
func chat(tokens int, stream bool, content string) string {
	return fmt.Sprintf(`{"model":"weir-sim","stream":%t,"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, stream, tokens, content)
}

// endless is the body of a request for a stream that nobody reads to its end.
var endless = chat(50_000, true, "go on")

const chats = "/v1/chat/completions"

// post sends a body by net/http and reads the answer.
func (b *bad) post(ctx context.Context, body io.Reader) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url()+chats, body)
	if err != nil {
		return word(err)
	}
	if up, ok := body.(*upload); ok {
		req.ContentLength = int64(up.size)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := b.transport.RoundTrip(req)
	if err != nil {
		return word(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // an answer that is cut has its status all the same
	return strconv.Itoa(resp.StatusCode)
}

// upload is a body whose first three quarters come at once. The rest comes byte by byte while the
// upload lasts.
type upload struct {
	ctx  context.Context
	size int
	at   int
	slow func() (over func())
	over func()
}

func (u *upload) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	if quick := u.size * 3 / 4; u.at < quick {
		n := min(len(p), quick-u.at)
		for i := range p[:n] {
			p[i] = 'x'
		}
		if u.at == 0 {
			copy(p, `{"model":"weir-sim","messages":[{"role":"user","content":"`)
		}
		u.at += n
		return n, nil
	}
	if u.over == nil {
		u.over = u.slow()
	}
	pause(u.ctx, 50*time.Millisecond)
	p[0] = 'x'
	u.at++
	return 1, nil
}

func (u *upload) Close() error {
	if u.over != nil {
		u.over()
		u.over = nil
	}
	return nil
}

func (b *bad) slowUpload(ctx context.Context) string {
	return b.post(ctx, &upload{ctx: ctx, size: b.order.Bytes, slow: b.stands})
}

// hugeField sends one field or head that is as long as it may be, and longer.
func (b *bad) hugeField(ctx context.Context, turn int) string {
	long := strings.Repeat("a", b.order.Bytes)
	body := ""
	switch turn % 8 {
	case 0:
		body = `{"model":"weir-sim","prompt":"hi","n":128,"max_tokens":4,"stop":["` + long + `"],"messages":[{"role":"user","content":"hi"}]}`
	case 1:
		body = `{"model":"weir-sim","max_tokens":4,"messages":[{"role":"user","content":"` + long + `"}]}`
	case 2:
		body = `{"model":"weir-sim","max_tokens":4,"messages":[{"role":"user","content":"` + strings.Repeat("go on ", b.order.Bytes/6) + `"}]}`
	case 3:
		body = `{"model":"weir-sim","max_tokens":4,"user":"` + long + `","messages":[{"role":"user","content":"hi"}]}`
	case 4:
		body = `{"model":"weir-sim","max_tokens":4,"messages":` + strings.Repeat("[", b.order.Bytes) + `}`
	case 5:
		body = `{"model":"weir-sim","max_tokens":1` + strings.Repeat("0", b.order.Bytes) + `,"messages":[{"role":"user","content":"hi"}]}`
	case 6:
		body = `{"model":"weir-sim","max_tokens":4,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"` + long + `":{"type":"string"}}}}}],"messages":[{"role":"user","content":"hi"}]}`
	default:
		return b.over(ctx, b.longHead)
	}
	return b.post(ctx, strings.NewReader(body))
}

// longHead sends a head of a megabyte, far beyond any bound.
func (b *bad) longHead(conn *bare) string {
	long := bytes.Repeat([]byte("a"), 1<<20)
	head := append([]byte("GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Long: "), long...)
	if b.Protocol == HTTP2 {
		head = append(b.opening(), frames(func(f *http2.Framer) error {
			// A field that is not indexed, of a name of 6 bytes and a value that goes on
			// over many frames.
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: append([]byte("\x00\x06x-long\x7f\x81\xff\x3f"), long[:1000]...)})
			for at := 1000; at < len(long) && err == nil; at += 16000 {
				err = f.WriteContinuation(1, false, long[at:min(len(long), at+16000)])
			}
			return err
		})...)
	}
	if _, err := conn.Write(head); err != nil {
		return "refused" // before it had all
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return word(err)
	}
	answer, err := io.ReadAll(conn)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "unanswered"
	case bytes.HasPrefix(answer, []byte("HTTP/1.1 431 ")):
		return "431"
	}
	return "refused"
}

// stalledReader asks for streams and reads nothing.
func (b *bad) stalledReader(ctx context.Context, conn *bare) string {
	ask := b.opening()
	streams := 1
	if b.Protocol == HTTP2 {
		streams = 4 // each stands in its window, and the connection in TCP's
	}
	for i := range streams {
		ask = append(ask, b.request(uint32(2*i+1), http.MethodPost, chats, endless)...)
	}
	if _, err := conn.Write(ask); err != nil {
		return word(err)
	}
	defer b.stands()()
	pause(ctx, 10*time.Second)
	return "left"
}

// read reads a little of an answer.
func read(conn *bare, least int) error {
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	_, err := io.ReadAtLeast(conn, make([]byte, max(least, 4096)), least)
	return err
}

// halfClose ends its sending side behind a request, and reads on to the end.
func (b *bad) halfClose(conn *bare) string {
	if _, err := conn.Write(append(b.opening(), b.request(1, http.MethodPost, chats, endless)...)); err != nil {
		return word(err)
	}
	if err := conn.halfClose(); err != nil {
		return word(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return word(err)
	}
	_, err := io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "served on"
	}
	return "closed"
}

// bytesAhead sends more behind its request, and hangs up.
func (b *bad) bytesAhead(conn *bare) string {
	ask := append(b.opening(), b.request(1, http.MethodPost, chats, endless)...)
	ahead := bytes.Repeat([]byte("\r\nGET / HTTP/1.1\r\n"), 50)
	if b.Protocol == HTTP2 {
		ahead = frames(func(f *http2.Framer) error {
			for range 50 {
				if err := f.WritePing(false, [8]byte{}); err != nil {
					return err
				}
			}
			return f.WriteData(1, false, make([]byte, 1000)) // the stream's end was sent
		})
	}
	if rand.IntN(2) == 0 {
		ask, ahead = append(ask, ahead...), nil
	}
	if _, err := conn.Write(ask); err != nil {
		return word(err)
	}
	if err := read(conn, 1); err != nil {
		return word(err)
	}
	if ahead != nil {
		if _, err := conn.Write(ahead); err != nil {
			return word(err)
		}
	}
	return "left"
}

// resets breaks a request somewhere.
func (b *bad) resets(conn *bare, turn int) string {
	ask := append(b.opening(), b.request(1, http.MethodPost, chats, endless)...)
	switch turn % 4 {
	case 0: // inside the request
		ask = ask[:rand.IntN(len(ask))]
	case 1:
		if b.Protocol == HTTP2 { // many streams, each as soon as it has begun
			for stream := uint32(3); stream < 203; stream += 2 {
				ask = append(ask, b.request(stream, http.MethodPost, chats, endless)...)
				ask = append(ask, frames(func(f *http2.Framer) error { return f.WriteRSTStream(stream, http2.ErrCodeCancel) })...)
			}
		}
	}
	_, err := conn.Write(ask)
	if turn%4 == 2 && err == nil {
		err = read(conn, 1) // in the middle of the answer
	}
	conn.reset()
	if err != nil {
		return word(err)
	}
	return "reset"
}

// idle asks once for something small, and stays; it has settled then.
func (b *bad) idle(ctx context.Context, conn *bare, settled func()) string {
	if _, err := conn.Write(append(b.opening(), b.request(1, http.MethodGet, "/v1/models", "")...)); err != nil {
		return word(err)
	}
	if err := read(conn, 1); err != nil {
		return word(err)
	}
	settled()
	defer b.stands()()
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return word(err)
	}
	_, err := io.Copy(io.Discard, conn) // until one of the two ends it
	if ctx.Err() != nil {
		return "over"
	}
	if err != nil {
		return word(err)
	}
	return "closed"
}
