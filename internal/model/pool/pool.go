// Package pool runs the gateway's CPU work, tokenizing and rendering, on a bounded
// number of workers, so that I/O gets a core however many prompts there are.
//
// # Order
//
// A small prompt must never wait long behind large ones, and large ones must not
// starve. Five rules achieve this:
//
//   - Waiting jobs go shortest first, with ageing: see queue. The larger of two jobs
//     runs first if it has waited 400 ns longer for each byte that it is larger. A
//     prompt of 160 KB in the queue is therefore overtaken only by small prompts that
//     arrive within 66 ms of it.
//   - Each time a job yields, one waiting job may run on its worker: a small one, of up
//     to Options.Small bytes, or one of at most an eighth of its own cost. When all
//     workers run large jobs, a small job therefore starts at the next yield, after the
//     small jobs before it, and no more cores are used than there are workers. The job
//     that runs meanwhile yields in the same way, except small ones, which do not
//     yield.
//   - Some work yields rarely or never. While all workers do such work, small jobs have
//     a lane: a goroutine in addition to the workers runs them once workers have taken
//     none for Options.Lane. Only then do more than Options.Workers jobs run at once. A
//     flood of small jobs does not open the lane, because workers take them, so I/O
//     keeps its core.
//   - The time that a job yields is bounded. To jobs that are not small it yields at
//     most the time that it has run itself, plus one job. To small jobs it yields one
//     run at each yield, whatever their cost. When the small jobs alone exceed the
//     capacity of the pool, large jobs pay for this rule.
//   - The queue is bounded in jobs and in cost, and each wait in time. Beyond these
//     bounds, or if the wait would exceed the caller's deadline or Options.MaxWait, a
//     job is refused at once with a hint when to retry.
//
// The time until the next yield depends on the work. Encoders yield every 20 to 100 us
// in any text, with one stretch of 0.5 to 1 ms in a single piece of 1 MB
// (tokenizer.BenchmarkYield). The JSON decoder, at about 1 ms for each MB of a body,
// yields between its passes only, and so does the rendering of a chat template, at
// about 5 ms for each MB (gateway.BenchmarkPrompt).
//
// Tenants take turns at the pool by their shares, in time of work (package fair), and the rules
// above are those of each tenant's own jobs. A tenant's small job still waits for no other
// tenant's large one beyond its next yield. At the bounds of the queue the largest user gives
// way.
//
// First come, first served was tried and does not suffice: behind forty prompts of 160
// KB on one worker every "hello" waits a third of a second. Yields without the lane do
// not suffice either: sixteen waiting bodies of 8 MB are decoded one after the other,
// because all of them have waited longer than a small prompt that arrives later
// (gateway.BenchmarkSmallBesideLarge).
package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
	"weir/internal/trace"
)

// The defaults of Options.
const (
	DefaultQueueLimit = 4096
	DefaultQueueCost  = 512 << 20
	DefaultSmall      = 16 << 10
	DefaultMaxWait    = 30 * time.Second
	DefaultLane       = 2 * time.Millisecond
)

// Options say how big a pool is. Costs are in the unit that Run is given,
// bytes of text. The zero value works.
type Options struct {
	// Workers is how many jobs run at once. Zero is one less than GOMAXPROCS,
	// which leaves a core to I/O, but at least 1.
	Workers int
	// QueueLimit is how many jobs may wait, and QueueCost what they may cost
	// together; a job that finds none waiting is always let in. Zero is
	// DefaultQueueLimit and DefaultQueueCost.
	QueueLimit int
	QueueCost  int64
	// Small is the greatest cost of a job that every larger job lets by, rounded
	// up to a power of two. Zero is DefaultSmall.
	Small int
	// Lane is how long workers take no small job, though one waits, before the
	// lane runs it. Zero is DefaultLane; less than zero is never.
	Lane time.Duration
	// MaxWait bounds the wait of a job whose context has no earlier deadline.
	// Zero is DefaultMaxWait.
	MaxWait time.Duration
	// Bands are the shares of tenants' bands.
	Bands fair.Bands
}

// Times are the stamps of one job, on the timeline's clock.
type Times struct {
	Queued int64 // Run was called
	Start  int64 // work began
	End    int64 // work ended
}

