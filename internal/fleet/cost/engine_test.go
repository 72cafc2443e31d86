package cost_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"weir/internal/fleet/cost"
	"weir/internal/sim"
	"weir/internal/workload/content"
)

// truth is a simulated engine and its cost in this package's terms: the simulated one
// counts end² - start², which is twice the pairs.
func truth(c sim.PerBatch) cost.Coefficients {
	return cost.Coefficients{Step: c.PrefillBase, Token: c.Linear, Pair: 2 * c.Square, Decode: c.DecodeBase, Decoder: c.Each}
}

var published = sim.PerBatch{Square: 4.21e-7, Linear: 0.0152, PrefillBase: 16.5, DecodeBase: 6.0, Each: 0.35}

// load is what a simulated engine is asked for.
type load struct {
	requests int
	rate     float64 // a second
	length   func(r *rand.Rand) int
	output   func(r *rand.Rand) int
	stamps   bool
	after    func(done int, rank *cost.Rank)
	seed     uint64
	others   float64 // the share of requests that are not the gateway's
	change   func(done int) (sim.PerBatch, bool)
	// first hears of each first token: how long it was predicted to take, and how long it took.
	first func(predicted, took float64)
	// beside has other gateways give it requests; nil: there are none.
	beside *beside
}

func mixedLengths(r *rand.Rand) int {
	return int(min(200*math.Exp(1.3*r.NormFloat64()+1.5), 30_000)) + 1
}

// engine lets a cost model of the simulated engine be changed while it runs.
type engine struct{ now sim.PerBatch }

func (e *engine) StepTime(b sim.Batch) time.Duration { return e.now.StepTime(b) }

// run has a simulated engine serve the load, with a rank that sees what a gateway
// would.
func run(t *testing.T, e *engine, o sim.Options, l load, prior cost.Coefficients) *cost.Rank {
	t.Helper()
	if testing.Short() {
		t.Skip("there is one goroutine, and the race detector makes it ten times as slow: these run without it")
	}
	o.Words, o.Cost = words(t), e
	core, err := sim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(l.seed, 17))
	rank := cost.NewModel(prior).Join(0, core.Options().StepTokens)
	rank.SetLimits(cost.Limits{Running: core.Options().MaxRunning, Budget: true})
	l.beside.start(rank)
	came := map[sim.Ref]int64{}
	bookings, got, lengths := map[sim.Ref]*cost.Booking{}, map[sim.Ref]int{}, map[sim.Ref]int{}
	var next float64
	sent, done, held := 0, 0, 0
	holds := func(tokens int) {
		if held += tokens; o.KVTokens > 0 {
			rank.SetRoom(cost.Room{KV: int64(o.KVTokens), InUse: int64(held)})
		}
	}
	for done < l.requests {
		due, busy := core.Due()
		if until := int64(next * 1e9); sent < l.requests && (!busy || until <= due) {
			l.beside.exchange(until)
		} else {
			l.beside.exchange(due)
		}
		if at := int64(next * 1e9); sent < l.requests && (!busy || at <= due) {
			length, output := l.length(r), l.output(r)
			prompt := make([]uint32, length)
			for i := range prompt {
				prompt[i] = r.Uint32N(1000)
			}
			q, err := core.Options().Prepare(sim.Params{Prompt: prompt, MaxTokens: output, IgnoreEOS: true})
			if err != nil {
				t.Fatal(err)
			}
			ref, err := core.Submit(at, at, q)
			if err != nil {
				t.Fatal(err)
			}
			sent++
			next += r.ExpFloat64() / l.rate
			if r.Float64() < l.others {
				delete(bookings, ref)
				continue
			}
			got[ref] = 0
			bookings[ref] = l.beside.pick(rank, r).Book(at, cost.Work{Length: length, New: length, Output: float64(output)})
			lengths[ref] = length
			came[ref] = at
			holds(length)
			continue
		}
		for step := core.Advance(due); step != nil; step = core.Advance(due) {
			first := map[sim.Ref]*sim.First{}
			for i := range step.First {
				first[step.First[i].Ref] = &step.First[i]
			}
			ends := map[sim.Ref]bool{}
			for i := range step.Done {
				ends[step.Done[i].Ref] = true
			}
			// Streams get what a step brings one after another.
			for _, ref := range step.Ref {
				if bookings[ref] == nil {
					continue
				}
				if f := first[ref]; f != nil {
					began := int64(0)
					if l.stamps {
						began = f.Stamps.PrefillStart
					}
					if e := bookings[ref].Predicted(); l.first != nil {
						l.first(e.TTFT(), float64(step.End-came[ref])/1e6)
					}
					bookings[ref].First(step.End, f.Cached, began)
				}
				bookings[ref].Rank().Tokens(step.End, 1)
				got[ref]++
				if ends[ref] {
					bookings[ref].End(step.End, got[ref])
					holds(-lengths[ref])
				}
			}
			for range step.Done {
				done++
				if l.after != nil {
					l.after(done, rank)
				}
				if l.change != nil {
					if c, ok := l.change(done); ok {
						e.now = c
					}
				}
			}
		}
	}
	l.beside.exchange(math.MaxInt64)
	return rank
}

