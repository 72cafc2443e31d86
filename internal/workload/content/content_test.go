package content

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// vocabulary is a synthetic one: ids below 300 are bytes and control tokens,
// then words alternate with things that are not words.
func vocabulary(words int) (size int, text func(id uint32) ([]byte, bool)) {
	size = 300 + 2*words
	return size, func(id uint32) ([]byte, bool) {
		switch {
		case id < 256:
			return []byte{byte(id)}, true
		case id < 300:
			return []byte(" special"), false
		case id%2 == 1:
			return []byte("ing"), true
		}
		n := int(id-300) / 2
		b := []byte{' ', 'a' + byte(n%26), 'a' + byte(n/26%26), 'a' + byte(n/676%26)}
		return append(b, bytes.Repeat([]byte("o"), n%5)...), true
	}
}

func newWords(t testing.TB, n int) *Words {
	t.Helper()
	size, text := vocabulary(n)
	w, err := New(size, text)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *Words) generate(prompt []uint32, seed uint64, n int) []uint32 {
	s := w.Start(prompt, seed)
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = w.Next(&s)
		w.Push(&s, ids[i])
	}
	return ids
}

func (w *Words) join(ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		t, _ := w.Text(id)
		b.WriteString(t)
	}
	return b.String()
}

func TestNewSelectsWords(t *testing.T) {
	for _, c := range []struct{ have, want, bits int }{{1024, 1024, 8}, {2047, 1024, 8}, {2048, 2048, 9}, {9000, 4096, 10}} {
		w := newWords(t, c.have)
		if w.Len() != c.want || w.CheckBits() != c.bits {
			t.Errorf("%d words in the vocabulary: got %d with %d check bits, want %d with %d", c.have, w.Len(), w.CheckBits(), c.want, c.bits)
		}
	}
	size, text := vocabulary(1023)
	if _, err := New(size, text); err == nil || !strings.Contains(err.Error(), "1023") {
		t.Errorf("a vocabulary of 1023 words: %v", err)
	}
	w := newWords(t, 2047)
	if _, ok := w.Text(300 + 2*1024); ok {
		t.Error("a word beyond the power of two is in the list")
	}
	if _, ok := w.Text(math.MaxUint32); ok {
		t.Error("an id beyond the vocabulary is a word")
	}
	for _, bad := range []string{"", " ", " a", "abc", " aB", " ab1", " ab ", "\tab"} {
		if isWord([]byte(bad)) {
			t.Errorf("%q counts as a word", bad)
		}
	}
}

func TestDuplicateTextsAreOneWord(t *testing.T) {
	size, text := vocabulary(1024)
	w, err := New(size+1, func(id uint32) ([]byte, bool) {
		if int(id) == size {
			return text(300)
		}
		return text(id)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := w.Text(uint32(size)); ok {
		t.Error("the second id of a text is a word")
	}
}

// A word's check is never that of the word before it, for every word there is:
// this is what makes the loss, the repetition and the exchange of a single
// word certain to be seen.
func TestCheckNeverRepeats(t *testing.T) {
	for _, n := range []int{1024, 2048, 4096} {
		w := newWords(t, n)
		for i := range n {
			if w.after(uint16(i)) == uint16(i)&w.mask() {
				t.Fatalf("of %d words, word %d may be followed by a word of the same check", n, i)
			}
		}
	}
}

func TestContinuation(t *testing.T) {
	w := newWords(t, 2048)
	rapid.Check(t, func(t *rapid.T) {
		prompt := rapid.SliceOf(rapid.Uint32Range(0, 5000)).Draw(t, "prompt")
		seed := rapid.Uint64().Draw(t, "seed")
		n := rapid.IntRange(1, 50).Draw(t, "n")
		cut := rapid.IntRange(0, n).Draw(t, "cut")
		whole := w.generate(prompt, seed, n)
		rest := w.generate(append(append([]uint32{}, prompt...), whole[:cut]...), seed, n-cut)
		for i, id := range rest {
			if id != whole[cut+i] {
				t.Fatalf("cut after %d: id %d is %d, want %d", cut, i, id, whole[cut+i])
			}
		}
	})
}

func TestSeedsAndPromptsDiffer(t *testing.T) {
	w := newWords(t, 1024)
	a := w.join(w.generate([]uint32{1, 2, 3}, 0, 40))
	for name, b := range map[string]string{
		"seed":  w.join(w.generate([]uint32{1, 2, 3}, 1, 40)),
		"order": w.join(w.generate([]uint32{2, 1, 3}, 0, 40)),
		"value": w.join(w.generate([]uint32{0, 2, 3}, 0, 40)),
	} {
		if a == b {
			t.Errorf("another %s gives the same text", name)
		}
	}
}

func TestVerifierAcceptsAnyChunking(t *testing.T) {
	w := newWords(t, 1024)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 60).Draw(t, "n")
		prompt := rapid.SliceOf(rapid.Uint32Range(0, 3000)).Draw(t, "prompt")
		text := []byte(w.join(w.generate(prompt, 0, n)))
		v := w.Verifier()
		if len(prompt) > 0 {
			v.After(prompt[len(prompt)-1])
		}
		for len(text) > 0 {
			k := rapid.IntRange(1, len(text)).Draw(t, "piece")
			if _, err := v.Write(text[:k]); err != nil {
				t.Fatal(err)
			}
			text = text[k:]
		}
		if err := v.Close(); err != nil || v.Words() != n {
			t.Fatalf("%d of %d words: %v", v.Words(), n, err)
		}
	})
}

