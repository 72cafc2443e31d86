package fleetsim

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Cell is the runs of several policies on the same fleet and workload, and the same
// chance.
type Cell struct {
	Name        string  `json:"name"`
	Utilisation float64 `json:"utilisation,omitempty"` // 0 where it was not looked for
	// Oracle is the run that the others' reuse is a share of.
	Oracle *Report   `json:"oracle"`
	Runs   []*Report `json:"runs"`
}

// Captured is the share of the oracle's reuse that a run has. It means something beside
// MaxMean only: one engine for all would win it.
func (c *Cell) Captured(r *Report) float64 {
	if c.Oracle == nil || c.Oracle.HitRate == 0 {
		return 1
	}
	return r.HitRate / c.Oracle.HitRate
}

// Text writes the cells as a table.
func Text(w io.Writer, cells []*Cell) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range cells {
		fmt.Fprintf(t, "%s\n", c.Name)
		fmt.Fprintln(t, strings.Join([]string{"policy", "ended", "ttft p50", "p90", "p99", "tpot p50", "p99", "goodput/s", "cached", "captured", "regret", "load", "max/mean", ""}, "\t"))
		runs := c.Runs
		if c.Oracle != nil {
			runs = append([]*Report{c.Oracle}, runs...)
		}
		for _, r := range runs {
			fmt.Fprintf(t, "%s\t%d/%d\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%.2f\t%.1f %%\t%.2f\t%.1f %%\t%.2f\t%.2f\t\n",
				r.Policy, r.Finished, r.Requests, r.TTFT.P50, r.TTFT.P90, r.TTFT.P99, r.TPOT.P50, r.TPOT.P99,
				r.Goodput, 100*r.HitRate, c.Captured(r), 100*r.Regret, r.Load, r.MaxMean)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// Compare runs the oracle and the policies.
func Compare(ctx context.Context, o Options, policies []string) (*Cell, error) {
	c := &Cell{Name: o.Plan.Name}
	one := func(policy string) (*Report, error) {
		o.Policy = policy
		start := time.Now()
		r, err := Run(ctx, o)
		if err != nil {
			return nil, err
		}
		r.RealSeconds = time.Since(start).Seconds()
		return r, nil
	}
	var err error
	// The oracle is alone, and sees what is true now.
	gateways, age := o.Gateways, o.Age
	o.Gateways, o.Age = 1, 0
	if c.Oracle, err = one(Oracle); err != nil {
		return nil, err
	}
	o.Gateways, o.Age = gateways, age
	for _, policy := range policies {
		r, err := one(policy)
		if err != nil {
			return nil, err
		}
		c.Runs = append(c.Runs, r)
	}
	return c, nil
}
