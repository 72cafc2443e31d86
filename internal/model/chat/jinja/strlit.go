package jinja

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// str emits a string literal. Escapes are Python's; one that Python does not
// know stays as it is written.
func (l *lexer) str(s string) error {
	quote := s[0]
	n := 1
	for ; ; n++ {
		if n >= len(s) {
			return syntaxErrorf(l.line, "unexpected char %q: the string does not end", quote)
		}
		if s[n] == '\\' {
			n++
			continue
		}
		if s[n] == quote {
			break
		}
	}
	text := s[1:n]
	if strings.IndexByte(text, '\\') >= 0 {
		var err error
		if text, err = unescape(text, l.line); err != nil {
			return err
		}
	}
	l.emit(tokString, text)
	l.advance(n + 1)
	return nil
}

// unescape decodes Python's string escapes.
func unescape(s string, line int) (string, error) {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b = append(b, s[i])
			continue
		}
		i++
		if i >= len(s) {
			return "", syntaxErrorf(line, `\ at end of string`)
		}
		switch c := s[i]; c {
		case '\n':
		case '\\', '\'', '"':
			b = append(b, c)
		case 'a':
			b = append(b, '\a')
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'v':
			b = append(b, '\v')
		case '0', '1', '2', '3', '4', '5', '6', '7':
			n, j := 0, i
			for ; j < len(s) && j < i+3 && s[j] >= '0' && s[j] <= '7'; j++ {
				n = n*8 + int(s[j]-'0')
			}
			b = utf8.AppendRune(b, rune(n))
			i = j - 1
		case 'x', 'u', 'U':
			digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+digits >= len(s) {
				return "", syntaxErrorf(line, `truncated \%c escape`, c)
			}
			n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32)
			if err != nil || n > utf8.MaxRune {
				return "", syntaxErrorf(line, `illegal \%c escape`, c)
			}
			if n >= 0xD800 && n < 0xE000 {
				return "", unsupportedf(line, `a lone surrogate (\%c%s) is not supported`, c, s[i+1:i+1+digits])
			}
			b = utf8.AppendRune(b, rune(n))
			i += digits
		case 'N':
			return "", unsupportedf(line, `the escape \N{...} is not supported`)
		default:
			b = append(b, '\\', c)
		}
	}
	return string(b), nil
}