func TestVerifierFirstWord(t *testing.T) {
	w := newWords(t, 1024)
	word := w.ids[7]
	text := w.join(w.generate([]uint32{word}, 0, 5))
	v := w.Verifier()
	v.WriteString(text)
	if err := v.Close(); err == nil {
		t.Error("a text that follows a word passes as one that follows none")
	}
	v = w.Verifier()
	v.Trust()
	v.WriteString(text)
	if err := v.Close(); err != nil || v.Words() != 5 {
		t.Errorf("on trust: %d words, %v", v.Words(), err)
	}
	v = w.Verifier()
	v.WriteString(w.join(w.generate([]uint32{13}, 0, 5)))
	if err := v.Close(); err != nil {
		t.Errorf("after a prompt that ends in no word: %v", err)
	}
}

func TestMismatchSaysWhere(t *testing.T) {
	w := newWords(t, 1024)
	ids := w.generate(nil, 0, 6)
	good := w.join(ids[:3])
	v := w.Verifier()
	v.WriteString(good + strings.Repeat("x", 100))
	v.WriteString(w.join(ids[3:]))
	err := v.Close()
	var m *Mismatch
	if !errors.As(err, &m) {
		t.Fatalf("got %v", err)
	}
	third, _ := w.Text(ids[2])
	if m.Word != 3 || m.Offset != int64(len(good)-len(third)) || !strings.HasPrefix(m.Got, third+"xx") {
		t.Errorf("got %+v", m)
	}
	if v.Wrong() != 1 || v.Words() != 6 {
		t.Errorf("%d wrong of %d words, want 1 of 6: the verifier did not find its way back", v.Wrong(), v.Words())
	}

	v = w.Verifier()
	v.WriteString(w.join([]uint32{ids[0], ids[1], ids[3]}))
	if err := v.Close(); !errors.As(err, &m) || m.Word != 3 || m.Before == "" {
		t.Errorf("a lost word: %v", err)
	}
	if v = w.Verifier(); true {
		v.WriteString("Sure" + good)
		if err := v.Close(); !errors.As(err, &m) || m.Word != 1 || m.Offset != 0 {
			t.Errorf("a text that begins with no word: %v", err)
		}
	}
}

func TestCloseCutForgivesOnlyTheTail(t *testing.T) {
	w := newWords(t, 1024)
	text := w.join(w.generate(nil, 0, 6))
	v := w.Verifier()
	v.WriteString(text[:len(text)-2])
	if err := v.CloseCut(); err != nil || v.Words() != 5 {
		t.Errorf("%d words, %v", v.Words(), err)
	}
	v = w.Verifier()
	v.WriteString(text[3 : len(text)-2])
	if v.CloseCut() == nil {
		t.Error("damage before the tail is forgiven")
	}
}

// seen reports whether the verifier objects to ids.
func seen(w *Words, ids []uint32) bool {
	v := w.Verifier()
	v.WriteString(w.join(ids))
	return v.Close() != nil
}

