package workload

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// runes stands for a tokenizer.
func runes(text string) ([]uint32, error) {
	var ids []uint32
	for _, r := range text {
		ids = append(ids, uint32(r))
	}
	return ids, nil
}

func withTexts(text string) Options {
	return Options{
		Open:   func(string) (io.Reader, error) { return iotest.OneByteReader(strings.NewReader(text)), nil },
		Encode: runes,
	}
}

const shareText = `[
 {"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}, {"from": "human", "value": "Bye"}]},
 {"id": "b", "conversations": [{"from": "gpt", "value": "No question"}]},
 {"id": "c", "conversations": []},
 {"id": "d", "conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]}
]
`

// TestTexts reads conversations as one list and as lines, in both forms.
func TestTexts(t *testing.T) {
	lines := `{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello!"}]}
{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Why?"},{"role":"assistant","content":"So."}]}`
	for _, text := range []string{shareText, lines} {
		rs := all(t, newWorkload(t, "rate=2,arrival=constant,texts=f.json", withTexts(text)))
		if len(rs) != 2 {
			t.Fatalf("%d requests of %s", len(rs), text)
		}
		for i, want := range []struct {
			prompt string
			output int
			at     time.Duration
		}{{"Hi", 6, 0}, {"Be brief.\nWhy?", 3, 500 * time.Millisecond}} {
			ids, _ := runes(want.prompt)
			r := rs[i]
			if got := r.AppendPrompt(nil, 1); !slices.Equal(got, ids) || r.Input() != len(ids) || r.Output != want.output || r.At != want.at {
				t.Errorf("request %+v, want %+v", r, want)
			}
		}
	}
	if rs := all(t, newWorkload(t, "concurrency=2,requests=1,texts=f.json", withTexts(shareText))); len(rs) != 1 {
		t.Errorf("%d requests", len(rs))
	}
}

func TestTextErrors(t *testing.T) {
	good := "[\n" + `{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}`
	for text, want := range map[string]string{
		good:                     "f.json:2: the JSON ends too early",
		good + ",\n{}]":          "f.json:3: a conversation has conversations, a list of turns",
		good + ",\n\n7]":         "f.json:4: ",
		good + "\n{}]":           "f.json:3: not valid JSON: ",
		good + ",\n{\"a\":\n\n}": "f.json:5: not valid JSON: ",
		good + ",\n{\"conversations\":\n [{\"from\":\"human\",\n\"value\":7}]}]": "f.json:3: conversations: ",
		"words":  "f.json:1: not valid JSON: ",
		"":       "f.json: the file has no conversation",
		" [ ]\n": "f.json: the file has no conversation",
		`{"messages":[{"role":"user","content":"Hi"}]} {"prompt":"Hi"}`:             "f.json: no conversation has a prompt and an answer after it (2 passed over), ",
		`{"messages":[{"role":"user","content":"Hi"},{"role":"gpt","content":""}]}`: "f.json: no conversation has a prompt and an answer after it (1 passed over), ",
	} {
		w, err := NewSynthetic("rate=1,texts=f.json", withTexts(text))
		for err == nil {
			err = w.Next(new(Request))
		}
		var e *Error
		if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant %s", text, err, want)
		}
	}
	broken := errors.New("disk on fire")
	o := withTexts("")
	o.Open = func(string) (io.Reader, error) {
		return io.MultiReader(strings.NewReader(good), iotest.ErrReader(broken)), nil
	}
	w, err := NewSynthetic("rate=1,texts=f.json", o)
	for err == nil {
		err = w.Next(new(Request))
	}
	if !errors.Is(err, broken) {
		t.Errorf("a broken disk: %v", err)
	}
	o.Open = func(string) (io.Reader, error) { return nil, broken }
	if _, err := NewSynthetic("rate=1,texts=f.json", o); !errors.Is(err, broken) {
		t.Errorf("a file that cannot be opened: %v", err)
	}
	o = withTexts(good)
	o.Encode = func(string) ([]uint32, error) { return nil, broken }
	if w, err = NewSynthetic("rate=1,texts=f.json", o); err == nil {
		err = w.Next(new(Request))
	}
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "f.json:2: ") {
		t.Errorf("a tokenizer that fails: %v", err)
	}
	for settings, want := range map[string]string{
		"rate=1,texts=f.json,input=5": "synthetic: texts has its own prompts and lengths; drop input",
		"texts=f.json":                "synthetic: rate=R or concurrency=N is missing",
	} {
		if _, err := NewSynthetic(settings, withTexts(good)); err == nil || err.Error() != want {
			t.Errorf("%s: %v", settings, err)
		}
	}
	if _, err := NewSynthetic("rate=1,texts=f.json", Options{}); err == nil || err.Error() != "synthetic: texts are not to be had here" {
		t.Errorf("without a tokenizer: %v", err)
	}
}

func FuzzTexts(f *testing.F) {
	f.Add(shareText)
	f.Add(`{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello!"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		w, err := NewSynthetic("rate=1,texts=f.json", withTexts(text))
		for n := 0; err == nil; n++ {
			var r Request
			if err = w.Next(&r); err == nil && (r.Input() == 0 || r.Output == 0 || n > len(text)) {
				t.Fatalf("request %+v", r)
			}
		}
		var e *Error
		if err != io.EOF && (!errors.As(err, &e) || e.Line < 1 || e.Line > 1+strings.Count(text, "\n")) {
			t.Fatalf("error without a place: %v", err)
		}
	})
}
