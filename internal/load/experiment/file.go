package experiment

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"weir/internal/config"
	"weir/internal/load/slo"
)

// Known are the flags that the sections of a file may hold.
type Known struct{ Load, Engine, Gateway []string }

// setting is a flag of a section.
type setting struct {
	flag   string
	line   int
	values []string
	factor string // the name of its factor; empty where it is not varied
}

// Experiment is the content of a file.
type Experiment struct {
	Path, Name string
	// Repeats is how often each cell is run; Seed draws the order, and is the seed
	// of the first run's load, the next run's being one more.
	Repeats int
	Seed    uint64
	// Objectives, where there are any, make each cell a search for the highest
	// rate that meets them; Text is how they were written.
	Objectives []slo.Objective
	Text       string
	Search     slo.Options
	// Wire is how the gateway reaches the engines: weir, openai, sglang or vllm.
	Wire string
	// Direct reports whether there is no gateway: the load goes to one engine.
	Direct  bool
	Factors []Factor

	engines               []string
	load, engine, gateway []setting
	each                  map[int][]setting // of one engine, from 1
}

// maxEngines and maxRuns bound an experiment.
const (
	maxEngines = 64
	maxRuns    = 10000
)

// The names of factors that are not flags.
const (
	EnginesFactor = "engines"
	// Rate and Concurrency are the flags of which a load has one.
	Rate        = "rate"
	Concurrency = "concurrency"
)

var topKeys = []string{"name", "repeats", "seed", "slo", "tolerance", "trials", "load", "fleet"}

// Read reads an experiment. An error names the file, the line, the key and the
// nearest one that is known.
func Read(path string, known Known) (*Experiment, error) {
	root, err := config.ReadSections(path)
	if err != nil {
		return nil, fmt.Errorf("experiment %w", err)
	}
	e := &Experiment{Path: path, Repeats: 1, Seed: 1, Wire: "weir", each: map[int][]setting{}}
	if err := e.take(root, known); err != nil {
		return nil, fmt.Errorf("experiment %s: %w", path, err)
	}
	if e.Name == "" {
		e.Name = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	return e, nil
}

func (e *Experiment) take(root *config.Section, known Known) error {
	if err := root.Check(topKeys); err != nil {
		return err
	}
	for i := range root.Entries {
		entry := &root.Entries[i]
		if entry.Key == "load" || entry.Key == "fleet" {
			if entry.Section == nil {
				return fmt.Errorf("line %d: %s is a section: write \"%s:\" and below it its keys, such as \"  requests: 500\"", entry.Line, entry.Key, entry.Key)
			}
			continue
		}
		if err := e.top(entry); err != nil {
			return err
		}
	}
	load := root.Find("load")
	if load == nil {
		return fmt.Errorf("the section load is missing: it has the flags of weir bench, such as rate, requests and input-tokens")
	}
	if fleet := root.Find("fleet"); fleet != nil {
		if err := e.fleet(fleet.Section, known); err != nil {
			return err
		}
	} else {
		e.engines = []string{"2"}
	}
	var err error
	if e.load, err = settings(load.Section, known.Load); err != nil {
		return err
	}
	if err := e.loops(load); err != nil {
		return err
	}
	e.factors()
	cells := len(Grid(e.Factors))
	if cells*e.Repeats > maxRuns {
		return fmt.Errorf("%d cells, %d times each, are more than %d runs", cells, e.Repeats, maxRuns)
	}
	return nil
}

// one returns an entry's only value.
func one(e *config.Entry) (string, error) {
	if e.Section != nil || e.Listed || len(e.Values) != 1 {
		return "", fmt.Errorf("line %d: %s takes one value", e.Line, e.Key)
	}
	return e.Values[0], nil
}

// top takes a key of the file that is no section.
func (e *Experiment) top(entry *config.Entry) error {
	v, err := one(entry)
	if err != nil {
		return err
	}
	wrong := func(want string) error {
		return fmt.Errorf("line %d: %s: %q is not %s", entry.Line, entry.Key, v, want)
	}
	switch entry.Key {
	case "name":
		e.Name = v
	case "repeats":
		if e.Repeats, err = strconv.Atoi(v); err != nil || e.Repeats < 1 || e.Repeats > maxRuns {
			return wrong("a positive number")
		}
	case "seed":
		if e.Seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			return wrong("a whole number")
		}
	case "slo":
		if e.Objectives, err = slo.Parse(v); err != nil {
			return fmt.Errorf("line %d: slo: %w", entry.Line, err)
		}
		e.Text = v
	case "tolerance":
		share, err := strconv.ParseFloat(strings.TrimSuffix(v, "%"), 64)
		if err != nil || !strings.HasSuffix(v, "%") || share <= 0 || share > 100 {
			return wrong("a share such as 5%")
		}
		e.Search.Tolerance = share / 100
	case "trials":
		if e.Search.Trials, err = strconv.Atoi(v); err != nil || e.Search.Trials < 1 || e.Search.Trials > maxRuns {
			return wrong("a positive number")
		}
	}
	return nil
}

