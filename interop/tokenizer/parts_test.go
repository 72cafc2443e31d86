//go:build interop

package tokenizer_test

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestNormalizers compares each normalizer over every rune and awkward texts,
// under a vocabulary whose tokens span words, with added tokens that are looked
// for in normalized text.
func TestNormalizers(t *testing.T) {
	strip := func(left, right bool) object {
		return object{"type": "Strip", "strip_left": left, "strip_right": right}
	}
	bare := func(kind string) object { return object{"type": kind} }
	regex := func(pattern, content string) object {
		return object{"type": "Replace", "pattern": object{"Regex": pattern}, "content": content}
	}
	texts := append(everyRuneInParts(), someTexts(generated(20_000))...)
	for name, n := range map[string]object{
		"NFC": bare("NFC"), "NFD": bare("NFD"), "NFKC": bare("NFKC"), "NFKD": bare("NFKD"),
		"Lowercase": bare("Lowercase"), "StripAccents": bare("StripAccents"), "Nmt": bare("Nmt"), "ByteLevel": bare("ByteLevel"),
		"strip both": strip(true, true), "strip left": strip(true, false), "strip right": strip(false, true), "strip none": strip(false, false),
		"Prepend": {"type": "Prepend", "prepend": "▁x"}, "Prepend nothing": {"type": "Prepend", "prepend": ""},
		"Replace":             replaceString(" ", "▁"),
		"Replace longer":      replaceString("\n\n", "<br>"),
		"Replace by nothing":  replaceString("a", ""),
		"Replace pattern":     regex(` {2,}`, "▁▁"),
		"Replace white space": regex(`\s+`, " "),
		"Replace marks":       regex(`[\p{Mn}\p{Me}]+|(?<=\d),(?=\d{3})`, ""),
		"a sequence":          sequence("normalizers", bare("NFD"), bare("Lowercase"), bare("StripAccents"), regex(`\s+`, " "), strip(true, true), object{"type": "Prepend", "prepend": "▁"}, replaceString(" ", "▁")),
		"SentencePiece":       sequence("normalizers", bare("Nmt"), bare("NFKC"), regex(` {2,}`, " ")),
		"Precompiled":         charsmap(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compare(t, variant(t, trained(t, "lines"), func(doc, _ object) {
				components(doc, object{"normalizer": n, "decoder": llamaDecoder(false)})
			}), texts)
		})
	}
}

// everyRuneInParts has every rune after some others, cut into short texts.
func everyRuneInParts() []text {
	var out []text
	for _, before := range []string{" ", "a", "é"} {
		runes := []rune(everyRune(before))
		for i := 0; i < len(runes); i += 5000 {
			out = append(out, text{fmt.Sprintf("/runes after %q from %d", before, i), string(runes[i:min(len(runes), i+5000)])})
		}
	}
	return out
}

// charsmap makes a table for Precompiled: a double array over keys of every
// kind, among them clusters and beginnings of clusters.
func charsmap(t *testing.T) object {
	t.Helper()
	rules := map[string]string{
		"ﬁ": "fi", "①": "1", "Ａ": "A", "\u00a0": " ", "\t": " ", "\r\n": "\n", "x": "", "é": "e", "e\u0301": "é", "か\u3099": "が",
		"\u0301": "'", "İ": "i", "©": "(c)", "\u0600": "P", "가": "GA", "ᄀ": "G", "a\u0300\u0300": "A", "中": "zhong", "💡": "!", "n\u0303o": "ño", "क": "ka", "🇩": "D",
	}
	text, offset := "", map[string]int{}
	for from, to := range rules {
		offset[from] = len(text)
		text += to + "\x00"
	}
	type node struct {
		next  map[byte]*node
		value int
	}
	root := &node{map[byte]*node{}, -1}
	for from := range rules {
		n := root
		for _, b := range []byte(from) {
			if n.next[b] == nil {
				n.next[b] = &node{map[byte]*node{}, -1}
			}
			n = n.next[b]
		}
		n.value = offset[from]
	}
	// The children of a node at p with offset o are at p^o^label, its value at
	// p^o. Blocks of 256 places each keep them apart.
	units := make([]uint32, 1<<16)
	block := uint32(1)
	var place func(n *node, at, label uint32)
	place = func(n *node, at, label uint32) {
		base := block << 8
		block++
		units[at] = label | (at^base)<<10
		if n.value >= 0 {
			units[at] |= 1 << 8
			units[base] = 1<<31 | uint32(n.value)
		}
		for b, child := range n.next {
			place(child, base^uint32(b), uint32(b))
		}
	}
	place(root, 0, 0)
	units = units[:block<<8]
	data := binary.LittleEndian.AppendUint32(nil, uint32(4*len(units)))
	for _, u := range units {
		data = binary.LittleEndian.AppendUint32(data, u)
	}
	return object{"type": "Precompiled", "precompiled_charsmap": base64.StdEncoding.EncodeToString(append(data, text...))}
}

