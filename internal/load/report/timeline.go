package report

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"weir/internal/trace"
)

// Record is a request's record in a gateway's timeline.
type Record struct {
	RequestID string `json:"request_id"`
	BootID    string `json:"boot_id"`
	Model     string `json:"model"`
	Stream    bool   `json:"stream"`
	Outcome   string `json:"outcome"`
	Code      string `json:"code"`
	Error     string `json:"error"`

	CompletionTokens int `json:"completion_tokens"`

	Arrival       int64 `json:"arrival_time"`
	Received      int64 `json:"received_time"`
	Parsed        int64 `json:"parsed_time"`
	Rendered      int64 `json:"rendered_time"`
	TokenizeStart int64 `json:"tokenize_start_time"`
	TokenizeEnd   int64 `json:"tokenize_end_time"`
	Queued        int64 `json:"queued_time"`
	Routed        int64 `json:"routed_time"`
	FirstReceived int64 `json:"first_received_time"`
	FirstSent     int64 `json:"first_sent_time"`
	FirstFlushed  int64 `json:"first_flushed_time"`
	LastReceived  int64 `json:"last_received_time"`
	Finished      int64 `json:"finish_time"`

	// Requests in flight in the gateway, and streams whose output waited to be taken.
	LiveAtArrival       int `json:"live_at_arrival"`
	LiveAtFirstToken    int `json:"live_at_first_token"`
	PendingAtArrival    int `json:"pending_at_arrival"`
	PendingAtFirstToken int `json:"pending_at_first_token"`

	Gap    *Gap    `json:"gap"`    // the longest between two outputs; nil: there were no two
	Stalls []Stall `json:"stalls"` // of the gateway, that the request lived through

	Stages   map[string]int64 `json:"stages"`
	Residual int64            `json:"residual"`
	Attempts []Attempt        `json:"attempts"`
	Pair     *Pair            `json:"pair"` // nil: one engine served it

	raw       []byte
	sameClock bool
}

// Gap is the longest time between two outputs.
type Gap struct {
	For    int64  `json:"duration"`
	Token  int    `json:"token"`  // that ended it, counted from 1
	Tokens int    `json:"tokens"` // that came in all, whether the engine states their number or not
	Engine string `json:"engine"`
	// The parts of the gap: before weir had read that output, in weir, and while the client did
	// not take what was written.
	Before int64 `json:"before_weir"`
	Weir   int64 `json:"in_weir"`
	Client int64 `json:"client"`
}

// Stall is a time in which the gateway stood still.
type Stall struct {
	Start int64  `json:"start_time"`
	For   int64  `json:"duration"`
	Why   string `json:"why"` // what held it; empty: it was not known yet
}

// Pair describes where the time of a request went that two engines served: the points that
// it passed, and the lengths of its stages. Missing points are 0, missing lengths nil.
type Pair struct {
	Handed      int64 `json:"handed_time"`
	Met         int64 `json:"met_time"`
	Prefilled   int64 `json:"prefilled_time"`
	Transferred int64 `json:"transferred_time"`
	Running     int64 `json:"running_time"`

	Bootstrap        *int64 `json:"bootstrap"`
	Prefill          *int64 `json:"prefill"`
	Transfer         *int64 `json:"transfer"`
	WaitingToRunning *int64 `json:"waiting_to_running"`
	Decode           *int64 `json:"decode"`
	Handover         *int64 `json:"handover"`
}

// Attempt is one try at one engine, or at a pair.
type Attempt struct {
	Legs   []Leg   `json:"legs"`
	Choice *Choice `json:"choice"`
}

// Leg is one engine's part of an attempt.
type Leg struct {
	Role    string `json:"role"`
	Engine  string `json:"engine"`
	Kind    string `json:"kind"`
	Outcome string `json:"outcome"`

	Handed        int64 `json:"handed_time"`
	ToServer      int64 `json:"to_server_time"`
	Acked         int64 `json:"acked_time"`
	ServerCreated int64 `json:"server_created_time"`
	QueueStart    int64 `json:"queue_time_start"`
	QueueEnd      int64 `json:"queue_time_end"`
	PrefillStart  int64 `json:"prefill_start_time"`
	PrefillEnd    int64 `json:"prefill_end_time"`
	FirstToken    int64 `json:"server_first_token_time"`
	FirstOutput   int64 `json:"first_output_time"`
	Uncertain     int64 `json:"clock_uncertainty"`
	Retracted     int64 `json:"retracted"` // times
}

