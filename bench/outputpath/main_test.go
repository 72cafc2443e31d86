//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"

	"weir/internal/bench"
	"weir/internal/bench/cell"
)

func TestChoose(t *testing.T) {
	s, err := choose("spread,idle", "nginx,weir plane")
	if err != nil || len(s.loads) != 2 || len(s.gateways) != 2 {
		t.Errorf("choose: %v %v", s, err)
	}
	if _, err := choose("spraed", ""); err == nil {
		t.Error("an unknown load was taken")
	}
	if _, err := choose("", "ngnix"); err == nil {
		t.Error("an unknown gateway was taken")
	}
}

func TestForGateway(t *testing.T) {
	flat := cell.Load{Streams: 512}
	if l := forGateway(flat, bench.Named(bench.Plane)); l.Rate != 1000 {
		t.Errorf("the plane has no bound: %+v", l)
	}
	if l := forGateway(flat, bench.Named(bench.Relay)); l.Rate != 0 {
		t.Errorf("the relay has one: %+v", l)
	}
	if l := forGateway(cell.Load{Streams: 9000, Idle: true}, bench.Named(bench.Plane)); l.Streams != 10000 {
		t.Errorf("idle: %+v", l)
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // in the error or what was printed
	}{
		{[]string{"-loads", "spraed"}, "the loads are spread, burst"},
		{[]string{"-gateways", "ngnix"}, "the gateways are nginx, weir relay"},
		{[]string{"-n", "x"}, "invalid value"},
		{[]string{"-help"}, "-retries"},
	} {
		var out, problems bytes.Buffer
		if err := run(t.Context(), c.args, &out, &problems); err != nil {
			problems.WriteString(err.Error())
		}
		if !strings.Contains(problems.String(), c.want) {
			t.Errorf("%v: %q, want %q", c.args, problems.String(), c.want)
		}
	}
}
