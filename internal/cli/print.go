package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// sayLine prints a line with the control characters of its arguments escaped, because names
// come from engines and servers.
func sayLine(w io.Writer, format string, args ...any) {
	shown := make([]any, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case string:
			shown[i] = graphic(v, "")
		case error:
			shown[i] = graphic(v.Error(), "")
		case fmt.Stringer:
			shown[i] = graphic(v.String(), "")
		default:
			shown[i] = arg
		}
	}
	fmt.Fprintf(w, format+"\n", shown...) // a closed terminal is no reason to stop
}

// graphic returns a text with every rune escaped that is neither visible nor among those in
// besides.
func graphic(text, besides string) string {
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case strconv.IsGraphic(r) || strings.ContainsRune(besides, r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// graphicLines is graphic of a text of several lines.
func graphicLines(text string) string { return graphic(text, "\n\t") }
