package timeline

import (
	"context"
	"fmt"
	"io"

	"weir/internal/trace"
)

// followQueue bounds the records that wait for a follower.
const followQueue = 1 << 16

// follower receives every record from a moment on.
type follower struct {
	queue   chan *trace.Record
	dropped int // records that found the queue full
}

// Follow writes every record that is added from now on to w as a line of JSON, until ctx
// ends or the recorder is closed; flush is called when none is waiting. The request path
// never waits for it: records that find its queue full are left out, and a line
// {"dropped":N} reports their number so far.
func (r *Recorder) Follow(ctx context.Context, w io.Writer, flush func() error) error {
	f := &follower{queue: make(chan *trace.Record, followQueue)}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.followers[f] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.followers, f)
		r.mu.Unlock()
	}()
	if err := flush(); err != nil { // so that a reader knows that it has begun
		return err
	}
	var line []byte
	told := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.closing:
			return nil
		case rec := <-f.queue:
			line = append(Append(line[:0], rec, r.boot), '\n')
			if _, err := w.Write(line); err != nil {
				return err
			}
			if len(f.queue) > 0 {
				continue
			}
			r.mu.Lock()
			dropped := f.dropped
			r.mu.Unlock()
			if dropped > told {
				told = dropped
				if _, err := fmt.Fprintf(w, "{\"dropped\":%d}\n", dropped); err != nil {
					return err
				}
			}
			if err := flush(); err != nil {
				return err
			}
		}
	}
}

// tell hands a record to the followers. The caller holds the lock.
func (r *Recorder) tell(rec *trace.Record) {
	for f := range r.followers {
		select {
		case f.queue <- rec:
		default:
			f.dropped++
		}
	}
}
