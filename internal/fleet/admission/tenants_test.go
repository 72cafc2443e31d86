package admission

import (
	"fmt"
	"testing"
	"time"

	"weir/internal/tenancy"
)

// At ten times the load, one tenant that sends nearly all fills what there is, and what it
// leaves goes to the others, who are refused nothing. As one tenant they are.
func TestTenantsShareLimits(t *testing.T) {
	for _, apart := range []bool{true, false} {
		g := NewGate(Limits{Requests: 80, Tokens: 80_000})
		b := NewBodies(80<<20, nil)
		greedy := &tenancy.Caller{Tenant: "greedy", Share: 1}
		type held struct {
			r    *Reservation
			body Body
		}
		var in []held
		refused := map[bool]int{}
		come := func(who *tenancy.Caller, small bool, now int64) {
			if !apart {
				who = greedy
			}
			r, err := g.Enter(who, now, 1000)
			if err != nil {
				refused[small]++
				return
			}
			body, err := b.Enter(who, 1<<20, time.Unix(0, now))
			if err != nil {
				refused[small]++
				r.Leave()
				return
			}
			in = append(in, held{r, body})
		}
		var others []*tenancy.Caller
		for i := range 20 {
			others = append(others, &tenancy.Caller{Tenant: fmt.Sprint(i), Share: 1})
		}
		for n := range 5000 {
			now := int64(n+1) * 1e6
			if n == 200 {
				clear(refused)
			}
			come(greedy, false, now)
			if n%4 == 0 {
				come(others[n/4%20], true, now)
			}
			if n%2 == 0 && len(in) > 0 {
				in[0].r.Leave()
				in[0].body.Leave()
				in = in[1:]
			}
		}
		if len(in) < 60 {
			t.Errorf("%d are in of 80, although the greedy one would have all", len(in))
		}
		if n := refused[true]; apart && n > 0 || !apart && n < 500 {
			t.Errorf("%d of the others' 1,200 requests are refused; tenants apart: %t", n, apart)
		}
		for _, h := range in {
			h.r.Leave()
			h.r.Leave()
			h.body.Leave()
		}
		if requests, tokens := g.Load(); requests != 0 || tokens != 0 || b.Used() != 0 {
			t.Errorf("%d requests, %d tokens and %d bytes are left", requests, tokens, b.Used())
		}
	}
}
