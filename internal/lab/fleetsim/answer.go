package fleetsim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/internal/load/slo"
)

// Kept is how many of a run's requests kept an objective.
type Kept struct {
	Objective string `json:"objective"`
	// Share is the share of the requests that could be judged. With 99 % confidence the
	// true share lies between Interval's ends.
	Share    float64    `json:"share"`
	Interval [2]float64 `json:"interval_99"`
	Needed   float64    `json:"needed"`
	Requests int        `json:"requests"`
	Meets    bool       `json:"meets"`
}

// judged is a request as objectives look at it.
type judged struct {
	arrival int64
	slo.Request
}

func (f *figures) judge(r *Record) {
	q := judged{arrival: r.Arrival}
	if r.Refused == nil && !r.Failed {
		ttft := time.Duration(r.First - r.Arrival)
		q.Request = slo.Request{Complete: true, TTFT: ttft, TTFTAnswer: ttft, TPOT: time.Duration(r.TPOT() * 1e6), E2E: time.Duration(r.Finish - r.Arrival)}
	}
	f.judged = append(f.judged, q)
}

// kept holds the requests against the objectives, in the order of their arrival.
func (f *figures) kept(objectives []slo.Objective) (all []Kept) {
	if len(objectives) == 0 {
		return nil
	}
	slices.SortStableFunc(f.judged, func(a, b judged) int { return cmp.Compare(a.arrival, b.arrival) })
	requests := make([]slo.Request, len(f.judged))
	for i := range f.judged {
		requests[i] = f.judged[i].Request
	}
	for i := range objectives {
		o := &objectives[i]
		e := o.Take(requests).Estimate()
		all = append(all, Kept{
			Objective: o.String(), Share: 1 - e.Share, Interval: [2]float64{1 - e.High, 1 - e.Low},
			Needed: o.Share, Requests: e.N, Meets: e.N > 0 && e.Share <= 1-o.Share+1e-9,
		})
	}
	return all
}

// Meets reports whether all objectives were kept.
func (r *Report) Meets() bool {
	return len(r.Objectives) > 0 && !slices.ContainsFunc(r.Objectives, func(k Kept) bool { return !k.Meets })
}

// seen reports how many requests kept the deciding objectives: the missed ones, if the run
// misses any.
func (r *Report) seen() string {
	var all []string
	for _, k := range r.Objectives {
		if k.Meets == r.Meets() {
			all = append(all, fmt.Sprintf("%s kept by %.1f %%", k.Objective, 100*k.Share))
		}
	}
	return strings.Join(all, ", ")
}

// Answer states which policy needs how many engines, in one setting of everything else.
type Answer struct {
	Setting    string   `json:"setting,omitempty"` // where there are several
	Objectives []string `json:"objectives,omitempty"`
	Policies   []Sized  `json:"policies,omitempty"`
	// Trials are the runs of a search, in order.
	Trials []Trial `json:"trials,omitempty"`
	// Sentences are the answer in words.
	Sentences []string `json:"sentences"`
}

// Trial is a run of a search.
type Trial struct {
	Policy  string  `json:"policy"`
	Engines int     `json:"engines"`
	Meets   bool    `json:"meets"`
	Run     *Report `json:"-"`
}

// Sized is how many engines a policy needs.
type Sized struct {
	Policy string `json:"policy"`
	// Engines is the least number that meets the objectives, 0 if none did. Run is the run
	// with it.
	Engines int     `json:"engines"`
	Run     *Report `json:"-"`
	// Fleet and FewerFleet are the roles of the engines, where they have any.
	Fleet      string `json:"fleet,omitempty"`
	FewerFleet string `json:"fewer_fleet,omitempty"`
	// Fewer is the next smaller number that was tried and did not suffice, 0 if there is
	// none. FewerRun is the run with it.
	Fewer    int     `json:"fewer,omitempty"`
	FewerRun *Report `json:"-"`
}

