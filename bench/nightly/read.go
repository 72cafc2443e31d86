//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weir/internal/lab"
	"weir/internal/lab/client"
	"weir/internal/lab/nightly"
	"weir/internal/lab/scenario"
)

// scenarioFigures reads the report of weir scenario. The controls have no figures:
// the scenario itself judges that they fail.
func scenarioFigures(_, file []byte) ([]nightly.Figure, error) {
	var report scenario.Report
	if err := json.Unmarshal(file, &report); err != nil {
		return nil, fmt.Errorf("the scenario's report: %w", err)
	}
	if len(report.Rows) == 0 && len(report.Starved) == 0 && len(report.Collapsed) == 0 && len(report.Faulted) == 0 && len(report.Overloaded) == 0 && len(report.Continued) == 0 && len(report.Tenants) == 0 && len(report.Blamed) == 0 {
		return nil, errors.New("the scenario's report has no rows")
	}
	if len(report.Starved) > 0 {
		return starvedFigures(report.Starved), nil
	}
	if len(report.Collapsed) > 0 {
		return collapsedFigures(report.Collapsed), nil
	}
	if len(report.Faulted) > 0 {
		return faultedFigures(report.Faulted), nil
	}
	if len(report.Overloaded) > 0 {
		return overloadedFigures(&report), nil
	}
	if len(report.Continued) > 0 {
		return continuedFigures(report.Continued), nil
	}
	if len(report.Blamed) > 0 {
		return blamedFigures(report.Blamed), nil
	}
	if len(report.Tenants) > 0 {
		return tenantFigures(report.Tenants), nil
	}
	var figures []nightly.Figure
	one := func(name string, kind nightly.Kind, unit string, v float64) {
		figures = append(figures, nightly.Of(name, kind, unit, v))
	}
	lost := 0
	for _, row := range report.Rows {
		if row.NotMeasured != "" || row.Gateway != lab.Plane && row.Gateway != lab.Relay {
			continue
		}
		lost += row.Lost + row.Wrong
		name := row.Load + ", " + row.Gateway + ": "
		if row.Load == "founding" { // an overload is delivered in part: the slower the machine, the less
			one(name+"delivered", nightly.Share, "", row.Share)
			one(name+"resident of a stream", nightly.Memory, "KB", row.KBPerStream)
		}
		one(name+"p99", nightly.Delay, "ms", row.P99)
		for _, beside := range []string{lab.Nginx, lab.OneWrite} {
			i := slices.IndexFunc(report.Rows, func(r scenario.Row) bool {
				return r.Load == row.Load && r.Gateway == beside && r.NotMeasured == "" && r.CPU > 0
			})
			if i >= 0 {
				one(name+"CPU of a token beside "+beside, nightly.Ratio, "", row.CPU/report.Rows[i].CPU)
			}
		}
	}
	one("tokens lost", nightly.Same, "", float64(lost))
	return figures, nil
}

// blamedFigures returns the cells that blamed another one than the injector, of those that are not
// void.
func blamedFigures(all []scenario.Blamed) []nightly.Figure {
	cells, wrong := 0, 0
	for _, b := range all {
		if b.Void() {
			continue
		}
		cells++
		if share := float64(b.Named) / float64(max(b.Requests, 1)); b.Faulty && share < 0.99 || !b.Faulty && share > 0.01 {
			wrong++
		}
	}
	return []nightly.Figure{nightly.Of("cells", nightly.Same, "", float64(cells)), nightly.Of("cells that blame another one", nightly.Same, "", float64(wrong))}
}

// starvedFigures returns the figures of the small streams beside the large prompts.
func starvedFigures(rows []scenario.Starved) []nightly.Figure {
	var figures []nightly.Figure
	lost, timeouts, taken := 0, 0, 0
	for _, row := range rows {
		if row.NotMeasured != "" || row.Gateway != lab.Plane {
			continue
		}
		lost, timeouts, taken = lost+row.Lost, timeouts+row.Timeouts, taken+row.Engines-row.Ready
		name := "large prompts " + row.Large + ": "
		figures = append(figures,
			nightly.Of(name+"small streams' p99", nightly.Delay, "ms", row.P99),
			nightly.Of(name+"I/O stall p99", nightly.Delay, "ms", row.Stall))
		if row.Prompts > 0 {
			figures = append(figures, nightly.Of(name+"answered", nightly.Rate, "prompts/s", row.Prompts))
		}
	}
	return append(figures,
		nightly.Of("tokens lost", nightly.Same, "", float64(lost)),
		nightly.Of("live engines taken out", nightly.Same, "", float64(taken)),
		nightly.Of("acknowledgement timeouts", nightly.Same, "", float64(timeouts)))
}

