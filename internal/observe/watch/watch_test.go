package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/observe/busy"
	"weir/internal/trace"
)

// newWatch makes one that logs into the buffer.
func newWatch(o Options) (*Watch, *bytes.Buffer) {
	var log bytes.Buffer
	o.Registry = prometheus.NewRegistry()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	o.StallThreshold = 250 * time.Millisecond
	return New(o), &log
}

const second = int64(time.Second)

// A moment that is late by more than the threshold is a stall. The log, the list of stalls and the
// records of the requests in flight report it.
func TestStall(t *testing.T) {
	w, log := newWatch(Options{Load: func() Load { return Load{Streams: 900, Pending: 700} }})
	ms := int64(time.Millisecond)
	id := "req-slow"
	w.saw(10*second, 0)
	w.saw(10*second+260*ms, 250*time.Millisecond) // not more than the threshold
	mark := w.meter.Begin(busy.Template, &id, 10*second+200*ms)
	w.saw(11*second, 400*time.Millisecond)
	w.meter.End(mark, 11*second+5*ms)
	latest, total := w.Stalls()
	if total != 1 || latest[0].MS != 400 || latest[0].end() != 11*second || latest[0].Streams != 900 || latest[0].Pending != 700 {
		t.Fatalf("%d stalls: %+v", total, latest)
	}
	// The process of the test has hardly computed in those 400 ms, so no operation held the core;
	// the running operation is reported all the same.
	if s := latest[0]; s.Idle || s.HeldBy != HeldByNobody || len(s.Operations) != 1 || s.Operations[0].Operation != "template" || !slices.Equal(s.Operations[0].RequestIDs, []string{id}) {
		t.Errorf("%+v", s)
	}
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "longest_ms=400") || !strings.Contains(text, "streams=900") {
		t.Errorf("the log says %s", text)
	}
	w.canary.due.Store(12 * second)
	for _, c := range []struct {
		from, to int64
		want     []trace.Stall
	}{
		{9 * second, 10 * second, nil},
		{10 * second, 12 * second, []trace.Stall{{Start: 10*second + 600*ms, End: 11 * second, Why: HeldByNobody}}},
		{10*second + 700*ms, 10*second + 800*ms, []trace.Stall{{Start: 10*second + 600*ms, End: 11 * second, Why: HeldByNobody}}},
		{11 * second, 12 * second, nil},
		// The canary is overdue: there is a stall that it has not reported yet.
		{11 * second, 12*second + 300*ms, []trace.Stall{{Start: 12 * second, End: 12*second + 300*ms}}},
	} {
		if got := w.Overlap(c.from, c.to); !slices.Equal(got, c.want) {
			t.Errorf("%d to %d: %+v, want %+v", c.from, c.to, got, c.want)
		}
	}
}

// A stall while nothing was in flight is in the list and in no log line, starts no trigger, and has a
// counter of its own. One that is nobody's of ours starts none either, and has a line in an hour,
// with a count. A stall of weir's own has a warning and starts the trigger.
func TestWhoseStalls(t *testing.T) {
	load := Load{}
	w, log := newWatch(Options{Load: func() Load { return load }})
	at := 10 * second
	w.saw(at, 0)
	stalls := func(n int, cpu bool) {
		for range n {
			at += 10 * second
			if w.tick = (Sample{At: at - second, CPU: cpuTime()}); cpu {
				w.tick.CPU -= time.Second
			}
			w.saw(at, 500*time.Millisecond)
		}
	}
	began := func() bool {
		select {
		case <-w.events:
			return true
		default:
			return false
		}
	}
	stalls(12, true)
	if latest, _ := w.Stalls(); len(latest) != 12 || !latest[0].Idle || log.Len() > 0 || began() || w.stalled {
		t.Errorf("idle: %d stalls, %s", len(latest), log)
	}
	load.Streams = 3
	stalls(400, false) // more than an hour
	if n := strings.Count(log.String(), "level=WARN"); n != 2 || !strings.Contains(log.String(), "stalls=1 ") || !strings.Contains(log.String(), "stalls=360 ") || began() || w.stalled {
		t.Errorf("nobody of ours: %d lines\n%s", n, log)
	}
	log.Reset()
	stalls(1, true)
	if !strings.Contains(log.String(), `msg="stall: nothing was read`) || !strings.Contains(log.String(), `held_by="unnamed work"`) || !began() || !w.stalled {
		t.Errorf("weir's own: %s", log)
	}
	load.Streams = 0
	w.Overlap(at, at+10*second-1) // a request that ended within the next one
	stalls(1, true)
	if latest, _ := w.Stalls(); latest[0].Idle {
		t.Error("a request in flight was overlooked")
	}
}

