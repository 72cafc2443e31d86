package outputparse

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzParse holds the laws against what a fuzzer thinks of.
func FuzzParse(f *testing.F) {
	all := formats()
	for path, a := range goldens(f) {
		o := optionsOf(f, path)
		for i := range all {
			if all[i].Format == o.Format && all[i].Calls && !all[i].Single {
				for _, s := range a.sections {
					if !strings.Contains(s.name, "/") {
						f.Add(uint8(i), s.text(), uint8(3))
					}
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, format uint8, text string, size uint8) {
		o := all[int(format)%len(all)]
		checkLaws(t, o, text, []int{1 + int(size)%40})
		if o.Single {
			return
		}
		// With payload between any two bytes that are no part of one rune: none
		// of it may be lost, but for an id or a type that comes after a call's
		// arguments, which is too late.
		at := 0
		if len(text) > 0 {
			at = int(size) % (len(text) + 1)
		}
		const word = "q987q"
		late := strings.Contains(text[:at], `"id"`) || strings.Contains(text[:at], `"type"`)
		if whole := text[:at] + word + text[at:]; !late && !strings.Contains(text, "q") && !o.inHead(whole, word) {
			checkPayload(t, "", read(o, whole), []string{word})
		}
	})
}

// FuzzJSON: what the scanner takes for JSON is JSON, and the other way round but
// for control characters.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a": [1, -2.5e+3, "\u00e9\n", true, null]}`, "0", "01", "[1,]", "\"a\x01b\"", "-", "1.", "tru", `{"a" 1}`, `"\x"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s jsonScan
		out, ok := appendJSON(nil, []byte(text), &s)
		if ok && !json.Valid(out) {
			t.Fatalf("%q became %q, which is no JSON", text, out)
		}
		if !ok && json.Valid([]byte(text)) && strings.Count(text, "[")+strings.Count(text, "{") < maxDepth {
			t.Fatalf("%q is JSON and was not taken", text)
		}
		if lit, ok := appendLiteral(nil, []byte(text)); ok && !json.Valid(lit) {
			t.Fatalf("%q became %q, which is no JSON", text, lit)
		}
	})
}
