package tokenizer

// Split patterns as tokenizer.json files spell them. A pattern is known only if
// it is spelled exactly so.
const (
	patternLlama3  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen2   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen35  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternGPT2    = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternO200k   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternTekken  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternKimi    = `[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternDigits  = `\p{N}{1,3}`
	patternDigit   = `\p{N}`
	patternHanKana = `[一-龥぀-ゟ゠-ヿ]+`
	patternDeep    = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)

// Grammar is a split pattern with a scanner of its own.
type Grammar struct {
	// Name is what the pattern is known by.
	Name string
	// Pattern is the regular expression of tokenizer.json's Split.
	Pattern string
	// covers is set if the pattern matches every text from end to end, so that nothing
	// lies between matches.
	covers bool
	scan   scanner
}

// Grammars lists the split patterns that are known.
func Grammars() []Grammar {
	return []Grammar{
		{"llama3", patternLlama3, true, cl100k{digits: 3}}, // and cl100k
		{"qwen2", patternQwen2, true, cl100k{digits: 1}},   // and Qwen3
		{"qwen3.5", patternQwen35, true, cl100k{digits: 1, marks: true}},
		{"gpt2", patternGPT2, true, gpt2{}},
		{"o200k", patternO200k, true, o200k{digits: 3, contractions: true}},
		{"tekken", patternTekken, true, o200k{digits: 1}},
		{"kimi", patternKimi, true, kimi{}},
		{"digits3", patternDigits, false, digits{3}},
		{"digits1", patternDigit, false, digits{1}},
		{"hankana", patternHanKana, false, hanKana{}},
		{"deepseek3", patternDeep, false, deepseek{}},
	}
}

// grammar looks a pattern up.
func grammar(pattern string) (Grammar, bool) {
	for _, g := range Grammars() {
		if g.Pattern == pattern {
			return g, true
		}
	}
	return Grammar{}, false
}
