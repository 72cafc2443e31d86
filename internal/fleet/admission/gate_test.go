package admission

import (
	"testing"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

// Under any sequence of calls the gate's load is the sum of what is reserved,
// never above its limits by more than a settled difference, and 0 at rest.
func TestGateConserves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Requests: rapid.IntRange(0, 4).Draw(t, "requests"), Tokens: rapid.Int64Range(0, 100).Draw(t, "tokens")}
		g := NewGate(limits)
		type held struct {
			r      *Reservation
			tokens int64
		}
		var in []held
		sum := int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "ops") {
			switch op := rapid.IntRange(0, 2).Draw(t, "op"); {
			case op == 0:
				n := rapid.Int64Range(0, 150).Draw(t, "n")
				r, err := g.Enter(tenancy.Anyone, 0, n)
				full := limits.Requests > 0 && len(in) >= limits.Requests || limits.Tokens > 0 && sum > 0 && sum+n > limits.Tokens
				if (err != nil) != full {
					t.Fatalf("entered %v with %d requests and %d tokens in, %d more", err, len(in), sum, n)
				}
				if err != nil {
					if e := infer.AsError(err); e.Code != infer.CodeOverloaded || e.RetryAfter == 0 {
						t.Fatalf("refused with %v", err)
					}
					continue
				}
				in, sum = append(in, held{r, n}), sum+n
			case len(in) == 0:
			case op == 1:
				i := rapid.IntRange(0, len(in)-1).Draw(t, "i")
				n := rapid.Int64Range(0, 150).Draw(t, "n")
				in[i].r.Settle(n)
				sum += n - in[i].tokens
				in[i].tokens = n
			default:
				last := in[len(in)-1]
				last.r.Leave()
				last.r.Leave() // only the first counts
				in, sum = in[:len(in)-1], sum-last.tokens
			}
			if requests, tokens := g.Load(); requests != len(in) || tokens != sum {
				t.Fatalf("load %d, %d; want %d, %d", requests, tokens, len(in), sum)
			}
		}
		for _, h := range in {
			h.r.Leave()
		}
		if requests, tokens := g.Load(); requests != 0 || tokens != 0 {
			t.Fatalf("at rest: %d, %d", requests, tokens)
		}
	})
}

func TestDrain(t *testing.T) {
	g := NewGate(Limits{})
	g.Drain(100)
	if _, err := g.Enter(tenancy.Anyone, 100, 1); infer.AsError(err) == nil || infer.AsError(err).Code != infer.CodeUnavailable {
		t.Fatalf("entered a draining gate: %v", err)
	}
	if err := g.Check(tenancy.Anyone, 100); infer.AsError(err) == nil || infer.AsError(err).Code != infer.CodeUnavailable {
		t.Fatalf("may enter a draining gate: %v", err)
	}
	if _, err := g.Enter(tenancy.Anyone, 99, 1); err != nil {
		t.Fatalf("refused, although it had arrived before the drain: %v", err)
	}
}

// BenchmarkGate is what admission costs a request.
func BenchmarkGate(b *testing.B) {
	g := NewGate(Limits{Requests: 4096, Tokens: 1 << 30})
	b.ReportAllocs()
	for b.Loop() {
		r, err := g.Enter(tenancy.Anyone, 0, 1000)
		if err != nil {
			b.Fatal(err)
		}
		r.Settle(1200)
		r.Leave()
	}
}
