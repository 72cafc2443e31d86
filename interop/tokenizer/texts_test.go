//go:build interop

package tokenizer_test

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"
)

// text is one prompt to compare on.
type text struct {
	name string
	text string
}

// corpus is what every grammar is compared on: ten programming languages,
// translations, and what real files hold too little of. It has 16 MB, and under
// -short 3 MB.
type corpus struct {
	texts []text
	bytes int
	// files are of every kind, to train on.
	files []string
}

// theCorpus reads the corpus, once.
func theCorpus(t testing.TB) *corpus {
	t.Helper()
	corpusOnce.Do(func() {
		c := &corpus{}
		goRoot, python3, django := roots(t)
		for _, kind := range []struct {
			root   string
			bytes  int
			suffix []string
		}{
			{goRoot, 9 << 18, []string{".go"}},
			{goRoot, 512 << 10, []string{".s", ".S"}},
			{goRoot, 256 << 10, []string{".c", ".h"}},
			{goRoot, 128 << 10, []string{".sh", ".bash", ".pl"}},
			{goRoot, 1 << 20, []string{".md", ".html"}}, // English, most of it
			{python3, 9 << 18, []string{".py"}},
			{python3, 256 << 10, []string{".txt", ".json"}},
			{django, 512 << 10, []string{".js", ".css"}},
			{django, 128 << 10, []string{".html", ".svg", ".xml"}},
		} {
			c.add(t, kind.root, sample(kind.bytes, 20), func(path string) bool { return slices.Contains(kind.suffix, filepath.Ext(path)) })
		}
		for _, language := range []string{"zh_Hans", "zh_Hant", "ja", "ko", "ar", "hi", "th", "ru", "he", "el", "vi", "de", "fa", "bn", "ta"} {
			part := "/" + language + "/"
			c.add(t, django, sample(256<<10, 20), func(path string) bool { return strings.Contains(path, part) && filepath.Ext(path) == ".po" })
		}
		for _, g := range generated(60_000) {
			c.texts = append(c.texts, g)
			c.bytes += len(g.text)
		}
		loaded = c
	})
	if loaded == nil {
		t.Fatal("the corpus could not be read")
	}
	return loaded
}

var (
	corpusOnce sync.Once
	loaded     *corpus
)

// add reads up to limit bytes of files, spread over the tree.
func (c *corpus) add(t testing.TB, root string, limit int, want func(path string) bool) {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "site-packages" && path != root {
			return filepath.SkipDir
		}
		if err == nil && d.Type().IsRegular() && want(path) {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	before := c.bytes
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if c.bytes-before+len(data) > limit {
			continue
		}
		c.texts = append(c.texts, text{path, strings.ToValidUTF8(string(data), "\ufffd")})
		c.bytes += len(data)
		c.files = append(c.files, path)
	}
	if c.bytes == before {
		t.Fatalf("no text in %s", root)
	}
}

// sample returns n, and under -short a share of it.
func sample(n, share int) int {
	if testing.Short() {
		return n / share
	}
	return n
}

// generated returns texts of what real files hold too little of: so many bytes of
// most, or a thirtieth under -short.
func generated(bytes int) []text {
	bytes = sample(bytes, 30)
	rng := rand.New(rand.NewPCG(7, 11))
	var out []text
	for name, table := range scripts() {
		out = append(out, text{"script " + name, words(rng, table, bytes)})
	}
	out = append(out,
		text{"every rune, spaced", everyRune(" ")},
		text{"every rune after a letter", everyRune("a")},
		text{"every rune after a quote", everyRune("'")},
		text{"every rune bare", everyRune("")},
		text{"emoji", emoji(rng, bytes)},
		text{"mixture", mixture(rng, 4*bytes)},
		text{"marks", marks(rng, bytes)},
		text{"contractions", pick(rng, bytes, "'", "s", "S", "ſ", "t", "LL", "ll", "lL", "Ve", "re", "RE", "m", "d", " ", "a", "’", "'K", "\n")},
		text{"white space", pick(rng, bytes, " ", "  ", "\n", "\r\n", "\t", "\v", "\f", "\u00a0", "\u2028", "\u2029", "\u0085", "\u3000", "\u1680", "\u200b", "\ufeff", "\u180e", "\x1c", "x", "1", "!")},
		text{"digits", pick(rng, bytes, "0", "1", "23", "456", "٣", "५", "²", "Ⅷ", "½", " ", ".", ",", "x", "一")},
		text{"control", pick(rng, bytes, "\x00", "\x01", "\x1b", "\x7f", "\u0080", "\u009f", "\ue000", "\ufffe", "\U0010ffff", "a", " ", "\n", "1")},
		text{"punctuation", pick(rng, bytes, "!", "/", "//", "\n", "\r", " ", "--", "…", "«", "€", "a", "B", "1", "\u0301", "_", "$", "'")},
		text{"case", pick(rng, bytes, "a", "B", "ǅ", "ʰ", "中", "\u0301", "ß", "İ", "'s", " ", "1", "Ά", "ﬁ", "!", "\n")},
		text{"lossy bytes", lossy(rng, bytes)},
		text{"markup", pick(rng, bytes, "<|bos|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|", "|>", "<", " ", "\n", "word", "<|im_", "<|reserved_1|>", "<|reserved_12|>", "one", "two", "strip", "é", "e\u0301", "x")},
	)
	for _, unit := range []string{"a", " ", "\n", "\u0301", "中", "ab", " a", "1", "-", "é", "aA", "\r\n", "\t ", "\u1100", "\u0327\u0301"} {
		out = append(out, text{"run of " + unit, "x" + strings.Repeat(unit, sample(20_000, 4)/len(unit)) + "y"})
	}
	return out
}

