package nightly

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const benchOutput = `goos: linux
goarch: amd64
pkg: weir/internal/wire/sse
cpu: Intel
BenchmarkSplitter/lf-2         	     100	      1200 ns/op	 512.00 MB/s	      16 B/op	       1 allocs/op
BenchmarkSplitter/lf-2         	     100	      1000 ns/op	 512.00 MB/s	      16 B/op	       1 allocs/op
BenchmarkSplitter/lf-2         	     100	      1100 ns/op	 512.00 MB/s	      16 B/op	       2 allocs/op
BenchmarkSplitter/crlf-2       	     100	      2000 ns/op
BenchmarkSplitter/crlf-2       	     100	      2000 ns/op
BenchmarkSplitter/crlf-2       	     100	      3300 ns/op
PASS
ok  	weir/internal/wire/sse	1.234s
pkg: weir/internal/model/pool
BenchmarkRun-2   	 1000000	       0.5 ns/op	       7.0 ns/token
PASS
ok  	weir/internal/model/pool	1.234s
`

func TestBenchmarks(t *testing.T) {
	got, err := Benchmarks(Quotient{"lf beside crlf", "wire/sse.Splitter/lf", "wire/sse.Splitter/crlf"})([]byte(benchOutput), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Figure{
		Of("wire/sse.Splitter/lf time", Time, "ns/op", 1200, 1000, 1100),
		Of("wire/sse.Splitter/crlf time", Time, "ns/op", 2000, 2000, 3300),
		Of("model/pool.Run time", Time, "ns/op", 0.5),
		Of("wire/sse.Splitter/lf allocations", Allocs, "allocs/op", 1, 1, 2),
		Of("lf beside crlf", Ratio, "", 0.6, 0.5, 1100.0/3300),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// One processor: no suffix, and what looks like one is part of a name.
	got, err = Benchmarks()([]byte("pkg: weir/internal/sim\nBenchmarkA/llama-3 1 5 ns/op\nBenchmarkB 1 5 ns/op\n"), nil)
	if err != nil || got[0].Name != "sim.A/llama-3 time" {
		t.Error(got, err)
	}
	for _, c := range []struct {
		printed, err string
		quotient     []Quotient
	}{
		{"PASS\nok  	weir/internal/wire/sse	0.1s\n", "no benchmark", nil},
		{"BenchmarkA-2 1 1.2.3 ns/op\n", "1.2.3", nil},
		{benchOutput, "q: 0 times of wire/sse.Splitter/cr and 3 of wire/sse.Splitter/lf", []Quotient{{"q", "wire/sse.Splitter/cr", "wire/sse.Splitter/lf"}}},
		{benchOutput, "q: 3 times of wire/sse.Splitter/lf and 1 of model/pool.Run", []Quotient{{"q", "wire/sse.Splitter/lf", "model/pool.Run"}}},
		{"BenchmarkA 1 5 ns/op\nBenchmarkB 1 0 ns/op\n", "q: B took no time", []Quotient{{"q", "A", "B"}}},
	} {
		if got, err := Benchmarks(c.quotient...)([]byte(c.printed), nil); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v, %v", c.printed, got, err)
		}
	}
}

func TestMeasures(t *testing.T) {
	got, err := Measures([]byte(`=== RUN   TestMemory
    memory_test.go:12: measure stream.idle.plane 25.6 KB
measure offline.hour 1.1 s
measure offline.hour 1.3 s
measured twice, by the way
measure hangup of many/p99 31 ms
ok  	weir/measure	3.2s
`), nil)
	want := []Figure{
		Of("stream.idle.plane", Memory, "KB", 25.6),
		Of("offline.hour", Time, "s", 1.1, 1.3),
		Of("hangup of many/p99", Delay, "ms", 31),
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for printed, want := range map[string]string{
		"":                                   "no line that begins with measure",
		"measure a 1":                        "want measure NAME VALUE UNIT",
		"measure a much ms":                  "the value is no number",
		"measure a 1 furlongs":               `the unit "furlongs" is not known`,
		"measure a 1 ms\nmeasure a 0.001 s":  "a was in ms before",
		"    x_test.go:3: measure a 1 knots": `the unit "knots" is not known`,
	} {
		if got, err := Measures([]byte(printed), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", printed, got, err)
		}
	}
	for unit, kind := range units {
		if _, ok := kind.rule(); !ok {
			t.Errorf("%s is of no kind: %s", unit, kind)
		}
	}
}

func TestSuites(t *testing.T) {
	packages := "ok  \tweir/interop/clients\t12.345s\n?   \tweir/interop\t[no test files]\nok  \tweir/interop/page\t3s\n"
	tests := "=== RUN   TestA\n--- PASS: TestA (1.00s)\n    --- PASS: TestA/part (0.50s)\n--- SKIP: TestB (0.00s)\n--- PASS: TestC (0.10s)\nPASS\n"
	targets := "/src/internal/wire/sse FuzzCuts\nfuzz: elapsed: 0s, gathering baseline coverage\n/src/internal/wire/sse FuzzAppend\nPASS\n"
	for name, c := range map[string]struct {
		read    func(printed, file []byte) ([]Figure, error)
		printed string
		want    []Figure
		empty   string
	}{
		"packages":  {Packages, packages, []Figure{Of("interop/clients", Time, "s", 12.345), Of("interop/page", Time, "s", 3)}, "no package says that it passed"},
		"tests":     {Tests, tests, []Figure{Of("tests passed", Count, "", 2), Of("tests skipped", Same, "", 1)}, "no test says that it passed"},
		"mutations": {Mutations, "caught    one  f.go 1.0 s\nSTALE     two  f.go 0.0 s\n1 of 2 caught\nmutate: 1 mutations were not caught\n", []Figure{Of("mutations", Count, "", 2), Of("mutations not caught", Same, "", 1)}, "no line says how many mutations were caught"},
		"fuzz":      {FuzzTargets, targets, []Figure{Of("fuzz targets", Count, "", 2)}, "no fuzz target was run"},
	} {
		got, err := c.read([]byte(c.printed), nil)
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %s %v", name, diff, err)
		}
		if _, err := c.read([]byte("PASS\n"), nil); err == nil || err.Error() != c.empty {
			t.Errorf("%s: %v", name, err)
		}
	}
}
