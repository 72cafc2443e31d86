package slo

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Options shape a search. The zero value of each means its default.
type Options struct {
	// Start is the first rate; 1 unless given.
	Start float64
	// Low and High bound the rates; 0 is no bound.
	Low, High float64
	// Tolerance is how close the two ends of the answer must be, as a share. Default 0.05.
	Tolerance float64
	// Repeats is how often a rate is measured before it is left undecided; 4 unless
	// given. Trials bounds them all; 30 unless given.
	Repeats, Trials int
}

// smallest is the lowest rate that is tried if Low is not set.
const smallest = 1e-3

func (o *Options) defaults() {
	o.Low = cmp.Or(o.Low, smallest)
	o.Tolerance = cmp.Or(o.Tolerance, 0.05)
	o.Repeats = cmp.Or(o.Repeats, 4)
	o.Trials = cmp.Or(o.Trials, 30)
	o.Start = max(cmp.Or(o.Start, 1), o.Low)
	if o.High > 0 {
		o.Start = min(o.Start, o.High)
	}
}

// Trial is the result of one run at a rate.
type Trial struct {
	Rate float64
	// Tallies has one for each objective.
	Tallies []Tally
	// Unstable is the reason why the rate was found to be more than the server answers.
	Unstable string
	// Void is the reason why the run reveals nothing about the rate, which is then more
	// than can be measured.
	Void string
}

// Step is a trial on a search's path, and what was known about its rate after it.
type Step struct {
	Rate     float64  `json:"rate"`
	Repeat   int      `json:"repeat"` // of the rate, from 1
	Decision Decision `json:"decision"`
	// Worst is the objective that decided it, or is furthest from its bound, in
	// words.
	Why string `json:"why"`
}

// Result is a search's answer.
type Result struct {
	// Low is the highest rate that meets the objectives, with no lower rate that misses
	// them; 0 if there is none. High is the lowest rate that misses them; 0 if none did.
	// The limit lies between them.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Within reports whether they are as close as was asked for.
	Within bool `json:"within_tolerance"`
	// Ceiling is the lowest rate that could not be offered, 0 where all could.
	Ceiling float64 `json:"ceiling,omitempty"`
	// Undecided are the rates between that could not be decided.
	Undecided []float64 `json:"undecided,omitempty"`
	// Contradictions are pairs of rates of which the lower one is worse, beyond
	// noise: then something else than the rate decides.
	Contradictions []string `json:"contradictions,omitempty"`
	// Why is the reason why the search ended.
	Why  string `json:"why"`
	Path []Step `json:"path"`
}

// point is all that is known of a rate.
type point struct {
	rate      float64
	trials    int
	unstable  int
	void      string
	why       string // of the latest instability
	tallies   []Tally
	confirmed bool
}

// Search finds the highest rate that meets the objectives. The caller asks for a rate with
// Next and reports the measurement with Add, in turn.
type Search struct {
	options    Options
	objectives []Objective
	points     []*point // by rate
	used       int
	path       []Step
	last       *point
	rechecked  map[[2]float64]bool
	ended      string
}

// NewSearch begins a search.
func NewSearch(objectives []Objective, o Options) *Search {
	o.defaults()
	return &Search{options: o, objectives: objectives, rechecked: map[[2]float64]bool{}}
}

// Next returns the next rate to be measured; ok is false when the search has
// ended.
func (s *Search) Next() (rate float64, ok bool) {
	if s.ended != "" {
		return 0, false
	}
	if s.used >= s.options.Trials {
		s.ended = fmt.Sprintf("all %d trials are spent", s.used)
		return 0, false
	}
	if p := s.last; p != nil && p.trials < s.options.Repeats {
		// A rate that could not be offered once may have met an accident of the machine.
		if d := s.decide(p); d == Undecided || d == Void && p.trials < 2 {
			return p.rate, true
		}
	}
	if rate, ok = s.step(); ok {
		return rate, true
	}
	// The ends are measured once more, later than they were at first.
	low, high := s.ends()
	for _, p := range []*point{low, high} {
		if p != nil && !p.confirmed && p.void == "" {
			p.confirmed = true
			return p.rate, true
		}
	}
	for _, c := range s.contradictions() {
		pair := [2]float64{c[0].rate, c[1].rate}
		if !s.rechecked[pair] {
			s.rechecked[pair] = true
			c[1].confirmed = true
			return c[0].rate, true
		}
	}
	return 0, false
}

