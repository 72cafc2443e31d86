package watch

import (
	"strings"
	"testing"
	"time"

	"weir/internal/observe/busy"
)

// Each cause of a stall of 400 ms is distinguished from the others by the system's counters.
func TestExplain(t *testing.T) {
	const ms = time.Millisecond
	from, to := int64(1000*ms), int64(1400*ms)
	span := func(op busy.Op, id string, began, end time.Duration) busy.Span {
		return busy.Span{Op: op, RequestID: id, Began: int64(began), End: int64(end)}
	}
	for _, c := range []struct {
		name   string
		after  Sample
		spans  []busy.Span
		heldBy string
		why    []string
	}{
		{"a template that ended", Sample{CPU: 405 * ms}, []busy.Span{span(busy.Template, "req-1", 990*ms, 1399*ms), span(busy.Pick, "req-2", 1390*ms, 1399*ms)},
			"template", []string{"399 ms", "req-1"}},
		{"tokenizing that goes on", Sample{CPU: 380 * ms}, []busy.Span{span(busy.Tokenize, "req-1", 500*ms, 0), span(busy.Tokenize, "req-2", 1100*ms, 0)},
			"tokenize", []string{"req-1, req-2"}},
		{"the collector's pause", Sample{CPU: 100 * ms, GCPause: 350 * ms}, []busy.Span{span(busy.Tokenize, "req-1", 500*ms, 0)},
			"gc", []string{"350 ms"}},
		{"the collector's work", Sample{CPU: 800 * ms, GCCPU: 700 * ms}, nil, "gc", []string{"700 of 800 ms"}},
		{"other processes", Sample{CPU: 20 * ms, RunDelay: 380 * ms}, []busy.Span{span(busy.Encode, "", 990*ms, 0)},
			"nobody of ours", []string{"run delay of 380 ms"}},
		{"other processes, and some work", Sample{CPU: 150 * ms, RunDelay: 300 * ms}, []busy.Span{span(busy.Encode, "", 990*ms, 0)},
			"nobody of ours", []string{"run delay"}},
		{"work, and others who waited little", Sample{CPU: 390 * ms, RunDelay: 300 * ms}, []busy.Span{span(busy.Encode, "", 990*ms, 0)},
			"encode", nil},
		{"the host", Sample{CPU: 10 * ms, Steal: 790 * ms}, nil, "nobody of ours", []string{"steal of 395 ms"}},
		{"a limit", Sample{CPU: 10 * ms, Throttled: 390 * ms}, nil, "nobody of ours", []string{"throttled for 390 ms"}},
		{"SIGSTOP", Sample{CPU: ms}, []busy.Span{span(busy.Tokenize, "req-1", 500*ms, 0)}, "nobody of ours", []string{"stopped"}},
		{"many short ones", Sample{CPU: 390 * ms, Busy: busy.Spent{busy.Hash: int64(300 * ms), busy.Pick: int64(250 * ms)}}, nil,
			"hash", []string{"short"}},
		{"what has no name", Sample{CPU: 390 * ms}, []busy.Span{span(busy.Pick, "req-9", 1050*ms, 1060*ms)}, "unnamed work", []string{"390 ms of CPU"}},
	} {
		s := explain(from, to, &Sample{}, &c.after, c.spans, 2)
		if s.HeldBy != c.heldBy || s.MS != 400 || s.StartNS != from || s.end() != to {
			t.Errorf("%s: held by %q: %+v; want %q", c.name, s.HeldBy, s, c.heldBy)
		}
		for _, part := range c.why {
			if !strings.Contains(s.Why, part) {
				t.Errorf("%s: %q does not say %q", c.name, s.Why, part)
			}
		}
	}
}

// A stall keeps few ids of many, those that had most of it, and each operation's sum.
func TestOperations(t *testing.T) {
	var spans []busy.Span
	for i := range 40 {
		spans = append(spans, busy.Span{Op: busy.Hash, RequestID: string(rune('A' + i)), Began: int64(i) * 1e7, End: 1e9})
	}
	spans = append(spans, busy.Span{Op: busy.Pick, RequestID: "short", Began: 5e8, End: 5e8 + 1e6})
	all := operations(0, 1e9, spans)
	if len(all) != 1 || all[0].Operation != "hash" || len(all[0].RequestIDs) != maxStallIDs || all[0].RequestIDs[0] != "A" {
		t.Fatalf("%+v", all)
	}
	if want := 40*1000.0 - 10*(39*40/2); all[0].MS != want {
		t.Errorf("%v ms, want %v", all[0].MS, want)
	}
}
