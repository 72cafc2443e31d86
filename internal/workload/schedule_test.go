package workload

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// schedule draws n arrivals, in seconds.
func schedule(t testing.TB, l Loop, seed uint64, n int) []float64 {
	t.Helper()
	s, err := NewSchedule(l, seed)
	if err != nil {
		t.Fatal(err)
	}
	at := make([]float64, n)
	for i := range at {
		at[i] = s.Next().Seconds()
	}
	return at
}

func TestConstantSchedule(t *testing.T) {
	s, err := NewSchedule(Loop{Arrival: Constant, Rate: ConstantRate(3)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3_000_001 {
		if got, want := s.Next(), time.Duration(float64(i)/3*1e9); (got - want).Abs() > 1 {
			t.Fatalf("arrival %d at %v, want %v", i, got, want)
		}
	}
}

// near fails unless got is within five standard errors of want.
func near(t *testing.T, what string, got, want, se float64) {
	t.Helper()
	if math.Abs(got-want) > 5*se {
		t.Errorf("%s is %v, want %v within %v", what, got, want, 5*se)
	}
}

// TestProcesses tests realised processes against what theory says of them.
func TestProcesses(t *testing.T) {
	const rate, n = 500.0, 200_000
	root := math.Sqrt(n)
	for _, c := range []struct {
		name string
		loop Loop
		cv   float64
		cvSE float64 // of the realised CV, times sqrt(n)
	}{
		// The CV of a sample's standard error follows from the fourth moment; for
		// a gamma distribution of shape k it is below CV sqrt(2 + 6/k).
		{"poisson", Loop{Rate: ConstantRate(rate)}, 1, 1},
		{"gamma as poisson", Loop{Arrival: Gamma, CV: 1, Rate: ConstantRate(rate)}, 1, math.Sqrt(8)},
		{"even", Loop{Arrival: Gamma, CV: 0.3, Rate: ConstantRate(rate)}, 0.3, 0.3 * math.Sqrt(2+6*0.09)},
		{"bursts", Loop{Arrival: Gamma, CV: 3, Rate: ConstantRate(rate)}, 3, 3 * math.Sqrt(2+6*9)},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := schedule(t, c.loop, 42, n)
			p := Describe(slices.Values(at))
			near(t, "rate", p.Rate/rate, 1, c.cv/root)
			near(t, "CV", p.CV, c.cv, c.cvSE/root)
			near(t, "lag-1", p.Lag1, 0, 1/root)
			// Over windows long beside a gap, counts disperse as CV².
			const window = 1.0
			windows := at[n-1] / window
			near(t, "dispersion", Dispersion(slices.Values(at), window)/(c.cv*c.cv), 1, math.Sqrt(2/windows)+(1+c.cv*c.cv)/rate)
		})
	}
}

// TestPoissonGaps holds the distribution of the gaps against the exponential
// one, by Kolmogorov and Smirnov at 0.1 %.
func TestPoissonGaps(t *testing.T) {
	const rate, n = 500, 200_000
	at := schedule(t, Loop{Rate: ConstantRate(rate)}, 42, n)
	gaps := make([]float64, n-1)
	for i := range gaps {
		gaps[i] = at[i+1] - at[i]
	}
	if d := kolmogorov(gaps, func(g float64) float64 { return 1 - math.Exp(-g*rate) }); d > 1.95/math.Sqrt(n) {
		t.Errorf("the gaps are %v from the exponential distribution", d)
	}
	// A gamma distribution of shape 2, that is CV² = 1/2, is the sum of two
	// exponential ones.
	at = schedule(t, Loop{Arrival: Gamma, CV: math.Sqrt(0.5), Rate: ConstantRate(rate)}, 42, n)
	for i := range gaps {
		gaps[i] = at[i+1] - at[i]
	}
	erlang := func(g float64) float64 { return 1 - math.Exp(-2*g*rate)*(1+2*g*rate) }
	if d := kolmogorov(gaps, erlang); d > 1.95/math.Sqrt(n) {
		t.Errorf("the gaps are %v from the Erlang distribution", d)
	}
	// Shape 1/2, that is CV² = 2, is a squared normal draw.
	at = schedule(t, Loop{Arrival: Gamma, CV: math.Sqrt2, Rate: ConstantRate(rate)}, 42, n)
	for i := range gaps {
		gaps[i] = at[i+1] - at[i]
	}
	// Times are whole nanoseconds, which the steep start of this one shows.
	chi := func(g float64) float64 { return math.Erf(math.Sqrt(g * rate / 2)) }
	if d := kolmogorov(gaps, chi); d > 1.95/math.Sqrt(n)+math.Sqrt(2e-9*rate) {
		t.Errorf("the gaps are %v from the squared normal distribution", d)
	}
}

