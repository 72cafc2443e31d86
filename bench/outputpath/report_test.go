//go:build linux

package main

import (
	"strings"
	"testing"
)

func TestCPUTicks(t *testing.T) {
	got, err := cpuTicks([]byte("12 (a ) b) S 1 12 12 0 -1 4194304 100 0 0 0 250 41 0 0 20 0 5 0 100 1000 200\n"))
	if err != nil || got != 291 {
		t.Errorf("%d ticks, %v", got, err)
	}
	if _, err := cpuTicks([]byte("12 (short) S 1")); err == nil {
		t.Error("a short line was taken")
	}
}

func TestBusySeconds(t *testing.T) {
	got, err := busySeconds([]byte("cpu  100 20 30 5000 40 5 6 7 0 0\ncpu0 1 2 3\n"))
	if err != nil || got != 1.68 {
		t.Errorf("%v s, %v", got, err)
	}
	if _, err := busySeconds([]byte("intr 1")); err == nil {
		t.Error("no line of a CPU was taken")
	}
}

func TestField(t *testing.T) {
	if got := field([]byte("VmHWM:\t  9 kB\nVmRSS:\t  1234 kB\n"), "VmRSS:"); got != 1234 {
		t.Errorf("VmRSS %d", got)
	}
}

func TestProbesOf(t *testing.T) {
	var lines strings.Builder
	lines.WriteString(`{"request_id":"stream-1","output_path_delay":99000000000}` + "\n")
	for _, ms := range []string{"3", "1", "2"} {
		lines.WriteString(`{"request_id":"probe-9","output_path_delay":` + ms + "000000}\n")
	}
	got, err := probesOf([]byte(lines.String()))
	if err != nil || got.Count != 3 || got.P99 != 2 && got.P99 != 3 || got.Max != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := probesOf([]byte(`{"request_id":"stream-1","output_path_delay":1}`)); err == nil {
		t.Error("a timeline without probes was taken")
	}
}

func TestMedians(t *testing.T) {
	m := mediansOf([]*Result{
		{Load: "a", Gateway: "x", P99: 3, Lost: 1}, {Load: "a", Gateway: "y", P99: 9},
		{Load: "a", Gateway: "x", P99: 1}, {Load: "a", Gateway: "x", P99: 2, Lost: 1},
	})
	if len(m) != 2 || m[0].P99 != 2 || m[0].Lost != 2 || m[1].P99 != 9 {
		t.Errorf("%+v %+v", m[0], m[1])
	}
}

func TestJudgeRun(t *testing.T) {
	plane := &Result{Load: "flat out", Gateway: namePlane, Delivered: 100, P99: 10}
	lossy := &Result{Load: "flat out", Gateway: nameLatest, Lost: 5}
	late := &Result{Load: "flat out", Gateway: nameSingle, Delivered: 80, P99: 900}
	for _, c := range []struct {
		name    string
		results []*Result
		want    string // part of the one problem; empty: none
	}{
		{"as it must be", []*Result{plane, lossy, late}, ""},
		{"a gateway loses", []*Result{plane, lossy, late, {Load: "burst", Gateway: nameNginx, Lost: 1}}, "1 tokens lost"},
		{"a gateway repeats", []*Result{plane, lossy, late, {Load: "burst", Gateway: nameRelay, Wrong: 2}}, "2 repeated"},
		{"the control loses nothing", []*Result{plane, {Load: "flat out", Gateway: nameLatest}, late}, "cannot see a loss"},
		{"the control keeps up", []*Result{plane, lossy, {Load: "flat out", Gateway: nameSingle, Delivered: 100, P99: 11}}, "is no worse"},
		{"not measured", []*Result{plane, {Load: "flat out", Gateway: nameNginx, Failed: "nginx is not installed"}}, "not installed"},
		{"the clock was set", []*Result{{Load: "burst", Gateway: namePlane, Negative: 1}}, "the clock was set"},
		{"no overload was run", []*Result{{Load: "spread", Gateway: namePlane}, {Load: "spread", Gateway: nameSingle}}, ""},
	} {
		got := judge(c.results)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