// An operation that held a core for longer than the bound is logged by its name, once. One that
// waited for a core meanwhile is not.
func TestSlowOperations(t *testing.T) {
	w, log := newWatch(Options{SlowOperation: 100 * time.Millisecond})
	ms := int64(time.Millisecond)
	look := func(at int64, cpu time.Duration) {
		after := Sample{At: at, CPU: cpu}
		w.logLong(&after)
		w.knows(&after)
	}
	ran := func(op busy.Op, id string, from, to int64) { w.meter.End(w.meter.Begin(op, &id, from), to) }
	look(second, time.Second)
	ran(busy.Template, "req-1", second+10*ms, second+150*ms)
	ran(busy.Tokenize, "short", second+160*ms, second+200*ms)
	look(second+250*ms, time.Second+140*time.Millisecond)
	ran(busy.Hash, "waited", second+260*ms, second+460*ms)
	look(second+500*ms, time.Second+150*time.Millisecond)
	look(second+750*ms, 2*time.Second)
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `msg="an operation held a core" operation=template ms=140 request_id=req-1`) {
		t.Errorf("the log says %s", text)
	}
}

// The figures of a stall are counted from before it, although a look came between its end and the
// canary.
func TestKnownBefore(t *testing.T) {
	w, _ := newWatch(Options{})
	for _, at := range []int64{7, 8, 9, 20} {
		w.knows(&Sample{At: at * second, RunDelay: time.Duration(at) * time.Second})
	}
	for at, want := range map[int64]int64{30: 20, 20: 20, 19: 9, 8: 8, 3: 7} {
		if got := w.knownAt(at * second); got.At != want*second {
			t.Errorf("before %d s it knows what was read at %d ns, want at %d s", at, got.At, want)
		}
	}
}

// The list and what a record keeps are bounded, whatever happens.
func TestManyStalls(t *testing.T) {
	w, _ := newWatch(Options{})
	for i := range int64(3 * maxStalls) {
		w.saw((i+1)*second, 500*time.Millisecond)
	}
	latest, total := w.Stalls()
	if total != 3*maxStalls-1 || len(latest) != maxStalls || latest[0].end() != 3*maxStalls*second {
		t.Errorf("%d of %d, the latest until %d", len(latest), total, latest[0].end())
	}
	seen := w.Overlap(0, 1e18)
	if len(seen) != trace.MaxStalls || seen[trace.MaxStalls-1].Start > 1e18 || !slices.IsSortedFunc(seen, func(a, b trace.Stall) int { return int(a.Start - b.Start) }) {
		t.Errorf("%+v", seen)
	}
}

// A nil watch, and one without a threshold, watches nothing.
func TestOff(t *testing.T) {
	var none *Watch
	none.Delayed(time.Second)
	if latest, total := none.Stalls(); none.Meter() != nil || none.Overlap(0, second) != nil || total != 0 || len(latest) != 0 {
		t.Error("nil has watched")
	}
	w := New(Options{Registry: prometheus.NewRegistry()})
	w.saw(second, 0)
	w.saw(9*second, 5*time.Second)
	if _, total := w.Stalls(); total != 0 || w.Overlap(0, 9*second) != nil {
		t.Error("a stall without a threshold")
	}
}

