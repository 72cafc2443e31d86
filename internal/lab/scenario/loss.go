//go:build linux

package scenario

import (
	"context"
	"fmt"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
)

// loss is the incident in which several batches of the engine arrived before a stream's
// reader woke, and only the last was kept: 1 to 3 % of the requests lost tokens, silently.
// Yielding after every batch halved the throughput. Here the load is so high that batches
// must arrive in this way. One control is a gateway that keeps the latest batch, which must
// lose; the other writes each token by itself.
func loss(ctx context.Context, r *runner) *Report {
	r.planned = 4
	r.measure(ctx, r.founding(), lab.Relay)
	lost := func(l cell.Load) bool {
		control := r.of(l, lab.LatestWins)
		return control != nil && control.Lost > 0
	}
	var heaviest cell.Load
	for n := 1; n <= maxRaises; n++ {
		heaviest = r.overload(n)
		r.measure(ctx, heaviest, lab.Plane)
		r.measure(ctx, heaviest, lab.LatestWins)
		if n == 1 {
			r.measure(ctx, heaviest, lab.OneWrite)
		}
		if ctx.Err() != nil || lost(heaviest) || r.of(heaviest, lab.LatestWins) == nil {
			break
		}
	}
	report := r.report()
	report.Verdicts = append(r.intact(), judgeLoss(r, heaviest, lost)...)
	return report
}

func judgeLoss(r *runner, heaviest cell.Load, lost func(cell.Load) bool) []Verdict {
	verdicts := []Verdict{r.control(lab.LatestWins, "loses tokens of streams that end as complete", lost, func(x *client.Result) string {
		return fmt.Sprintf("%d lost in %d of %d streams", x.Lost, x.LostStreams, x.Streams)
	})}
	if plane := r.of(heaviest, lab.Plane); plane != nil {
		verdicts = append(verdicts, figure(plane.PerWrite > 1.05, "weir plane merged what landed together: %.2f tokens a write", plane.PerWrite))
	}
	first := r.overload(1)
	if plane, single := r.of(first, lab.Plane), r.of(first, lab.OneWrite); plane != nil && single != nil {
		verdicts = append(verdicts, figure(plane.Delivered >= 0.97*min(single.Delivered, offered(first)) && plane.CPUPerMega <= single.CPUPerMega,
			"merging costs no more than a write per token: %s and %s tokens/s, %.2f and %.2f CPU s per million",
			thousands(plane.Delivered), thousands(single.Delivered), plane.CPUPerMega, single.CPUPerMega))
	}
	return verdicts
}
