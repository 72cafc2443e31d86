package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"weir/internal/trace"
	"weir/internal/workload"
)

// runner is a run under way.
type runner struct {
	plan    Plan
	client  *client
	message *message
	account *account
	prefill *client        // of the requests' prefill halves; nil where they have none
	wg      sync.WaitGroup // of the goroutines that carry out requests

	// mu protects a workload, whose source serves one goroutine at a time.
	mu       sync.Mutex
	next     workload.Request
	sessions int // begun
	begun    int
	skipped  int   // requests without output, as traces have failed ones
	broken   error // what ended the source early
}

// prepare renders the next request of the run, and gives when it is to be sent
// since the start; ok is false when there is none.
func (r *runner) prepare(x *exchange, at func() time.Duration) (when time.Duration, ok bool) {
	if when, ok = r.draw(x, at); !ok {
		return 0, false
	}
	if r.plan.Workload == nil {
		x.wire, x.storage = r.message.render(x.storage, &x.ask)
	}
	x.id = r.message.id(x.ask.index)
	return when, true
}

// draw determines the next request of this worker. Each worker draws those of all workers,
// so that they share the schedule.
func (r *runner) draw(x *exchange, at func() time.Duration) (when time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if when, ok = r.drawAny(x, at); !ok || r.plan.Workers < 2 || x.ask.index%r.plan.Workers == r.plan.Worker-1 {
			break
		}
	}
	if ok && r.plan.Workload != nil {
		x.ask.parts, x.ask.said = r.next.Parts, x.said
		// The parts are the source's until it is asked again.
		x.wire, x.storage = r.message.render(x.storage, &x.ask)
		x.ask.parts, x.ask.said = nil, nil
	}
	return when, ok
}

// drawAny determines the next request of all workers.
func (r *runner) drawAny(x *exchange, at func() time.Duration) (when time.Duration, ok bool) {
	if r.plan.Requests > 0 && r.begun >= r.plan.Requests {
		return 0, false
	}
	x.ask = ask{index: r.begun, input: r.plan.InputTokens, output: r.plan.OutputTokens}
	r.begun++
	if w := r.plan.Workload; w == nil {
		when = at()
	} else {
		for r.next.Output = 0; r.next.Output == 0; {
			if err := w.Next(&r.next); err != nil {
				if !errors.Is(err, io.EOF) && r.broken == nil {
					r.broken = err
				}
				return 0, false
			}
			if r.next.Output == 0 {
				r.skipped++
			}
		}
		if x.asked != nil && !w.Texts {
			// The source determines how many requests there are, the session what they ask.
			r.next.Parts, r.next.Output = x.asked.Parts, x.asked.Output
		}
		when = r.next.At
		x.ask.input, x.ask.output, x.ask.text = r.next.Input(), r.next.Output, r.next.Text
	}
	return when, true
}

// Run carries out a plan and reports what it measured. The report covers all begun
// requests, even if ctx ended the run early. An error means that nothing was measured,
// because the plan is wrong or the server's models could not be read.
func Run(ctx context.Context, plan Plan) (*Report, error) {
	t, err := plan.normalize()
	if err != nil {
		return nil, err
	}
	r := &runner{plan: plan, client: &client{target: t, rcvbuf: plan.ReceiveBuffer}}
	defer r.client.close()
	model := plan.Model
	if model == "" && plan.API != Generate {
		if model, err = firstModel(ctx, r.client, &r.plan); err != nil {
			return nil, fmt.Errorf("model: none given, and %w", err)
		}
	}
	if r.message, err = newMessage(&r.plan, t, model); err != nil {
		return nil, err
	}
	if r.message.prompts, err = newPrompts(&r.plan); err != nil {
		return nil, err
	}
	if r.plan.Halves != nil {
		h := *r.plan.Halves // this run's rooms are its own
		r.plan.Halves = &h
		if r.prefill, err = h.client(&r.plan); err != nil {
			return nil, err
		}
		defer r.prefill.close()
	}
	receive, stop := r.listen()
	defer stop()
	defer r.client.close() // before it
	r.account = newAccount(r.message.prompts.exact, runtime.GOMAXPROCS(0))
	defer r.cores()()
	started := time.Now()
	if r.plan.Concurrency > 0 {
		r.closed(ctx)
	} else if err = r.open(ctx); err != nil {
		return nil, err
	}
	report := r.account.report()
	report.Receive.Stamps, report.Receive.Why, report.Receive.DelayedAcks = receive.Stamps, receive.Why, receive.DelayedAcks
	report.InputTokensExact = r.message.prompts.exact
	if plan.Workload != nil {
		report.Workload, report.Skipped, report.Sessions = string(plan.Workload.Kind), r.skipped, r.sessions
		if r.broken != nil {
			report.Problem = r.broken.Error()
		}
	} else {
		report.OutputTokens = r.plan.OutputTokens
		if plan.Prompt == "" {
			report.InputTokens = r.plan.InputTokens
		}
	}
	report.URL, report.API, report.Model = plan.URL, plan.API, model
	report.Stream, report.Verified = !plan.NoStream, plan.Verify != nil
	report.Concurrency, report.Rate, report.Seed = r.plan.Concurrency, plan.Rate, plan.Seed
	if plan.Rate > 0 {
		report.Arrival = plan.Arrival
		if report.Arrival == "" {
			report.Arrival = workload.Poisson
		}
		report.CV = plan.CV
	}
	report.Images = len(plan.Images)
	for _, url := range plan.Images {
		report.ImageBytes += len(marshal(url)) - len(`""`)
	}
	report.Worker, report.Workers = r.plan.Worker, r.plan.Workers
	report.Started, report.Calibration = started, plan.Calibration
	report.Interrupted = ctx.Err() != nil
	report.judge()
	return report, nil
}

