package tokenizer

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
	"pgregory.net/rapid"
)

// This file holds slow implementations that are obviously right, and compares.

// slowSplit cuts with a general regular-expression engine.
func slowSplit(t *testing.T, re *regexp2.Regexp, s string) []string {
	t.Helper()
	var out []string
	runes := []rune(s)
	at := 0
	m, err := re.FindRunesMatch(runes)
	for ; m != nil; m, err = re.FindNextMatch(m) {
		if m.Index > at {
			out = append(out, string(runes[at:m.Index]))
		}
		out = append(out, m.String())
		at = m.Index + m.Length
	}
	if err != nil {
		t.Fatal(err)
	}
	if at < len(runes) {
		out = append(out, string(runes[at:]))
	}
	return out
}

// agreed reports whether Go's tables, which the engine has, class a text's runes
// as the reference's do. It also leaves out the letters beyond ASCII that fold
// to ASCII ones, of which the engines have different ideas.
func agreed(s string) bool {
	for _, r := range s {
		c := class(r)
		switch {
		case r == 'ſ' || r == '\u212a',
			in(c, setLetter) != unicode.IsLetter(r),
			in(c, setNumber) != unicode.IsNumber(r),
			in(c, setMark) != unicode.IsMark(r),
			in(c, setPunct) != (unicode.IsPunct(r) || unicode.IsSymbol(r)),
			c&bitSpace != 0 != unicode.IsSpace(r),
			in(c, 1<<gcLu) != unicode.Is(unicode.Lu, r),
			in(c, 1<<gcLl) != unicode.Is(unicode.Ll, r),
			in(c, 1<<gcLm) != unicode.Is(unicode.Lm, r):
			return false
		}
	}
	return true
}

// otherSpelling writes a pattern as regexp2 has it, which knows no intersection
// and no script of that name.
func otherSpelling(pattern string) string {
	var han strings.Builder
	for _, span := range hanRanges {
		han.WriteString(string(span[0]) + "-" + string(span[1]))
	}
	pattern = strings.ReplaceAll(pattern, `&&[^\p{Han}]]`, "-["+han.String()+"]]")
	return strings.ReplaceAll(pattern, `\p{Han}`, han.String())
}

// TestHan: every rune, by the table of scripts.
func TestHan(t *testing.T) {
	table := map[rune]bool{}
	for _, span := range hanRanges {
		for r := span[0]; r <= span[1]; r++ {
			table[r] = true
		}
	}
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if isHan(r) != table[r] {
			t.Fatalf("%U: %v", r, isHan(r))
		}
		if table[r] && string(r)[0] < hanLead {
			t.Fatalf("%U begins with a byte below %#x", r, hanLead)
		}
	}
}

// TestScanHan compares Kimi's scanner with the pattern on texts where Han meets
// everything else: on regexp2, and on the engine that serves unknown patterns.
func TestScanHan(t *testing.T) {
	other := regexp2.MustCompile(otherSpelling(patternKimi), regexp2.None)
	own, err := compile(patternKimi)
	if err != nil {
		t.Fatal(err)
	}
	parts := []string{"中", "文字", "⺀", "〇", "〡", "々", "㐀", "\U00020000", "\U00016ff0", "ひ", "カー", "ー", "한", "a", "B", "Cd", "'s", "'LL", "'", "\u0301", "ʰ", "ǅ",
		"1", "23", "٣", " ", "  ", "\n", "\r\n", "\t", "!", "/", "。", "é", "\u3000"}
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 1, 14).Draw(t, "parts"), "")
		got := strings.Join(pieces(kimi{}, s), "|")
		var f found
		if err := own.find(&f, s, neverPause{}); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, span := range f.spans {
			want = append(want, s[span.start:span.end])
		}
		if got != strings.Join(want, "|") {
			t.Fatalf("%q: got %q, want %q", s, got, want)
		}
		if !agreed(s) {
			return
		}
		m, err := other.FindStringMatch(s)
		for want = nil; m != nil; m, err = other.FindNextMatch(m) {
			want = append(want, m.String())
		}
		if err != nil || got != strings.Join(want, "|") {
			t.Fatalf("%q: got %q, regexp2 has %q, %v", s, got, want, err)
		}
	})
}

// FuzzScan compares every scanner with the pattern it stands for, and the words with it.
func FuzzScan(f *testing.F) {
	for _, s := range []string{"it's 12345 words\n\n  and'LL more\t", "数据 é\u0301 ǅx!!\r\n/ $a", "  \u00a0\n x\u2028", "aB Cd1²³ ʰ_- "} {
		f.Add(s)
	}
	engines := map[string]*regexp2.Regexp{}
	for _, g := range Grammars() {
		engines[g.Name] = regexp2.MustCompile(otherSpelling(g.Pattern), regexp2.None)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s = strings.ToValidUTF8(s, ""); s == "" || !agreed(s) {
			t.Skip()
		}
		checkPieces(t, s+" and so on to the end")
		for _, g := range Grammars() {
			got, want := pieces(g.scan, s), slowSplit(t, engines[g.Name], s)
			if strings.Join(got, "\x00|") != strings.Join(want, "\x00|") {
				t.Fatalf("%s, %q:\n got %q\nwant %q", g.Name, s, got, want)
			}
		}
	})
}