// kolmogorov returns the largest distance of a sample from a distribution.
func kolmogorov(sample []float64, cdf func(float64) float64) float64 {
	slices.Sort(sample)
	var most float64
	n := float64(len(sample))
	for i, x := range sample {
		p := cdf(x)
		most = max(most, math.Abs(p-float64(i)/n), math.Abs(p-float64(i+1)/n))
	}
	return most
}

// TestChangingRates counts arrivals of ramps and steps: each stretch has as
// many as its rate's integral says, give or take a Poisson process's deviation.
func TestChangingRates(t *testing.T) {
	steps := StepRates(RateStep{100, time.Minute}, RateStep{0, time.Minute}, RateStep{400, 30 * time.Second})
	ramp := RampRate(10, 210, 100*time.Second)
	down := RampRate(200, 0, 100*time.Second)
	for _, c := range []struct {
		name     string
		rate     Rate
		from, to float64
		want     float64
	}{
		{"first step", steps, 0, 60, 6000},
		{"pause", steps, 60, 120, 0},
		{"last step", steps, 120, 150, 12000},
		{"after the last step", steps, 150, 200, 20000},
		{"ramp", ramp, 0, 50, 10*50 + 50*50},
		{"ramp's end", ramp, 90, 100, 2000},
		{"after the ramp", ramp, 100, 150, 210 * 50},
		{"falling", down, 0, 100, 10000},
		{"fallen", down, 100, 1000, 0},
	} {
		for _, arrival := range []Arrival{Poisson, Constant} {
			s, err := NewSchedule(Loop{Arrival: arrival, Rate: c.rate}, 7)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for at := s.Next(); at < time.Duration(c.to*1e9); at = s.Next() {
				if at >= time.Duration(c.from*1e9) {
					n++
				}
			}
			allowed := 5 * math.Sqrt(c.want)
			if arrival == Constant {
				allowed = 1
			}
			if math.Abs(float64(n)-c.want) > allowed {
				t.Errorf("%s, %s: %d arrivals, want %v", c.name, arrival, n, c.want)
			}
		}
	}
}

func TestScheduleLaws(t *testing.T) {
	rate := rapid.Custom(func(t *rapid.T) Rate {
		r := rapid.Float64Range(1e-9, 1e7)
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			return ConstantRate(r.Draw(t, "rate"))
		case 1:
			return RampRate(r.Draw(t, "from"), r.Draw(t, "to"), time.Duration(rapid.Int64Range(1, 1e12).Draw(t, "in")))
		}
		steps := make([]RateStep, rapid.IntRange(1, 5).Draw(t, "steps"))
		for i := range steps {
			steps[i] = RateStep{r.Draw(t, "rate"), time.Duration(rapid.Int64Range(1, 1e12).Draw(t, "for"))}
		}
		return StepRates(steps...)
	})
	rapid.Check(t, func(t *rapid.T) {
		l := Loop{
			Arrival: rapid.SampledFrom([]Arrival{Poisson, Constant, Gamma, ""}).Draw(t, "arrival"),
			Rate:    rate.Draw(t, "rate"),
			CV:      rapid.Float64Range(0.01, 20).Draw(t, "cv"),
		}
		seed := rapid.Uint64().Draw(t, "seed")
		a, err := NewSchedule(l, seed)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := NewSchedule(l, seed)
		last := time.Duration(0)
		for range 200 {
			at := a.Next()
			if at < last {
				t.Fatalf("%v after %v", at, last)
			}
			if other := b.Next(); other != at {
				t.Fatalf("the same seed gives %v and %v", at, other)
			}
			last = at
		}
	})
}