// TestPreTokenizers compares each pre-tokenizer, and patterns that are no known
// grammar, under a vocabulary whose tokens span words, so that every cut shows.
func TestPreTokenizers(t *testing.T) {
	cases := map[string]object{
		"Whitespace":         {"type": "Whitespace"},
		"WhitespaceSplit":    {"type": "WhitespaceSplit"},
		"Digits":             {"type": "Digits", "individual_digits": false},
		"Digits, each":       {"type": "Digits", "individual_digits": true},
		"CharDelimiterSplit": {"type": "CharDelimiterSplit", "delimiter": "é"},
		"Sequence": sequence("pretokenizers", object{"type": "WhitespaceSplit"}, object{"type": "Punctuation", "behavior": "Contiguous"},
			metaspace("first", true), object{"type": "Digits", "individual_digits": true}),
		"Metaspace of another sign": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": true},
	}
	behaviors := []string{"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}
	for _, b := range behaviors {
		cases["Punctuation "+b] = object{"type": "Punctuation", "behavior": b}
		for _, invert := range []bool{false, true} {
			for _, p := range []object{{"String": " "}, {"String": "ab"}, {"Regex": `\s`}, {"Regex": `x*`}, {"Regex": patternOf(t, "digits3")}} {
				cases[fmt.Sprintf("%v %s %v", p, b, invert)] = object{"type": "Split", "pattern": p, "behavior": b, "invert": invert}
			}
		}
	}
	for i, pattern := range patterns {
		b := behaviors[i%len(behaviors)]
		cases[pattern+" "+b] = object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": b, "invert": i%3 == 0}
		cases[pattern] = object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false}
	}
	texts := cut(generated(4_000), sample(4_000, 2)) // some patterns take the square of a text's length
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		if testing.Short() && i%3 != 0 {
			continue
		}
		p := cases[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compare(t, variant(t, trained(t, "lines"), func(doc, _ object) {
				components(doc, object{"pre_tokenizer": p, "decoder": llamaDecoder(false)})
			}), texts)
		})
	}
}

func TestByteLevelPrefix(t *testing.T) {
	for name, parts := range map[string][]any{
		"prefix":            {object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}},
		"prefix, no regex":  {object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false}},
		"no regex":          {object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}},
		"prefix of digits":  {object{"type": "Digits", "individual_digits": true}, object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true}},
		"punctuation, gpt2": {object{"type": "Punctuation"}, object{"type": "Digits", "individual_digits": false}, object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compare(t, variant(t, weirSim, func(doc, _ object) {
				doc["pre_tokenizer"] = sequence("pretokenizers", parts...)
			}), someTexts(theCorpus(t).texts))
		})
	}
}