// slowMerge merges by searching all pairs each time.
func slowMerge(v *vocab, piece []byte) []uint32 {
	var ids []uint32
	for _, b := range piece {
		ids = append(ids, v.byteIDs[b])
	}
	for {
		best, at := noMerge, -1
		for i := range len(ids) - 1 {
			if value := v.merges.find(ids[i], ids[i+1]); value < best {
				best, at = value, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = uint32(best)
		ids = append(ids[:at+1], ids[at+2:]...)
	}
}

// slowEncode encodes text without added tokens.
func slowEncode(t *Tokenizer, s string) []uint32 {
	var ids []uint32
	for _, piece := range pieces(t.last, s) {
		ids = append(ids, slowMerge(&t.vocab, []byte(piece))...)
	}
	return ids
}

// FuzzEncode compares encoding, cold and warm, with the slow way.
func FuzzEncode(f *testing.F) {
	tok := loadSim(f).Tokenizer
	enc := tok.NewEncoder()
	for _, s := range []string{"func main() {\n\tfmt.Println(\"hello\")\n}", strings.Repeat("a", 100), strings.Repeat("ab c", 50), "中文 mixed टेक्स्ट", "\x00\x00\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s = strings.ToValidUTF8(s, "\ufffd"); strings.Contains(s, "<") {
			t.Skip("may hold an added token")
		}
		want := slowEncode(tok, s)
		for range 2 {
			got, err := enc.Encode(t.Context(), nil, s, EncodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			equalIDs(t, got, want)
		}
		if got := tok.Decode(want, false); got != s {
			t.Fatalf("round trip: got %q, want %q", got, s)
		}
	})
}

func equalIDs(t interface{ Fatalf(string, ...any) }, got, want []uint32) {
	if len(got) != len(want) {
		t.Fatalf("got %d ids %v, want %d %v", len(got), got, len(want), want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("id %d: got %v, want %v", i, got, want)
		}
	}
}

// TestMergeQueue compares the queue for long pieces with the slow way, under
// vocabularies in which a later merge makes a pair that ranks before it: there
// the queue's order is hardest.
func TestMergeQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := &vocab{merges: newMergeTable(64), ranks: 64}
		for b := range v.byteIDs {
			v.byteIDs[b] = uint32(b)
		}
		// Tokens are strings over a and b; every merge makes a string that some
		// other merge may make too, at a rank drawn at random.
		tokens := map[string]uint32{"a": 'a', "b": 'b'}
		known := []string{"a", "b"}
		ranks := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}).Draw(t, "ranks")
		for _, rank := range ranks {
			x := rapid.SampledFrom(known).Draw(t, "x")
			y := rapid.SampledFrom(known).Draw(t, "y")
			id, ok := tokens[x+y]
			if !ok {
				id = uint32(256 + len(tokens))
				tokens[x+y] = id
				known = append(known, x+y)
			}
			v.merges.insert(tokens[x], tokens[y], uint64(rank)<<32|uint64(id))
		}
		text := []byte(rapid.StringMatching(`[ab]{1,200}`).Draw(t, "text"))
		var m merger
		want := slowMerge(v, text)
		for range 2 {
			got, err := m.merge(v, nil, text, neverPause{})
			if err != nil {
				t.Fatal(err)
			}
			equalIDs(t, got, want)
		}
		if len(text) <= shortMerge {
			equalIDs(t, v.mergeShort(nil, text), want)
		}
	})
}

// TestNFCLaws checks what must hold of a normal form for any text.
func TestNFCLaws(t *testing.T) {
	runes := []rune("aeoA ̧́̀̊̈\u0323\u0315\u05ae각가\u1100\u1161\u11a8Å\u212b\u0344中é<")
	nfc := func(t *rapid.T, s string) string {
		out := rewritten(t, normalForm{compose: true}, s)
		if !utf8.ValidString(out) {
			t.Fatalf("%+q is not valid", out)
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOf(rapid.SampledFrom(runes)).Draw(t, "s")
		once := nfc(t, s)
		if twice := nfc(t, once); twice != once {
			t.Fatalf("%+q: once %+q, twice %+q", s, once, twice)
		}
		// Taking it apart first changes nothing.
		var x scratch
		for _, r := range s {
			x.decompose(r, false)
		}
		if apart := nfc(t, string(x.runes)); apart != once {
			t.Fatalf("%+q: decomposed first %+q, else %+q", s, apart, once)
		}
	})
}