// While a trigger lasts, the log has a line about the process every five seconds, and a line at the
// end. All of it is in virtual time.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		load := Load{Streams: 1000, Pending: 400}
		w, log := newWatch(Options{Limits: Limits{Streams: 800}, Load: func() Load { return load }})
		before := Sample{At: trace.Now()}
		pass := func(of time.Duration) {
			for range of / lookEvery {
				time.Sleep(lookEvery)
				after := Sample{At: trace.Now()}
				after.CPU = before.CPU + 200*time.Millisecond*time.Duration(w.cores)
				after.Busy[busy.Tokenize] = before.Busy[busy.Tokenize] + int64(lookEvery)/2
				c, s := w.judge(&before, &after, 0)
				w.tell(&c, s)
				before = after
			}
		}
		pass(16 * time.Second)
		lines := strings.Count(log.String(), "under watch")
		if want := []string{"trigger=backlog", "cpu=0.8", "streams=1000", "pending=400", `busy="tokenize 50%"`}; lines != 3 || slices.ContainsFunc(want, func(part string) bool { return strings.Count(log.String(), part) != lines }) {
			t.Errorf("%d lines:\n%s", lines, log)
		}
		load = Load{}
		pass(6 * time.Second)
		if !strings.Contains(log.String(), `msg="a trigger is over" trigger=backlog`) || len(w.State().Triggers) != 0 {
			t.Errorf("not over:\n%s", log)
		}
	})
}

// A watch of a real process reports its usage, and ends with its context.
func TestRealProcess(t *testing.T) {
	w, _ := newWatch(Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.Run(ctx) // it ends with the context
	}()
	for w.State().At.IsZero() {
		time.Sleep(time.Millisecond) // until a real timer has fired
	}
	s := w.State()
	if s.Cores < 1 || s.OverMS <= 0 || s.CPUShare < 0 || s.Descriptors < 3 && s.Descriptors != 0 || s.DescriptorLimit < s.Descriptors {
		t.Errorf("%+v", s)
	}
	cancel()
	<-ended
}

func get(t *testing.T, w *Watch, path string, into any) int {
	t.Helper()
	mux := http.NewServeMux()
	for pattern, h := range w.Handlers() {
		mux.HandleFunc(pattern, h)
	}
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
	if into != nil {
		if err := json.Unmarshal(rec.Body.Bytes(), into); err != nil {
			t.Fatalf("%s: %v: %s", path, err, rec.Body)
		}
	}
	return rec.Code
}

// The pages have lists where there is nothing, so that a reader need not ask.
func TestPages(t *testing.T) {
	w, _ := newWatch(Options{})
	var stalls struct {
		ThresholdMS float64 `json:"threshold_ms"`
		Stalls      []Stall
	}
	var state map[string]any
	var profiles struct {
		On       bool
		Profiles []Profile
	}
	get(t, w, "/stalls", &stalls)
	get(t, w, "/watch", &state)
	get(t, w, "/profiles", &profiles)
	if stalls.ThresholdMS != 250 || stalls.Stalls == nil || state["triggers"] == nil || state["running"] == nil || state["busy"] == nil || profiles.On || profiles.Profiles == nil {
		t.Errorf("%+v\n%v\n%+v", stalls, state, profiles)
	}
	if code := get(t, w, "/profiles/20261123T113406.667Z-stall.trace", nil); code != http.StatusNotFound {
		t.Errorf("a profile that nobody keeps: %d", code)
	}
}

// BenchmarkSaw is what each 10 ms costs, and BenchmarkLook what a quarter of a second does.
func BenchmarkSaw(b *testing.B) {
	w, _ := newWatch(Options{})
	for i := int64(0); b.Loop(); i++ {
		w.saw(i, 0)
	}
}

func BenchmarkLook(b *testing.B) {
	w, _ := newWatch(Options{})
	before := Sample{At: trace.Now()}
	for b.Loop() {
		after := Sample{At: trace.Now(), CPU: cpuTime()}
		w.figures.read(&after)
		w.figures.schedP99()
		w.judge(&before, &after, 0)
		before = after
	}
}

// BenchmarkOverlap measures the cost for a request that has seen no stall.
func BenchmarkOverlap(b *testing.B) {
	w, _ := newWatch(Options{})
	w.saw(second, 0)
	w.saw(2*second, 500*time.Millisecond)
	b.ReportAllocs()
	for b.Loop() {
		w.Overlap(5*second, 6*second)
	}
}
