package exchange

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStopScanner(t *testing.T) {
	for _, x := range []struct {
		stops  []string
		pieces []string
		want   string
		found  bool
	}{
		{[]string{"END"}, []string{"a E", "N", "Dx"}, "a ", true},
		{[]string{"END"}, []string{"a E", "N", "E"}, "a ENE", false},
		{[]string{"aab"}, []string{"a", "a", "a", "b"}, "a", true},
		{[]string{"longer", "on"}, []string{"l", "o", "nger"}, "", true},
		{nil, []string{"x"}, "x", false},
	} {
		s := StopScanner{list: x.stops}
		var got strings.Builder
		found := false
		for _, p := range x.pieces {
			var shown string
			if shown, found = s.push(p); true {
				got.WriteString(shown)
			}
			if found {
				break
			}
		}
		got.WriteString(s.rest())
		if got.String() != x.want || found != x.found {
			t.Errorf("%q in %q: %q %v", x.stops, x.pieces, got.String(), found)
		}
	}
}

// FuzzStopScanner compares the scanner on pieces with a search in the whole.
func FuzzStopScanner(f *testing.F) {
	f.Add("hello world", "lo w", "or", 3)
	f.Add("aaab", "aab", "b", 1)
	f.Fuzz(func(t *testing.T, text, one, two string, size int) {
		if one == "" || two == "" {
			return
		}
		size = max(1, min(size, len(text)))
		s := StopScanner{list: []string{one, two}}
		var got strings.Builder
		found := false
		for rest := text; rest != "" && !found; rest = rest[min(size, len(rest)):] {
			var shown string
			shown, found = s.push(rest[:min(size, len(rest))])
			got.WriteString(shown)
		}
		got.WriteString(s.rest())
		// The first to be complete wins; of those complete in one piece, the one
		// that begins first.
		want, stopped := text, false
		for end := min(size, len(text)); !stopped && text != ""; end = min(end+size, len(text)) {
			for _, stop := range s.list {
				if i := strings.Index(text[:end], stop); i >= 0 && (!stopped || i < len(want)) {
					want, stopped = text[:i], true
				}
			}
			if end == len(text) {
				break
			}
		}
		if got.String() != want || found != stopped {
			t.Fatalf("%q in pieces of %d, stops %q: %q %v, want %q %v", text, size, s.list, got.String(), found, want, stopped)
		}
	})
}

// Runes that ids share come out whole, with the id that completes them.
func TestRunesOfSeveralIDs(t *testing.T) {
	const text = "aé\u4e16\U0001f600b"
	for size := 1; size <= len(text); size++ {
		var o Output
		var got string
		for at := 0; at < len(text); at += size {
			piece := o.runes(text[at:min(at+size, len(text))])
			if !utf8.ValidString(piece) {
				t.Errorf("size %d: %q", size, piece)
			}
			got += piece
		}
		if got != text || len(o.partial) != 0 {
			t.Errorf("size %d: %q, %q is left", size, got, o.partial)
		}
	}
}
