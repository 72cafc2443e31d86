package answer

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

func looksWhole(parts ...string) bool {
	var j wholeJSON
	for _, p := range parts {
		j.feed([]byte(p))
	}
	return j.whole()
}

// A document is whole to its last byte, and no part of it is, whatever it holds and
// wherever it is cut.
func TestWholeJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var value func(deep int) *rapid.Generator[any]
		value = func(deep int) *rapid.Generator[any] {
			text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{`"`, `\`, `\"`, `}]`, `{"[`, `\\"}`}))
			plain := rapid.OneOf(text.AsAny(), rapid.Int().AsAny(), rapid.Bool().AsAny())
			if deep == 0 {
				return plain
			}
			return rapid.OneOf(plain, rapid.SliceOfN(value(deep-1), 0, 3).AsAny(), rapid.MapOfN(text, value(deep-1), 0, 3).AsAny())
		}
		var document any = rapid.SliceOfN(value(3), 0, 3).Draw(t, "items")
		if rapid.Bool().Draw(t, "object") {
			document = map[string]any{"a": document}
		}
		doc, err := json.MarshalIndent(document, rapid.SampledFrom([]string{"", "\t"}).Draw(t, "prefix"), rapid.SampledFrom([]string{"", " "}).Draw(t, "indent"))
		if err != nil {
			t.Fatal(err)
		}
		text := string(doc)
		for cut := range text {
			if looksWhole(text[:cut]) {
				t.Fatalf("%q of %q is taken for whole", text[:cut], text)
			}
			if !looksWhole(text[:cut], text[cut:], "\n") {
				t.Fatalf("%q, cut at %d, is not taken for whole", text, cut)
			}
		}
	})
	for _, other := range []string{"", " \n", "{}{}", "{} 1", "1", "12", "true", `"a"`, "}", "]{", "null {}", "oops", `x{}`} {
		if looksWhole(other) {
			t.Errorf("%q is taken for a whole document", other)
		}
	}
}