func scripts() map[string]*unicode.RangeTable {
	out := map[string]*unicode.RangeTable{}
	for _, name := range []string{"Latin", "Greek", "Cyrillic", "Armenian", "Hebrew", "Arabic", "Devanagari", "Bengali", "Tamil",
		"Thai", "Lao", "Tibetan", "Myanmar", "Georgian", "Hangul", "Ethiopic", "Khmer", "Mongolian", "Hiragana", "Katakana", "Han",
		"Cherokee", "Yi", "Gothic", "Deseret", "Adlam", "Cuneiform", "Common", "Inherited"} {
		out[name] = unicode.Scripts[name]
	}
	return out
}

func runesOf(table *unicode.RangeTable) []rune {
	var out []rune
	for _, r := range table.R16 {
		for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
			out = append(out, c)
		}
	}
	for _, r := range table.R32 {
		for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
			out = append(out, c)
		}
	}
	return out
}

// words makes words of a script, with what stands between words.
func words(rng *rand.Rand, table *unicode.RangeTable, bytes int) string {
	runes := runesOf(table)
	var b strings.Builder
	for b.Len() < bytes {
		for range 1 + rng.IntN(9) {
			b.WriteRune(runes[rng.IntN(len(runes))])
		}
		b.WriteString([]string{" ", " ", " ", "", "\n", ", ", "。", "'s ", "12", "  ", "-"}[rng.IntN(11)])
	}
	return b.String()
}

// everyRune has every rune after some text. Under -short it has one in 127 of long
// runs of runes that are alike: Han, Hangul, private use, historic scripts, planes
// 2 and up.
func everyRune(before string) string {
	var b strings.Builder
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r >= 0xd800 && r < 0xe000 || r >= 0x30000 && r < 0xe0000 || r > 0xf0100 && r < 0x10ff00 {
			continue
		}
		alike := r >= 0x3400 && r < 0xa000 || r >= 0xac00 && r < 0xf900 || r >= 0x13000 && r < 0x1d000 || r >= 0x20000
		if alike && testing.Short() && r%127 != 0 {
			continue
		}
		b.WriteString(before)
		b.WriteRune(r)
	}
	return b.String()
}

func pick(rng *rand.Rand, bytes int, parts ...string) string {
	var b strings.Builder
	for b.Len() < bytes {
		b.WriteString(parts[rng.IntN(len(parts))])
	}
	return b.String()
}

func emoji(rng *rand.Rand, bytes int) string {
	return pick(rng, bytes, "👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇩🇪", "🇯🇵", "❤️", "☺", "1️⃣", "🤷🏿‍♀️", "\u200d", "\ufe0f", " ", "ok", "!", "🧑🏻‍🚀")
}

func marks(rng *rand.Rand, bytes int) string {
	base := []rune("aeiouAEIOUnNcCsk가각각한কো் <1'")
	all := append(runesOf(unicode.Mn), runesOf(unicode.Mc)...)
	var b strings.Builder
	for b.Len() < bytes {
		b.WriteRune(base[rng.IntN(len(base))])
		for range rng.IntN(4) {
			if rng.IntN(2) == 0 {
				b.WriteRune(0x300 + rune(rng.IntN(0x70)))
			} else {
				b.WriteRune(all[rng.IntN(len(all))])
			}
		}
	}
	return b.String()
}

// mixture draws runes from everywhere, so that every pair of neighbours comes.
func mixture(rng *rand.Rand, bytes int) string {
	var b strings.Builder
	for b.Len() < bytes {
		switch rng.IntN(5) {
		case 0, 1:
			b.WriteRune(rune(rng.IntN(128)))
		case 2:
			b.WriteRune(rune(rng.IntN(0x500)))
		case 3:
			b.WriteRune(rune(rng.IntN(0xd800)))
		default:
			b.WriteRune(0xe000 + rune(rng.IntN(0x20000)))
		}
	}
	return b.String()
}

// lossy is what reading random bytes as UTF-8 gives.
func lossy(rng *rand.Rand, bytes int) string {
	b := make([]byte, bytes)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return strings.ToValidUTF8(string(b), "\ufffd")
}