// Fleets are the fleets that a search may try.
type Fleets struct {
	Least, Most int
	// Engines returns a fleet of n.
	Engines func(n int) ([]Engine, error)
	// Tell, when set, hears of each run.
	Tell func(policy string, engines int, r *Report)
}

// Size finds the least number of engines with which each policy meets the objectives of the
// options. It assumes that more engines never do worse. It doubles the number until one
// suffices, and halves the remaining range, so it ends with a number that suffices and the
// next smaller one, which does not. The cells contain the final numbers, with all policies.
func Size(ctx context.Context, o Options, policies []string, f Fleets) (*Answer, []*Cell, error) {
	if len(o.Objectives) == 0 {
		return nil, nil, errors.New("a search for the number of engines needs objectives")
	}
	type trial struct {
		policy string
		n      int
	}
	a, runs := &Answer{}, map[trial]*Report{}
	run := func(policy string, n int) (r *Report, err error) {
		at := trial{policy, n}
		if r := runs[at]; r != nil {
			return r, nil
		}
		if o.Engines, err = f.Engines(n); err != nil {
			return nil, err
		}
		one := o
		if policy == Oracle { // it is alone, and sees what is true now
			one.Gateways, one.Age = 1, 0
		}
		if r, err = timed(ctx, one, policy); err != nil {
			return nil, err
		}
		runs[at] = r
		a.Trials = append(a.Trials, Trial{policy, n, r.Meets(), r})
		if f.Tell != nil {
			f.Tell(policy, n, r)
		}
		return r, nil
	}
	for _, objective := range o.Objectives {
		a.Objectives = append(a.Objectives, objective.String())
	}
	begin := f.Least
	for _, policy := range policies {
		low, high := f.Least-1, f.Most+1 // does not do, does
		for n, step := begin, 1; high-low > 1; {
			r, err := run(policy, n)
			if err != nil {
				return nil, nil, err
			}
			if r.Meets() {
				high = n
			} else {
				low = n
			}
			switch {
			case high > f.Most: // none has done
				n, step = min(low+step, f.Most), 2*step
			case low < f.Least: // each has: what does for one policy may do for another
				n, step = max(high-step, f.Least), 2*step
			default:
				n = (low + high) / 2
			}
		}
		s := Sized{Policy: policy}
		if high <= f.Most {
			s.Engines, s.Run = high, runs[trial{policy, high}]
			begin = high
		}
		if low >= f.Least {
			s.Fewer, s.FewerRun = low, runs[trial{policy, low}]
		}
		a.Policies = append(a.Policies, s)
	}
	var numbers []int
	for _, s := range a.Policies {
		numbers = append(numbers, cmp.Or(s.Engines, s.Fewer))
	}
	slices.Sort(numbers)
	var cells []*Cell
	for _, n := range slices.Compact(numbers) {
		c := &Cell{Engines: n}
		var err error
		if c.Oracle, err = run(Oracle, n); err != nil {
			return nil, nil, err
		}
		for _, policy := range policies {
			r, err := run(policy, n)
			if err != nil {
				return nil, nil, err
			}
			c.Runs = append(c.Runs, r)
		}
		cells = append(cells, c)
	}
	a.say()
	return a, cells, nil
}

// Judge answers from cells that differ in the number of engines, with the objectives of
// their runs. Without objectives it reports which policy had the highest goodput.
func Judge(cells []*Cell) *Answer {
	a := &Answer{}
	cells = slices.Clone(cells)
	slices.SortStableFunc(cells, func(x, y *Cell) int { return cmp.Compare(x.Engines, y.Engines) })
	if len(cells) == 0 || len(cells[0].Runs) == 0 {
		return a
	}
	if len(cells[0].Runs[0].Objectives) == 0 {
		for _, c := range cells {
			a.Sentences = append(a.Sentences, c.best())
		}
		return a
	}
	for _, k := range cells[0].Runs[0].Objectives {
		a.Objectives = append(a.Objectives, k.Objective)
	}
	for i, r := range cells[0].Runs {
		s := Sized{Policy: r.Policy}
		for _, c := range cells {
			if c.Runs[i].Meets() {
				s.Engines, s.Run, s.Fleet = c.Engines, c.Runs[i], c.Fleet
				break
			}
			s.Fewer, s.FewerRun, s.FewerFleet = c.Engines, c.Runs[i], c.Fleet
		}
		a.Policies = append(a.Policies, s)
	}
	a.say()
	return a
}

