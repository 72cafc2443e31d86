package plane

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"

	"weir/internal/engine"
	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
	"weir/internal/trace"
)

// submissions is the Submissions call of a session, the second stream on the connection of
// the steps. It hands in requests, many in a message. A request needs no call of its own, its
// answer comes with the steps, and one write carries all requests that have gathered
// (group commit).
//
// Nothing waits here. put refuses a request that is large, that does not fit HTTP/2's windows,
// or that would leave more than maxUnanswered bytes without an answer, and the request goes by
// a call of Submit. So neither a large prompt nor an engine that does not read holds up the
// requests and acknowledgements behind it.
type submissions struct {
	steps   *stepStream
	batches *atomic.Uint64 // counts messages
	wake    chan struct{}  // capacity 1: the session's writer must write

	unanswered atomic.Int64 // bytes of all requests without an answer

	mu      sync.Mutex
	open    bool
	writing bool // a goroutine takes what is pending, or is about to
	pending batches
	spare   batches
	room    window // of the call
	conn    window // of the connection
}

// window is how many bytes flow control lets weir send. A new setting can make it negative.
type window int64

const (
	// maxUnanswered bounds what an engine is sent that does not answer. The buffers of two
	// sockets hold that much, so a write does not wait even if the engine's process is stopped.
	maxUnanswered = 64 << 10
	// submissionsStream is the second stream of the connection.
	submissionsStream = 3
	maxWindow         = math.MaxInt32

	fieldSubmit = 1 // the field of SubmitBatch
)

// begin opens the call. It counts messages in batches.
func (s *submissions) begin(batches *atomic.Uint64) error {
	s.batches = batches
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for _, f := range s.steps.header(planepb.Plane_Submissions_FullMethodName) {
		// Sensitive fields are not added to the engine's table, whose size then does not matter.
		f.Sensitive = true
		if err := fields.WriteField(f); err != nil {
			return err
		}
	}
	err := s.steps.write(func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: submissionsStream, BlockFragment: block.Bytes(), EndHeaders: true})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = err == nil
	return err
}

// isOpen reports whether put may succeed.
func (s *submissions) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// put has a request sent and reports whether it will be. If it will not, nothing has
// happened. An error breaks the connection. The first goroutine that puts a request into an
// empty batch writes the batch, with all that others have put into it by then.
func (s *submissions) put(g *generation, req *planepb.SubmitRequest) (ok bool, err error) {
	buf := spares.Get(0)
	defer spares.Put(buf)
	var fits bool
	if *buf, fits = appendSubmit(*buf, req, maxFrame-messagePrefix-2*binary.MaxVarintLen32); !fits {
		return false, nil
	}
	ok, mine := s.add(g, *buf)
	if !mine {
		return ok, nil
	}
	runtime.Gosched() // goroutines that are ready may put requests, too
	return true, s.write(1)
}

// add puts an encoded request into the batch. mine reports whether the caller must write.
func (s *submissions) add(g *generation, req []byte) (ok, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open || s.room < maxFrame || s.conn < maxFrame || s.unanswered.Load() > maxUnanswered-maxFrame {
		return false, false
	}
	n := s.pending.add(req)
	s.room, s.conn = s.room-window(n), s.conn-window(n)
	g.owed.Store(int32(n))
	s.unanswered.Add(int64(n))
	mine, s.writing = !s.writing, true
	return true, mine
}

