package balance_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
)

const ms = 1_000_000

// bench is a model with ranks that have been measured, and an index of their caches.
type bench struct {
	model      *cost.Model
	index      *kvindex.Index
	caches     []*kvindex.Cache
	candidates []balance.Candidate
	now        int64
}

const (
	blockTokens = 16
	kvTokens    = 400_000
)

// serve has a rank serve prompts as its truth says, until it is known.
func serve(r *cost.Rank, truth cost.Coefficients, now int64) int64 {
	for i := range 40 {
		n := 500 + i*397%4000
		b := r.Book(now, cost.Work{Length: n, New: n, Output: 8})
		now += int64(truth.Of(cost.Prefill(float64(n), float64(n), cost.DefaultBudget)) * ms)
		b.First(now, -1, 0)
		r.Tokens(now, 1)
		for range 8 {
			now += int64((truth.Decode + truth.Decoder) * ms)
			r.Tokens(now, 1)
		}
		b.End(now, 9)
	}
	return now
}

// fleet makes ranks of these speeds, measured.
func fleet(slowness ...float64) *bench {
	f := &bench{model: cost.NewModel(cost.Typical), index: kvindex.New(1 << 30), now: 1}
	var now int64
	for _, by := range slowness {
		c := cost.Typical
		for _, x := range []*float64{&c.Step, &c.Token, &c.Pair, &c.Decode, &c.Decoder} {
			*x *= by
		}
		r := f.model.Join(f.now, 0)
		now = max(now, serve(r, c, f.now))
		cache := f.index.Cache(kvTokens / blockTokens)
		f.caches = append(f.caches, cache)
		f.candidates = append(f.candidates, balance.Candidate{Rank: r, Cache: cache.ID, KV: kvTokens})
	}
	f.now = now
	return f
}

func even(n int) []float64 { return slices.Repeat([]float64{1}, n) }

// ask makes a request whose prompt is the ids.
func (f *bench) ask(prompt []uint32, output float64, random uint64) (*balance.Request, []kvindex.Block) {
	blocks := kvindex.AppendChain(nil, 1, prompt, blockTokens)
	return &balance.Request{
		Now: f.now, Length: len(prompt), Output: output, BlockTokens: blockTokens, Random: random,
		Matches: f.index.Match(nil, blocks, f.now),
	}, blocks
}

// give books the request where it was sent.
func (f *bench) give(q *balance.Request, blocks []kvindex.Block, i int, d *balance.Decision) *cost.Booking {
	w := d.Choice().Work
	f.caches[i].Place(blocks, f.now+int64(d.Choice().TTFT()*ms))
	return f.candidates[i].Rank.Book(f.now, w)
}

func prompt(group, own uint32, shared, length int) []uint32 {
	p := make([]uint32, length)
	for i := range p {
		p[i] = own<<8 + 1
		if i < shared {
			p[i] = group<<8 + 2
		}
	}
	return p
}