// Pool is a bounded pool of workers. Its workers are goroutines that Close
// waits for.
type Pool struct {
	small      int // the class of the largest small jobs
	maxWait    time.Duration
	queueLimit int
	queueCost  int64
	workers    int
	lane       time.Duration // less than zero: there is none

	mu      sync.Mutex
	wake    sync.Cond // a job was queued, or the pool closed
	stuck   sync.Cond // a small job was queued that no worker is free for, or the pool closed
	queue   *line
	running int
	idle    int   // workers that wait
	served  int64 // when a worker, or a job that yields, took a small job last
	closed  bool
	rate    rate
	stats   Stats

	// timers are spare ones. A timer that was stopped stays in the runtime's heap of timers for
	// long, so each job's own would be as many as there are jobs.
	timers sync.Pool

	ended sync.WaitGroup
}

// Stats are a pool's counts since it was made.
type Stats struct {
	Completed uint64 // jobs that ran to their end
	Refused   uint64 // jobs refused for load or deadline, at once or when their wait ran out
	Cancelled uint64 // jobs whose context ended while they waited
	LetBy     uint64 // jobs that ran inside the yield of a larger one
	Lane      uint64 // jobs that ran on the lane
	// Wait and Work add up what completed jobs waited and worked, without what
	// they let by.
	Wait, Work time.Duration
}

// New starts a pool.
func New(o Options) *Pool {
	p := &Pool{
		workers:    o.Workers,
		queueLimit: o.QueueLimit,
		queueCost:  o.QueueCost,
		maxWait:    o.MaxWait,
		lane:       o.Lane,
		served:     trace.Now(),
	}
	if p.workers <= 0 {
		p.workers = max(1, runtime.GOMAXPROCS(0)-1)
	}
	if p.queueLimit <= 0 {
		p.queueLimit = DefaultQueueLimit
	}
	if p.queueCost <= 0 {
		p.queueCost = DefaultQueueCost
	}
	if o.Small <= 0 {
		o.Small = DefaultSmall
	}
	p.small = classOf(o.Small)
	p.queue = newLine(o.Bands, p.small)
	if p.maxWait <= 0 {
		p.maxWait = DefaultMaxWait
	}
	if p.lane == 0 {
		p.lane = DefaultLane
	}
	p.wake.L, p.stuck.L = &p.mu, &p.mu
	for range p.workers {
		p.ended.Go(p.work)
	}
	if p.lane > 0 {
		p.ended.Go(p.workLane)
	}
	return p
}

// Close refuses what waits and what comes, and returns when running jobs have
// ended.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for j := p.pop(classes - 1); j != nil; j = p.pop(classes - 1) {
		p.stats.Refused++
		j.failed = &failure{err: closing()}
		close(j.done)
	}
	p.mu.Unlock()
	p.wake.Broadcast()
	p.stuck.Broadcast()
	p.ended.Wait()
}

// Run runs fn on a worker and returns when it has ended, with its stamps. cost
// is what fn is expected to cost, in bytes of text. If ctx ends while the job
// waits, fn does not run; once it runs, ending is fn's own affair. fn panicking
// panics in the caller. An error is an *infer.Error, and fn has not run then.
func (p *Pool) Run(ctx context.Context, cost int, fn func()) (Times, error) {
	return p.RunYielding(ctx, cost, func(func()) { fn() })
}

// RunYielding is Run for work that can let others by: fn calls yield every
// 250 us or so, from the goroutine it was called on and holding no locks.
func (p *Pool) RunYielding(ctx context.Context, cost int, fn func(yield func())) (Times, error) {
	return p.RunFor(ctx, tenancy.Anyone, cost, fn)
}

// RunFor is RunYielding for a caller, whose tenant takes turns with others by their shares.
func (p *Pool) RunFor(ctx context.Context, who *tenancy.Caller, cost int, fn func(yield func())) (Times, error) {
	j := &job{who: who, fn: fn, cost: max(cost, 1), done: make(chan struct{})}
	j.times.Queued = trace.Now()
	if err := p.enqueue(ctx, j); err != nil {
		return j.times, err
	}
	patience, _ := p.timers.Get().(*time.Timer)
	if patience == nil {
		patience = time.NewTimer(p.maxWait)
	} else {
		patience.Reset(p.maxWait)
	}
	defer func() {
		lifetime.Awaited(ctx)
		patience.Stop()
		p.timers.Put(patience)
	}()
	select {
	case <-j.done:
	case <-lifetime.Await(ctx):
		if p.withdraw(j, &p.stats.Cancelled) {
			return j.times, ended(ctx)
		}
		<-j.done // it runs, or was refused
	case <-patience.C:
		if p.withdraw(j, &p.stats.Refused) {
			return j.times, late(p.maxWait, p.maxWait)
		}
		<-j.done
	}
	if j.failed != nil {
		if j.failed.err != nil {
			return j.times, j.failed.err
		}
		panic(j.failed)
	}
	return j.times, nil
}

