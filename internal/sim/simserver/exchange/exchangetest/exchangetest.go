// Package exchangetest holds the forms of streams to what they have in common.
package exchangetest

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/workload/content"
)

// Start returns an exchange with one output that is under way, and its form.
type Start func() (*exchange.Exchange, exchange.Form)

// first is the first id that is a word, and size the number of ids.
const (
	first = 300
	size  = first + 1024
)

// Tokens is a tokenizer of bytes, and of words beyond them.
type Tokens struct{}

// Encode has an id for each byte.
func (Tokens) Encode(text string, _ bool) (ids []uint32, err error) {
	for _, b := range []byte(text) {
		ids = append(ids, uint32(b))
	}
	return ids, nil
}

// Text is a byte, or a word of a space and three letters.
func (Tokens) Text(id uint32) []byte {
	if id < 256 {
		return []byte{byte(id)}
	}
	return []byte{' ', 'a' + byte(id%26), 'a' + byte(id/26%26), 'a' + byte(id/676)}
}

// Render returns the messages as they are.
func (Tokens) Render(messages, _, _ []byte) (string, error) { return string(messages), nil }

// Engine returns an engine that does not run, and its vocabulary.
func Engine(t testing.TB) (*engine.Engine, *vocab.Vocab) {
	t.Helper()
	words, err := content.New(size, func(id uint32) ([]byte, bool) { return Tokens{}.Text(id), true })
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Options{Sim: sim.Options{Words: words, VocabSize: size}})
	if err != nil {
		t.Fatal(err)
	}
	return e, vocab.New(e.Options(), Tokens{}, nil, nil)
}

// Next gives the output n ids more, as the engine would.
func Next(x *exchange.Exchange, n int) {
	o := &x.Outputs[0]
	for i := range n {
		x.Taken.Add(0, first+uint32(o.Completion+i)%1024, uint32(o.Completion+i+1))
	}
	x.Taken.Steps, x.Taken.End = 1, int64(o.Completion)
}

// End ends the output after n ids.
func End(x *exchange.Exchange, n int) {
	x.Taken.Done = append(x.Taken.Done, engine.Done{Done: sim.Done{Reason: infer.ReasonLength, Completion: n, Matched: -1}})
}

// AllocatesNothing holds a stream to allocating nothing for a token.
func AllocatesNothing(t *testing.T, start Start) {
	t.Helper()
	x, f := start()
	var buf []byte
	// Up to the sizes that buffers grow to.
	for range 2000 {
		Next(x, 1)
		buf, _ = x.Digest(buf[:0], f, false)
	}
	if !strings.HasPrefix(string(buf), "data: {") {
		t.Fatalf("%s", buf)
	}
	if n := testing.AllocsPerRun(500, func() {
		Next(x, 1)
		buf, _ = x.Digest(buf[:0], f, false)
	}); n != 0 {
		t.Errorf("%v allocations per token", n)
	}
}

// Events is what a token's event costs without the writing of it.
func Events(b *testing.B, start Start) {
	x, f := start()
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		if x.Outputs[0].Completion == 2000 {
			b.StopTimer()
			x, f = start()
			b.StartTimer()
		}
		Next(x, 1)
		buf, _ = x.Digest(buf[:0], f, false)
	}
}

// event is an event of a completion, or of /generate.
type event struct {
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`

	Text      *string  `json:"text"`
	OutputIDs []uint32 `json:"output_ids"`
	Meta      struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"meta_info"`
}

// Merges holds a stream to this: however results are merged on their way to the writer, what a client
// puts together is the same, with nothing lost or repeated, and the count of each event of /generate is
// that of the ids so far. each asks for an event per token; a cumulative stream repeats all of the output.
func Merges(t *testing.T, start Start, each, cumulative bool) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "ids")
		var text string
		var ids []uint32
		generate := false
		x, f := start()
		o := &x.Outputs[0]
		x.Open = 1
		for o.Reason == "" {
			some := min(rapid.IntRange(0, 5).Draw(t, "in one step"), n-o.Completion)
			Next(x, some)
			if o.Completion+some == n && rapid.Bool().Draw(t, "with its end") {
				End(x, n)
			}
			b, struck := x.Digest(nil, f, each)
			if struck {
				t.Fatal("no fault was asked for")
			}
			for one := range bytes.SplitSeq(b, []byte("\n\n")) {
				if len(one) == 0 {
					continue
				}
				var e event
				data := bytes.TrimPrefix(one, []byte("data: "))
				if err := json.Unmarshal(data, &e); err != nil {
					t.Fatalf("%v: %s", err, data)
				}
				for _, choice := range e.Choices {
					text += choice.Text + choice.Delta.Content
				}
				if e.Choices != nil {
					continue
				}
				if generate = true; cumulative {
					text, ids = *e.Text, e.OutputIDs
				} else {
					text, ids = text+*e.Text, append(ids, e.OutputIDs...)
				}
				if e.Meta.CompletionTokens != len(ids) {
					t.Fatalf("%d ids so far: %s", len(ids), data)
				}
			}
		}
		var want string
		var wantIDs []uint32
		for i := range n {
			wantIDs = append(wantIDs, first+uint32(i)%1024)
			want += x.Vocab.Text(wantIDs[i])
		}
		if text != want || generate && !slices.Equal(ids, wantIDs) {
			t.Fatalf("%q %v, want %q", text, ids, want)
		}
	})
}
