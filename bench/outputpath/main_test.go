//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir/bench/peers"
	"weir/internal/lab"
	"weir/internal/lab/cell"
	"weir/internal/lab/client"
)

func TestChoose(t *testing.T) {
	s, err := choose("spread,idle", "nginx,weir plane", "")
	if err != nil || len(s.loads) != 2 || len(s.gateways) != 2 {
		t.Errorf("choose: %v %v", s, err)
	}
	if _, err := choose("spraed", "", ""); err == nil {
		t.Error("an unknown load was taken")
	}
	if _, err := choose("", "ngnix", ""); err == nil {
		t.Error("an unknown gateway was taken")
	}
	if s, err := choose("idle", "", ""); err != nil || slices.ContainsFunc(s.gateways, func(g lab.Gateway) bool { return g.Peer }) {
		t.Errorf("without a name a gateway that others publish runs: %v", err)
	}
	if s, err := choose("idle", "peers", ""); err != nil || len(s.gateways) != len(peers.All("")) {
		t.Errorf("peers: %v %v", s.gateways, err)
	}
	if s, err := choose("idle", "nginx,"+peers.SMG, ""); err != nil || len(s.gateways) != 2 {
		t.Errorf("nginx and a peer: %v %v", s.gateways, err)
	}
}

func TestLoadOfStreams(t *testing.T) {
	// Streams that are spread over the step keep the rate of each. Streams that step at one
	// instant keep the size of the step.
	if l, err := load("spread 64"); err != nil || l.Name != "spread 64" || l.Streams != 64 || l.Rate != 20 || !l.Spread {
		t.Errorf("spread 64: %+v %v", l, err)
	}
	if l, err := load("founding 1024"); err != nil || l.Streams != 1024 || l.Rate*1024 != 33*4096 {
		t.Errorf("founding 1024: %+v %v", l, err)
	}
	if l, err := load("flat out 64"); err != nil || l.Streams != 64 || l.Rate != 0 {
		t.Errorf("flat out 64: %+v %v", l, err)
	}
	for _, name := range []string{"spread64", "spread -1", "spread 0", "spread 30000", "spread 6 4", "64"} {
		if l, err := load(name); err == nil {
			t.Errorf("%q: %+v", name, l)
		}
	}
}

func TestSaturated(t *testing.T) {
	peer := lab.Gateway{Name: "p", Peer: true}
	behind := []*client.Result{{Load: "spread 64", Gateway: "p", Share: 0.4}}
	at := func(results []*client.Result, name string, g lab.Gateway) string {
		l, err := load(name)
		if err != nil {
			t.Fatal(err)
		}
		return saturated(results, l, g)
	}
	if got := at(behind, "spread", peer); got != "spread 64" {
		t.Errorf("more streams: %q", got)
	}
	for _, c := range []struct {
		load string
		g    lab.Gateway
		of   []*client.Result
	}{
		{"spread 32", peer, behind},
		{"founding", peer, behind},
		{"flat out 128", peer, behind},
		{"spread", lab.Gateway{Name: "q", Peer: true}, behind},
		{"spread", lab.Gateway{Name: "p"}, behind},
		{"spread", peer, []*client.Result{{Load: "spread 64", Gateway: "p", Share: 0.9}}},
		{"spread", peer, []*client.Result{{Load: "spread 64", Gateway: "p", Failed: "interrupted"}}},
	} {
		if got := at(c.of, c.load, c.g); got != "" {
			t.Errorf("%s of %+v: %q", c.load, c.g.Name, got)
		}
	}
}

// Kept results of several runs make one table, with the range of each figure.
func TestRead(t *testing.T) {
	var files []string
	for i, cpu := range []float64{3, 1, 2} {
		data, err := json.Marshal([]*client.Result{{Load: "spread", Gateway: "nginx", Delivered: 100, Share: 1, CPUPerMega: cpu, Streams: 10, Complete: 10}})
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), strconv.Itoa(i))
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, name)
	}
	var out, problems bytes.Buffer
	if err := run(t.Context(), []string{"-read", strings.Join(files, ",")}, &out, &problems); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "| nginx | 3 | 100 (100 to 100) | 100.0 (100.0 to 100.0) | 2.00 (1.00 to 3.00) |") {
		t.Errorf("%s", &out)
	}
	if err := run(t.Context(), []string{"-read", "nowhere"}, &out, &problems); err == nil {
		t.Error("a file that is not there was read")
	}
}

func TestForGateway(t *testing.T) {
	flat := cell.Load{Streams: 512}
	if l := forGateway(flat, lab.Named(lab.Plane)); l.Rate != 1000 {
		t.Errorf("the plane has no bound: %+v", l)
	}
	if l := forGateway(flat, lab.Named(lab.Relay)); l.Rate != 0 {
		t.Errorf("the relay has one: %+v", l)
	}
	if l := forGateway(cell.Load{Streams: 9000, Idle: true}, lab.Named(lab.Plane)); l.Streams != 10000 {
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