func TestNames(t *testing.T) {
	want := []string{"cost", "least-load", "power-of-two", "random", "round-robin", "session"}
	if got := balance.Names(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for _, name := range want {
		if p, err := balance.New(name); err != nil || p.Name() != name {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	if _, err := balance.New("roundrobin"); err == nil || !strings.Contains(err.Error(), `did you mean "round-robin"?`) {
		t.Errorf("%v", err)
	}
	if _, err := balance.New("kubernetes-gateway"); err == nil || strings.Contains(err.Error(), "did you mean") || !strings.Contains(err.Error(), "power-of-two") {
		t.Errorf("%v", err)
	}
}

// TestEveryPolicy holds what is true of each: all ranks get requests that share
// nothing, none that was tried is chosen, and nothing is chosen where all were.
func TestEveryPolicy(t *testing.T) {
	for _, name := range balance.Names() {
		t.Run(name, func(t *testing.T) {
			p, err := balance.New(name)
			if err != nil {
				t.Fatal(err)
			}
			f := fleet(even(4)...)
			var d balance.Decision
			got := make([]int, 4)
			for i := range uint32(400) {
				q, blocks := f.ask(prompt(0, i+1, 0, 1000), 100, uint64(i))
				at := p.Pick(q, f.candidates, &d)
				if d.Chosen != at || d.Choice() == nil || d.Of != 4 || d.Why == balance.NoneLeft {
					t.Fatalf("chose %d: %+v", at, d)
				}
				got[at]++
				f.give(q, blocks, at, &d)
				q.Tried = []*cost.Rank{f.candidates[at].Rank, f.candidates[(at+1)%4].Rank}
				if again := p.Pick(q, f.candidates, &d); again == at || again == (at+1)%4 || again < 0 {
					t.Fatalf("chose %d again, or %d", at, again)
				}
				q.Tried = append(q.Tried, f.candidates[(at+2)%4].Rank, f.candidates[(at+3)%4].Rank)
				if again := p.Pick(q, f.candidates, &d); again != -1 || d.Why != balance.NoneLeft || d.Choice() != nil {
					t.Fatalf("chose %d where all were tried", again)
				}
			}
			if slices.Min(got) < 70 || slices.Max(got) > 130 {
				t.Errorf("the ranks got %v", got)
			}
		})
	}
}

// TestRetryTakesNoTurn has every request fail once: round-robin goes on as if none had.
func TestRetryTakesNoTurn(t *testing.T) {
	p, f := new(balance.RoundRobin), fleet(even(3)...)
	var d balance.Decision
	for i := range 9 {
		q, _ := f.ask(prompt(0, 1, 0, 100), 10, uint64(i))
		at := p.Pick(q, f.candidates, &d)
		if at != i%3 {
			t.Fatalf("turn %d is %d's", i, at)
		}
		q.Tried = []*cost.Rank{f.candidates[at].Rank}
		p.Pick(q, f.candidates, &d)
	}
}

// TestReceipt has the four that cost least, in their order, the choice among them.
func TestReceipt(t *testing.T) {
	f := fleet(3, 1, 2, 4, 1.5, 5)
	q, _ := f.ask(prompt(0, 1, 0, 4000), 100, 7)
	var d balance.Decision
	new(balance.Cost).Pick(q, f.candidates, &d)
	var got []int
	for _, o := range d.Best[:d.N] {
		got = append(got, o.Index)
	}
	if !slices.Equal(got, []int{1, 4, 2, 0}) || d.Chosen != 1 || d.Why != balance.LeastCost || d.Of != 6 {
		t.Errorf("%v, chosen %d by %v of %d", got, d.Chosen, d.Why, d.Of)
	}
	if o := d.Choice(); o.Work.New != 4000 || o.TTFT() < 70 || o.TTFT() > 110 {
		t.Errorf("%+v", o)
	}
}

// TestCold has ranks of which nothing is known get less than those that were measured,
// and no less than half of it: else all would wait at the first one that was.
func TestCold(t *testing.T) {
	for _, test := range []struct{ warm, cold, length int }{{2, 1, 3000}, {1, 3, 12_000}} {
		f := fleet(even(test.warm)...)
		for range test.cold {
			r, cache := f.model.Join(f.now, 0), f.index.Cache(kvTokens/blockTokens)
			f.caches = append(f.caches, cache)
			f.candidates = append(f.candidates, balance.Candidate{Rank: r, Cache: cache.ID, KV: kvTokens})
		}
		got := make([]int, len(f.candidates))
		var d balance.Decision
		for i := range uint32(30) {
			q, blocks := f.ask(prompt(0, i+1, 0, test.length), 100, uint64(i))
			at := new(balance.Cost).Pick(q, f.candidates, &d)
			got[at]++
			f.give(q, blocks, at, &d)
		}
		for _, n := range got[test.warm:] {
			if share := float64(n) / float64(got[0]); share < 0.4 || share > 0.8 {
				t.Errorf("of %d that were measured and %d that were not each got %v", test.warm, test.cold, got)
			}
		}
	}
	f := fleet(even(2)...)
	r, cache := f.model.Join(f.now, 0), f.index.Cache(kvTokens/blockTokens)
	f.caches = append(f.caches, cache)
	f.candidates = append(f.candidates, balance.Candidate{Rank: r, Cache: cache.ID, KV: kvTokens})
	var d balance.Decision
	p := new(balance.Cost)
	alone := f.candidates[2:]
	q, _ := f.ask(prompt(0, 99, 0, 3000), 100, 1)
	if at := p.Pick(q, alone, &d); at != 0 {
		t.Errorf("alone it is not chosen: %d", at)
	}
}

// TestSession has a session whose prompts nobody can match: it stays, moves where
// staying costs more, and where as much was placed as the cache holds, staying is worth
// nothing.
func TestSession(t *testing.T) {
	f := fleet(even(4)...)
	p := balance.NewSession()
	var d balance.Decision
	pick := func(length int, random uint64) int {
		return p.Pick(&balance.Request{Now: f.now, Length: length, Output: 100, Session: 42, Random: random}, f.candidates, &d)
	}
	home := pick(4000, 1)
	for i := range uint64(20) {
		if at := pick(4100, i); at != home || d.Choice().Work.New > 100+int(i)*100 {
			t.Fatalf("it went from %d to %d: %+v", home, at, d.Choice())
		}
	}
	// A queue there that takes longer than the prompt elsewhere.
	busy := f.candidates[home].Rank.Book(f.now, cost.Work{Length: 40_000, New: 40_000, Output: 10})
	if at := pick(4200, 3); at == home {
		t.Errorf("it stays behind %.0f ms of work", d.Choice().Wait)
	} else {
		home, f.candidates = at, f.candidates[at:at+1]
	}
	busy.End(f.now, 0)
	if pick(4200, 1); d.Choice().Work.New > 1 {
		t.Errorf("where it moved, %d tokens are new", d.Choice().Work.New)
	}
	f.candidates[0].Rank.Book(f.now, cost.Work{Length: kvTokens + 5000, New: kvTokens + 5000}).End(f.now, 0)
	if pick(4200, 1); d.Choice().Work.New != 4200 {
		t.Errorf("after a cache's worth of others, %d tokens are new", d.Choice().Work.New)
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	for _, name := range balance.Names() {
		p, _ := balance.New(name)
		f := fleet(even(50)...)
		q, _ := f.ask(prompt(0, 1, 0, 2000), 100, 7)
		q.Session = 3
		var d balance.Decision
		p.Pick(q, f.candidates, &d)
		if n := testing.AllocsPerRun(100, func() { p.Pick(q, f.candidates, &d) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// thousand are as many ranks, of which some are busy and two in five have a part of the prompt.
func thousand() (f *bench, q *balance.Request, ids []uint32) {
	f = fleet(even(1000)...)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range f.candidates {
		if i%5 < 2 {
			_, blocks := f.ask(prompt(1, uint32(i)+2, 500, 2000), 100, 1)
			f.caches[i].Place(blocks, 0)
		}
		for range r.IntN(6) {
			k := f.candidates[i].Rank.Book(f.now, cost.Work{Length: 1000, New: 1000, Output: 100})
			if r.IntN(2) == 0 {
				k.First(f.now+1, -1, 0)
			}
		}
	}
	ids = prompt(1, 1, 500, 2000)
	q, _ = f.ask(ids, 100, 7)
	q.Now += 50 * ms
	return f, q, ids
}

// BenchmarkPick is a decision among a thousand ranks.
func BenchmarkPick(b *testing.B) {
	f, q, _ := thousand()
	for _, name := range balance.Names() {
		p, _ := balance.New(name)
		b.Run(name, func(b *testing.B) {
			var d balance.Decision
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				q.Random = uint64(i)
				p.Pick(q, f.candidates, &d)
			}
		})
	}
}

// BenchmarkDecide is that with what the index is asked for it: the hashes of a prompt of 2,000
// tokens, and what each rank has of it.
func BenchmarkDecide(b *testing.B) {
	f, q, ids := thousand()
	p, blocks := new(balance.Cost), make([]kvindex.Block, 0, len(ids)/blockTokens)
	var d balance.Decision
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		blocks = kvindex.AppendChain(blocks[:0], 1, ids, blockTokens)
		q.Matches, q.Random = f.index.Match(q.Matches, blocks, q.Now), uint64(i)
		p.Pick(q, f.candidates, &d)
	}
}
