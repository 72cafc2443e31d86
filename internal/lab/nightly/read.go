package nightly

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Readers of programs' output. A reader that finds nothing reports an error: output without
// its figures is a failure, never a success.

var (
	benchLine   = regexp.MustCompile(`^Benchmark(\S+)\s+\d+\s+(.*)$`)
	packageLine = regexp.MustCompile(`^ok\s+(\S+)\s+([\d.]+)s`)
	testLine    = regexp.MustCompile(`^--- (PASS|SKIP|FAIL): (\S+)`)
	fuzzLine    = regexp.MustCompile(`^\S+ Fuzz\w+$`)
	logged      = regexp.MustCompile(`^\s+\w+\.go:\d+: `)
)

// Quotient is a figure made of the times of two benchmarks, measured side by side
// in one run: the first as a share of the second.
type Quotient struct{ Name, Of, By string }

// Benchmarks reads the output of go test -bench, over one or several packages: the time of
// each benchmark, with -benchmem its allocations, the medians of -count repeats, and the
// quotients. The names are PACKAGE.BENCHMARK, without the common path of the packages.
func Benchmarks(quotients ...Quotient) func(printed, file []byte) ([]Figure, error) {
	return func(printed, _ []byte) ([]Figure, error) {
		times, allocs := newSamples(), newSamples()
		pkg := ""
		for line := range strings.Lines(string(printed)) {
			line = strings.TrimRight(line, "\r\n")
			if path, ok := strings.CutPrefix(line, "pkg: "); ok {
				pkg = strings.TrimPrefix(path, "weir/internal/") + "."
				continue
			}
			match := benchLine.FindStringSubmatch(line)
			if match == nil {
				continue
			}
			fields := strings.Fields(match[2])
			for i := 0; i+1 < len(fields); i += 2 {
				into, unit := times, "ns/op"
				if fields[i+1] == "allocs/op" {
					into, unit = allocs, "allocs/op"
				}
				if fields[i+1] != unit {
					continue
				}
				v, err := strconv.ParseFloat(fields[i], 64)
				if err != nil {
					return nil, fmt.Errorf("%q: %w", line, err)
				}
				into.add(pkg+match[1], v)
			}
		}
		if len(times.names) == 0 {
			return nil, errors.New("there is no benchmark in the output")
		}
		cut := processors(times.names)
		figures := append(times.figures(cut, " time", Time, "ns/op"), allocs.figures(cut, " allocations", Allocs, "allocs/op")...)
		for _, q := range quotients {
			f, err := times.quotient(q, cut)
			if err != nil {
				return nil, err
			}
			figures = append(figures, f)
		}
		return figures, nil
	}
}

// processors is the suffix that go test gives all names where there is more than
// one processor.
func processors(names []string) string {
	i := strings.LastIndexByte(names[0], '-')
	if i < 0 {
		return ""
	}
	suffix := names[0][i:]
	if _, err := strconv.Atoi(suffix[1:]); err != nil || slices.ContainsFunc(names, func(n string) bool { return !strings.HasSuffix(n, suffix) }) {
		return ""
	}
	return suffix
}

// samples are values by name, in the order in which the names first came.
type samples struct {
	names  []string
	values map[string][]float64
}

func newSamples() *samples { return &samples{values: map[string][]float64{}} }

func (s *samples) add(name string, v float64) {
	if s.values[name] == nil {
		s.names = append(s.names, name)
	}
	s.values[name] = append(s.values[name], v)
}

func (s *samples) figures(cut, suffix string, kind Kind, unit string) []Figure {
	var all []Figure
	for _, name := range s.names {
		all = append(all, Of(strings.TrimSuffix(name, cut)+suffix, kind, unit, s.values[name]...))
	}
	return all
}

// quotient divides two benchmarks' times, repeat by repeat.
func (s *samples) quotient(q Quotient, cut string) (Figure, error) {
	of, by := s.values[q.Of+cut], s.values[q.By+cut]
	if len(of) == 0 || len(of) != len(by) {
		return Figure{}, fmt.Errorf("%s: %d times of %s and %d of %s", q.Name, len(of), q.Of, len(by), q.By)
	}
	shares := make([]float64, len(of))
	for i := range of {
		if by[i] == 0 {
			return Figure{}, fmt.Errorf("%s: %s took no time", q.Name, q.By)
		}
		shares[i] = of[i] / by[i]
	}
	return Of(q.Name, Ratio, "", shares...), nil
}

