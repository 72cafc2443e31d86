package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"

	"weir/internal/lab/fleetsim"
)

// kept is a part of the table that is committed, so that a change that makes routing
// worse is seen. Runs are in virtual time: no figure depends on the machine.
type kept struct {
	Seeds int    `json:"seeds"`
	Only  string `json:"only"` // the cells, by their keys
	// References are the policies that cost is compared with.
	References []string            `json:"references"`
	Cells      map[string]keptCell `json:"cells"`
}

// keptCell has the results of a cell.
type keptCell struct {
	Captured float64  `json:"captured"` // 0 where nothing is to be reused
	MaxMean  float64  `json:"max_mean"`
	Lost     []string `json:"lost,omitempty"`
	// Beside is cost's figure divided by the best reference's, by seed. For goodput it is the
	// best reference's divided by cost's. So less is better in both.
	Beside map[string][]float64 `json:"beside"`
}

// These constants bound how much worse a figure may get. For a ratio to the best reference, the
// bound applies to the mean of the seeds, and differences that may be chance over the seeds are
// allowed too. The TTFT p99 of one seed comes from the few requests behind its two longest
// prompts, and any change of a decision moves it by a fifth.
const (
	captureSlack = 0.01
	evenSlack    = 0.02
	besideSlack  = 0.05
)

// check runs some cells of a part of the table, and reports where they have got worse. With
// accept it writes the new results.
func check(w io.Writer, name string, some *regexp.Regexp, accept bool) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var k kept
	if err := json.Unmarshal(text, &k); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	only, err := regexp.Compile(k.Only)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	found := map[string]keptCell{}
	var wrong []string
	names := append([]string{"cost"}, k.References...)
	match := func(key string) bool { return only.MatchString(key) && some.MatchString(key) }
	err = cells(ask{seeds: k.Seeds, only: match, field: pushed()}, func(int, map[string][]*fleetsim.Report) []string { return names }, func(c *cell) {
		now := c.kept()
		found[c.key()] = now
		fmt.Fprintf(w, "%s: captured %.3f, max/mean %.2f, lost %v, beside the best %v\n", c.key(), now.Captured, now.MaxMean, now.Lost, now.Beside)
		if was, ok := k.Cells[c.key()]; ok {
			wrong = append(wrong, was.worse(c.key(), now)...)
		} else if !accept {
			wrong = append(wrong, fmt.Sprintf("%s is not in the file", c.key()))
		}
	})
	if err != nil {
		return err
	}
	for key := range k.Cells {
		if _, ok := found[key]; !ok && match(key) && !accept {
			wrong = append(wrong, key+" was not run")
		}
	}
	if accept {
		maps.DeleteFunc(k.Cells, func(key string, _ keptCell) bool { return match(key) || !only.MatchString(key) })
		maps.Copy(k.Cells, found)
		text, err := json.MarshalIndent(k, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(name, append(text, '\n'), 0o644)
	}
	if len(wrong) > 0 {
		return errors.New("worse than in " + name + " (-accept takes it as it is):\n  " + strings.Join(wrong, "\n  "))
	}
	return nil
}

// kept returns the results to keep of a cell.
func (c *cell) kept() keptCell {
	r := keptCell{Captured: captured(c.runs["cost"], c.runs[fleetsim.Oracle]), MaxMean: mean(c.runs["cost"], maxMean), Beside: map[string][]float64{}}
	if math.IsNaN(r.Captured) {
		r.Captured = 0
	}
	for i, v := range c.judge() {
		if v.lost {
			r.Lost = append(r.Lost, figures[i].name)
		}
		for seed, best := range c.runs[v.by] {
			x := figures[i].of(c.runs["cost"][seed]) / figures[i].of(best)
			if v.best < 0 { // a figure of which more is better
				x = 1 / x
			}
			r.Beside[figures[i].name] = append(r.Beside[figures[i].name], math.Round(1000*min(x, most))/1000)
		}
	}
	r.Captured, r.MaxMean = math.Round(r.Captured*1000)/1000, math.Round(r.MaxMean*1000)/1000
	return r
}

// most is the largest quotient. A goodput of zero has it.
const most = 1000

// grew reports whether quotients are larger than they were, in the mean by more than besideSlack, and
// with 95 % confidence over the seeds.
func grew(was, now []float64) bool {
	if len(was) != len(now) {
		return len(was) > 0
	}
	by := make([]float64, len(now))
	for i := range now {
		by[i] = math.Log(now[i] / was[i])
	}
	m, unsure := spread(by)
	return m > math.Log1p(besideSlack) && m > unsure
}

// worse describes each way in which a cell has got worse.
func (was *keptCell) worse(key string, now keptCell) (all []string) {
	say := func(format string, args ...any) { all = append(all, key+": "+fmt.Sprintf(format, args...)) }
	if now.Captured < was.Captured-captureSlack {
		say("captured reuse %.3f, was %.3f", now.Captured, was.Captured)
	}
	if now.MaxMean > was.MaxMean+evenSlack {
		say("max/mean load %.2f, was %.2f", now.MaxMean, was.MaxMean)
	}
	for _, name := range now.Lost {
		if !slices.Contains(was.Lost, name) {
			say("lost %s", name)
		}
	}
	for name, x := range now.Beside {
		if grew(was.Beside[name], x) {
			say("%s beside the best reference %.3f, was %.3f", name, x, was.Beside[name])
		}
	}
	slices.Sort(all)
	return all
}
