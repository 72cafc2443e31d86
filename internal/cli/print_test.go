package cli

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestSayLine(t *testing.T) {
	var out strings.Builder
	sayLine(&out, "engine    %s (%v) %d %v\n%v", "a\x1b]0;owned\x07\n\u009b2J\u202eb \xff\uFFFD", errors.New("it\rbroke"), 3, time.Second, "größer \u00a0…")
	want := `engine    a\x1b]0;owned\a\n\u009b2J\u202eb \xff` + "\uFFFD" + ` (it\rbroke) 3 1s` + "\ngrößer \u00a0…\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if got := graphicLines("a\n\tb\x1b"); got != "a\n\tb\\x1b" {
		t.Errorf("%q", got)
	}
}

// Names and errors of an engine cannot move a terminal's cursor.
func TestEnginesAreQuoted(t *testing.T) {
	var out strings.Builder
	view := engineView{Name: "n\x1b[1A", Kind: "k\x07", Software: "s\u009b", Models: []string{"m\n", "\x1bm"}, Error: "e\x1b[2J", Note: "o\x1b"}
	if err := printEngines(&out, []engineView{view}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 4 || strings.ContainsAny(out.String(), "\x1b\x07\u009b") {
		t.Errorf("%d lines: %q", lines, out.String())
	}
}
