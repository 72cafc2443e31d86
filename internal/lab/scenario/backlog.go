//go:build linux

package scenario

import (
	"context"
	"fmt"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
)

// backlog is the founding incident: 850 to 1024 streams, whose tokens were generated in 13
// ms and reached the client 24 s later, because one loop did work for each token. Here more
// streams step at the same instant, at the incident's rate and at four times that rate. The
// control is a gateway that writes each token by itself; it must fall behind.
func backlog(ctx context.Context, r *runner) *Report {
	r.planned = 6
	founding := r.founding()
	// New requests throughout the window show what a new user experiences.
	founding.Probes = max(10, int(r.times().Measure/(25*time.Millisecond)))
	for _, gateway := range []string{lab.Nginx, lab.Relay, lab.Plane, lab.OneWrite} {
		r.measure(ctx, founding, gateway)
	}
	fell := func(l cell.Load) bool {
		control := r.of(l, lab.OneWrite)
		return control != nil && lab.Behind(control, r.of(l, lab.Plane))
	}
	var heaviest cell.Load
	for n := 1; n <= maxRaises; n++ {
		heaviest = r.overload(n)
		r.measure(ctx, heaviest, lab.Plane)
		r.measure(ctx, heaviest, lab.OneWrite)
		if ctx.Err() != nil || fell(heaviest) || r.of(heaviest, lab.OneWrite) == nil {
			break
		}
	}
	report := r.report()
	report.Verdicts = append(r.intact(), judgeBacklog(r, founding, heaviest, fell)...)
	return report
}

func judgeBacklog(r *runner, founding, heaviest cell.Load, fell func(cell.Load) bool) []Verdict {
	verdicts := []Verdict{r.control(lab.OneWrite, "falls behind weir's plane (less than 97 % of its tokens, or twice its p99)", fell,
		func(x *client.Result) string {
			return fmt.Sprintf("%.1f %% delivered, p99 %.0f ms", 100*x.Share, x.P99)
		})}
	plane, relay, nginx := r.of(founding, lab.Plane), r.of(founding, lab.Relay), r.of(founding, lab.Nginx)
	if plane != nil {
		verdicts = append(verdicts, figure(plane.Share >= 0.97, "weir plane delivers at least 97 %% of %s tokens/s: %.1f %%", thousands(offered(founding)), 100*plane.Share))
		if own := plane.ProbeOwn; own != nil {
			verdicts = append(verdicts, figure(own.P99 <= 50 && own.Max <= 250,
				"a new request's output_path_delay meanwhile is at most 50 ms at p99 and 250 ms at most: %.1f and %.1f ms (%d requests)", own.P99, own.Max, own.Count))
		}
	}
	if x := r.of(heaviest, lab.Plane); x != nil {
		verdicts = append(verdicts, figure(x.Share >= 0.97, "weir plane delivers at least 97 %% of %s tokens/s by merging: %.1f %%, %.1f tokens a write", thousands(offered(heaviest)), 100*x.Share, x.PerWrite))
	}
	if relay != nil && nginx != nil {
		verdicts = append(verdicts, figure(relay.Delivered >= nginx.Delivered, "weir relay delivers at least what nginx does: %s and %s tokens/s", thousands(relay.Delivered), thousands(nginx.Delivered)))
	}
	return verdicts
}