// cores adds a processor to Go's scheduler for the schedule, which waits in the kernel. The
// scheduler counts a thread that waits there as running, and until it notices, the
// goroutines that the schedule woke would have no core.
func (r *runner) cores() (restore func()) {
	if r.plan.Concurrency > 0 {
		return func() {}
	}
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(before + 1)
	return func() { runtime.GOMAXPROCS(before) }
}

// closed runs the closed loop: each worker begins a request when its last one
// ended and it has thought.
func (r *runner) closed(ctx context.Context) {
	var end time.Time
	duration, think := r.plan.Duration, time.Duration(0)
	if w := r.plan.Workload; w != nil {
		think = w.Closed.Think
		if w.For > 0 && (duration == 0 || w.For < duration) {
			duration = w.For
		}
	}
	if duration > 0 {
		end = time.Now().Add(duration)
	}
	for range r.plan.Concurrency {
		r.wg.Go(func() {
			x := r.exchange()
			var session session
			for ctx.Err() == nil {
				r.begin(x, &session)
				if !end.IsZero() && !time.Now().Before(end) {
					return
				}
				// The prompt is the generator's to write: it is there before the request
				// is due.
				if _, ok := r.prepare(x, func() time.Duration { return 0 }); !ok {
					return
				}
				r.one(ctx, x, trace.Now())
				session.end(x)
				rest := think
				if x.sample.Kind == KindConnect {
					rest = max(rest, reconnectPause)
				}
				if rest > 0 && !pause(ctx, rest) {
					return
				}
			}
		})
	}
	r.wg.Wait()
}

// exchange makes what carries out requests.
func (r *runner) exchange() *exchange {
	x := newExchange(&r.plan, r.client, r.plan.Verify)
	if r.prefill != nil {
		x.half = &half{client: r.prefill, done: make(chan error, 1)}
	}
	return x
}

// reconnectPause keeps a closed loop from spinning at a server that is not
// there.
const reconnectPause = 50 * time.Millisecond

// pause waits, and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// open runs the open loop: the schedule begins requests, however many are in flight. It
// keeps its OS thread, because it sleeps outside of Go's timers.
func (r *runner) open(ctx context.Context) error {
	var at func() time.Duration
	if r.plan.Workload == nil {
		schedule, err := workload.NewSchedule(r.plan.loop(), r.plan.Seed)
		if err != nil {
			return err
		}
		at = schedule.Next
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer preciseSleep()()
	var spare sync.Pool
	defer r.wg.Wait()
	var start int64
	for {
		x, ok := spare.Get().(*exchange)
		if !ok {
			x = r.exchange()
		}
		when, ok := r.prepare(x, at)
		if start == 0 {
			start = r.begins()
		}
		if !ok || r.plan.Duration > 0 && when >= r.plan.Duration {
			return nil
		}
		intended := start + int64(when)
		if !waitUntil(ctx, intended) {
			return nil
		}
		x.launch(ctx, x.ask.index, intended)
		r.wg.Go(func() {
			r.one(ctx, x, intended)
			spare.Put(x)
		})
	}
}

// begins decides when the schedule does. Its first request is rendered by then,
// so that the rendering, the first and slowest of all, is not that request's slip.
func (r *runner) begins() int64 {
	start := trace.Now() + 2*timerSlack
	if !r.plan.StartAt.IsZero() {
		start = trace.Stamp(r.plan.StartAt)
	}
	r.account.r.Origin = start
	return start
}

// one carries out a request that has been rendered.
func (r *runner) one(ctx context.Context, x *exchange, intended int64) {
	if r.plan.Live != nil {
		r.plan.Live.begin()
		defer r.plan.Live.end(&x.sample)
	}
	x.do(ctx, x.ask.index, intended)
	r.account.add(&x.sample)
	if r.plan.OnSample != nil {
		r.plan.OnSample(&x.sample)
	}
}