// units maps the unit of a figure of make measure to its kind.
var units = map[string]Kind{
	"B": Memory, "KB": Memory, "MB": Memory, "KiB": Memory, "MiB": Memory, "goroutines": Goroutines,
	"ns": Delay, "us": Delay, "ms": Delay, "s": Time, "cpu-s": Time,
	"tokens/s": Rate, "requests/s": Rate,
	"ratio": Ratio, "share": Share, "allocs": Allocs, "count": Count,
	"lost": Same, "errors": Same,
}

// Measures reads the lines "measure NAME VALUE UNIT" of an output, whether they are printed
// or logged by a test. NAME may contain spaces. A name that comes more than once has
// repeats.
func Measures(printed, _ []byte) ([]Figure, error) {
	values := newSamples()
	unitOf := map[string]string{}
	for line := range strings.Lines(string(printed)) {
		line = strings.TrimRight(line, "\r\n")
		rest, ok := strings.CutPrefix(line[len(logged.FindString(line)):], "measure ")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		n := len(fields)
		if n < 3 {
			return nil, fmt.Errorf("%q: want measure NAME VALUE UNIT", line)
		}
		name, unit := strings.Join(fields[:n-2], " "), fields[n-1]
		v, err := strconv.ParseFloat(fields[n-2], 64)
		switch before, seen := unitOf[name]; {
		case err != nil:
			return nil, fmt.Errorf("%q: the value is no number", line)
		case units[unit] == "":
			return nil, fmt.Errorf("%q: the unit %q is not known; give it a kind in internal/lab/nightly/read.go", line, unit)
		case seen && before != unit:
			return nil, fmt.Errorf("%q: %s was in %s before", line, name, before)
		}
		unitOf[name] = unit
		values.add(name, v)
	}
	if len(values.names) == 0 {
		return nil, errors.New("there is no line that begins with measure")
	}
	var all []Figure
	for _, name := range values.names {
		all = append(all, Of(name, units[unitOf[name]], unitOf[name], values.values[name]...))
	}
	return all, nil
}

// Packages reads the output of go test: the seconds of each package that passed.
func Packages(printed, _ []byte) ([]Figure, error) {
	var all []Figure
	for line := range strings.Lines(string(printed)) {
		match := packageLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		v, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", strings.TrimSpace(line), err)
		}
		all = append(all, Of(strings.TrimPrefix(match[1], "weir/"), Time, "s", v))
	}
	if len(all) == 0 {
		return nil, errors.New("no package says that it passed")
	}
	return all, nil
}

// Tests reads the output of go test -v: how many tests passed, and how many were
// skipped. Parts of a test are not counted.
func Tests(printed, _ []byte) ([]Figure, error) {
	passed, skipped := 0, 0
	for line := range strings.Lines(string(printed)) {
		switch match := testLine.FindStringSubmatch(line); {
		case match == nil:
		case match[1] == "PASS":
			passed++
		case match[1] == "SKIP":
			skipped++
		}
	}
	if passed == 0 {
		return nil, errors.New("no test says that it passed")
	}
	return []Figure{Of("tests passed", Count, "", float64(passed)), Of("tests skipped", Same, "", float64(skipped))}, nil
}

var mutationsLine = regexp.MustCompile(`(?m)^(\d+) of (\d+) caught$`)

// Mutations reads the output of make mutations: how many were applied, and how many of them no
// test has caught.
func Mutations(printed, _ []byte) ([]Figure, error) {
	match := mutationsLine.FindSubmatch(printed)
	if match == nil {
		return nil, errors.New("no line says how many mutations were caught")
	}
	caught, err := strconv.Atoi(string(match[1]))
	if err != nil {
		return nil, err
	}
	tried, err := strconv.Atoi(string(match[2]))
	if err != nil {
		return nil, err
	}
	return []Figure{Of("mutations", Count, "", float64(tried)), Of("mutations not caught", Same, "", float64(tried-caught))}, nil
}

// FuzzTargets reads the output of make fuzz: how many targets were run.
func FuzzTargets(printed, _ []byte) ([]Figure, error) {
	n := 0
	for line := range strings.Lines(string(printed)) {
		if fuzzLine.MatchString(strings.TrimSpace(line)) {
			n++
		}
	}
	if n == 0 {
		return nil, errors.New("no fuzz target was run")
	}
	return []Figure{Of("fuzz targets", Count, "", float64(n))}, nil
}
