package load

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// counted counts a prompt as a tokenizer might: this many tokens around it, words
// of more than six letters in two.
func counted(around int) func(string) (int, error) {
	return func(prompt string) (int, error) {
		n := around
		for _, w := range strings.Fields(prompt) {
			n += 1 + min(1, len(w)/7)
		}
		return n, nil
	}
}

// With a tokenizer every prompt has exactly the length asked for.
func TestExactPrompts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		around := rapid.IntRange(0, 30).Draw(t, "around")
		p := &Plan{InputTokens: rapid.IntRange(around+1, 500).Draw(t, "tokens"), Seed: rapid.Uint64().Draw(t, "seed"), Count: counted(around)}
		made, err := newPrompts(p)
		if err != nil {
			t.Fatal(err)
		}
		i := rapid.IntRange(0, 1e7).Draw(t, "i")
		text := string(made.append(nil, p.Seed, i, p.InputTokens))
		if n, _ := p.Count(text); n != p.InputTokens || !made.exact {
			t.Fatalf("%d tokens, want %d: %q", n, p.InputTokens, text)
		}
	})
}

func TestExactPromptsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		count func(string) (int, error)
		want  string
	}{
		"too short":      {counted(40), "at least 41"},
		"no words":       {func(s string) (int, error) { return len(s), nil }, "words that are one token each"},
		"no sum":         {func(s string) (int, error) { n := len(strings.Fields(s)); return n + n/20, nil }, "cannot be exact"},
		"does not count": {func(string) (int, error) { return 0, errors.New("broken") }, "broken"},
	} {
		if _, err := newPrompts(&Plan{InputTokens: 40, Count: c.count}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
