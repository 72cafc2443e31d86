//go:build linux

package main

import (
	"math"
	"testing"
)

func wanted() load {
	return load{Cores: 64, Streams: 100_000, Engines: 64, Rate: 20, Answer: 400, Prompt: 1000, SeenShare: 0.5, NIC: 25e9, Memory: 64e9, Files: 1 << 20, Ports: 28_000}
}

// A prediction adds up what its parts cost, and grows with each of them.
func TestPredict(t *testing.T) {
	m := model{Token: 10, Request: 100, New: 50, Seen: 10, Stream: 10e3, Base: 50e6, Files: 2, InBytes: 300}
	l := wanted()
	var cpu float64
	for _, n := range m.predict(&l) {
		if n.Of == "CPU" {
			cpu = n.Need
		}
	}
	// 2 M tokens/s of 10 us, 5,000 requests/s of 100 us and 1,000 tokens of 30 ns.
	if want := 20 + 0.5 + 0.15; math.Abs(cpu-want) > 1e-9 {
		t.Errorf("%g cores, want %g", cpu, want)
	}
	for name, more := range map[string]func(*load){
		"streams": func(l *load) { l.Streams *= 2 },
		"rate":    func(l *load) { l.Rate *= 2 },
		"answers": func(l *load) { l.Answer /= 2 },
		"prompts": func(l *load) { l.Prompt *= 2 },
		"new":     func(l *load) { l.SeenShare = 0 },
	} {
		other := wanted()
		more(&other)
		for _, n := range m.predict(&other) {
			if n.Of == "CPU" && n.Need <= cpu {
				t.Errorf("with more %s it takes %g cores, and %g before", name, n.Need, cpu)
			}
		}
	}
}

// The need that most names is the one that ends: with one stream more its share is above 1, and
// no other need's is.
func TestMost(t *testing.T) {
	for _, m := range models() {
		for _, change := range []func(*load){
			func(*load) {},
			func(l *load) { l.Cores = 16 },
			func(l *load) { l.NIC = 1e9 },
			func(l *load) { l.Memory = 1e9 },
			func(l *load) { l.Files = 20_000 },
			func(l *load) { l.Engines = 1 },
		} {
			l := wanted()
			change(&l)
			streams, ends := m.most(l)
			l.Streams = streams
			if share := m.predict(&l)[0].share(); share > 1 {
				t.Errorf("%s: %d streams are %g of what there is", m.Wire, streams, share)
			}
			l.Streams++
			if first := m.predict(&l)[0]; first.share() <= 1 || first.Of != ends {
				t.Errorf("%s: a stream more than %d is %g of the %s, want too much of the %s", m.Wire, streams, first.share(), first.Of, ends)
			}
		}
	}
}
