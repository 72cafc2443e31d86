package fleetsim

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	engineapi "weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/infer"
)

// Divided and Undivided are cost with a fixed decision whether a decode engine has half of
// a request or all of it, to compare cost's own choice with both. An engine without a role
// serves whole requests under either.
const (
	Divided   = "cost-divided"
	Undivided = "cost-undivided"
)

// forced is cost so.
type forced struct {
	balance.Cost
	divides    bool
	candidates []balance.Candidate
}

func (p *forced) pick(_ *gateway, q *balance.Request, candidates []balance.Candidate, d *balance.Decision) int {
	does := balance.All
	if p.divides {
		does = balance.Decode
	}
	if q.Halves == nil || q.Halves.Asks || p.divides && !q.Halves.Partner {
		return p.Cost.Pick(q, candidates, d)
	}
	p.candidates = append(p.candidates[:0], candidates...)
	for i := range p.candidates {
		if c := &p.candidates[i]; c.Does == balance.Either {
			c.Does = does
		}
	}
	return p.Cost.Pick(q, p.candidates, d)
}

// Patient reports whether the policy knows what it costs to wait, as balance.Patient asks.
func (p *outside) Patient() bool {
	_, ok := p.chooser.(*forced)
	return ok
}

// alone reports whether decode engines serve whole requests, too.
func (o *Options) alone() bool { return o.Way != engineapi.ByRoom }

// apart reports whether some engines serve halves of requests.
func (o *Options) apart() bool {
	return slices.ContainsFunc(o.Engines, func(e Engine) bool { return e.Role != infer.RoleBoth })
}

// serves refuses fleets that would serve nothing.
func (o *Options) serves() error {
	has := func(role infer.Role) bool {
		return slices.ContainsFunc(o.Engines, func(e Engine) bool { return e.Role == role })
	}
	switch prefill, decode := has(infer.RolePrefill), has(infer.RoleDecode); {
	case prefill && !decode:
		return errors.New("prefill engines without a decode engine compute prompts for nobody")
	case decode && !prefill && !o.alone():
		return errors.New("decode engines with --handover room serve nothing without a prefill engine")
	}
	return nil
}

// alike is the share by which goodputs may differ that are alike.
const alike = 0.01

// Shapes reports, for cells that differ in the roles of their engines and in speed, which
// roles have the highest goodput at which speeds, for each policy.
func Shapes(cells []*Cell) (answers []*Answer) {
	speed := func(c *Cell) float64 {
		if c.Utilisation > 0 || len(c.Runs) == 0 {
			return math.NaN() // of each fleet another one
		}
		return c.Runs[0].Speed
	}
	var speeds []float64
	some := false
	for _, c := range cells {
		speeds, some = append(speeds, speed(c)), some || c.Fleet != ""
	}
	slices.Sort(speeds)
	speeds = slices.Compact(speeds)
	if !some || len(speeds) < 2 || math.IsNaN(speeds[0]) {
		return nil
	}
	a := &Answer{}
	for i, r := range cells[0].Runs {
		var spans []string
		from, last, before := speeds[0], "", 0.0
		add := func(to float64, ends bool) {
			at := fmt.Sprintf("at speeds %.3g to %.3g", from, to)
			switch {
			case from == to:
				at = fmt.Sprintf("at speed %.3g", from)
			case ends:
				at = fmt.Sprintf("from speed %.3g on", from)
			}
			spans = append(spans, at+" "+last)
		}
		for _, x := range speeds {
			most := 0.0
			for _, c := range cells {
				if speed(c) == x {
					most = max(most, c.Runs[i].Goodput)
				}
			}
			var best []string
			for _, c := range cells {
				if speed(c) == x && c.Runs[i].Goodput >= (1-alike)*most && !slices.Contains(best, c.shape()) {
					best = append(best, c.shape())
				}
			}
			if now := strings.Join(best, ", "); last == "" {
				last = now
			} else if now != last {
				add(before, false)
				from, last = x, now
			}
			before = x
		}
		add(before, true)
		a.Sentences = append(a.Sentences, fmt.Sprintf("The highest goodput under %s, or within 1 %% of it: %s.", r.Policy, strings.Join(spans, "; ")))
	}
	return []*Answer{a}
}

// shape is that of the cell's fleet.
func (c *Cell) shape() string {
	if c.Fleet != "" {
		return c.Fleet
	}
	return Count(c.Engines)
}

// Shape describes a fleet's engines: the number of those that do both halves of requests,
// or of prefill and decode engines and others that do both.
func Shape(engines []Engine) string {
	var n [3]int
	for _, e := range engines {
		n[e.Role]++
	}
	if n[infer.RolePrefill]+n[infer.RoleDecode] == 0 {
		return Count(len(engines))
	}
	var parts []string
	for _, role := range []infer.Role{infer.RolePrefill, infer.RoleDecode} {
		if n[role] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[role], role))
		}
	}
	if n[infer.RoleBoth] > 0 {
		parts = append(parts, fmt.Sprintf("%d whole", n[infer.RoleBoth]))
	}
	return strings.Join(parts, " + ")
}