// write writes what is pending, at most so many times. Requests that are then still pending are
// left to the session's writer.
func (s *submissions) write(times int) error {
	for ; ; times-- {
		s.mu.Lock()
		if len(s.pending.starts) == 0 {
			s.writing = false
			s.mu.Unlock()
			return nil
		}
		if times == 0 {
			s.mu.Unlock()
			s.wake <- struct{}{} // there is one writer at a time, so there is room
			return nil
		}
		now := s.pending
		s.pending, s.spare = s.spare, batches{}
		s.mu.Unlock()

		err := s.steps.write(func(f *http2.Framer) error {
			return now.each(func(message []byte) error { return f.WriteData(submissionsStream, false, message) })
		})
		s.batches.Add(uint64(len(now.starts)))
		s.mu.Lock()
		s.spare = now.emptied()
		if err != nil {
			s.open = false
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// widen takes in a WINDOW_UPDATE. A window beyond HTTP/2's largest is taken for that one.
func (s *submissions) widen(stream, by uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch stream {
	case 0:
		s.conn = min(s.conn+window(by), maxWindow)
	case submissionsStream:
		s.room = min(s.room+window(by), maxWindow)
	}
}

// resize takes in that the engine gives new streams another window than before, which
// applies to the open ones too.
func (s *submissions) resize(by int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room += window(by)
}

// end ends the call for requests that have not been put yet.
func (s *submissions) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = false
}

// batches are messages of gRPC with requests, each of which fits one frame of HTTP/2.
type batches struct {
	bytes  []byte
	starts []int // of the messages
}

// add adds a request and returns by how many bytes.
func (b *batches) add(req []byte) int {
	before := len(b.bytes)
	whole := protowire.SizeTag(fieldSubmit) + protowire.SizeBytes(len(req))
	if n := len(b.starts); n == 0 || before-b.starts[n-1]+whole > maxFrame {
		b.starts = append(b.starts, before)
		b.bytes = append(b.bytes, 0, 0, 0, 0, 0) // the prefix
	}
	b.bytes = protowire.AppendTag(b.bytes, fieldSubmit, protowire.BytesType)
	b.bytes = protowire.AppendBytes(b.bytes, req)
	return len(b.bytes) - before
}

// each calls f with each message.
func (b *batches) each(f func(message []byte) error) error {
	for i, start := range b.starts {
		end := len(b.bytes)
		if i+1 < len(b.starts) {
			end = b.starts[i+1]
		}
		message := b.bytes[start:end]
		binary.BigEndian.PutUint32(message[1:], uint32(len(message)-messagePrefix))
		if err := f(message); err != nil {
			return err
		}
	}
	return nil
}

// emptied returns the batches without messages, for other ones.
func (b *batches) emptied() batches {
	return batches{infer.Reuse(b.bytes, maxUnanswered), infer.Reuse(b.starts, maxUnanswered)}
}

// writeSubmissions is the submission writer. It writes the requests that came while another
// goroutine wrote its own.
func (s *session) writeSubmissions() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.subs.wake:
		}
		if err := s.subs.write(math.MaxInt); err != nil {
			s.end(mux.LossConnection, err)
			return
		}
	}
}

// answered waits for the engine's answer to a request that was put. If ctx ends first, it is
// unknown whether the engine has the request.
func (s *session) answered(ctx context.Context, g *generation, leg *trace.Leg) (engine.Generation, error) {
	select {
	case <-g.Settled():
	case <-ctx.Done():
		g.Abandon(judge(ctx, s.opts.Name, ctx.Err(), false).err)
	}
	heard, why := g.Outcome()
	g.Forget()
	if why != nil {
		g.Abort() // unless the engine is known not to have it
		return nil, why
	}
	s.meters.Accepted.Add(1)
	leg.Acked = max(heard, leg.ToServer)
	if at := g.created.Load(); at != 0 {
		leg.Stamps.ServerCreated = s.offset().ToGateway(at)
	}
	return g, nil
}

// forsaken ends the Submissions call because the engine has ended it, while the session goes
// on. Nobody knows whether the engine has the requests that it did not answer. It is the
// reader's.
func (s *session) forsaken(err error) {
	s.subs.end()
	v := judge(context.Background(), s.opts.Name, err, false)
	for _, g := range s.table.all() {
		if g.owed.Load() != 0 {
			g.Abandon(v.err)
		}
	}
}
