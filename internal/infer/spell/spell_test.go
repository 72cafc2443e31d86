package spell

import (
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	known := []string{"model", "stop", "seed", "temperature"}
	for _, test := range []struct {
		word string
		most int
		want string
	}{
		{"modle", 2, "model"},
		{"modle", 1, ""},
		{"stop", 0, "stop"},
		{"steed", 1, "seed"},
		{"stxd", 2, "stop"}, // as near as seed, and first
		{"tempratur", 2, "temperature"},
		{"", 3, ""},
		{"", 4, "stop"},
	} {
		if got := Nearest(test.word, known, test.most); got != test.want {
			t.Errorf("%q, at most %d: %q, want %q", test.word, test.most, got, test.want)
		}
	}
	if got := Nearest("a", nil, 9); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

// A word that was made by some number of edits is no further away than that, and no nearer than the
// lengths allow.
func TestDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "word")
		other := []byte(word)
		edits := rapid.IntRange(0, 4).Draw(t, "edits")
		for range edits {
			at := rapid.IntRange(0, len(other)).Draw(t, "at")
			switch kind := rapid.IntRange(0, 2).Draw(t, "kind"); {
			case kind == 0:
				other = append(other[:at], append([]byte{'c'}, other[at:]...)...)
			case at == len(other):
			case kind == 1:
				other = append(other[:at], other[at+1:]...)
			default:
				other[at] = 'c'
			}
		}
		d := distance(word, string(other))
		if d > edits || d < max(len(word)-len(other), len(other)-len(word)) || (d == 0) != (word == string(other)) {
			t.Fatalf("%q and %q: %d after %d edits", word, other, d, edits)
		}
		if back := distance(string(other), word); back != d {
			t.Fatalf("%q and %q: %d, and %d the other way", word, other, d, back)
		}
	})
}
