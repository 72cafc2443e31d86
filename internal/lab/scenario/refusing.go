//go:build linux

package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/proc"
	"weir/internal/load"
	"weir/internal/trace"
)

const (
	statusRefused = http.StatusTooManyRequests

	// A gateway with a full queue: one engine runs refusingRunning requests, whose tokens
	// are so rare that they cost next to nothing; refusingWaiting wait behind them, and
	// refusingLeave of these hang up.
	refusingRunning = 4
	refusingDecode  = time.Second
	refusingOutput  = 2000
	refusingWaiting = 64
	refusingLeave   = 32
	refusingCallers = 8

	// The required results.
	refusedCPU  = 50.0 // us
	freedWithin = 100 * time.Millisecond
)

// Refusing is the cost of a refusal, and how soon the place of a caller that leaves is
// free.
type Refusing struct {
	// NotMeasured is why there are no figures.
	NotMeasured string `json:"not_measured,omitempty"`

	Requests int     `json:"requests"`
	Refused  int     `json:"refused"` // of them
	Seconds  float64 `json:"seconds"`
	// CPU is all that the gateway takes for a request that it refuses, in microseconds: user
	// and system, its head and body read and the answer written.
	CPU float64 `json:"gateway_cpu_us_per_refusal"`

	// HangUps waited and hung up. Freed50 and Freed are how long after that, in
	// milliseconds, they had left the queue; Retaken of the places were taken again.
	HangUps int     `json:"hang_ups"`
	Retaken int     `json:"places_taken_again"`
	Freed50 float64 `json:"freed_p50_ms"`
	Freed   float64 `json:"freed_max_ms"`
}

// String is for the progress.
func (x Refusing) String() string {
	if x.NotMeasured != "" {
		return "refusing: not measured: " + x.NotMeasured
	}
	return fmt.Sprintf("refusing: %d in %.1f s, %.1f us of CPU each; %d hung up in the queue, gone after %.1f ms at most", x.Refused, x.Seconds, x.CPU, x.HangUps, x.Freed)
}

// refusing fills a gateway's queue, sends only requests that are refused for this long, and
// then lets waiting callers hang up.
func (r *runner) refusing(ctx context.Context, lasts time.Duration) (x Refusing, err error) {
	b, err := r.startBed(ctx, bedding{name: "refusing", gateway: lab.Plane, engines: 1,
		engine: []string{"--cost", "constant", "--prefill-cost", overloadPrefill.String(), "--decode-cost", refusingDecode.String(), "--max-running-requests", strconv.Itoa(refusingRunning)},
		serve:  []string{"--queue", "on", "--max-queue", strconv.Itoa(refusingWaiting)}})
	defer b.stop()
	if err != nil {
		return x, err
	}
	var waiting []*caller
	defer func() {
		for _, c := range waiting {
			c.Close()
		}
	}()
	// call has this many more callers come, of whom this many then wait.
	call := func(name string, n, wait int) error {
		for i := range n {
			c, err := b.call(ctx, fmt.Sprintf("%s-%d", name, i))
			if err != nil {
				return err
			}
			waiting = append(waiting, c)
		}
		return b.until(ctx, "weir_queue_requests", float64(wait))
	}
	// An engine is given one more than it runs.
	const given = refusingRunning + 1
	if err := errors.Join(call("running", given, 0), b.until(ctx, "weir_queue_released_total", given)); err != nil {
		return x, err
	}
	if err := call("waiting", refusingWaiting, refusingWaiting); err != nil {
		return x, err
	}
	if err := b.refused(ctx, &x, lasts); err != nil {
		return x, err
	}
	leave := waiting[given : given+refusingLeave]
	for _, c := range leave {
		c.left = trace.Now()
		c.Close()
		if err := lab.Sleep(ctx, 5*time.Millisecond); err != nil {
			return x, err
		}
	}
	x.HangUps = len(leave)
	if err := b.until(ctx, "weir_queue_requests", refusingWaiting-refusingLeave); err != nil {
		return x, err
	}
	var freed []float64
	for _, c := range leave {
		var record struct {
			Finished int64 `json:"finish_time"`
		}
		if err := lab.FetchJSON(ctx, b.admin+"/timeline/"+c.id, &record); err != nil {
			return x, err
		}
		freed = append(freed, float64(record.Finished-c.left)/1e6)
	}
	slices.Sort(freed)
	x.Freed50, x.Freed = percentile(freed, 0.5), percentile(freed, 1)
	if err := call("again", refusingLeave, refusingWaiting); err != nil {
		return x, err
	}
	x.Retaken = refusingLeave
	return x, nil
}

// refused sends callers to a full queue for this long.
func (b *bed) refused(ctx context.Context, x *Refusing, lasts time.Duration) error {
	before, err := proc.Of(b.gateway.PIDs())
	if err != nil {
		return err
	}
	report, err := load.Run(ctx, load.Plan{URL: b.url, Model: "weir-sim", Concurrency: refusingCallers, Duration: lasts, InputTokens: overloadInput, OutputTokens: 16})
	if err != nil {
		return err
	}
	after, err := proc.Of(b.gateway.PIDs())
	if err != nil {
		return err
	}
	x.Requests, x.Refused, x.Seconds = report.Requests, report.Errors[load.Kind(fmt.Sprintf("%s_%d", load.KindStatus, statusRefused))], report.Elapsed
	x.CPU = (after.CPU - before.CPU) * 1e6 / float64(max(1, x.Requests))
	return nil
}

// caller is one that has asked and waits.
type caller struct {
	net.Conn
	id   string
	left int64 // when it hung up
}

// call asks for an answer that takes long.
func (b *bed) call(ctx context.Context, id string) (*caller, error) {
	u, err := url.Parse(b.url)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	body := fmt.Sprintf(`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":"How long?"}]}`, refusingOutput)
	w := bufio.NewWriter(conn)
	fmt.Fprintf(w, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s", u.Host, id, len(body), body)
	if err := w.Flush(); err != nil {
		conn.Close()
		return nil, err
	}
	return &caller{Conn: conn, id: id}, nil
}

// judge judges them.
func (x *Refusing) judge() []Verdict {
	if x == nil {
		return []Verdict{verdict(false, Failed, "refusals were not measured: they were not run")}
	}
	if x.NotMeasured != "" {
		return []Verdict{verdict(false, Failed, "refusals were not measured: %s", x.NotMeasured)}
	}
	return []Verdict{
		verdict(x.Refused == x.Requests && x.Refused > 0, Failed, "a full queue refuses all that come: %d of %d", x.Refused, x.Requests),
		figure(x.CPU <= refusedCPU, "to refuse a request takes at most %.0f us of CPU, its reading included: %.1f us", refusedCPU, x.CPU),
		verdict(x.Retaken == x.HangUps && x.HangUps > 0, Failed, "who hangs up in the queue frees its place: of %d places %d were taken again", x.HangUps, x.Retaken),
		figure(x.Freed <= freedWithin.Seconds()*1e3, "that takes at most %v: %.1f ms (p50 %.1f)", freedWithin, x.Freed, x.Freed50),
	}
}
