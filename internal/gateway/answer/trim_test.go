package answer

import (
	"testing"

	"weir/internal/model/outputparse"
)

// A scratch keeps buffers of the usual size and lets go of others, text with the events
// that refer to it.
func TestScratchTrim(t *testing.T) {
	usual := func() *Scratch {
		return &Scratch{out: make([]byte, 10, 4096), text: make([]byte, 10, 4096), events: make([]outputparse.Event, 3, 16), stops: make([]Stop, 1), read: make([]byte, readMax)}
	}
	s := usual()
	s.Trim()
	if cap(s.out) == 0 || cap(s.text) == 0 || cap(s.events) == 0 || cap(s.stops) == 0 || len(s.read) == 0 {
		t.Errorf("a usual scratch is let go of: %d %d %d %d %d", cap(s.out), cap(s.text), cap(s.events), cap(s.stops), len(s.read))
	}
	for name, grow := range map[string]func(){
		"out":    func() { s.out = make([]byte, 1<<20) },
		"text":   func() { s.text = make([]byte, 1<<20) },
		"events": func() { s.events = make([]outputparse.Event, 1<<20) },
		"stops":  func() { s.stops = make([]Stop, 1<<20) },
		"read":   func() { s.read = make([]byte, 4*readMax) },
	} {
		s = usual()
		grow()
		s.Trim()
		if cap(s.out) > keepScratch || cap(s.text) > keepScratch || cap(s.events) > keepScratch || cap(s.stops) > keepScratch || cap(s.read) > 2*readMax {
			t.Errorf("%s is kept", name)
		}
	}
}
