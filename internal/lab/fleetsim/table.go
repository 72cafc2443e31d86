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
	Engines     int     `json:"engines"`
	Fleet       string  `json:"fleet,omitempty"`       // where engines have roles
	Utilisation float64 `json:"utilisation,omitempty"` // 0 where it was not looked for
	// Oracle is the run that the others' reuse is a share of.
	Oracle *Report   `json:"oracle"`
	Runs   []*Report `json:"runs"`
}

// Captured returns a run's reuse as a share of the oracle's. It is meaningful only together
// with MaxMean: sending everything to one engine would maximise it.
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
		for _, row := range c.table() {
			fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// Compare runs the oracle and the policies.
func Compare(ctx context.Context, o Options, policies []string) (*Cell, error) {
	c := &Cell{Name: o.Plan.Name, Engines: len(o.Engines)}
	if o.apart() {
		c.Fleet = Shape(o.Engines)
	}
	// The oracle runs alone, and with the current state.
	alone := o
	alone.Gateways, alone.Age = 1, 0
	var err error
	if c.Oracle, err = timed(ctx, alone, Oracle); err != nil {
		return nil, err
	}
	for _, policy := range policies {
		r, err := timed(ctx, o, policy)
		if err != nil {
			return nil, err
		}
		c.Runs = append(c.Runs, r)
	}
	return c, nil
}

// timed runs a policy and records how long that took.
func timed(ctx context.Context, o Options, policy string) (*Report, error) {
	o.Policy = policy
	start := time.Now()
	r, err := Run(ctx, o)
	if err != nil {
		return nil, err
	}
	r.RealSeconds = time.Since(start).Seconds()
	return r, nil
}
