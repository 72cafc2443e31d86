package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"weir/internal/model/stop"
)

// slowSymbols is what a piece of runes begins as, by the letter of the
// reference: an unknown token waits until it is known whether the next rune
// joins it.
func slowSymbols(t *Tokenizer, s string) []uint32 {
	v := &t.vocab
	var out []uint32
	waiting := false
	for _, r := range s {
		if id, ok := t.ids.get(string(r)); ok {
			if waiting {
				out = append(out, v.unknown.id)
			}
			out, waiting = append(out, id), false
			continue
		}
		if v.unknown.fallback {
			var ids []uint32
			for _, b := range []byte(string(r)) {
				if id, ok := t.ids.get(fmt.Sprintf("<0x%02X>", b)); ok {
					ids = append(ids, id)
				}
			}
			if len(ids) == utf8.RuneLen(r) {
				out = append(out, ids...)
				continue
			}
		}
		if v.unknown.id == noID {
			continue
		}
		if waiting && !v.unknown.fuse {
			out = append(out, v.unknown.id)
		}
		waiting = true
	}
	if waiting {
		out = append(out, v.unknown.id)
	}
	return out
}

// slowWord merges a whole text by searching all pairs each time.
func slowWord(t *Tokenizer, s string) []uint32 {
	ids := slowSymbols(t, s)
	for {
		best, at := noMerge, -1
		for i := range len(ids) - 1 {
			if value := t.vocab.merges.find(ids[i], ids[i+1]); value < best {
				best, at = value, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = uint32(best)
		ids = slices.Delete(ids, at+1, at+2)
	}
}

// slowPath finds the best path by trying every part.
func slowPath(u *unigram, s string) []uint32 {
	type node struct {
		score float64
		start int
		unk   bool
	}
	best := make([]node, len(s)+1)
	for i := range best {
		best[i].start = -1
	}
	for i := 0; i < len(s); {
		_, size := utf8.DecodeRuneInString(s[i:])
		try := func(end int, score float64, unk bool) {
			if score += best[i].score; best[end].start < 0 || score > best[end].score {
				best[end] = node{score, i, unk}
			}
		}
		single := false
		for end := i + 1; end <= len(s); end++ {
			if id, ok := u.ids.get(s[i:end]); ok {
				try(end, u.scores[id], id == u.unk)
				single = single || end == i+size
			}
		}
		if !single {
			try(i+size, u.unkScore, true)
		}
		i += size
	}
	var parts []string
	unkBefore := false
	for end := len(s); end > 0; end = best[end].start {
		part := s[best[end].start:end]
		if best[end].unk && unkBefore {
			parts[len(parts)-1] = part + parts[len(parts)-1]
		} else {
			parts = append(parts, part)
		}
		unkBefore = best[end].unk
	}
	slices.Reverse(parts)
	var out []uint32
	for _, part := range parts {
		id, ok := u.ids.get(part)
		if !ok && u.fallback {
			for _, b := range []byte(part) {
				id, _ := u.ids.get(fmt.Sprintf("<0x%02X>", b))
				out = append(out, id)
			}
			continue
		}
		if !ok {
			id = u.unk
		}
		out = append(out, id)
	}
	return out
}

// raw are the members of a document that uses a text as it is.
var rawMembers = map[string]jsontext.Value{"decoder": jsontext.Value(`{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"}]}`)}

// FuzzPieces compares encoding by runes, cold and warm, with the slow way, in
// every setting of what is unknown; and by the best path.
func FuzzPieces(f *testing.F) {
	var words []*Tokenizer
	for _, settings := range []map[string]jsontext.Value{
		{}, {"fuse_unk": jsontext.Value("false")}, {"byte_fallback": jsontext.Value("false")},
		{"byte_fallback": jsontext.Value("false"), "fuse_unk": jsontext.Value("false")},
		{"byte_fallback": jsontext.Value("false"), "unk_token": jsontext.Value("null")},
	} {
		words = append(words, loadSmall(f, "bpe", rawMembers, settings))
	}
	best := loadSmall(f, "unigram", rawMembers, nil)
	for _, s := range []string{"▁Hello,▁world", "▁x💡y中é", strings.Repeat("▁the▁", 20), "аб\u0301▁\n", "aaaaaaaaaaaaaaaa"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s = strings.ToValidUTF8(s, "\ufffd"); strings.Contains(s, "<") || len(s) > 2000 {
			t.Skip("may hold an added token")
		}
		check := func(tok *Tokenizer, want []uint32) {
			enc := tok.NewEncoder()
			for range 2 {
				got, err := enc.Encode(t.Context(), nil, s, EncodeOptions{})
				if err != nil {
					t.Fatal(err)
				}
				equalIDs(t, got, want)
			}
		}
		for _, tok := range words {
			check(tok, slowWord(tok, s))
		}
		check(best, slowPath(best.unigram, s))
	})
}

// TestJoints compares words cut at joints with whole words, under vocabularies
// drawn at random, in which a later merge often makes a pair that ranks before
// it.
func TestJoints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocab := object{}
		add := func(token string) {
			if _, ok := vocab[token]; !ok {
				vocab[token] = len(vocab)
			}
		}
		known := []string{"a", "b", "▁", "é"}
		for _, token := range append(known, "?") {
			add(token)
		}
		bytes := rapid.SampledFrom([]int{0, 200, 256}).Draw(t, "bytes")
		for b := range bytes {
			add(fmt.Sprintf("<0x%02X>", b))
		}
		var merges []any
		for range rapid.IntRange(0, 12).Draw(t, "merges") {
			x, y := rapid.SampledFrom(known).Draw(t, "x"), rapid.SampledFrom(known).Draw(t, "y")
			add(x + y)
			known = append(known, x+y)
			merges = append(merges, []any{x, y})
		}
		merges = rapid.Permutation(merges).Draw(t, "order")
		model := object{"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": bytes > 0,
			"fuse_unk": rapid.Bool().Draw(t, "fuse"), "ignore_merges": rapid.Bool().Draw(t, "ignore")}
		if rapid.Bool().Draw(t, "unknown") {
			model["unk_token"] = "?"
		}
		data, err := jsonOf(object{"version": "1.0", "model": model})
		if err != nil {
			t.Fatal(err)
		}
		tok, err := parse(data)
		if err != nil {
			t.Fatal(err)
		}
		s := rapid.StringOfN(rapid.SampledFrom([]rune("aab▁é?cü💡")), 1, 150, -1).Draw(t, "text")
		want := slowWord(tok, s)
		if id, ok := tok.ids.get(s); ok && int(id) < tok.size && tok.vocab.words > 0 {
			want = []uint32{id}
		}
		enc := tok.NewEncoder()
		for range 2 {
			got, err := enc.Encode(t.Context(), nil, s, EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			equalIDs(t, got, want)
		}
	})
}

