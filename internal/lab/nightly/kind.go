package nightly

import (
	"math"
	"slices"
)

// Kind is what a figure measures. It determines which direction is better and how much
// worse is too much.
type Kind string

// The kinds.
const (
	Same       Kind = "same"
	Count      Kind = "count"
	Allocs     Kind = "allocs"
	Ratio      Kind = "ratio"
	Share      Kind = "share"
	Memory     Kind = "memory"
	Goroutines Kind = "goroutines"
	Time       Kind = "time"
	Rate       Kind = "rate"
	Delay      Kind = "delay"
)

// Better is the direction in which a figure gets better.
type Better int

// The directions. A figure that must stay is worse wherever it goes.
const (
	Lower  Better = -1
	Stay   Better = 0
	Higher Better = 1
)

// String returns the word used in documents.
func (b Better) String() string { return [...]string{"lower", "equal", "higher"}[b+1] }

// Conditions are those under which figures can be compared.
type Conditions int

// The conditions, each with those before it.
const (
	Any         Conditions = iota
	Quiet                  // nothing else used the machine, then or now
	SameMachine            // as the figure depends on its speed
)

// String returns the words used in documents.
func (c Conditions) String() string { return [...]string{"any", "quiet", "quiet, same machine"}[c] }

// Rule is how figures of a kind are compared.
type Rule struct {
	Kind   Kind
	Better Better
	// Bound is how much worse a figure may be, as a share of the baseline's.
	Bound float64
	Needs Conditions
	What  string
}

// rules has a rule for each kind.
var rules = []Rule{
	{Same, Stay, 0, Any, "what must not change: tokens lost, tests skipped"},
	{Count, Higher, 0, Any, "tests that passed, fuzz targets: none may go missing"},
	{Allocs, Lower, 0.01, Any, "allocations per operation: below 100 this is exact"},
	{Ratio, Lower, 0.15, Quiet, "a cost as a share of another's, measured beside it in the same run"},
	{Share, Higher, 0.03, Quiet, "delivered of what was offered"},
	{Memory, Lower, 0.15, Quiet, "resident memory, bytes of a stream"},
	{Goroutines, Lower, 1, Quiet, "goroutines of a stream, the process's own among them"},
	{Time, Lower, 0.30, SameMachine, "time of an operation, a replay or a package of tests; CPU"},
	{Rate, Higher, 0.30, SameMachine, "tokens or requests per second"},
	{Delay, Lower, 1, SameMachine, "percentiles of a delay in one run"},
}

// Rules lists the rules.
func Rules() []Rule { return slices.Clone(rules) }

// rule finds a kind's rule.
func (k Kind) rule() (Rule, bool) {
	i := slices.IndexFunc(rules, func(r Rule) bool { return r.Kind == k })
	if i < 0 {
		return Rule{}, false
	}
	return rules[i], true
}

// worseBy is how far a value is on the worse side of another; negative is better.
func (r Rule) worseBy(old, now float64) float64 {
	if r.Better == Stay {
		return math.Abs(now - old)
	}
	return (old - now) * float64(r.Better)
}

// tolerance is how far on the worse side of the baseline's figure a figure may be:
// by the kind's bound, or as far as the worst of the baseline's own repeats.
func (r Rule) tolerance(old Figure) float64 {
	tolerance := r.Bound * math.Abs(old.Value)
	for _, sample := range old.Samples {
		tolerance = max(tolerance, r.worseBy(old.Value, sample))
	}
	return tolerance
}
