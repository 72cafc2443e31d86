//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// model is what weir costs over a wire. docs/scale.md says where each figure was measured. CPU
// is that of the gateway's process alone, user and system.
type model struct {
	Wire string

	Token   float64 // microseconds of CPU for a token that is written by itself
	Request float64 // microseconds of CPU from accept to finish, without its tokens but the first two
	New     float64 // nanoseconds of CPU for a token of a prompt that was never seen
	Seen    float64 // and for one of a beginning that was

	Stream float64 // bytes of resident memory for a stream under way; one that waits holds less (Idle)
	Base   float64 // bytes of a gateway without streams
	Engine float64 // bytes for an engine
	Idle   float64 // microseconds of CPU a second for an engine that does nothing

	Files   int     // a stream
	InBytes float64 // from the engine for a token, with the heads of packets
}

// outBytes is what a client is sent for a token, with the heads of packets: an event of a chat
// of some 230 bytes, its chunk, and 66 bytes of TCP, IP and Ethernet.
const outBytes = 310

// socketBytes is what the kernel holds for a socket with empty buffers.
const socketBytes = 4096

// models are the wires of which everything was measured.
func models() []model {
	return []model{
		{Wire: "relay", Token: 15, Request: 60, New: 0, Seen: 0, Stream: 19e3, Base: 46e6, Engine: 230e3, Idle: 1, Files: 2, InBytes: 310},
		{Wire: "plane", Token: 12, Request: 85, New: 57, Seen: 29, Stream: 19e3, Base: 48e6, Engine: 390e3, Idle: 60, Files: 1, InBytes: 12},
	}
}

// load is what a machine is asked for.
type load struct {
	Cores, Streams, Engines int
	Rate                    float64 // tokens a second of a stream
	Answer, Prompt          float64 // tokens
	SeenShare               float64 // of a prompt, that was seen before
	NIC                     float64 // bits a second, each way
	Memory                  float64 // bytes
	Files                   float64 // that the process may open
	Ports                   float64 // to one engine's address
}

// need is how much of something a load takes, and how much there is.
type need struct {
	Of         string
	Need, Have float64
	Unit       string
	Scale      float64 // of the unit
}

func (n *need) share() float64 { return n.Need / n.Have }

// usable is the share of the cores above which the tails of delays grow fast. On two cores p99
// doubles between 0.7 and 0.85 of them (docs/bench/outputpath.md).
const usable = 0.7

// predict returns what a load takes, the scarcest first.
func (m *model) predict(l *load) []need {
	tokens := float64(l.Streams) * l.Rate
	requests := tokens / l.Answer
	prompt := l.Prompt * (m.New*(1-l.SeenShare) + m.Seen*l.SeenShare) / 1e3
	cpu := tokens*m.Token + requests*(m.Request+prompt) + float64(l.Engines)*m.Idle
	needs := []need{
		{"CPU", cpu / 1e6, usable * float64(l.Cores), "cores", 1},
		{"memory of the process", m.Base + float64(l.Streams)*m.Stream + float64(l.Engines)*m.Engine, l.Memory, "GB", 1e9},
		{"memory of the process and its sockets", m.Base + float64(l.Streams)*(m.Stream+float64(m.Files)*socketBytes) + float64(l.Engines)*m.Engine, l.Memory, "GB", 1e9},
		{"files", float64(m.Files * l.Streams), 0.8 * l.Files, "thousand", 1e3},
		{"network, to clients", 8 * tokens * outBytes, l.NIC, "Gbit/s", 1e9},
		{"network, from engines", 8 * tokens * m.InBytes, l.NIC, "Gbit/s", 1e9},
	}
	if m.Files == 2 {
		needs = append(needs, need{"ports to each engine", float64(l.Streams) / float64(l.Engines), l.Ports, "thousand", 1e3})
	}
	slices.SortStableFunc(needs, func(a, b need) int { return cmp.Compare(b.share(), a.share()) })
	return needs
}

// most is how many streams a load could have until the first of its needs is met.
func (m *model) most(l load) (streams int, ends string) {
	lo, hi := 0, 100_000_000
	for lo < hi {
		l.Streams = (lo + hi + 1) / 2
		if m.predict(&l)[0].share() <= 1 {
			lo = l.Streams
		} else {
			hi = l.Streams - 1
		}
	}
	l.Streams = lo + 1
	return lo, m.predict(&l)[0].Of
}

// print writes a load's prediction.
func (m *model) print(w io.Writer, l *load) {
	fmt.Fprintf(w, "\n%s: %d cores, %d streams of %g tokens/s, %d engines, answers of %g tokens to prompts of %g, %.0f %% of them seen\n\n| | needs | has | share |\n|---|---|---|---|\n",
		m.Wire, l.Cores, l.Streams, l.Rate, l.Engines, l.Answer, l.Prompt, 100*l.SeenShare)
	for _, n := range m.predict(l) {
		fmt.Fprintf(w, "| %s | %.3g %s | %.3g | %.2f |\n", n.Of, n.Need/n.Scale, n.Unit, n.Have/n.Scale, n.share())
	}
	most, ends := m.most(*l)
	fmt.Fprintf(w, "\nIt ends at %d streams, by %s.\n", most, ends)
}