// ended returns why a context ended: with the coded error it was cancelled with, where
// there is one.
func ended(ctx context.Context) *infer.Error {
	var e *infer.Error
	if errors.As(context.Cause(ctx), &e) {
		return e
	}
	return infer.AsError(ctx.Err())
}

// enqueue admits a job or refuses it.
func (p *Pool) enqueue(ctx context.Context, j *job) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return closing()
	}
	wait := p.rate.estimate(p.ahead(j), p.workers)
	if !p.makeRoom(j) {
		p.stats.Refused++
		return p.full(wait)
	}
	bound := p.maxWait
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline))
	}
	if p.queue.len() > 0 && wait > bound {
		p.stats.Refused++
		return late(wait, bound)
	}
	p.queue.push(j)
	p.wake.Signal()
	if p.queue.len() > p.idle && j.class <= p.small {
		p.stuck.Signal()
	}
	return nil
}

// makeRoom reports whether there is room for one more job. If another tenant uses more of its
// share, its jobs are put out.
func (p *Pool) makeRoom(j *job) bool {
	for p.queue.len() > 0 {
		var out *job
		if n := p.queue.len(); n >= p.queueLimit {
			out = p.queue.yields(j.who, p.queue.places, 1, 1)
		} else if over := p.queue.cost(classes-1) + int64(j.cost) - p.queueCost; over > 0 {
			out = p.queue.yields(j.who, p.queue.work, int64(j.cost), over)
		} else {
			return true
		}
		if out == nil {
			return false
		}
		p.stats.Refused++
		out.failed = &failure{err: p.full(p.rate.estimate(p.queue.ahead(out.who, classes-1), p.workers))}
		close(out.done)
	}
	return true
}

// full refuses a job for which there is no room.
func (p *Pool) full(wait time.Duration) *infer.Error {
	return &infer.Error{
		Code:       infer.CodeOverloaded,
		Message:    fmt.Sprintf("%d prompts wait to be tokenized and no more may: try again later", p.queue.len()),
		RetryAfter: retryAfter(wait),
	}
}

// pop takes the job whose turn it is among those up to a class.
func (p *Pool) pop(upTo int) *job { return p.queue.pop(upTo, cmp.Or(p.rate.perUnit, usualRate)) }

// usualRate is what a unit of cost is taken to take before the first job, in nanoseconds.
const usualRate = 50

// ahead is the cost of the work that goes before a new job, roughly: small jobs
// pass larger ones.
func (p *Pool) ahead(j *job) int64 {
	if classOf(j.cost) <= p.small {
		return p.queue.ahead(j.who, p.small)
	}
	return p.queue.ahead(j.who, classes-1)
}

// late refuses a job whose wait would be, or was, longer than it may be.
func late(wait, bound time.Duration) *infer.Error {
	return &infer.Error{
		Code: infer.CodeDeadline,
		Message: fmt.Sprintf("the request would wait about %v to be tokenized and may wait %v: try again later",
			wait.Round(time.Millisecond), bound.Round(time.Millisecond)),
		RetryAfter: retryAfter(wait),
	}
}

// retryAfter is the hint for a wait: whole seconds, as the header has it.
func retryAfter(wait time.Duration) time.Duration {
	return max(wait.Round(time.Second), time.Second)
}

func closing() *infer.Error {
	return infer.Errorf(infer.CodeUnavailable, "the gateway is shutting down")
}

// withdraw takes a job out that still waits, and counts it.
func (p *Pool) withdraw(j *job, count *uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.queue.remove(j) {
		return false
	}
	*count++
	return true
}

// work is a worker.
func (p *Pool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if j := p.take(classes - 1); j != nil {
			p.run(j)
			continue
		}
		if p.closed {
			return
		}
		p.idle++
		p.wake.Wait()
		p.idle--
	}
}

// take takes the job whose turn it is among those up to a class, for a worker.
func (p *Pool) take(upTo int) *job {
	j := p.pop(upTo)
	if j != nil && j.class <= p.small {
		p.served = trace.Now()
	}
	return j
}

