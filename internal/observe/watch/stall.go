package watch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/internal/observe/busy"
)

// Sample is what the process and its machine have used until a moment. All fields except At
// are totals since some beginning; values that the system does not report stay 0.
type Sample struct {
	At        int64 // on trace's clock
	CPU       time.Duration
	GCPause   time.Duration // all goroutines stood still for the collector
	GCCPU     time.Duration // the collector's part of CPU, as far as its cycles have ended
	RunDelay  time.Duration // of the thread that has waited longest for a core since the sample before
	Steal     time.Duration // the machine's, of all cores
	Throttled time.Duration // the process's group was held back by its limit
	Busy      busy.Spent
}

// Causes of a stall, besides the names of operations.
const (
	HeldByGC     = "gc"
	HeldByNobody = "nobody of ours"
	HeldByOther  = "unnamed work"
)

// Stall is a time for which the process read nothing, whatever was ready.
type Stall struct {
	Start time.Time `json:"start"`
	// StartNS is the start on the timeline's clock, and MS the length.
	StartNS int64   `json:"start_ns"`
	MS      float64 `json:"ms"`
	// HeldBy is an operation's name, gc, "nobody of ours" or "unnamed work".
	HeldBy     string      `json:"held_by"`
	Why        string      `json:"why"`
	Operations []Operation `json:"operations"`
	// The activity of the process and the machine during the stall.
	CPUMS       float64 `json:"cpu_ms"`
	GCPauseMS   float64 `json:"gc_pause_ms"`
	RunDelayMS  float64 `json:"run_delay_ms"`
	StealMS     float64 `json:"steal_ms"`
	ThrottledMS float64 `json:"throttled_ms"`
	Streams     int64   `json:"streams"`
	Pending     int64   `json:"pending"`
	// Idle is set if no request was in flight: nobody has waited for it.
	Idle bool `json:"idle,omitzero"`
}

// foreign are the stalls for which others than the process are responsible. Nothing in it can be
// mended, so that the log has a line for all of an hour.
type foreign struct {
	told    time.Time
	count   int
	longest float64
}

// add counts a stall at a time. due is set if a line is due for the count of those since the line
// before.
func (f *foreign) add(s *Stall, now time.Time) (of foreign, due bool) {
	f.count++
	f.longest = max(f.longest, s.MS)
	if !f.told.IsZero() && now.Sub(f.told) < time.Hour {
		return of, false
	}
	of = *f
	*f = foreign{told: now}
	return of, true
}

// Operation is an operation's part of a stall.
type Operation struct {
	Operation  string   `json:"operation"`
	MS         float64  `json:"ms"` // of all its spans together
	RequestIDs []string `json:"request_ids,omitzero"`

	longest int64
}

// named reports whether an operation of a request ran meanwhile.
func (s *Stall) named() bool {
	return slices.ContainsFunc(s.Operations, func(o Operation) bool { return len(o.RequestIDs) > 0 })
}

// end is when it was over, on the timeline's clock.
func (s *Stall) end() int64 { return s.StartNS + int64(s.MS*1e6) }

// Bounds of a stall's record.
const (
	maxStallIDs = 8
	maxStalls   = 128
)

func millis[T int64 | time.Duration](d T) float64 { return float64(int64(d)/1e3) / 1e3 }