// slowRuns returns the text of ids of a vocabulary that falls back to bytes: of
// whole runs of bytes at once, and of runs whose runes are given out as they
// come.
func slowRuns(tok *Tokenizer, ids []uint32) (whole, stream string) {
	var run []byte
	end := func() {
		if utf8.Valid(run) {
			whole += string(run)
		} else {
			whole += strings.Repeat("\ufffd", len(run))
		}
		good := 0
		for good < len(run) {
			r, size := utf8.DecodeRune(run[good:])
			if r == utf8.RuneError && size <= 1 {
				break
			}
			good += size
		}
		stream += string(run[:good]) + strings.Repeat("\ufffd", len(run)-good)
		run = nil
	}
	for _, id := range ids {
		var b byte
		if n, _ := fmt.Sscanf(tok.contentOf(id), "<0x%02X>", &b); n == 1 {
			run = append(run, b)
			continue
		}
		end()
		text := strings.ReplaceAll(tok.contentOf(id), "▁", " ")
		whole, stream = whole+text, stream+text
	}
	end()
	cut := func(s string) string { return strings.TrimPrefix(s, " ") }
	return cut(whole), cut(stream)
}

// contentOf is the content of a token, by search.
func (t *Tokenizer) contentOf(id uint32) string {
	for content, other := range t.ids.all() {
		if other == id {
			return content
		}
	}
	return ""
}

