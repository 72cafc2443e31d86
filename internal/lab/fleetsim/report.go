package fleetsim

import (
	"math"
	"slices"

	"weir/internal/fleet/cost"
	"weir/internal/infer"
)

// Report is the result of a run.
type Report struct {
	Workload string  `json:"workload"`
	Policy   string  `json:"policy"`
	Seed     uint64  `json:"seed"`
	Speed    float64 `json:"speed"`
	Gateways int     `json:"gateways"`
	AgeMS    float64 `json:"age_ms"`
	Stamps   bool    `json:"stamps"`

	Requests int `json:"requests"`
	Finished int `json:"finished"`
	Refused  int `json:"refused"`
	// RefusedWhy is why the first one was.
	RefusedWhy string `json:"refused_why,omitempty"`
	Failed     int    `json:"failed"`
	Retries    int    `json:"retries"`

	PromptTokens int64 `json:"prompt_tokens"`
	CachedTokens int64 `json:"cached_tokens"`
	OutputTokens int64 `json:"output_tokens"`
	// HitRate is the cached share of prompt tokens. Regret is the share of the computed
	// ones that were resident at another engine.
	HitRate float64 `json:"cache_hit_rate"`
	Regret  float64 `json:"regret"`

	// TTFT, TPOT and E2E are in milliseconds.
	TTFT Spread `json:"ttft_ms"`
	TPOT Spread `json:"tpot_ms"`
	E2E  Spread `json:"e2e_ms"`
	// Off is by how much the time to the first token was predicted wrong, in
	// milliseconds.
	Off Spread `json:"prediction_error_ms"`
	// Goodput is requests a second that ended whole, with a TTFT of at most 3 times
	// that on an idle engine and 500 ms, and a TPOT of at most twice that alone.
	Goodput float64 `json:"goodput_per_s"`
	// Divided counts the finished requests whose prompt and output were computed by two
	// engines. Handover is the time in milliseconds from the end of the prefill to the
	// first token.
	Divided  int     `json:"divided,omitempty"`
	Handover *Spread `json:"handover_ms,omitempty"`
	// Objectives are those of the options, and how many requests kept them.
	Objectives []Kept `json:"objectives,omitempty"`

	// Load is the share of time that the engines' steps filled. MaxMean is the busiest
	// engine's load over the mean load, averaged over windows of 60 s in which the mean is
	// at least 5 %. If engines have roles, it is the greatest of any side.
	Load    float64        `json:"load"`
	MaxMean float64        `json:"max_mean_load"`
	Sides   []Side         `json:"sides,omitempty"`
	Engines []EngineReport `json:"engines"`
	// Behind is how much the work in hand grows while the last half of the sessions come,
	// as a share of what the engines can do in that time. Work is the time left to prefill
	// prompts and to decode outputs, in the largest batch. If engines have roles, it is the
	// greatest of any side.
	Behind float64 `json:"behind"`

	VirtualSeconds float64 `json:"virtual_seconds"`
	RealSeconds    float64 `json:"real_seconds"`

	// Samples are the values behind the spreads, in ascending order, for plots.
	Samples Samples `json:"-"`
}

// Samples are times in milliseconds.
type Samples struct{ TTFT, TPOT, E2E, Handover []float64 }

// Side are the engines of one role.
type Side struct {
	Role    string  `json:"role"`
	Engines int     `json:"engines"`
	Load    float64 `json:"load"`
	MaxMean float64 `json:"max_mean_load"`
}

// EngineReport is one engine's part.
type EngineReport struct {
	Role string  `json:"role,omitempty"`
	Load float64 `json:"load"`
	// Loads are those of equal parts of the run, for plots.
	Loads    []float64 `json:"-"`
	Given    int       `json:"given"`
	Finished int       `json:"finished"`
	Evicted  uint64    `json:"evicted_tokens"`
}

// Spread are figures of values.
type Spread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

func spread(values []float64) (s Spread) {
	n := len(values)
	if n == 0 {
		return s
	}
	slices.Sort(values)
	for _, v := range values {
		s.Mean += v / float64(n)
	}
	at := func(q float64) float64 { return values[min(n-1, int(math.Ceil(q*float64(n)))-1)] }
	s.P50, s.P90, s.P99, s.Max = at(0.5), at(0.9), at(0.99), values[n-1]
	return s
}

// figures collects a report.
type figures struct {
	truth                     cost.Coefficients
	requests, refused, failed int
	retries, good             int
	prompt, cached, output    int64
	elsewhere, computed       int64
	ttft, tpot, e2e, off      []float64
	handover                  []float64
	sides                     []side
	why                       error // of the first that was refused
	judged                    []judged
	last                      int64 // arrival
}

// side are the engines of one role.
type side struct {
	role    infer.Role
	engines []*engine
	hands   []hand
}

// sides returns the sides on which the run has engines.
func (r *run) sides() (all []side) {
	for _, e := range r.engines {
		i := slices.IndexFunc(all, func(s side) bool { return s.role == e.role })
		if i < 0 {
			i, all = len(all), append(all, side{role: e.role})
		}
		all[i].engines = append(all[i].engines, e)
	}
	return all
}

// hand is the work in hand at a time, of all engines of a side together, in milliseconds.
type hand struct{ at, work float64 }

func (f *figures) arrive(r *run, begins bool) {
	f.requests++
	f.last = r.now
	if !begins {
		return
	}
	for i := range f.sides {
		h := hand{at: float64(r.now) / 1e6}
		for _, e := range f.sides[i].engines {
			h.work += e.left()
		}
		f.sides[i].hands = append(f.sides[i].hands, h)
	}
}