// explain returns what held the core from one moment to another. before was taken at the
// latest before the stall, and after at its end; spans are operations that ran for long
// meanwhile.
//
// It uses only evidence. If the garbage collector paused everything, it held the core. If
// the process used no CPU, it was kept from it, and the kernel reports by whom. Otherwise
// it was weir: the operation that ran longest, or all the short ones of a kind.
func explain(from, to int64, before, after *Sample, spans []busy.Span, cores int) Stall {
	lasted := to - from
	s := Stall{
		StartNS: from, MS: millis(lasted), Operations: operations(from, to, spans),
		CPUMS: millis(after.CPU - before.CPU), GCPauseMS: millis(after.GCPause - before.GCPause),
		RunDelayMS: millis(after.RunDelay - before.RunDelay), StealMS: millis((after.Steal - before.Steal) / time.Duration(max(cores, 1))),
		ThrottledMS: millis(after.Throttled - before.Throttled),
	}
	long := s.MS / 2
	foreign, whose := s.kept(long)
	idle := s.CPUMS < s.MS/4
	var longest *Operation
	if len(s.Operations) > 0 {
		longest = &s.Operations[0]
	}
	name, most := mostly(after.Busy.Sub(before.Busy), lasted)
	switch {
	case s.GCPauseMS >= long:
		s.HeldBy, s.Why = HeldByGC, fmt.Sprintf("the garbage collector paused everything for %.0f ms", s.GCPauseMS)
	case idle || foreign > s.CPUMS:
		s.HeldBy, s.Why = HeldByNobody, HeldByNobody+": "+whose
	case longest != nil && longest.longest >= lasted/4:
		s.HeldBy, s.Why = longest.Operation, longest.words()
	case most > 0:
		s.HeldBy, s.Why = name, fmt.Sprintf("%s, %.0f ms in many short parts", name, millis(most))
	case after.GCCPU-before.GCCPU >= (after.CPU-before.CPU)/2 && after.GCCPU > before.GCCPU:
		s.HeldBy, s.Why = HeldByGC, fmt.Sprintf("the garbage collector took %.0f of %.0f ms of CPU", millis(after.GCCPU-before.GCCPU), s.CPUMS)
	default:
		s.HeldBy, s.Why = HeldByOther, fmt.Sprintf("%s: %.0f ms of CPU that no operation took", HeldByOther, s.CPUMS)
	}
	return s
}

// kept returns what others kept the process from its cores for, and who that was.
func (s *Stall) kept(long float64) (ms float64, whose string) {
	switch {
	case s.ThrottledMS >= long:
		return s.ThrottledMS, fmt.Sprintf("its group has used up its CPU limit (throttled for %.0f ms)", s.ThrottledMS)
	case s.StealMS >= long:
		return s.StealMS, fmt.Sprintf("the host gave the cores of this machine to others (steal of %.0f ms)", s.StealMS)
	case s.RunDelayMS >= long:
		return s.RunDelayMS, fmt.Sprintf("other processes had the cores (run delay of %.0f ms)", s.RunDelayMS)
	}
	return 0, fmt.Sprintf("the process was stopped, or the machine was: it used %.0f ms of CPU and waited %.0f ms for a core", s.CPUMS, s.RunDelayMS)
}

// operations adds up what spans had of a stall, by operation, that with the longest first.
func operations(from, to int64, spans []busy.Span) []Operation {
	var by [busy.NumOps]Operation
	overlap := func(s *busy.Span) int64 {
		end := s.End
		if end == 0 {
			end = to
		}
		return min(end, to) - max(s.Began, from)
	}
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b busy.Span) int { return cmp.Compare(overlap(&b), overlap(&a)) })
	for i := range spans {
		had := overlap(&spans[i])
		if had < int64(busy.Long) {
			break
		}
		o := &by[spans[i].Op]
		o.Operation, o.MS, o.longest = spans[i].Op.String(), o.MS+millis(had), max(o.longest, had)
		if id := spans[i].RequestID; id != "" && len(o.RequestIDs) < maxStallIDs && !slices.Contains(o.RequestIDs, id) {
			o.RequestIDs = append(o.RequestIDs, id)
		}
	}
	all := slices.DeleteFunc(by[:], func(o Operation) bool { return o.longest == 0 })
	slices.SortStableFunc(all, func(a, b Operation) int { return cmp.Compare(b.longest, a.longest) })
	return slices.Clone(all)
}

func (o *Operation) words() string {
	s := fmt.Sprintf("%s, %.0f ms", o.Operation, o.MS)
	if len(o.RequestIDs) > 0 {
		s += " (" + strings.Join(o.RequestIDs, ", ") + ")"
	}
	return s
}

// mostly returns the operation that took at least half of a time, in however many parts.
func mostly(spent busy.Spent, of int64) (name string, took int64) {
	for op, ns := range spent {
		if ns >= of/2 && ns > took {
			name, took = busy.Op(op).String(), ns
		}
	}
	return name, took
}
