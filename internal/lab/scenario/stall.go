//go:build linux

package scenario

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"weir/internal/lab"
	"weir/internal/lab/control"
	"weir/internal/observe/watch"
	"weir/internal/workload/latency"
)

// buckets are the counts of a gateway's canary: the upper bound of each bucket in seconds
// and how many values were at or below it. Values above all bounds are in total only.
type buckets struct {
	bound []float64
	count []uint64
	total uint64
}

// stalls reads a gateway's canary.
func stalls(ctx context.Context, url string) (buckets, error) {
	families, err := lab.Scrape(ctx, url)
	if err != nil {
		return buckets{}, err
	}
	family := families[watch.StallMetric]
	if family == nil {
		return buckets{}, fmt.Errorf("the gateway's metrics: %s has no %s", url, watch.StallMetric)
	}
	return counted(family)
}

// engineState is the name of weir's metric of its view of an engine.
const engineState = "weir_engine_state"

// ownLateness is the name of weir's metric of its own lateness.
const ownLateness = "weir_own_lateness_seconds_total"

// readyEngines reads how many engines a gateway uses: those that are connected, except
// those that it has judged to be down.
func readyEngines(ctx context.Context, url string) (n int, err error) {
	families, err := lab.Scrape(ctx, url)
	if err != nil {
		return 0, err
	}
	ready := families[control.EngineReady]
	if ready == nil {
		return 0, fmt.Errorf("the gateway's metrics: %s has no %s", url, control.EngineReady)
	}
	for _, m := range ready.GetMetric() {
		n += int(m.GetGauge().GetValue())
	}
	for _, m := range families[engineState].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "state" && l.GetValue() == "down" {
				n -= int(m.GetGauge().GetValue())
			}
		}
	}
	return n, nil
}

// idle is a canary in a process that does nothing else: this one. It observes the machine.
func idle(ctx context.Context) (read func() (buckets, error)) {
	registry := prometheus.NewRegistry()
	canary := watch.NewCanary(registry, nil)
	failed := make(chan error, 1)
	go func() { failed <- canary.Run(ctx) }()
	return func() (buckets, error) {
		select {
		case err := <-failed:
			return buckets{}, err
		default:
		}
		families, err := registry.Gather()
		if err != nil {
			return buckets{}, err
		}
		return counted(families[0])
	}
}

func counted(family *dto.MetricFamily) (buckets, error) {
	if family.GetType() != dto.MetricType_HISTOGRAM || len(family.GetMetric()) != 1 {
		return buckets{}, fmt.Errorf("the metrics: %s is not a histogram", family.GetName())
	}
	h := family.GetMetric()[0].GetHistogram()
	b := buckets{total: h.GetSampleCount()}
	for _, x := range h.GetBucket() {
		if math.IsInf(x.GetUpperBound(), 1) {
			continue
		}
		b.bound, b.count = append(b.bound, x.GetUpperBound()), append(b.count, x.GetCumulativeCount())
	}
	return b, nil
}

// since returns what was counted after earlier was read.
func (b buckets) since(earlier buckets) buckets {
	d := buckets{bound: b.bound, total: b.total - earlier.total}
	for i, n := range b.count {
		d.count = append(d.count, n-earlier.count[i])
	}
	return d
}

// quantile returns the upper bound, in milliseconds, of the bucket that holds the quantile.
func (b buckets) quantile(share float64) (float64, error) {
	counts := make([]uint64, len(b.count)+1)
	below := uint64(0)
	for i, n := range append(slices.Clone(b.count), b.total) {
		counts[i], below = n-below, n
	}
	i, ok := latency.Bucket(counts, share)
	if !ok {
		return 0, errors.New("the gateway's canary has counted nothing")
	}
	if i == len(b.bound) {
		return math.Inf(1), nil
	}
	return b.bound[i] * 1000, nil
}