func TestScheduleErrors(t *testing.T) {
	for _, l := range []Loop{
		{},
		{Rate: ConstantRate(0)}, {Rate: ConstantRate(-1)}, {Rate: ConstantRate(math.NaN())}, {Rate: ConstantRate(math.Inf(1))},
		{Rate: RampRate(0, 0, time.Second)}, {Rate: RampRate(1, 2, -time.Second)}, {Rate: RampRate(-1, 2, time.Second)},
		{Rate: StepRates()}, {Rate: StepRates(RateStep{1, time.Second}, RateStep{2, 0})},
		{Arrival: "uniform", Rate: ConstantRate(1)},
		{Arrival: Gamma, Rate: ConstantRate(1)}, {Arrival: Gamma, CV: math.NaN(), Rate: ConstantRate(1)},
	} {
		if _, err := NewSchedule(l, 1); err == nil {
			t.Errorf("%+v was accepted", l)
		}
	}
}

// TestDescribe holds the figures against processes whose figures are known.
func TestDescribe(t *testing.T) {
	even := make([]float64, 1001)
	twos := make([]float64, 1000) // pairs a tenth of a second apart, every second
	waves := make([]float64, 1000)
	for i := range even {
		even[i] = float64(i) / 4
	}
	for i := range twos {
		twos[i] = float64(i/2) + 0.1*float64(i%2)
		if i > 0 { // gaps 1, 1, 3, 3, 1, 1, 3, 3 ...
			waves[i] = waves[i-1] + float64(1+2*(i/2%2))
		}
	}
	if p := Describe(slices.Values(even)); p != (Process{Rate: 4}) {
		t.Errorf("even arrivals: %+v", p)
	}
	// Gaps 0.1 and 0.9 in turn: mean 0.5, deviation 0.4, and perfectly opposed.
	if p := Describe(slices.Values(twos)); math.Abs(p.Rate-2) > 0.01 || math.Abs(p.CV-0.8) > 0.01 || math.Abs(p.Lag1+1) > 0.01 {
		t.Errorf("pairs: %+v", p)
	}
	if p := Describe(slices.Values(waves)); math.Abs(p.CV-0.5) > 0.01 || math.Abs(p.Lag1) > 0.01 {
		t.Errorf("waves: %+v", p)
	}
	if d := Dispersion(slices.Values(even), 10); d != 0 {
		t.Errorf("even arrivals disperse by %v", d)
	}
	// A thousand at once every ten seconds: of ten windows of a second one has
	// them all, so the variance is 1000² (1/10 - 1/100), and the mean 100.
	var bursts []float64
	for i := range 101_000 {
		bursts = append(bursts, 10*float64(i/1000))
	}
	if d := Dispersion(slices.Values(bursts), 1); math.Abs(d-900) > 1 {
		t.Errorf("bursts disperse by %v", d)
	}
	for _, few := range [][]float64{nil, {1}, {1, 1}, {1, 1, 1}} {
		if p := Describe(slices.Values(few)); p != (Process{}) {
			t.Errorf("%v: %+v", few, p)
		}
		if d := Dispersion(slices.Values(few), 1); d != 0 {
			t.Errorf("%v disperse by %v", few, d)
		}
	}
}

// BenchmarkSchedule draws arrivals; ns/op is of one.
func BenchmarkSchedule(b *testing.B) {
	for _, l := range []Loop{
		{Rate: ConstantRate(100)}, {Arrival: Gamma, CV: 2, Rate: ConstantRate(100)}, {Rate: RampRate(1, 100, time.Hour)},
	} {
		b.Run(string(l.Arrival), func(b *testing.B) {
			s, err := NewSchedule(l, 1)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				s.Next()
			}
		})
	}
}

// TestSchedulesStay pins the arrivals of a seed: a run that somebody noted can be
// repeated with any later version. The values are those that weir bench had
// before this package existed.
func TestSchedulesStay(t *testing.T) {
	for arrival, want := range map[Arrival][4]int64{
		Poisson:  {2238049, 9333888, 28499084, 31054334},
		Constant: {0, 26666666, 53333333, 80000000},
	} {
		s, err := NewSchedule(Loop{Arrival: arrival, Rate: ConstantRate(37.5)}, 42)
		if err != nil {
			t.Fatal(err)
		}
		hash := uint64(14695981039346656037) // FNV-1a over whole numbers
		for i := range 100_000 {
			at := int64(s.Next())
			if i < len(want) && at != want[i] {
				t.Errorf("%s: arrival %d at %d ns, want %d", arrival, i, at, want[i])
			}
			hash = (hash ^ uint64(at)) * 1099511628211
		}
		if all := map[Arrival]uint64{Poisson: 8925481159118041420, Constant: 1610494150565233150}; hash != all[arrival] {
			t.Errorf("%s: the arrivals of a seed changed", arrival)
		}
	}
}
