package upstream

import (
	"net/url"
	"strings"
	"testing"
)

// The words of processes, and the instance that follows from each: a restart makes another one, and
// words that alternate, or never stay, do not.
func TestProcess(t *testing.T) {
	for _, c := range []struct{ words, instances string }{
		{"a a b b c", "a a b b c"},
		{"a - a - b", "a a a a b"},
		{"a a b a b a", "a a b b b b"},
		{"a b c d e f", "a b c c c c"},
		{"a b b c d d", "a b b c d d"},
		{"- - a a", "- - a a"},
		{"a ! a", "a - a"},
		{"a a ! - b b", "a a - - b b"},
	} {
		client, p := New(Options{URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}), Process{}
		var got []string
		for word := range strings.FieldsSeq(c.words) {
			if word == "!" { // it was gone, and has not said anything since
				client.life.Add(1)
				word = "-"
			}
			is := p.Is(client, strings.Trim(word, "-"))
			if is == "" {
				is = "-"
			}
			got = append(got, is)
		}
		if is := strings.Join(got, " "); is != c.instances {
			t.Errorf("%s: %s, want %s", c.words, is, c.instances)
		}
	}
}