// workLane runs small jobs while workers take none.
func (p *Pool) workLane() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed {
		head := p.queue.peek(p.small)
		if head == nil {
			p.stuck.Wait()
			continue
		}
		since := max(head.times.Queued, p.served)
		if left := p.lane - time.Duration(trace.Now()-since); left > 0 {
			p.mu.Unlock()
			time.Sleep(left)
			p.mu.Lock()
			continue
		}
		p.stats.Lane++
		p.run(p.pop(p.small))
		p.mu.Unlock()
		runtime.Gosched()
		p.mu.Lock()
	}
}

// yielder makes what a job calls to let others by.
func (p *Pool) yielder(j *job) func() {
	if j.class <= p.small {
		return runtime.Gosched
	}
	return func() { p.letBy(j) }
}

// lessBy is by how many classes a job must be below another that lets it by,
// unless it is small: an eighth of the cost.
const lessBy = 3

// letBy runs one waiting job that is small or much shorter than j, on j's
// goroutine. Jobs that are let by are shorter each time, so the stack stays a
// few jobs deep.
func (p *Pool) letBy(j *job) {
	p.mu.Lock()
	if p.queue.len() > 0 {
		upTo := p.small
		if own := trace.Now() - j.times.Start - j.lent; j.given <= own {
			upTo = max(upTo, j.class-lessBy)
		}
		if other := p.take(upTo); other != nil {
			p.stats.LetBy++
			p.run(other)
			took := other.times.End - other.times.Start
			j.lent += took
			if other.class > p.small {
				j.given += took
			}
		}
	}
	p.mu.Unlock()
	runtime.Gosched()
}

// run runs a job. The lock is held when it is called and when it returns, and
// not while the job works.
func (p *Pool) run(j *job) {
	p.running++
	p.mu.Unlock()
	j.times.Start = trace.Now()
	j.failed = call(j.fn, p.yielder(j))
	j.times.End = trace.Now()
	p.mu.Lock()
	p.running--
	p.stats.Completed++
	p.stats.Wait += time.Duration(j.times.Start - j.times.Queued)
	worked := j.times.End - j.times.Start - j.lent
	p.stats.Work += time.Duration(worked)
	p.rate.add(j.cost, worked)
	p.queue.settle(j, worked)
	close(j.done)
}

// failure is why a job has no result: it was refused while it waited, or it
// panicked.
type failure struct {
	err   *infer.Error
	value any
	stack []byte
}

// Error makes a failure a panic value that says where it came from.
func (f *failure) Error() string {
	return fmt.Sprintf("in the pool: %v\n\n%s", f.value, f.stack)
}

// call runs fn and catches its panic, which is the caller's of Run and must
// not take the worker with it.
func call(fn func(func()), yield func()) (failed *failure) {
	defer func() {
		if v := recover(); v != nil {
			failed = &failure{value: v, stack: debug.Stack()}
		}
	}()
	fn(yield)
	return nil
}

// rate follows what a unit of cost takes: the average over the latest work of
// rateWindow, and over all work until there was as much. A shorter memory would
// believe the one job that the system put aside for a while.
type rate struct {
	perUnit float64 // nanoseconds; 0 before the first job
	seen    float64 // cost
}

// rateWindow is some fifty prompts of 40k tokens.
const rateWindow = 8 << 20

func (r *rate) add(cost int, ns int64) {
	r.seen = min(r.seen+float64(cost), max(rateWindow, float64(cost)))
	r.perUnit += (float64(ns)/float64(cost) - r.perUnit) * float64(cost) / r.seen
}

// estimate is how long work of a cost takes that many workers.
func (r *rate) estimate(cost int64, workers int) time.Duration {
	return time.Duration(r.perUnit * float64(cost) / float64(workers))
}

// Workers is how many jobs can run at once.
func (p *Pool) Workers() int { return p.workers }

// Waiting is how many jobs wait.
func (p *Pool) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.len()
}

// WaitingCost is what the waiting jobs are expected to cost together.
func (p *Pool) WaitingCost() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.cost(classes - 1)
}

// Running is how many jobs run or are suspended by a small one they let by.
func (p *Pool) Running() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

// OldestWait is how long the job has waited that waits longest.
func (p *Pool) OldestWait() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.queue.oldest()
	if at == 0 {
		return 0
	}
	return time.Duration(trace.Now() - at)
}

// Stats returns the counts so far.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}
