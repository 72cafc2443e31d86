//go:build interop_engines

package real

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"weir/test/e2e/harness"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// scored is a token with its log probability, and its alternatives.
type scored struct {
	Token   string
	Bytes   []byte
	Logprob float64
	Top     []scored `json:"top_logprobs"`
}

// close reports whether weir's has what vLLM's has, to what float32 leaves open. They
// differ in two ways, by design: of a token that is part of a rune weir has the bytes,
// as the API defines them, and vLLM none or those of U+FFFD; and where the token itself
// is not among the most likely ones, vLLM lists it in place of the last of these.
func (s scored) close(o scored) bool {
	part := !utf8.Valid(o.Bytes) && (s.Token == "" || strings.ContainsRune(s.Token, utf8.RuneError))
	same := s.Token == o.Token && string(s.Bytes) == string(o.Bytes) || part
	if !same || math.Abs(s.Logprob-o.Logprob) > 1e-3 || len(s.Top) != len(o.Top) {
		return false
	}
	others := func(s scored) []scored { // engines compute in batches of other sizes, and so not to the last bit
		return slices.DeleteFunc(slices.Clone(s.Top), func(t scored) bool { return math.Abs(t.Logprob-s.Logprob) < 1e-5 })
	}
	theirs, ours := others(s), others(o)
	return len(theirs) >= len(s.Top)-1 && slices.EqualFunc(theirs, ours[:min(len(ours), len(theirs))], scored.close)
}

// difference reports where two answers differ, or nothing.
func (a answer) difference(b answer) string {
	return cmp.Diff(a, b, cmpopts.IgnoreUnexported(answer{}))
}

// difference reports where two choices differ, or nothing.
func (c chosen) difference(o chosen) string {
	if c.text != o.text || c.reason != o.reason || c.ids != o.ids || len(c.tokens) != len(o.tokens) {
		return fmt.Sprintf("%q, %s, ids %s, %d scored, against %q, %s, ids %s, %d scored", c.text, c.reason, c.ids, len(c.tokens), o.text, o.reason, o.ids, len(o.tokens))
	}
	for i := range c.tokens {
		if !c.tokens[i].close(o.tokens[i]) {
			return fmt.Sprintf("token %d: %+v against %+v", i, c.tokens[i], o.tokens[i])
		}
	}
	return ""
}

// chosen is one choice of an answer.
type chosen struct {
	text, reason, ids string
	tokens            []scored
}

// choices sends a request and reads its choices, streamed or not.
func (w way) choices(t *testing.T, path string, body fields) (all []chosen) {
	t.Helper()
	resp, err := w.post(harness.Context(t), path, body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	take := func(data []byte) {
		var c struct {
			Choices []struct {
				Index          int
				Text           string
				Message, Delta struct{ Content string }
				FinishReason   string          `json:"finish_reason"`
				TokenIDs       json.RawMessage `json:"token_ids"`
				Logprobs       struct {
					Content []struct {
						Token   string
						Bytes   []int
						Logprob float64
						Top     []struct {
							Token   string
							Bytes   []int
							Logprob float64
						} `json:"top_logprobs"`
					}
					Tokens        []string
					TokenLogprobs []float64 `json:"token_logprobs"`
				}
			}
		}
		if err := json.Unmarshal(data, &c); err != nil {
			t.Fatalf("%s: %q: %v", w.name, data, err)
		}
		bytesOf := func(values []int) (b []byte) {
			for _, v := range values {
				b = append(b, byte(v))
			}
			return b
		}
		for _, choice := range c.Choices {
			for len(all) <= choice.Index {
				all = append(all, chosen{})
			}
			one := &all[choice.Index]
			one.text += choice.Text + choice.Message.Content + choice.Delta.Content
			one.reason += choice.FinishReason
			one.ids += list(choice.TokenIDs)
			for _, e := range choice.Logprobs.Content {
				s := scored{Token: e.Token, Bytes: bytesOf(e.Bytes), Logprob: e.Logprob}
				for _, top := range e.Top {
					s.Top = append(s.Top, scored{Token: top.Token, Bytes: bytesOf(top.Bytes), Logprob: top.Logprob})
				}
				one.tokens = append(one.tokens, s)
			}
			for i, token := range choice.Logprobs.Tokens {
				one.tokens = append(one.tokens, scored{Token: token, Logprob: choice.Logprobs.TokenLogprobs[i]})
			}
		}
	}
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s: status %d: %s", w.name, resp.StatusCode, b)
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		take(b)
		return all
	}
	lines, done := bufio.NewScanner(resp.Body), false
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && data != "[DONE]" {
			take([]byte(data))
		} else if ok {
			done = true
		}
	}
	if lines.Err() != nil || !done {
		t.Fatalf("%s: not whole: %v", w.name, lines.Err())
	}
	return all
}

// choices: several choices of a prompt, and log probabilities, are the engine's on
// every way.
func (f *fleet) choices(t *testing.T) {
	for name, more := range map[string]struct{ chat, completion fields }{
		"log probabilities": {fields{"logprobs": true, "top_logprobs": 3}, fields{"logprobs": 2}},
		"without any":       {fields{"logprobs": true, "top_logprobs": 0}, fields{"logprobs": 0}},
		"three choices":     {fields{"n": 3, "temperature": 1, "seed": 5}, fields{"n": 3, "temperature": 1, "seed": 5}},
		"both": {fields{"n": 2, "temperature": 0.8, "seed": 7, "logprobs": true, "top_logprobs": 2},
			fields{"n": 2, "temperature": 0.8, "seed": 7, "logprobs": 1}},
		"prompts": {nil, fields{"prompt": []string{"The quick brown fox", "Once upon"}}},
	} {
		for path, body := range map[string]fields{chatPath: chat.with(more.chat), completionPath: completion.with(more.completion)} {
			for _, form := range []fields{nil, streamed} {
				at := fmt.Sprintf("%s%s, streamed %v", name, path, form != nil)
				var want []chosen
				for i, w := range f.ways {
					got := w.choices(t, path, body.with(form))
					if i == 0 {
						want = got
						continue
					}
					if len(got) != len(want) {
						t.Errorf("%s: %s has %d choices, %s %d", at, f.ways[0].name, len(want), w.name, len(got))
						continue
					}
					for k := range want {
						if d := want[k].difference(got[k]); d != "" {
							t.Errorf("%s, choice %d: %s and %s: %s", at, k, f.ways[0].name, w.name, d)
						}
					}
				}
			}
		}
	}
}
