//go:build linux

package main

import (
	"bytes"
	"os"
	"testing"
	"time"
)

// TestMain lets the test binary be the processes of a cell.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && roles()[os.Args[1]] != nil {
		main()
		return
	}
	os.Exit(m.Run())
}

func gatewayNamed(t *testing.T, name string) Gateway {
	t.Helper()
	for _, g := range gateways() {
		if g.Name == name {
			return g
		}
	}
	t.Fatalf("no gateway %q", name)
	return Gateway{}
}

// A cell in small, with real processes and sockets: every token arrives, the
// figures are there, and the control that loses is seen to lose.
func TestCells(t *testing.T) {
	var log bytes.Buffer
	b := &bench{self: os.Args[0], dir: t.TempDir(), log: &log,
		times: Times{Warm: 100 * time.Millisecond, Measure: 400 * time.Millisecond, Tail: 100 * time.Millisecond, Drain: 20 * time.Second}}
	load := Load{Name: "small", Streams: 16, Rate: 50, Probes: 4}
	for _, name := range []string{"ReverseProxy", nameSingle} {
		r := b.cell(load, gatewayNamed(t, name))
		if r.Failed != "" {
			t.Fatalf("%s: %s", name, r.Failed)
		}
		// A proxy of the standard library may cut a stream; it may not lose.
		if r.Lost > 0 || r.Wrong > 0 || r.Complete < r.Streams-1 || r.Streams != 20 {
			t.Errorf("%s: %s", name, r.line())
		}
		if r.Offered < 790 || r.Offered > 810 || r.Delivered == 0 || r.P50 <= 0 || r.Max < r.P99 || r.Resident == 0 || r.PerWrite == 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	flood := Load{Name: "flood", Streams: 64, Rate: 4000}
	if r := b.cell(flood, gatewayNamed(t, nameLatest)); r.Failed != "" || r.Lost == 0 || r.LostStreams == 0 {
		t.Errorf("the control lost nothing: %s", r.line())
	}
}

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