// best returns which policy of a cell had the highest goodput.
func (c *Cell) best() string {
	best := slices.MaxFunc(c.Runs, func(a, b *Report) int { return cmp.Compare(a.Goodput, b.Goodput) })
	var others []string
	for _, r := range c.Runs {
		if r != best {
			others = append(others, fmt.Sprintf("%s %.2f", r.Policy, r.Goodput))
		}
	}
	s := fmt.Sprintf("%s: the highest goodput is %s's, %.2f requests/s (TTFT p50 %.0f ms, p99 %.0f ms)", c.Name, best.Policy, best.Goodput, best.TTFT.P50, best.TTFT.P99)
	if len(others) > 0 {
		s += "; " + strings.Join(others, ", ")
	}
	if c.Oracle != nil {
		s += fmt.Sprintf("; the oracle's is %.2f", c.Oracle.Goodput)
	}
	return s + "."
}

// say puts the answer into words.
func (a *Answer) say() {
	all := slices.Clone(a.Policies)
	slices.SortStableFunc(all, func(x, y Sized) int {
		switch {
		case x.Engines == 0 || y.Engines == 0:
			return cmp.Compare(y.Engines, x.Engines)
		case x.Engines != y.Engines:
			return cmp.Compare(x.Engines, y.Engines)
		}
		return cmp.Compare(y.Run.Goodput, x.Run.Goodput)
	})
	if len(all) == 0 {
		return
	}
	if first := all[0]; first.Engines == 0 {
		a.Sentences = append(a.Sentences, fmt.Sprintf("No policy meets %s with %d engines or fewer.", strings.Join(a.Objectives, ", "), first.Fewer))
	} else {
		a.Sentences = append(a.Sentences, fmt.Sprintf("%s under %s meet%s %s.", cmp.Or(first.Fleet, Count(first.Engines)), first.Policy, map[bool]string{true: "s"}[first.Engines == 1], strings.Join(a.Objectives, ", ")))
	}
	for _, s := range all {
		var text string
		if s.Engines > 0 {
			text = fmt.Sprintf("%s: %s (%s; load %.2f)", s.Policy, cmp.Or(s.Fleet, Count(s.Engines)), s.Run.seen(), s.Run.Load)
			if s.Run.close() {
				text += ", so close that chance could have it otherwise"
			}
			if s.Fewer > 0 {
				text += fmt.Sprintf("; %s do not do (%s)", cmp.Or(s.FewerFleet, fmt.Sprint(s.Fewer)), s.FewerRun.seen())
			}
		} else {
			text = fmt.Sprintf("%s: not with %s (%s)", s.Policy, cmp.Or(s.FewerFleet, Count(s.Fewer)), s.FewerRun.seen())
		}
		a.Sentences = append(a.Sentences, text+".")
	}
	for _, r := range []*Report{all[0].Run, all[0].FewerRun} {
		if r != nil && r.Refused > 0 {
			a.Sentences = append(a.Sentences, fmt.Sprintf("%d of %d requests were refused, and keep no objective: the first, %s.", r.Refused, r.Requests, r.RefusedWhy))
			break
		}
	}
}

// Count is this many engines in words.
func Count(n int) string {
	if n == 1 {
		return "1 engine"
	}
	return fmt.Sprintf("%d engines", n)
}

// close reports whether of some objective the interval holds shares that would not do.
func (r *Report) close() bool {
	return slices.ContainsFunc(r.Objectives, func(k Kept) bool { return k.Interval[0] < k.Needed })
}
