// Package pool runs the gateway's CPU work, tokenizing and rendering, on a
// bounded number of workers, so that no amount of prompts keeps I/O from a
// core.
//
// # Order
//
// The goal is that a small prompt never waits long behind large ones, and that
// large ones do not starve. Three things see to it:
//
//   - Waiting jobs go shortest first, with ageing: see queue.
//   - A large job that runs lets one small job by each time it yields, which
//     is about every 250 us, on its own worker. So even with all workers on
//     large jobs a small one starts within a yield or so of the smalls before
//     it, and no more cores are used than there are workers.
//   - The queue is bounded in jobs and in cost. Beyond that, or where the wait
//     would outlast the caller's deadline, a job is refused at once with a
//     hint when to come back.
//
// First come, first served is the obvious way and was no good: behind forty
// prompts of 160 KB on one worker every "hello" waits a third of a second.
package pool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// The defaults of Options.
const (
	DefaultQueueLimit = 4096
	DefaultQueueCost  = 512 << 20
	DefaultSmall      = 16 << 10
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
	// Small is the greatest cost of a job that running large jobs let by. Zero
	// is DefaultSmall.
	Small int
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
	small      int
	queueLimit int
	queueCost  int64
	workers    int

	mu      sync.Mutex
	wake    sync.Cond // a job was queued, or the pool closed
	queue   queue
	running int
	closed  bool
	rate    rate
	stats   Stats

	ended sync.WaitGroup
}

// Stats are a pool's counts since it was made.
type Stats struct {
	Completed uint64 // jobs that ran to their end
	Refused   uint64 // jobs refused for load or deadline
	Cancelled uint64 // jobs whose context ended while they waited
	LetBy     uint64 // small jobs that ran inside a large one's yield
	// Wait and Work add up what completed jobs waited and worked.
	Wait, Work time.Duration
}

// New starts a pool.
func New(o Options) *Pool {
	p := &Pool{
		workers:    o.Workers,
		queueLimit: o.QueueLimit,
		queueCost:  o.QueueCost,
		small:      o.Small,
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
	if p.small <= 0 {
		p.small = DefaultSmall
	}
	p.wake.L = &p.mu
	for range p.workers {
		p.ended.Go(p.work)
	}
	return p
}

// Close refuses what waits and what comes, and returns when running jobs have
// ended.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for j := p.queue.pop(); j != nil; j = p.queue.pop() {
		p.stats.Refused++
		j.failed = &failure{err: closing()}
		close(j.done)
	}
	p.mu.Unlock()
	p.wake.Broadcast()
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
	j := &job{fn: fn, cost: max(cost, 1), small: cost <= p.small, done: make(chan struct{})}
	j.times.Queued = trace.Now()
	if err := p.enqueue(ctx, j); err != nil {
		return j.times, err
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		if p.withdraw(j) {
			return j.times, ended(ctx)
		}
		<-j.done // it runs, or was refused
	}
	if j.failed != nil {
		if j.failed.err != nil {
			return j.times, j.failed.err
		}
		panic(j.failed)
	}
	return j.times, nil
}

// ended says why a context ended: with the coded error it was cancelled with,
// where there is one.
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
	wait := p.rate.estimate(p.queue.ahead(j.small), p.workers)
	if n := p.queue.len(); n >= p.queueLimit || n > 0 && p.queue.cost+int64(j.cost) > p.queueCost {
		p.stats.Refused++
		return &infer.Error{
			Code:       infer.CodeOverloaded,
			Message:    fmt.Sprintf("%d prompts wait to be tokenized and no more may: try again later", n),
			RetryAfter: retryAfter(wait),
		}
	}
	if deadline, ok := ctx.Deadline(); ok && p.queue.len() > 0 && wait > time.Until(deadline) {
		p.stats.Refused++
		return &infer.Error{
			Code:       infer.CodeDeadline,
			Message:    fmt.Sprintf("the request's deadline would pass while it waits about %v to be tokenized: try again later", wait.Round(time.Millisecond)),
			RetryAfter: retryAfter(wait),
		}
	}
	p.queue.push(j)
	p.wake.Signal()
	return nil
}

// retryAfter is the hint for a wait: whole seconds, as the header has it.
func retryAfter(wait time.Duration) time.Duration {
	return max(wait.Round(time.Second), time.Second)
}

func closing() *infer.Error {
	return infer.Errorf(infer.CodeUnavailable, "the gateway is shutting down")
}

// withdraw takes a job out that still waits.
func (p *Pool) withdraw(j *job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.queue.remove(j) {
		return false
	}
	p.stats.Cancelled++
	return true
}

// work is a worker.
func (p *Pool) work() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if j := p.queue.pop(); j != nil {
			p.run(j, p.yielder(j))
			continue
		}
		if p.closed {
			return
		}
		p.wake.Wait()
	}
}

// yielder makes what a job calls to let others by. Small jobs that were let by
// let nobody by, so that the stack stays two jobs deep.
func (p *Pool) yielder(j *job) func() {
	if j.small {
		return runtime.Gosched
	}
	return p.letBy
}

// letBy runs one small job that waits, on the caller's goroutine.
func (p *Pool) letBy() {
	p.mu.Lock()
	if j := p.queue.popSmall(); j != nil {
		p.stats.LetBy++
		p.run(j, runtime.Gosched)
	}
	p.mu.Unlock()
	runtime.Gosched()
}

// run runs a job. The lock is held when it is called and when it returns, and
// not while the job works.
func (p *Pool) run(j *job, yield func()) {
	p.running++
	p.mu.Unlock()
	j.times.Start = trace.Now()
	j.failed = call(j.fn, yield)
	j.times.End = trace.Now()
	p.mu.Lock()
	p.running--
	p.stats.Completed++
	p.stats.Wait += time.Duration(j.times.Start - j.times.Queued)
	p.stats.Work += time.Duration(j.times.End - j.times.Start)
	p.rate.add(j.cost, j.times.End-j.times.Start)
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

// rate follows what a unit of cost takes.
type rate struct {
	perUnit float64 // nanoseconds; 0 before the first job
}

// rateWeight is the weight of 64 KiB of new work in the average.
const rateWeight = 1.0 / (64 << 10)

func (r *rate) add(cost int, ns int64) {
	sample := float64(ns) / float64(cost)
	if r.perUnit == 0 {
		r.perUnit = sample
		return
	}
	keep := math.Exp(-float64(cost) * rateWeight)
	r.perUnit = keep*r.perUnit + (1-keep)*sample
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
	return p.queue.cost
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

// Stats gives the counts so far.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}