// patterns are regular expressions in every construct that is understood.
var patterns = []string{
	`\s+`, `\w+|[^\w\s]+`, `\d+`, `\D+`, `\W`, `\S+`, `[^\S\n]+`, `(?i:hello|the|'K|[skt]x?)`, `\b`, `\B`, `^`, `$`, `^\s*$`, `\A.`, `.\z`, `.`,
	`(?<=[a-z])(?=[A-Z])`, `(?<!\d)\d{2,3}(?!\d)`, `(?<=ab|c)x?`, `[a-z]+?`, `[a-z]{2,4}?b`, `a{2,3}`, `a{,2}b`, `a{3}`, `(?:a|ab)(?:c|bcd)?`,
	`\p{Han}+`, `[\p{L}&&[^\p{Han}]]+`, `[\p{L}\p{M}&&[^a-z\p{Han}]]`, `\P{L}+`, `\p{^N}`, `(?>a+)b`, `a++b`, `a*+b`, `(?:ab|cd)+`, `(?:ab|cd)*?x`, `x?+x`,
	`[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
	// As Bloom's and Phi-4's files have them.
	` ?[^(\s|[.,!?…。，、।۔،])]+`,
	`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
	`[^\s\p{L}\p{N}]{1,4}`, `(a|b|ab){1,3}c`, `(?:(?:a|b){2}){1,2}`, `[\x{4e00}-\x{9fa5}\u3042]+`, `\x41|\t|\f|\v|\r`, `[\d\s]+`, `[^\W\d]+`, `[a\-z]+`, `[-a]+`, `[a-]+`, `[\]\[]`, `\.|\/|\-`,
	`(?=\s)`, `(?!\s)`, `(?<=\s)`, `(?<!\s)`, `\p{Lu}\p{Ll}+|\p{Lt}`, `[^.]+\.`, `(?:\r?\n)+`, `<\|[a-z_]+\|>`, `(?-i:a)(?i:b(?-i:c))`, `(?:\s|a){1,2}?\b`,
	`\p{Hiragana}+|\p{Katakana}+|\p{Hangul}+|\p{Thai}+|\p{Arabic}+|\p{Cyrillic}+|\p{Latin}+|\p{Greek}+|\p{Devanagari}+|\p{Hebrew}+`,
	`\p{P}+|\p{S}+|\p{Z}+|\p{C}+|\p{M}+|\p{Nd}+|\p{No}|\p{Nl}`,
}

// TestRandomPatterns compares patterns made up at random, over short texts.
func TestRandomPatterns(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	atoms := []string{"a", "b", "ab", "[ab]", "[^a]", `\s`, `\w`, ".", "(?:a|ba)", "(?=b)", "(?!a)", "(?<=a)", "(?<!b)", `\b`, "(?>a|ab)", "^", "$", "(b|)", "é", `\p{L}`, "\n"}
	repeats := []string{"", "", "", "*", "+", "?", "*?", "+?", "??", "++", "*+", "?+", "{1,2}", "{2,}", "{1,2}?"}
	texts := []text{}
	for i := range 60 {
		texts = append(texts, text{fmt.Sprintf("/random %d", i), pick(rng, 1+rng.IntN(25), "a", "b", "ab", "ba", " ", "\n", "é", "aa", "1")})
	}
	for tried := 0; tried < sample(120, 4); {
		var b strings.Builder
		for range 1 + rng.IntN(4) {
			b.WriteString(atoms[rng.IntN(len(atoms))])
			b.WriteString(repeats[rng.IntN(len(repeats))])
			if rng.IntN(5) == 0 {
				b.WriteString("|")
			}
		}
		dir := variant(t, trained(t, "lines"), func(doc, _ object) {
			components(doc, object{"decoder": llamaDecoder(false), "pre_tokenizer": object{
				"type": "Split", "pattern": object{"Regex": b.String()}, "behavior": []string{"Removed", "Isolated"}[rng.IntN(2)], "invert": rng.IntN(2) == 0}})
		})
		if !loads(dir) {
			continue // refused, by name
		}
		tried++
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			compare(t, dir, texts)
		})
	}
}