// TestDetokenizeFallback checks the law of a vocabulary that falls back to
// bytes: Decode looks at whole runs; a stream's text is the same where runs are
// valid, and otherwise gives out the runes of a run that are complete before
// its first bad byte; however ids are cut into calls, and cut at the first stop
// string.
func TestDetokenizeFallback(t *testing.T) {
	var llama map[string]jsontext.Value
	for _, g := range golden[componentGolden](t, "components.json") {
		if g.Name == "llama2" {
			llama = g.Members
		}
	}
	tok := loadSmall(t, "bpe", llama, nil)
	var alphabet []uint32
	for _, content := range []string{"▁", "a", "e", "▁the", "<0xE4>", "<0xB8>", "<0xAD>", "<0x41>", "<0xC3>", "<0xA9>", "<0xFF>", "<0xF0>", "<0x9F>", "<0x20>"} {
		if id, ok := tok.ID(content); ok {
			alphabet = append(alphabet, id)
		}
	}
	if len(alphabet) < 10 {
		t.Fatalf("only %d tokens", len(alphabet))
	}
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.SampledFrom(alphabet), 0, 30).Draw(t, "ids")
		whole, stream := slowRuns(tok, ids)
		if got := tok.Decode(ids, false); got != whole {
			t.Fatalf("decode: got %q, want %q", got, whole)
		}
		if !strings.Contains(whole, "\ufffd") && stream != whole {
			t.Fatalf("valid runs stream as %q, not as %q", stream, whole)
		}
		stops := rapid.SliceOfN(rapid.SampledFrom([]string{"é", "\ufffd", "中a", " a", "ee", "\ufffd\ufffda", "A"}), 0, 2).Draw(t, "stops")
		want, end := slowStop(stream, stops)
		d := NewDetokenizer(tok, DetokenizerOptions{Stops: stop.New(stops)})
		var got []byte
		stopped := false
		for rest := ids; len(rest) > 0 && !stopped; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			got, _, stopped = d.Append(got, rest[:n])
			if !strings.HasPrefix(want, string(got)) {
				t.Fatalf("gave out %q, but the text is %q", got, want)
			}
			rest = rest[n:]
		}
		if !stopped {
			got, stopped = d.Finish(got)
		}
		if string(got) != want || stopped != (end >= 0) {
			t.Fatalf("got %q, stopped %v; want %q, %v", got, stopped, want, end >= 0)
		}
	})
}

// TestRegex compares regular expressions drawn at random with another engine,
// over texts for which the two mean the same.
func TestRegex(t *testing.T) {
	atoms := []string{"a", "b", "ab", "[ab]", "[^a]", `\s`, `\w`, ".", "(?:a|ba)", "(?=b)", "(?!a)", "(?<=a)", "(?<!b)", `\b`, "(?>a|ab)", "(b|)", `\A`, `\z`, "1|2", `[^\s\w]`}
	repeats := []string{"", "", "", "*", "+", "?", "*?", "+?", "??", "{1,2}", "{2,}", "{1,2}?", "{2}"}
	tried := 0
	rapid.Check(t, func(t *rapid.T) {
		var pattern strings.Builder
		for range rapid.IntRange(1, 5).Draw(t, "atoms") {
			pattern.WriteString(rapid.SampledFrom(atoms).Draw(t, "atom") + rapid.SampledFrom(repeats).Draw(t, "repeat"))
		}
		x, err := compile(pattern.String())
		if err != nil {
			t.Skip(err)
		}
		tried++
		s := rapid.StringOfN(rapid.SampledFrom([]rune("aabb1 \n-")), 0, 30, -1).Draw(t, "text")
		var f found
		if err := x.find(&f, s, neverPause{}); err != nil {
			t.Fatal(err)
		}
		got := f.spans
		if want := otherMatches(t, pattern.String(), s); !slices.Equal(got, want) {
			t.Fatalf("%s on %q: got %v, want %v", &pattern, s, got, want)
		}
	})
	if tried == 0 {
		t.Fatal("no pattern was tried")
	}
}

// otherMatches finds matches with regexp2. An empty match right behind another
// does not count.
func otherMatches(t *rapid.T, pattern, s string) []span {
	re := regexp2.MustCompile(pattern, regexp2.None)
	runes := []rune(s) // ASCII
	var out []span
	last := -1
	for from := 0; from <= len(runes); {
		m, err := re.FindRunesMatchStartingAt(runes, from)
		if err != nil {
			t.Fatal(err)
		}
		if m == nil {
			break
		}
		if m.Length == 0 && m.Index == last {
			from++
			continue
		}
		out = append(out, span{m.Index, m.Index + m.Length})
		from, last = m.Index+m.Length, m.Index+m.Length
	}
	return out
}

// TestReferenceFloat compares with the nearest float: never more than one step
// away, and with digits that are exact, never any.
func TestReferenceFloat(t *testing.T) {
	for text, want := range map[string]float64{"0": 0, "-1.5": -1.5, "1e3": 1000, "12.25E-2": 0.1225, "-0.0": math.Copysign(0, -1), "18446744073709551616": 18446744073709551616, "1e-400": 0} {
		if got, err := referenceFloat([]byte(text)); err != nil || math.Abs(got-want) > math.Abs(want)*1e-15 || math.Signbit(got) != math.Signbit(want) {
			t.Errorf("%s: got %v, %v; want %v", text, got, err, want)
		}
	}
	if _, err := referenceFloat([]byte("1e400")); err == nil {
		t.Error("1e400 is in range")
	}
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.Float64Range(-20, -0.01).Draw(t, "f")
		text := fmt.Sprint(f)
		got, err := referenceFloat([]byte(text))
		if err != nil || got != f && math.Nextafter(got, f) != f {
			t.Fatalf("%s: got %v, %v", text, got, err)
		}
	})
}
