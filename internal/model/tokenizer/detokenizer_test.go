package tokenizer

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"weir/internal/model/stop"
)

// slowStop cuts text where the first stop string is complete; of several
// complete at one place the longest. It gives the end of the match too, -1
// without one.
func slowStop(text string, stops []string) (cut string, end int) {
	for end := range len(text) + 1 {
		longest := ""
		for _, stop := range stops {
			if stop != "" && strings.HasSuffix(text[:end], stop) && len(stop) > len(longest) {
				longest = stop
			}
		}
		if longest != "" {
			return text[:end-len(longest)], end
		}
	}
	return text, -1
}

// TestDetokenizeChunks checks the law of the detokenizer: however ids are cut
// into calls, the text is that of decoding at once, cut at the first stop
// string, and nothing that was given out is ever taken back.
func TestDetokenizeChunks(t *testing.T) {
	tok := loadSim(t).Tokenizer
	alphabet := []uint32{}
	for _, s := range []string{"a", "b", "c", "Ġ", "Ċ", "ab", "Ġthe", "Ã", "©", "ð", "Ł", "ĺ", "Ģ", "â", "Ĥ", "¬", "ÿ", "<|eos|>", "<think>"} {
		id, ok := tok.ID(s)
		if !ok {
			t.Fatalf("no token %q", s)
		}
		alphabet = append(alphabet, id)
	}
	alphabet = append(alphabet, uint32(tok.Size()+3))
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.SampledFrom(alphabet), 0, 40).Draw(t, "ids")
		stops := rapid.SliceOfN(rapid.OneOf(
			rapid.StringMatching(`[abc ]{0,5}`),
			rapid.SampledFrom([]string{"é", "\ufffd", "a\ufffd", "€", "\ufffdb", "aabaa", "<think>", "the"}),
		), 0, 3).Draw(t, "stops")
		skip := rapid.Bool().Draw(t, "skip")
		whole := tok.Decode(ids, skip)
		want, end := slowStop(whole, stops)

		d := NewDetokenizer(tok, DetokenizerOptions{Stops: stop.New(stops), SkipSpecial: skip})
		var got []byte
		taken, stopped := 0, false
		for rest := ids; len(rest) > 0 && !stopped; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			var used int
			got, used, stopped = d.Append(got, rest[:n])
			if !utf8.Valid(got) {
				t.Fatalf("%q splits a rune", got)
			}
			if !strings.HasPrefix(want, string(got)) {
				t.Fatalf("gave out %q, but the text is %q", got, want)
			}
			if !stopped && used != n {
				t.Fatalf("took %d ids of %d without a stop", used, n)
			}
			taken += used
			rest = rest[n:]
		}
		if stopped {
			if text := tok.Decode(ids[:taken], skip); len(text) < end {
				t.Fatalf("%d ids hold %q, which is before the match's end, %d", taken, text, end)
			}
			if text := tok.Decode(ids[:taken-1], skip); len(text) >= end && text[:end] == whole[:end] && utf8.ValidString(tokensText(tok, ids[:taken-1])) {
				t.Fatalf("%d ids hold the match already", taken-1)
			}
		} else {
			got, stopped = d.Finish(got)
		}
		if string(got) != want || stopped != (end >= 0) {
			t.Fatalf("got %q, stopped %v; want %q, %v", got, stopped, want, end >= 0)
		}
		if more, used, _ := d.Append(nil, ids); stopped && (len(more) > 0 || used > 0) {
			t.Fatalf("gave %q after the stop", more)
		}
	})
}

func tokensText(tok *Tokenizer, ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		b.Write(tok.TokenBytes(id))
	}
	return b.String()
}

// TestDetokenizeHolds checks that nothing certain is held: a chat's tokens
// reach the reader as they come.
func TestDetokenizeHolds(t *testing.T) {
	tok := loadSim(t).Tokenizer
	ids, err := tok.NewEncoder().Encode(t.Context(), nil, "stop words: S, ST, STO 💡 and so on", EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := NewDetokenizer(tok, DetokenizerOptions{Stops: stop.New([]string{"STOP"})})
	var got []byte
	for i, id := range ids {
		got, _, _ = d.Append(got, []uint32{id})
		sofar := tokensText(tok, ids[:i+1])
		for !utf8.ValidString(sofar) {
			sofar = sofar[:len(sofar)-1]
		}
		for n := 3; n > 0; n-- {
			if s, ok := strings.CutSuffix(sofar, "STOP"[:n]); ok {
				sofar = s
				break
			}
		}
		if string(got) != sofar {
			t.Fatalf("after %d ids: got %q, want %q", i+1, got, sofar)
		}
	}
}

func TestDetokenizeIncludeStop(t *testing.T) {
	tok := loadSim(t).Tokenizer
	ids, err := tok.NewEncoder().Encode(t.Context(), nil, "one END two", EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := NewDetokenizer(tok, DetokenizerOptions{Stops: stop.New([]string{"x", "END"}), IncludeStop: true})
	got, _, stopped := d.Append(nil, ids)
	if string(got) != "one END" || !stopped || d.Stop() != 1 {
		t.Fatalf("got %q, %v, stop %d", got, stopped, d.Stop())
	}
}

// Before StopAfter ids have come a stop string is text, and one that they begin
// counts when a later id completes it.
func TestDetokenizeStopAfter(t *testing.T) {
	tok := loadSim(t).Tokenizer
	var ids []uint32
	for _, s := range []string{"a", "b", "a", "b", "a", "c"} {
		id, ok := tok.ID(s)
		if !ok {
			t.Fatalf("no token %q", s)
		}
		ids = append(ids, id)
	}
	for after, want := range []string{0: "", 1: "", 2: "ab", 3: "ab", 4: "ababac", 6: "ababac"} {
		if after == 5 {
			continue
		}
		for n := 1; n <= len(ids); n++ {
			d := NewDetokenizer(tok, DetokenizerOptions{Stops: stop.New([]string{"ab"}), StopAfter: after})
			var got []byte
			for rest, stopped := ids, false; len(rest) > 0 && !stopped; rest = rest[min(n, len(rest)):] {
				got, _, stopped = d.Append(got, rest[:min(n, len(rest))])
			}
			if got, _ = d.Finish(got); string(got) != want {
				t.Errorf("after %d, %d at once: %q, want %q", after, n, got, want)
			}
		}
	}
}

// TestDetokenizeAllocates checks that a token costs no allocation.
func TestDetokenizeAllocates(t *testing.T) {
	tok := loadSim(t).Tokenizer
	ids, err := tok.NewEncoder().Encode(t.Context(), nil, strings.Repeat("some text, é💡 \ufffd and more ", 20), EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := NewDetokenizer(tok, DetokenizerOptions{Stops: stop.New([]string{"moreover", "tex-mex"})})
	buf := make([]byte, 0, 1<<10)
	i := 0
	if n := testing.AllocsPerRun(500, func() {
		buf, _, _ = d.Append(buf[:0], ids[i%len(ids):i%len(ids)+1])
		i++
	}); n != 0 {
		t.Errorf("%v allocations a token", n)
	}
}