// collapsedFigures returns the figures of weir's row of collapse.
func collapsedFigures(rows []scenario.Collapsed) (figures []nightly.Figure) {
	for _, row := range rows {
		if row.NotMeasured != "" || row.Gateway != lab.Plane {
			continue
		}
		figures = append(figures,
			nightly.Of("share of what the engines can do", nightly.Share, "", row.Prompts/row.Capacity),
			nightly.Of("tokens lost", nightly.Same, "", float64(row.LostTokens)),
			nightly.Of("live engines taken out", nightly.Same, "", float64(row.Engines-row.Ready)),
			nightly.Of("acknowledgement timeouts", nightly.Same, "", float64(row.Timeouts)))
	}
	return figures
}

// overloadedFigures returns weir's figures under the heaviest load, and the figures of
// refusals.
func overloadedFigures(report *scenario.Report) (figures []nightly.Figure) {
	lost := 0
	var most *scenario.Overloaded
	for i := range report.Overloaded {
		x := &report.Overloaded[i]
		if x.NotMeasured != "" {
			continue
		}
		lost += x.LostTokens + x.Corrupt
		if x.Refused > 0 {
			most = x
		}
	}
	if most != nil {
		figures = append(figures, nightly.Of("in time of what the engines can do", nightly.Share, "", most.Goodput/most.Capacity),
			nightly.Of("longest wait", nightly.Delay, "s", most.Wait))
	}
	if x := report.Refusing; x != nil && x.NotMeasured == "" {
		figures = append(figures, nightly.Of("CPU of a refusal", nightly.Time, "us", x.CPU), nightly.Of("a place is free", nightly.Delay, "ms", x.Freed))
	}
	return append(figures, nightly.Of("tokens lost", nightly.Same, "", float64(lost)))
}

// tenantFigures returns the figures of the tenants beside the greedy one. The first row
// has no greedy tenant.
func tenantFigures(rows []scenario.Tenanted) (figures []nightly.Figure) {
	lost := 0
	var without *scenario.Tenanted
	for i := range rows {
		x := &rows[i]
		if x.NotMeasured != "" {
			continue
		}
		lost += x.LostTokens + x.Corrupt
		switch x.Run {
		case "without":
			without = x
		case "by shares":
			figures = append(figures, nightly.Of("least of a tenant's share", nightly.Share, "", x.Least))
			if without != nil && without.TTFT99 > 0 {
				figures = append(figures, nightly.Of("TTFT p99 of that without the greedy tenant", nightly.Delay, "", x.TTFT99/without.TTFT99))
			}
		}
	}
	return append(figures, nightly.Of("tokens lost or wrong", nightly.Same, "", float64(lost)))
}

// continuedFigures returns the figures of the streams that went on. The streams of the
// control have no gaps.
func continuedFigures(rows []scenario.Continued) (figures []nightly.Figure) {
	lost, broken := 0, 0
	for _, x := range rows {
		if x.NotMeasured != "" {
			continue
		}
		lost += x.Lost + x.Wrong
		if x.Continued == 0 {
			continue
		}
		broken += x.Streams - x.Complete
		figures = append(figures, nightly.Of(x.Kind+": gap p99 of what is predicted", nightly.Delay, "", x.Gap99/x.Predicted),
			nightly.Of(x.Kind+": most prefills of continuations", nightly.Delay, "prompts", float64(max(x.Prefills, x.Turns))))
	}
	return append(figures, nightly.Of("tokens lost or wrong", nightly.Same, "", float64(lost)), nightly.Of("streams broken that may be continued", nightly.Same, "", float64(broken)))
}