// step returns the rate that narrows the answer. ok is false if the answer is narrow
// enough, with the reason in ended, or if nothing narrows it.
func (s *Search) step() (rate float64, ok bool) {
	if len(s.points) == 0 {
		return s.options.Start, true
	}
	least, most := s.points[0], s.points[len(s.points)-1]
	low, high := s.ends()
	switch {
	case low == nil && least.rate > s.options.Low:
		return max(s.options.Low, least.rate/2), true
	case low == nil:
		return 0, false
	case high == nil && (s.options.High == 0 || most.rate < s.options.High):
		rate = most.rate * 2
		if s.options.High > 0 {
			rate = min(rate, s.options.High)
		}
		return rate, true
	}
	// The rate splits the wider of two gaps: from meeting to undecided, or from undecided
	// to missing. Between undecided rates nothing can be learnt.
	from, to := low.rate, math.Inf(1)
	if high != nil {
		to = high.rate
	}
	between := s.undecided(from, to)
	if len(between) == 0 {
		if high == nil || to/from <= 1+s.options.Tolerance {
			return 0, false
		}
		return math.Sqrt(from * to), true
	}
	below, above := between[0]/from, 1.0
	if high != nil {
		above = to / between[len(between)-1]
	}
	// Each of the two has half of the tolerance.
	limit := math.Sqrt(1 + s.options.Tolerance)
	if max(below, above) <= limit {
		return 0, false
	}
	if below >= above {
		return math.Sqrt(from * between[0]), true
	}
	return math.Sqrt(between[len(between)-1] * to), true
}

// ends returns the highest rate that meets the objectives with no failing rate below it,
// and the lowest rate that misses them or could not be offered; nil if there is none.
func (s *Search) ends() (low, high *point) {
	for _, p := range s.points {
		switch s.decide(p) {
		case Meets:
			if high == nil {
				low = p
			}
		case Misses, Void:
			if high == nil {
				high = p
			}
		}
	}
	return low, high
}

// undecided returns the rates between two that are neither.
func (s *Search) undecided(from, to float64) (rates []float64) {
	for _, p := range s.points {
		if p.rate > from && p.rate < to && s.decide(p) == Undecided {
			rates = append(rates, p.rate)
		}
	}
	return rates
}

// decide returns what is known about a rate.
func (s *Search) decide(p *point) Decision {
	if p.void != "" {
		return Void
	}
	if 2*p.unstable >= p.trials {
		return Misses
	}
	all := Meets
	for i := range s.objectives {
		switch s.objectives[i].Decide(p.tallies[i].Estimate()) {
		case Misses:
			return Misses
		case Undecided:
			all = Undecided
		}
	}
	return all
}

// Add takes the trial of the rate that Next gave.
func (s *Search) Add(t Trial) {
	i, found := slices.BinarySearchFunc(s.points, t.Rate, func(p *point, rate float64) int { return cmp.Compare(p.rate, rate) })
	if !found {
		s.points = slices.Insert(s.points, i, &point{rate: t.Rate, tallies: make([]Tally, len(s.objectives))})
	}
	p := s.points[i]
	s.last = p
	s.used++
	p.trials++
	if p.void = t.Void; t.Void == "" {
		for k := range s.objectives {
			p.tallies[k] = append(p.tallies[k], t.Tallies[k]...)
		}
		if t.Unstable != "" {
			p.unstable++
			p.why = t.Unstable
		}
	}
	s.path = append(s.path, Step{Rate: p.rate, Repeat: p.trials, Decision: s.decide(p), Why: s.why(p)})
}