// wires are those of a fleet.
var wires = []string{"weir", "openai", "sglang", "vllm"}

// fleet takes the section of that name.
func (e *Experiment) fleet(s *config.Section, known Known) error {
	keys := []string{EnginesFactor, "wire", "engine", "gateway"}
	for i := range s.Entries {
		entry := &s.Entries[i]
		if n, err := strconv.Atoi(strings.TrimPrefix(entry.Key, "engine-")); err == nil && strings.HasPrefix(entry.Key, "engine-") && n >= 1 && n <= maxEngines {
			if entry.Section == nil {
				return fmt.Errorf("line %d: %s has the flags of one engine, as in \"%s:\" and below it \"  decode-cost: 20ms\"", entry.Line, entry.Key, entry.Key)
			}
			if e.each[n], err = settings(entry.Section, known.Engine); err != nil {
				return err
			}
			keys = append(keys, entry.Key)
		}
	}
	if err := s.Check(keys); err != nil {
		return err
	}
	e.engines = []string{"2"}
	for i := range s.Entries {
		entry := &s.Entries[i]
		var err error
		switch entry.Key {
		case EnginesFactor:
			for _, v := range entry.Values {
				if _, err := ParseFleet(v, maxEngines); err != nil {
					return fmt.Errorf("line %d: engines: %w", entry.Line, err)
				}
			}
			if entry.Section != nil || len(entry.Values) == 0 {
				return fmt.Errorf("line %d: engines is a number, or a list of numbers", entry.Line)
			}
			e.engines = entry.Values
		case "wire":
			if e.Wire, err = one(entry); err != nil {
				return err
			}
			if !slices.Contains(wires, e.Wire) {
				return fmt.Errorf("line %d: there is no wire %q; the wires are %s", entry.Line, e.Wire, strings.Join(wires, ", "))
			}
		case "engine", "gateway":
			if entry.Key == "gateway" && len(entry.Values) == 1 && (entry.Values[0] == "off" || entry.Values[0] == "false") {
				e.Direct = true
				continue
			}
			if entry.Section == nil {
				return fmt.Errorf("line %d: %s has flags below it, as in \"max-running-requests: [64, 128]\"", entry.Line, entry.Key)
			}
			to, flags := &e.engine, known.Engine
			if entry.Key == "gateway" {
				to, flags = &e.gateway, known.Gateway
			}
			if *to, err = settings(entry.Section, flags); err != nil {
				return err
			}
		}
	}
	if e.Direct {
		if e.Wire == "weir" {
			e.Wire = "openai"
		}
		if len(e.engines) != 1 || e.engines[0] != "1" {
			return fmt.Errorf("line %d: without a gateway there is one engine: set engines to 1", s.Line)
		}
	}
	if i := slices.IndexFunc(e.engines, func(v string) bool { return fleetOf(v).Apart() }); i >= 0 && e.Wire != "sglang" && e.Wire != "vllm" {
		return fmt.Errorf("line %d: engines: %s: halves of requests go over sglang and vllm: set wire to one of them, and not to %s", s.Line, e.engines[i], e.Wire)
	}
	for n := range e.each {
		if !slices.ContainsFunc(e.engines, func(v string) bool { return fleetOf(v).Engines() >= n }) {
			return fmt.Errorf("line %d: engine-%d: no cell has that many engines", s.Line, n)
		}
	}
	return nil
}

// settings takes the flags of a section. A mapping is a flag that is given
// several times, as NAME=VALUE.
func settings(s *config.Section, known []string) ([]setting, error) {
	if err := s.Check(known); err != nil {
		return nil, err
	}
	var all []setting
	for i := range s.Entries {
		entry := &s.Entries[i]
		x := setting{flag: entry.Key, line: entry.Line, values: entry.Values}
		if entry.Section != nil {
			for k := range entry.Section.Entries {
				inner := &entry.Section.Entries[k]
				v, err := one(inner)
				if err != nil {
					return nil, err
				}
				x.values = append(x.values, inner.Key+"="+v)
			}
		} else if entry.Listed {
			if len(x.values) == 0 {
				return nil, fmt.Errorf("line %d: %s: the list is empty", entry.Line, entry.Key)
			}
			x.factor = entry.Key
		}
		all = append(all, x)
	}
	return all, nil
}