func words(t testing.TB) *content.Words {
	t.Helper()
	w, err := content.New(1024, func(n uint32) ([]byte, bool) {
		return []byte{' ', 'a' + byte(n%26), 'a' + byte(n/26%26), 'a' + byte(n/676%26)}, true
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

var prior = cost.Coefficients{Step: 8, Token: 0.05, Pair: 3e-6, Decode: 15, Decoder: 0.1}

func uniform(low, high int) func(*rand.Rand) int {
	return func(r *rand.Rand) int { return low + r.IntN(high-low+1) }
}

var (
	slow = sim.PerBatch{Square: 2e-6, Linear: 0.08, PrefillBase: 40, DecodeBase: 25, Each: 0.9}
	// thrice takes thrice as long as is typical.
	thrice = sim.PerBatch{Square: 1.26e-6, Linear: 0.0456, PrefillBase: 49.5, DecodeBase: 18, Each: 1.05}
	fast   = sim.PerBatch{Square: 5e-8, Linear: 0.004, PrefillBase: 4, DecodeBase: 3, Each: 0.05}
)

// bound is what a coefficient, or a prediction, may be off by after 50 requests.
func bound(stamps bool) float64 {
	if stamps {
		return 0.05
	}
	return 0.10
}

// TestCoefficients has prompts of many lengths and a few decoders at a time, so that
// each coefficient shows. One in a hundred may be off by up to twice the bound.
func TestCoefficients(t *testing.T) {
	missed, all := 0, 0
	for seed := range uint64(20) {
		for _, stamps := range []bool{true, false} {
			for _, is := range []sim.PerBatch{published, slow} {
				rank := run(t, &engine{is}, sim.Options{}, load{
					requests: 50, rate: 30 / is.PrefillBase, length: uniform(100, 12_000),
					output: uniform(20, 220), stamps: stamps, seed: seed,
				}, prior)
				c, _ := rank.Coefficients()
				w := truth(is)
				for _, x := range []struct {
					name      string
					got, want float64
				}{
					{"step", c.Step, w.Step}, {"token", c.Token, w.Token}, {"pair", c.Pair, w.Pair},
					{"decode", c.Decode, w.Decode}, {"decoder", c.Decoder, w.Decoder},
				} {
					all++
					if off := math.Abs(x.got/x.want - 1); off > bound(stamps) {
						missed++
						if t.Logf("seed %d, stamps %v: %s is %.4g, want %.4g, off by %.1f %%", seed, stamps, x.name, x.got, x.want, 100*off); off > 2*bound(stamps) {
							t.Fail()
						}
					}
				}
			}
		}
	}
	if missed > all/100 {
		t.Errorf("%d of %d are off", missed, all)
	}
}

// TestPredictions has loads in which not every coefficient can be told from the
// others; what is predicted of requests like those seen must be right all the same.
func TestPredictions(t *testing.T) {
	same := func(*rand.Rand) int { return 1500 }
	for _, test := range []struct {
		name string
		is   sim.PerBatch
		o    sim.Options
		l    load
	}{
		{"light", published, sim.Options{}, load{rate: 3, length: mixedLengths, output: uniform(20, 220)}},
		{"busy", published, sim.Options{}, load{rate: 12, length: mixedLengths, output: uniform(20, 220)}},
		{"long", published, sim.Options{ContextLength: 200_000}, load{rate: 0.5, length: uniform(500, 60_000), output: uniform(20, 220)}},
		{"short", published, sim.Options{}, load{rate: 20, length: uniform(10, 2000), output: uniform(100, 400)}},
		{"equal", published, sim.Options{}, load{rate: 4, length: same, output: same}},
		{"small steps", published, sim.Options{StepTokens: 2048}, load{rate: 4, length: mixedLengths, output: uniform(20, 220)}},
		{"slow", slow, sim.Options{}, load{rate: 1, length: mixedLengths, output: uniform(20, 220)}},
		{"fast", fast, sim.Options{}, load{rate: 20, length: mixedLengths, output: uniform(20, 220)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, stamps := range []bool{true, false} {
				for seed := range uint64(10) {
					l := test.l
					l.requests, l.stamps, l.seed = 50, stamps, seed
					var worst float64
					l.after = func(done int, rank *cost.Rank) {
						if done < 50 {
							return
						}
						r := rand.New(rand.NewPCG(seed, 3))
						c, _ := rank.Coefficients()
						var said, is float64
						for range 200 {
							n := float64(l.length(r))
							a := cost.Prefill(n, n, float64(max(test.o.StepTokens, 8192)))
							a.Decodes, a.Decoded = 50, 50*float64(2+r.IntN(4))
							w := truth(test.is)
							said, is = said+c.Of(a), is+w.Of(a)
							worst = max(worst, math.Abs(c.Of(a)/w.Of(a)-1))
						}
						if off := math.Abs(said/is - 1); off > bound(stamps) {
							t.Errorf("seed %d, stamps %v: off by %.1f %% together", seed, stamps, 100*off)
						}
					}
					run(t, &engine{test.is}, test.o, l, prior)
					// A prompt longer than all that were seen is a guess.
					if worst > 0.25 {
						t.Errorf("seed %d, stamps %v: one off by %.1f %%", seed, stamps, 100*worst)
					}
				}
			}
		})
	}
}

// TestOneLength has prompts of one length, of which nobody can say what of their time a step
// takes, a token, or those that decode. Requests wait for steps, or for a place among the few
// that run at once. However full the engine is, what they are predicted to wait is what they
// wait, within a factor of two; where nothing tells of a place, it is a tenth of that and less.
func TestOneLength(t *testing.T) {
	for _, test := range []struct {
		length, output, running int
		full                    float64 // requests a second that the engine just keeps up with
	}{
		{2000, 20, 256, 7}, {2000, 20, 8, 4.7}, {1000, 200, 8, 1.25}, {100, 200, 8, 1.32}, {100, 20, 8, 8.3},
	} {
		for _, rate := range []float64{0.9, 1.1} {
			for _, stamps := range []bool{true, false} {
				var predicted, took float64
				n := 0
				run(t, &engine{thrice}, sim.Options{MaxRunning: test.running}, load{
					requests: 500, rate: rate * test.full, length: uniform(test.length, test.length), output: uniform(test.output, test.output), stamps: stamps, seed: 1,
					first: func(p, is float64) {
						if n++; n > 100 {
							predicted, took = predicted+p, took+is
						}
					},
				}, cost.Typical)
				if ratio := predicted / took; ratio < 0.5 || ratio > 2 {
					t.Errorf("%+v, at %v of that, stamps %v: predicted are %.0f ms, and %.0f are taken", test, rate, stamps, predicted/float64(n-100), took/float64(n-100))
				}
			}
		}
	}
}

// TestChange has an engine become half or twice as fast: 20 requests later it is
// known.
func TestChange(t *testing.T) {
	times := func(c sim.PerBatch, by float64) sim.PerBatch {
		return sim.PerBatch{Square: c.Square * by, Linear: c.Linear * by, PrefillBase: c.PrefillBase * by, DecodeBase: c.DecodeBase * by, Each: c.Each * by}
	}
	for _, by := range []float64{0.5, 2} {
		for _, stamps := range []bool{true, false} {
			for seed := range uint64(10) {
				e := &engine{published}
				run(t, e, sim.Options{}, load{
					requests: 90, rate: 2, length: mixedLengths, output: uniform(20, 120), stamps: stamps, seed: seed,
					change: func(done int) (sim.PerBatch, bool) { return times(published, by), done == 60 },
					after: func(done int, rank *cost.Rank) {
						if done != 60 && done != 80 {
							return
						}
						is := published
						if done == 80 {
							is = times(published, by)
						}
						for _, n := range []float64{300, 1000, 5000} {
							a := cost.Prefill(n, n, 8192)
							a.Decodes, a.Decoded = 10, 30
							c, _ := rank.Coefficients()
							w := truth(is)
							if off := math.Abs(c.Of(a)/w.Of(a) - 1); off > 2*bound(stamps) {
								t.Errorf("by %v, seed %d, stamps %v, after %d: %v tokens take %.1f ms, said to take %.1f", by, seed, stamps, done, n, w.Of(a), c.Of(a))
							}
						}
					},
				}, prior)
			}
		}
	}
}

// TestOthers has an engine that others use too. Their work is not taken for the
// engine's being slow, and shows as what is waited for besides.
func TestOthers(t *testing.T) {
	for _, stamps := range []bool{true, false} {
		for seed := range uint64(10) {
			rank := run(t, &engine{published}, sim.Options{}, load{
				requests: 100, rate: 4, length: mixedLengths, output: uniform(20, 120), stamps: stamps, seed: seed, others: 0.5,
			}, prior)
			c, _ := rank.Coefficients()
			w := truth(published)
			for _, n := range []float64{300, 1000, 5000} {
				a := cost.Prefill(n, n, 8192)
				if off := c.Of(a)/w.Of(a) - 1; math.Abs(off) > 0.25 {
					t.Errorf("seed %d, stamps %v: %v tokens take %.1f ms, said to take %.1f", seed, stamps, n, w.Of(a), c.Of(a))
				}
			}
		}
	}
}

// TestFull has more requests come than a KV cache has room for. Those that wait for room wait
// for no step: little of it is taken for the engine's being slow, or for its having computed
// what waits. Of 60 figures 49 are off where all of it is.
func TestFull(t *testing.T) {
	missed, all := 0, 0
	for _, stamps := range []bool{true, false} {
		for seed := range uint64(10) {
			rank := run(t, &engine{published}, sim.Options{KVTokens: 60_000}, load{
				requests: 300, rate: 6, length: uniform(100, 12_000), output: uniform(100, 200), stamps: stamps, seed: seed,
			}, prior)
			c, _ := rank.Coefficients()
			w := truth(published)
			for _, n := range []float64{300, 1000, 5000} {
				a := cost.Prefill(n, n, 8192)
				all++
				if off := c.Of(a)/w.Of(a) - 1; math.Abs(off) > 0.25 {
					missed++
					t.Logf("seed %d, stamps %v: %v tokens take %.1f ms, said to take %.1f", seed, stamps, n, w.Of(a), c.Of(a))
				}
			}
		}
	}
	if missed > all/4 {
		t.Errorf("%d of %d are off by more than a quarter", missed, all)
	}
}

// TestOverload has an engine begin with more prompts than it can compute, whose steps are full from
// the first second on. Requests come while a step begins, so nobody is sure which prompts were in
// it. The time of a full step must be known from the first intervals on.
func TestOverload(t *testing.T) {
	e := sim.PerBatch{Linear: 0.0764, DecodeBase: 12.6, Each: 0.067}
	c := truth(e)
	full := cost.Prefill(8192, 8192, 8192)
	full.Decodes, full.Decoded = 1, 16
	off, n := 0.0, 0.0
	for seed := range uint64(20) {
		run(t, &engine{e}, sim.Options{MaxRunning: 64}, load{
			requests: 24, rate: 9, stamps: true, seed: seed,
			length: func(r *rand.Rand) int { return 2000 + int(400*r.ExpFloat64()) },
			output: func(r *rand.Rand) int { return 4 + r.IntN(20) },
			after: func(done int, rank *cost.Rank) {
				if found, seen := rank.Coefficients(); seen > 1 {
					off += math.Abs(found.Of(full)/c.Of(full) - 1)
					n++
				}
			},
		}, cost.Typical)
	}
	if off /= n; off > 0.005 || n < 100 {
		t.Errorf("after the first intervals a full step is known within %.3f, over %.0f requests", off, n)
	}
}