// why returns what decided a rate, or is furthest from being decided.
func (s *Search) why(p *point) string {
	switch {
	case p.void != "":
		return p.void
	case 2*p.unstable >= p.trials:
		return "unstable: " + p.why
	}
	worst, most := "", math.Inf(-1)
	for i := range s.objectives {
		o := &s.objectives[i]
		e := p.tallies[i].Estimate()
		if far := e.High / (1 - o.Share); far > most {
			most = far
			worst = fmt.Sprintf("%s: %s", o, e.say(o))
		}
	}
	return worst
}

// say puts an estimate into words.
func (e Estimate) say(o *Objective) string {
	if e.N == 0 {
		return "no request could be judged"
	}
	text := fmt.Sprintf("kept by %.2f %% of %d (99 %% interval %.2f to %.2f)", 100*(1-e.Share), e.N, 100*(1-e.High), 100*(1-e.Low))
	if e.Bad == 0 && o.Decide(e) == Undecided {
		text += fmt.Sprintf("; it takes %d in a row", o.Needed())
	}
	return text
}

// contradictions are pairs of rates of which the lower one is worse beyond
// noise.
func (s *Search) contradictions() (pairs [][2]*point) {
	for i, a := range s.points {
		for _, b := range s.points[i+1:] {
			if s.contradict(a, b) {
				pairs = append(pairs, [2]*point{a, b})
			}
		}
	}
	return pairs
}

func (s *Search) contradict(a, b *point) bool {
	if a.void != "" || b.void != "" {
		return false
	}
	for k := range s.objectives {
		if a.tallies[k].Estimate().Low > b.tallies[k].Estimate().High {
			return true
		}
	}
	return false
}

// Result returns the answer so far.
func (s *Search) Result() Result {
	low, high := s.ends()
	r := Result{Path: s.path, Why: s.ended}
	from, to := 0.0, math.Inf(1)
	if low != nil {
		r.Low, from = low.rate, low.rate
	}
	if high != nil {
		if to = high.rate; high.void != "" {
			r.Ceiling = high.rate
		} else {
			r.High = high.rate
		}
	}
	r.Undecided = s.undecided(from, to)
	r.Within = low != nil && high != nil && to/from <= (1+s.options.Tolerance)*(1+1e-9)
	for _, c := range s.contradictions() {
		r.Contradictions = append(r.Contradictions, fmt.Sprintf("%s/s is worse than %s/s", Round(c[0].rate), Round(c[1].rate)))
	}
	if r.Why != "" {
		return r
	}
	switch {
	case len(s.points) == 0:
		r.Why = "nothing was measured"
	case low == nil && len(r.Undecided) > 0:
		r.Why = fmt.Sprintf("no rate from %s/s on was shown to meet the objectives", Round(s.options.Low))
	case low == nil:
		r.Why = fmt.Sprintf("%s/s, the lowest rate, misses the objectives already", Round(s.points[0].rate))
	case high == nil && s.options.High > 0 && low.rate >= s.options.High:
		r.Why = fmt.Sprintf("%s/s, the highest rate, meets the objectives", Round(s.options.High))
	case r.Ceiling > 0:
		r.Why = fmt.Sprintf("%s/s could not be offered: %s", Round(r.Ceiling), high.void)
	case r.Within:
		r.Why = fmt.Sprintf("the ends are within %g %%", 100*s.options.Tolerance)
	default:
		r.Why = fmt.Sprintf("what lies between could not be decided in %d runs each; longer runs would", s.options.Repeats)
	}
	return r
}

// Round writes a rate with its significant digits only.
func Round(rate float64) string { return fmt.Sprintf("%.4g", rate) }

// Sentence writes the answer as a sentence.
func (r *Result) Sentence() string {
	switch {
	case r.Low > 0 && r.High > 0:
		return fmt.Sprintf("the objectives are met up to %s requests a second; the limit lies between %s and %s", Round(r.Low), Round(r.Low), Round(r.High))
	case r.Low > 0:
		return fmt.Sprintf("the objectives are met at %s requests a second, and no rate missed them", Round(r.Low))
	case r.High > 0:
		return fmt.Sprintf("no rate was shown to meet the objectives; %s requests a second miss them", Round(r.High))
	}
	return "no rate could be decided"
}
