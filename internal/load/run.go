package load

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
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
	wg      sync.WaitGroup // of the goroutines that carry out requests
}

// Run carries out a plan and reports what it measured. The report covers
// everything begun, also when ctx ended the run early; an error means that
// nothing was measured, because the plan is wrong or the server's models could
// not be read.
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
	exact := 0
	if r.message.prompts.exact {
		exact = r.plan.InputTokens
	}
	r.account = newAccount(exact)
	started := time.Now()
	if plan.Rate > 0 {
		err = r.open(ctx)
	} else {
		r.closed(ctx)
	}
	if err != nil {
		return nil, err
	}
	report := r.account.report()
	if plan.Prompt == "" {
		report.InputTokens = r.plan.InputTokens
	}
	report.InputTokensExact, report.OutputTokens = exact > 0, r.plan.OutputTokens
	report.URL, report.API, report.Model = plan.URL, plan.API, model
	report.Stream, report.Verified = !plan.NoStream, plan.Verify != nil
	report.Concurrency, report.Rate, report.Seed = plan.Concurrency, plan.Rate, plan.Seed
	if plan.Rate > 0 {
		report.Arrival = plan.Arrival
		if report.Arrival == "" {
			report.Arrival = workload.Poisson
		}
		report.CV = plan.CV
	}
	report.Started = started
	report.Interrupted = ctx.Err() != nil
	report.judge()
	return report, nil
}

// closed runs the closed loop: each worker begins a request when its last one
// ended.
func (r *runner) closed(ctx context.Context) {
	var next atomic.Int64
	var end time.Time
	if r.plan.Duration > 0 {
		end = time.Now().Add(r.plan.Duration)
	}
	for range r.plan.Concurrency {
		r.wg.Go(func() {
			x := newExchange(&r.plan, r.client, r.plan.Verify)
			for ctx.Err() == nil {
				i := int(next.Add(1) - 1)
				if r.plan.Requests > 0 && i >= r.plan.Requests {
					return
				}
				if !end.IsZero() && !time.Now().Before(end) {
					return
				}
				// A user of a closed loop thinks for no time, but the prompt is the
				// generator's to write: it is there before the request is due.
				x.wire, x.storage = r.message.render(x.storage, i)
				x.id = r.message.id(i)
				r.one(ctx, x, i, trace.Now())
				if x.sample.Kind == KindConnect && !pause(ctx, reconnectPause) {
					return
				}
			}
		})
	}
	r.wg.Wait()
}

// reconnectPause keeps a closed loop from spinning at a server that is not
// there.
const reconnectPause = 50 * time.Millisecond

// pause waits, and says whether ctx is still alive.
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

// open runs the open loop: the schedule begins requests, however many are in
// flight. It keeps its OS thread, because it sleeps outside Go's timers.
func (r *runner) open(ctx context.Context) error {
	schedule, err := workload.NewSchedule(r.plan.loop(), r.plan.Seed)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var spare sync.Pool
	defer r.wg.Wait()
	start := trace.Now()
	for i := 0; r.plan.Requests == 0 || i < r.plan.Requests; i++ {
		at := schedule.Next()
		if r.plan.Duration > 0 && at >= r.plan.Duration {
			return nil
		}
		x, ok := spare.Get().(*exchange)
		if !ok {
			x = newExchange(&r.plan, r.client, r.plan.Verify)
		}
		x.wire, x.storage = r.message.render(x.storage, i)
		x.id = r.message.id(i)
		intended := start + int64(at)
		if !waitUntil(ctx, intended) {
			return nil
		}
		r.wg.Go(func() {
			r.one(ctx, x, i, intended)
			spare.Put(x)
		})
	}
	return nil
}

// one carries out a request that has been rendered.
func (r *runner) one(ctx context.Context, x *exchange, i int, intended int64) {
	x.do(ctx, i, intended)
	r.account.add(&x.sample)
	if r.plan.OnSample != nil {
		r.plan.OnSample(&x.sample)
	}
}
