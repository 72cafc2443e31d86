package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// isSpace is Python's str.isspace for one code point.
func isSpace(r rune) bool {
	switch {
	case r < 0x80:
		return r == ' ' || r >= '\t' && r <= '\r' || r >= 0x1c && r <= 0x1f
	case r == 0x85, r == 0xa0:
		return true
	case r < 0x1680:
		return false
	}
	return r == 0x1680 || r >= 0x2000 && r <= 0x200a || r == 0x2028 || r == 0x2029 || r == 0x202f || r == 0x205f || r == 0x3000
}

// isASCII reports whether s is ASCII only.
func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// upper is Python's str.upper.
func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	var b strings.Builder
	for _, r := range s {
		if u, _, ok := specialCase(r); ok {
			b.WriteString(u)
		} else {
			b.WriteRune(unicode.ToUpper(r))
		}
	}
	return b.String()
}

// lower is Python's str.lower.
func lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	var b strings.Builder
	for i, r := range s {
		writeLower(&b, s, i, r)
	}
	return b.String()
}

// writeLower writes the lower case of the code point r at s[i]. A capital
// sigma at the end of a word has a form of its own.
func writeLower(b *strings.Builder, s string, i int, r rune) {
	switch r {
	case 0x130:
		b.WriteString("i\u0307")
	case 0x3a3:
		if finalSigma(s, i) {
			b.WriteRune(0x3c2)
		} else {
			b.WriteRune(0x3c3)
		}
	default:
		b.WriteRune(unicode.ToLower(r))
	}
}

func finalSigma(s string, i int) bool {
	before := strings.TrimRightFunc(s[:i], caseIgnorable)
	r, _ := utf8.DecodeLastRuneInString(before)
	if before == "" || !isCased(r) {
		return false
	}
	after := strings.TrimLeftFunc(s[i+2:], caseIgnorable)
	r, _ = utf8.DecodeRuneInString(after)
	return after == "" || !isCased(r)
}

func isCased(r rune) bool {
	return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) ||
		unicode.Is(unicode.Other_Lowercase, r) || unicode.Is(unicode.Other_Uppercase, r)
}

func caseIgnorable(r rune) bool {
	switch r {
	case '\'', '.', ':', 0xb7, 0x387, 0x55f, 0x5f4, 0x2018, 0x2019, 0x2024, 0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a:
		return true
	}
	return unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk)
}

func isLowerRune(r rune) bool {
	return unicode.IsLower(r) || unicode.Is(unicode.Other_Lowercase, r)
}

func isUpperRune(r rune) bool {
	return unicode.IsUpper(r) || unicode.Is(unicode.Other_Uppercase, r)
}

// titleRune returns the title case of one code point.
func titleRune(r rune) string {
	if _, t, ok := specialCase(r); ok {
		return t
	}
	return string(unicode.ToTitle(r))
}

// capitalize is Python's str.capitalize.
func capitalize(s string) string {
	if s == "" {
		return s
	}
	r, n := utf8.DecodeRuneInString(s)
	var b strings.Builder
	b.WriteString(titleRune(r))
	for i, r := range s[n:] {
		writeLower(&b, s, n+i, r)
	}
	return b.String()
}

// title is Python's str.title: a letter after anything that is not a cased
// letter starts a word.
func title(s string) string {
	var b strings.Builder
	cased := false
	for i, r := range s {
		if cased {
			writeLower(&b, s, i, r)
		} else {
			b.WriteString(titleRune(r))
		}
		cased = isCased(r)
	}
	return b.String()
}

func swapcase(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case isUpperRune(r):
			writeLower(&b, s, i, r)
		case isLowerRune(r):
			b.WriteString(upper(string(r)))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// caseTest is Python's islower and isupper: some cased letter, and none of
// the other case.
func caseTest(s string, want func(rune) bool) bool {
	found := false
	for _, r := range s {
		if want(r) {
			found = true
		} else if isCased(r) {
			return false
		}
	}
	return found
}

func isTitle(s string) bool {
	cased, found := false, false
	for _, r := range s {
		switch {
		case isUpperRune(r) || unicode.IsTitle(r):
			if cased {
				return false
			}
			cased, found = true, true
		case isLowerRune(r):
			if !cased {
				return false
			}
			cased, found = true, true
		default:
			cased = false
		}
	}
	return found
}

func isAlpha(r rune) bool   { return unicode.IsLetter(r) }
func isDecRune(r rune) bool { return unicode.Is(unicode.Nd, r) }
func isDigit(r rune) bool   { return isDecRune(r) || isDigitRune(r) }
func isNumeric(r rune) bool { return unicode.IsNumber(r) || isDigitRune(r) || isNumericLetter(r) }
func isAlnum(r rune) bool   { return isAlpha(r) || isNumeric(r) }

// all reports whether s has a code point and every one satisfies ok.
func all(s string, ok func(rune) bool) bool {
	for _, r := range s {
		if !ok(r) {
			return false
		}
	}
	return s != ""
}

func isIdentifier(s string) bool {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && !unicode.Is(unicode.Nl, r) && (i == 0 || !isNameRune(r)) {
			return false
		}
	}
	return s != ""
}

// splitLines is Python's str.splitlines.
func splitLines(s string, keepEnds bool) []string {
	var out []string
	start := 0
	for i := 0; i < len(s); {
		r, n := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(s[i:])
		}
		end := i
		i += n
		switch r {
		case '\r':
			if i < len(s) && s[i] == '\n' {
				i++
			}
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		default:
			continue
		}
		if keepEnds {
			end = i
		}
		out = append(out, s[start:end])
		start = i
	}
	if start < len(s) {
		out = append(out, s[start:])
	}
	return out
}

// splitSpace is Python's str.split and rsplit without a separator: at runs of
// white space, at most limit times (-1 for no limit).
func splitSpace(s string, limit int, fromRight bool) []string {
	var out []string
	if fromRight {
		s = strings.TrimRightFunc(s, isSpace)
		for ; s != ""; limit-- {
			i := strings.LastIndexFunc(s, isSpace)
			if limit == 0 || i < 0 {
				out = append(out, s)
				break
			}
			_, n := utf8.DecodeRuneInString(s[i:])
			out = append(out, s[i+n:])
			s = strings.TrimRightFunc(s[:i], isSpace)
		}
		for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
			out[i], out[j] = out[j], out[i]
		}
		return out
	}
	s = strings.TrimLeftFunc(s, isSpace)
	for ; s != ""; limit-- {
		i := strings.IndexFunc(s, isSpace)
		if limit == 0 || i < 0 {
			return append(out, s)
		}
		out = append(out, s[:i])
		s = strings.TrimLeftFunc(s[i:], isSpace)
	}
	return out
}

// splitSep is Python's str.split and rsplit at a separator.
func splitSep(s, sep string, limit int, fromRight bool) []string {
	if !fromRight {
		if limit < 0 {
			return strings.Split(s, sep)
		}
		return strings.SplitN(s, sep, limit+1)
	}
	if limit < 0 {
		limit = len(s) + 1
	}
	var out []string
	for ; limit > 0; limit-- {
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		out = append(out, s[i+len(sep):])
		s = s[:i]
	}
	out = append(out, s)
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// escapeHTML is markupsafe's escape of a string.
func escapeHTML(s string) string {
	if !strings.ContainsAny(s, `&<>'"`) {
		return s
	}
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(s)
}