// leg returns the leg that served the client, as trace.Record.Leg does.
func (r *Record) leg() *Leg {
	if len(r.Attempts) == 0 {
		return nil
	}
	legs := r.Attempts[len(r.Attempts)-1].Legs
	if len(legs) == 0 {
		return nil
	}
	return &legs[len(legs)-1]
}

// prefill is the leg of the winning attempt that computed the prompt for
// another one.
func (r *Record) prefill() *Leg {
	if len(r.Attempts) == 0 {
		return nil
	}
	legs := r.Attempts[len(r.Attempts)-1].Legs
	for i := range legs {
		if legs[i].Role == "prefill" {
			return &legs[i]
		}
	}
	return nil
}

// Follower takes a gateway's timeline while a run goes on.
type Follower struct {
	book    *Book
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	mu      sync.Mutex
	err     error
	dropped int
	ended   bool
}

// maxRecord bounds a line of a timeline.
const maxRecord = 4 << 20

// openTimeout bounds the connecting to an admin listener.
const openTimeout = 2 * time.Second

// Follow joins a gateway's records into the book as they are written, from now until the
// follower is closed. admin is the base URL of its admin listener. It returns an error if
// the timeline is not available there.
func (b *Book) Follow(ctx context.Context, admin string) (*Follower, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(admin, "/")+"/timeline", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	late := time.AfterFunc(openTimeout, cancel)
	transport := &http.Transport{DisableKeepAlives: true} // it has one request
	resp, err := transport.RoundTrip(req)
	if !late.Stop() && err == nil {
		err = context.DeadlineExceeded
		resp.Body.Close()
	}
	if err == nil && (resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/jsonl")) {
		err = fmt.Errorf("%s answers %s of type %q, not with a timeline", req.URL, resp.Status, resp.Header.Get("Content-Type"))
		resp.Body.Close()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return b.follow(ctx, cancel, resp.Body), nil
}

// follow reads a timeline until it ends, or cancel does.
func (b *Book) follow(ctx context.Context, cancel context.CancelFunc, timeline io.ReadCloser) *Follower {
	f := &Follower{book: b, cancel: cancel}
	b.mu.Lock()
	b.records, b.boot = map[string]*Record{}, trace.BootID()
	b.mu.Unlock()
	f.tasks.Go(func() {
		defer timeline.Close()
		f.end(f.read(timeline), ctx)
	})
	return f
}

// read takes records until the timeline ends.
func (f *Follower) read(body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 64<<10), maxRecord)
	for lines.Scan() {
		if err := f.book.take(lines.Bytes(), f); err != nil {
			return err
		}
	}
	return lines.Err()
}

// take books a line of a timeline.
func (b *Book) take(line []byte, f *Follower) error {
	var dropped struct {
		N int `json:"dropped"`
	}
	rec := &Record{}
	if err := json.Unmarshal(line, rec); err != nil {
		return fmt.Errorf("%w: %.80q", err, line)
	}
	if rec.RequestID == "" {
		if err := json.Unmarshal(line, &dropped); err == nil && f != nil {
			f.mu.Lock()
			f.dropped = dropped.N
			f.mu.Unlock()
		}
		return nil
	}
	rec.raw = append([]byte(nil), line...)
	b.mu.Lock()
	defer b.mu.Unlock()
	rec.sameClock = rec.BootID != "" && rec.BootID == b.boot
	b.records[rec.RequestID] = rec
	return nil
}

func (f *Follower) end(err error, ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	if ctx.Err() == nil {
		f.err = err
		if err == nil {
			f.err = errors.New("the gateway closed it")
		}
	}
}

// settleTime is how long a record is awaited after the run. A gateway writes it when it has
// finished with the request, which may be later than the client.
const settleTime = time.Second

// Close waits until the records of all requests that reached the gateway are there, or none
// has come for a second, and ends following. It returns how many requests have none, and an
// error if the timeline broke off.
func (f *Follower) Close() (missing int, err error) {
	before, since := -1, time.Now()
	for {
		f.mu.Lock()
		ended := f.ended
		f.mu.Unlock()
		missing = f.book.missing()
		if missing != before {
			before, since = missing, time.Now()
		}
		if missing == 0 || ended || time.Since(since) > settleTime {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	f.cancel()
	f.tasks.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return missing, fmt.Errorf("the gateway's timeline broke off: %w", f.err)
	}
	if f.dropped > 0 {
		return missing, fmt.Errorf("the gateway's timeline left out %d records, because they were not read as fast as they were written", f.dropped)
	}
	return missing, nil
}

// missing counts the requests that were sent and have no record.
func (b *Book) missing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for i := range b.samples {
		if b.samples[i].Sent != 0 && b.records[b.samples[i].RequestID] == nil {
			n++
		}
	}
	return n
}