// TestDetection damages texts in every way the package doc names and counts
// what goes unseen: nothing where a single word was touched, at most
// 2^-8 of the rest (with slack for the sample).
func TestDetection(t *testing.T) {
	splice := func(ids []uint32, i, drop int, with ...uint32) []uint32 {
		out := append([]uint32{}, ids[:i]...)
		return append(append(out, with...), ids[i+drop:]...)
	}
	const n = 64
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	for _, size := range []int{1024, 4096} {
		w := newWords(t, size)
		missed, tries := map[string]int{}, map[string]int{}
		try := func(kind string, ids []uint32) {
			tries[kind]++
			if !seen(w, ids) {
				missed[kind]++
			}
		}
		for r := range rounds {
			ids := w.generate([]uint32{uint32(r)}, 0, n)
			other := w.generate([]uint32{uint32(r), 9}, 0, n)
			for i := 0; i < n-8; i++ {
				try("lose 1", splice(ids, i, 1))
				try("repeat 1", splice(ids, i, 0, ids[i]))
				try("swap", splice(ids, i, 2, ids[i+1], ids[i]))
				try("lose 2", splice(ids, i, 2))
				try("lose 5", splice(ids, i, 5))
				try("repeat 3", splice(ids, i, 0, ids[i:i+3]...))
				try("foreign word", splice(ids, i+1, 1, other[i]))
				try("foreign rest", splice(ids, i+1, n-i-1, other[i+3:]...))
			}
		}
		for kind, k := range tries {
			share := float64(missed[kind]) / float64(k)
			t.Logf("%d words: %-12s %5d of %d unseen (%.5f)", size, kind, missed[kind], k, share)
			switch kind {
			case "lose 1", "repeat 1", "swap":
				if missed[kind] != 0 {
					t.Errorf("%d words: %s: %d of %d unseen", size, kind, missed[kind], k)
				}
			default:
				p := math.Exp2(-float64(w.CheckBits()))
				if limit := p + 5*math.Sqrt(p/float64(k)); share > limit {
					t.Errorf("%d words: %s: %.5f unseen, limit %.5f", size, kind, share, limit)
				}
			}
		}
	}
}

func TestMeanLength(t *testing.T) {
	w := newWords(t, 1024)
	const texts, mean = 3000, 200
	h := MeanLength(mean)
	total := 0
	for r := range texts {
		s := w.Start([]uint32{uint32(r)}, 0)
		for {
			total++
			if s.Ends(h) {
				break
			}
			w.Push(&s, w.Next(&s))
		}
	}
	// The standard error of the mean is mean/sqrt(texts), about 3.7.
	if got := float64(total) / texts; math.Abs(got-mean) > 15 {
		t.Errorf("mean length %.1f, want %d", got, mean)
	}
	s := w.Start(nil, 0)
	if s.Ends(MeanLength(0)) || !s.Ends(MeanLength(1)) {
		t.Error("0 must never end and 1 always")
	}
}

func FuzzVerifier(f *testing.F) {
	w := newWords(f, 1024)
	f.Add([]byte(w.join(w.generate(nil, 0, 4))), 3)
	f.Add([]byte("  a \x00 "), 1)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		if cut < 0 || cut > len(text) {
			cut = len(text)
		}
		whole, split := w.Verifier(), w.Verifier()
		whole.Write(text)
		split.Write(text[:cut])
		split.Write(text[cut:])
		a, b := whole.Close(), split.Close()
		if (a == nil) != (b == nil) || (a != nil && a.Error() != b.Error()) || whole.Words() != split.Words() {
			t.Fatalf("whole: %d words, %v; cut at %d: %d words, %v", whole.Words(), a, cut, split.Words(), b)
		}
		if a == nil && len(text) > 0 && strings.Count(string(text), " ") != whole.Words() {
			t.Fatalf("a good text of %d words has %d spaces", whole.Words(), strings.Count(string(text), " "))
		}
	})
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	w := newWords(t, 4096)
	s := w.Start(nil, 0)
	v := w.Verifier()
	text := []byte(w.join(w.generate(nil, 0, 200)))
	v.Write(text)
	*v = Verifier{w: w, last: noWord, partial: v.partial}
	if n := testing.AllocsPerRun(10, func() {
		w.Push(&s, w.Next(&s))
		v.Write(text)
		v.last = noWord
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNext(b *testing.B) {
	w := newWords(b, 4096)
	s := w.Start(nil, 0)
	b.ReportAllocs()
	for b.Loop() {
		w.Push(&s, w.Next(&s))
	}
}

func BenchmarkPrompt(b *testing.B) {
	w := newWords(b, 4096)
	prompt := w.generate(nil, 0, 40000)
	b.ReportAllocs()
	for b.Loop() {
		w.Start(prompt, 0)
	}
}

func BenchmarkVerify(b *testing.B) {
	w := newWords(b, 4096)
	text := []byte(w.join(w.generate(nil, 0, 1000)))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		v := w.Verifier()
		v.Write(text)
	}
}
