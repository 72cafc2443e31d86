package enginetest

import (
	"strings"

	"weir/internal/engine"
	"weir/internal/infer"
)

// metrics checks those of an adapter that has some: they can be scraped together, are
// the same ones at all times, and counters outlive a connection.
func metrics(b *Bench) {
	e, ok := b.Rig.Engine.(engine.Metered)
	if !ok {
		return
	}
	before := e.Metrics()
	wellFormed(b, before)
	c := b.Accept(3)
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{11, 12, 13}, Finish: infer.ReasonLength})
	b.WantFinish(c, infer.ReasonLength)
	b.Rig.Peer.Cut()
	b.WaitReady(false)
	b.Rig.Peer.Restore()
	b.WaitReady(true)
	after := e.Metrics()
	if len(after) != len(before) {
		b.T.Fatalf("%d metrics, and before %d", len(after), len(before))
	}
	risen := false
	for i, m := range after {
		was := before[i]
		switch {
		case m.Name != was.Name || m.LabelValue != was.LabelValue:
			b.T.Errorf("%s %q stands where %s %q did", m.Name, m.LabelValue, was.Name, was.LabelValue)
		case m.Counter && m.Value < was.Value:
			b.T.Errorf("%s has fallen from %v to %v", m.Name, was.Value, m.Value)
		case m.Counter && m.Value > was.Value:
			risen = true
		}
	}
	if !risen {
		b.T.Error("an answer and a lost connection show in no counter")
	}
}

// wellFormed checks what a scrape of all of them needs.
func wellFormed(b *Bench, list []engine.Metric) {
	if len(list) == 0 {
		b.T.Error("an adapter with metrics has none")
	}
	first := map[string]engine.Metric{}
	seen := map[string]bool{}
	for _, m := range list {
		if !strings.HasPrefix(m.Name, "weir_") || m.Help == "" || m.Counter != strings.HasSuffix(m.Name, "_total") || (m.Label == "") != (m.LabelValue == "") {
			b.T.Errorf("%+v", m)
		}
		if key := m.Name + " " + m.LabelValue; seen[key] {
			b.T.Errorf("%s %q is there twice", m.Name, m.LabelValue)
		} else {
			seen[key] = true
		}
		if f, ok := first[m.Name]; !ok {
			first[m.Name] = m
		} else if f.Help != m.Help || f.Counter != m.Counter || f.Label != m.Label {
			b.T.Errorf("%+v beside %+v", m, f)
		}
	}
}