// loops reads rate and concurrency, which may be ranges, and makes the swept one the last
// factor.
func (e *Experiment) loops(load *config.Entry) error {
	found := 0
	for i := 0; i < len(e.load); i++ {
		s := &e.load[i]
		if s.flag != Rate && s.flag != Concurrency {
			continue
		}
		found++
		v, err := ParseValues(strings.Join(s.values, ","))
		switch {
		case err != nil:
			return fmt.Errorf("line %d: %s: %w", s.line, s.flag, err)
		case s.flag == Concurrency && !v.Whole():
			return fmt.Errorf("line %d: concurrency: want whole numbers", s.line)
		case e.Objectives != nil && (s.flag == Concurrency || len(v.List) > 1):
			return fmt.Errorf("line %d: an slo searches for the rate: give rate as the ends of a range, as in 1..64, or leave it out", s.line)
		case e.Objectives == nil && len(v.List) == 0:
			return fmt.Errorf("line %d: %s: a range to sweep needs steps, as in 10..100+10 or 1..64x2", s.line, s.flag)
		}
		if e.Objectives != nil {
			e.Search.Low, e.Search.High = v.Low, v.High
			e.Search.Start = v.One()
			e.load = slices.Delete(e.load, i, i+1)
			i--
			continue
		}
		if s.values = v.Texts(); len(s.values) > 1 {
			s.factor = s.flag
		}
	}
	if found > 1 {
		return fmt.Errorf("line %d: rate is an open loop and concurrency a closed one; give one of them", load.Line)
	}
	if i := slices.IndexFunc(e.load, func(s setting) bool { return s.flag == Rate || s.flag == Concurrency }); i >= 0 {
		last := e.load[i]
		e.load = append(slices.Delete(e.load, i, i+1), last)
	}
	return nil
}

// factors names the varied settings. If two sections vary a flag of the same name, the
// section's name precedes it.
func (e *Experiment) factors() {
	if len(e.engines) > 1 {
		e.Factors = append(e.Factors, Factor{EnginesFactor, e.engines})
	}
	taken := map[string]bool{EnginesFactor: true}
	add := func(section string, all []setting) {
		for i := range all {
			if s := &all[i]; s.factor != "" {
				if taken[s.factor] {
					s.factor = section + "." + s.factor
				}
				taken[s.factor] = true
				e.Factors = append(e.Factors, Factor{s.factor, s.values})
			}
		}
	}
	add("engine", e.engine)
	for n := 1; n <= maxEngines; n++ {
		add("engine-"+strconv.Itoa(n), e.each[n])
	}
	add("gateway", e.gateway)
	add("load", e.load)
}

// Fleet are the engines of a cell.
func (e *Experiment) Fleet(c Cell) Fleet {
	text := e.engines[0]
	if v, ok := c.Value(e.Factors, EnginesFactor); ok {
		text = v
	}
	return fleetOf(text)
}

// fleetOf reads a fleet that was checked.
func fleetOf(text string) Fleet {
	f, err := ParseFleet(text, maxEngines)
	if err != nil {
		panic("experiment: engines were checked: " + err.Error())
	}
	return f
}

// LoadArgs returns the flags of weir bench in a cell.
func (e *Experiment) LoadArgs(c Cell) []string { return e.args(c, e.load) }

// GatewayArgs returns the flags of weir serve in a cell.
func (e *Experiment) GatewayArgs(c Cell) []string { return e.args(c, e.gateway) }

// EngineArgs returns the flags of weir engine for the n-th engine of a cell, counted from
// 1: first the common ones, then its own, which override them.
func (e *Experiment) EngineArgs(c Cell, n int) []string {
	own := e.each[n]
	shared := slices.DeleteFunc(slices.Clone(e.engine), func(s setting) bool {
		return slices.ContainsFunc(own, func(o setting) bool { return o.flag == s.flag })
	})
	return append(e.args(c, shared), e.args(c, own)...)
}

func (e *Experiment) args(c Cell, all []setting) (args []string) {
	for _, s := range all {
		values := s.values
		if s.factor != "" {
			v, _ := c.Value(e.Factors, s.factor)
			values = []string{v}
		}
		for _, v := range values {
			args = append(args, "--"+s.flag+"="+v)
		}
	}
	return args
}

// Fixed returns the settings of the file that do not vary, as "engine.decode-cost=20ms".
func (e *Experiment) Fixed() (all []string) {
	add := func(section string, settings []setting) {
		for _, s := range settings {
			if s.factor == "" {
				all = append(all, section+"."+s.flag+"="+strings.Join(s.values, ","))
			}
		}
	}
	add("load", e.load)
	add("engine", e.engine)
	for n := 1; n <= maxEngines; n++ {
		add("engine-"+strconv.Itoa(n), e.each[n])
	}
	add("gateway", e.gateway)
	return all
}

// Series returns the name of the curve on which a cell is a point. At is its rate or
// concurrency there, empty if neither is varied.
func (e *Experiment) Series(c Cell) (name, at string) {
	for _, axis := range []string{Rate, Concurrency} {
		if v, ok := c.Value(e.Factors, axis); ok {
			return c.Label(e.Factors, axis), v
		}
	}
	return c.Label(e.Factors), ""
}