// faultedFigures returns the figures of each kind of engine, over all faults together.
func faultedFigures(cells []scenario.Faulted) (figures []nightly.Figure) {
	lost, refused, out := 0, 0, 0
	type kind struct {
		cells, waited int
		out, back     float64
	}
	kinds := map[string]*kind{}
	var names []string
	for _, x := range cells {
		k := kinds[x.Kind]
		if k == nil {
			k = &kind{}
			kinds[x.Kind], names = k, append(names, x.Kind)
		}
		if x.NotMeasured != "" {
			continue
		}
		lost, refused, out = lost+x.Lost+x.Wrong, refused+x.Refused, out+x.WronglyOut
		k.cells++
		if !x.Lives {
			k.waited = max(k.waited, x.Waited)
		}
		if x.Out >= 0 && x.Knowable >= 0 {
			k.out = max(k.out, x.Out-x.Knowable-x.Late)
		}
		k.back = max(k.back, x.Back)
	}
	for _, name := range names {
		k := kinds[name]
		figures = append(figures,
			nightly.Of(name+": faults", nightly.Count, "", float64(k.cells)),
			nightly.Of(name+": waited for the engine that failed", nightly.Delay, "requests", float64(k.waited)),
			nightly.Of(name+": out after it could be known", nightly.Delay, "s", k.out),
			nightly.Of(name+": back", nightly.Delay, "s", k.back))
	}
	return append(figures,
		nightly.Of("tokens lost or wrong", nightly.Same, "", float64(lost)),
		nightly.Of("failed although another engine could serve", nightly.Same, "requests", float64(refused)),
		nightly.Of("live engines taken out", nightly.Same, "", float64(out)))
}

// outputPathFigures reads the cells of bench/outputpath: weir's CPU per token as a
// share of nginx's, repeat by repeat, and the memory that idle streams hold.
func outputPathFigures(_, file []byte) ([]nightly.Figure, error) {
	var results []*client.Result
	if err := json.Unmarshal(file, &results); err != nil {
		return nil, fmt.Errorf("the cells: %w", err)
	}
	if len(results) == 0 {
		return nil, errors.New("there are no cells")
	}
	// The repeats of a cell, in their order.
	repeats := map[[2]string][]*client.Result{}
	var cells [][2]string
	lost := 0
	for _, r := range results {
		at := [2]string{r.Load, r.Gateway}
		if repeats[at] == nil {
			cells = append(cells, at)
		}
		repeats[at] = append(repeats[at], r)
		lost += r.Lost + r.Wrong
	}
	var figures []nightly.Figure
	for _, at := range cells {
		load, gateway := at[0], at[1]
		beside := repeats[[2]string{load, lab.Nginx}]
		if !strings.HasPrefix(gateway, "weir") || len(beside) != len(repeats[at]) {
			continue
		}
		var cpu, memory []float64
		for i, r := range repeats[at] {
			memory = append(memory, r.KBPerStream)
			if r.CPUPerMega > 0 && beside[i].CPUPerMega > 0 {
				cpu = append(cpu, r.CPUPerMega/beside[i].CPUPerMega)
			}
		}
		if load == "idle" {
			figures = append(figures, nightly.Of(load+", "+gateway+": resident of a stream", nightly.Memory, "KB", memory...))
		} else if len(cpu) == len(beside) {
			figures = append(figures, nightly.Of(load+", "+gateway+": CPU of a token beside nginx", nightly.Ratio, "", cpu...))
		}
	}
	return append(figures, nightly.Of("tokens lost", nightly.Same, "", float64(lost))), nil
}

// measureFigures reads the output of make measure: its figures, and the times of its
// benchmarks. Benchmarks that check a bound judge themselves and are left out.
func measureFigures(printed, _ []byte) ([]nightly.Figure, error) {
	figures, err := nightly.Measures(printed, nil)
	if err != nil {
		return nil, err
	}
	benchmarks, err := nightly.Benchmarks()(printed, nil)
	if err != nil {
		return nil, err
	}
	return append(figures, slices.DeleteFunc(benchmarks, func(f nightly.Figure) bool { return strings.Contains(f.Name, ".Bound") })...), nil
}

// routingFigures counts the cells of bench/routing -check. The check itself judges that
// none has got worse.
func routingFigures(printed, _ []byte) ([]nightly.Figure, error) {
	cells := 0
	for line := range strings.Lines(string(printed)) {
		if strings.Contains(line, ": captured ") {
			cells++
		}
	}
	if cells == 0 {
		return nil, errors.New("no cell was printed")
	}
	return []nightly.Figure{nightly.Of("cells", nightly.Count, "", float64(cells))}, nil
}