// slope is by how much the work grows in a millisecond, by least squares.
func slope(hands []hand) float64 {
	n := float64(len(hands))
	var at, work, both, square float64
	for _, h := range hands {
		at, work = at+h.at/n, work+h.work/n
	}
	for _, h := range hands {
		both += (h.at - at) * (h.work - work)
		square += (h.at - at) * (h.at - at)
	}
	if square == 0 {
		return 0
	}
	return both / square
}

func (f *figures) take(r *Record) {
	f.retries += max(r.Tries-1, 0)
	f.judge(r)
	switch {
	case r.Refused != nil:
		f.refused++
		if f.why == nil {
			f.why = r.Refused
		}
		return
	case r.Failed:
		f.failed++
		return
	}
	f.prompt += int64(r.Input)
	f.cached += int64(r.Cached)
	f.output += int64(r.Output)
	lost := max(min(r.Elsewhere, r.Input-r.Cached), 0)
	f.elsewhere += int64(lost)
	f.computed += int64(r.Input - r.Cached)
	f.ttft = append(f.ttft, r.TTFT())
	f.e2e = append(f.e2e, float64(r.Finish-r.Arrival)/1e6)
	f.off = append(f.off, math.Abs(r.TTFT()-r.PredictedMS))
	if r.Prefill >= 0 {
		f.handover = append(f.handover, float64(r.First-r.Answered)/1e6)
	}
	if r.Output > 1 {
		f.tpot = append(f.tpot, r.TPOT())
	}
	if r.TTFT() <= 3*r.AloneMS+500 && r.TPOT() <= 2*(f.truth.Decode+f.truth.Decoder) {
		f.good++
	}
}

// close makes the report.
func (r *run) close() *Report {
	f, o := &r.figures, r.o
	p := &Report{
		Workload: o.Plan.Name, Policy: o.Policy, Seed: o.Seed, Speed: o.Speed, Gateways: o.Gateways,
		AgeMS: float64(o.Age) / 1e6, Stamps: o.Stamps,
		Requests: f.requests, Finished: len(f.ttft), Refused: f.refused, Failed: f.failed, Retries: f.retries,
		PromptTokens: f.prompt, CachedTokens: f.cached, OutputTokens: f.output,
		HitRate: share(f.cached, f.prompt), Regret: share(f.elsewhere, f.computed),
		TTFT: spread(f.ttft), TPOT: spread(f.tpot), E2E: spread(f.e2e), Off: spread(f.off),
		Objectives: f.kept(o.Objectives), Samples: Samples{f.ttft, f.tpot, f.e2e, f.handover},
		VirtualSeconds: float64(r.now) / 1e9,
	}
	if f.why != nil {
		p.RefusedWhy = f.why.Error()
	}
	if f.last > 0 {
		p.Goodput = float64(f.good) / (float64(f.last) / 1e9)
	}
	if p.Divided = len(f.handover); p.Divided > 0 {
		p.Handover = new(spread(f.handover))
	}
	for _, e := range r.engines {
		busy := int64(0)
		for _, ns := range e.busy {
			busy += ns
		}
		g := EngineReport{Load: share(busy, r.now), Loads: loads(e.busy, r.now), Given: e.given, Finished: e.finished}
		if e.core != nil {
			g.Evicted = e.core.Counts().Evicted
		}
		if e.role != infer.RoleBoth {
			g.Role = e.role.String()
		}
		p.Engines = append(p.Engines, g)
		p.Load += g.Load / float64(len(r.engines))
	}
	p.Behind = math.Inf(-1)
	for _, s := range f.sides {
		of := Side{Role: s.role.String(), Engines: len(s.engines), MaxMean: s.maxMean(f.last)}
		p.Behind = max(p.Behind, slope(s.hands[len(s.hands)/2:])/float64(len(s.engines)))
		p.MaxMean = max(p.MaxMean, of.MaxMean)
		for i, e := range r.engines {
			if e.role == s.role {
				of.Load += p.Engines[i].Load / float64(of.Engines)
			}
		}
		if len(f.sides) > 1 {
			p.Sides = append(p.Sides, of)
		}
	}
	return p
}

// drawn is the number of parts that a run is cut into for plots, of this many slices each.
const drawn = 200

// loads returns those of equal parts of a run of length ns.
func loads(busy []int64, length int64) []float64 {
	n := (length + slice - 1) / slice
	each := max((n+drawn-1)/drawn, 1)
	all := make([]float64, max(n/each, 1)) // parts that are whole
	for i := range all {
		all[i] = float64(within(busy, int64(i)*each, each)) / float64(each*slice)
	}
	return all
}

// within adds up n slices.
func within(busy []int64, from, n int64) (sum int64) {
	to := min(from+n, int64(len(busy)))
	for i := min(from, to); i < to; i++ {
		sum += busy[i]
	}
	return sum
}

// maxMean covers the windows that are complete before the last arrival, or the only one.
func (s *side) maxMean(last int64) float64 {
	windows := max(last/window, 1)
	sum, n := 0.0, 0
	for w := range windows {
		most, all := 0.0, 0.0
		for _, e := range s.engines {
			busy := float64(within(e.busy, w*(window/slice), window/slice))
			most, all = max(most, busy), all+busy
		}
		if mean := all / float64(len(s.engines)); mean >= 0.05*float64(window) || windows == 1 && mean > 0 {
			sum += most / mean
			n++
		}
	}
	if n == 0 {
		return 1
	}
	return sum / float64(n)
}

func share(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
