package dialect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// jsonCases are values and things that are nearly values.
var jsonCases = []string{
	``, ` `, `{}`, `[]`, `{ }`, `[ ]`, `null`, `true`, `false`, `nul`, `nulL`, `tru`, `fals`, `truefalse`,
	`0`, `-0`, `-`, `01`, `1.`, `.5`, `1.5`, `1e`, `1e5`, `1E+5`, `1e-`, `-1.25e-07`, `+1`, `0x1`, `1e5.5`, `--1`,
	`""`, `"`, `"a`, `"a"`, `"\"`, `"\\"`, `"\""`, `"\/\b\f\n\r\t"`, `"\x"`, `"\u"`, `"\u00"`, `"\u00e9"`, `"\uD83D"`, `"\u00G0"`, `"\u00`,
	"\"\x00\"", "\"\x1f\"", "\"\x20\"", "\"\x7f\"", "\"\n\"", "\"\t\"", "\"\xff\"", "\"\xc3\x28\"", `"é世界😀"`,
	`{"a":1}`, `{"a" : 1 }`, `{"a":1,}`, `{,}`, `{"a"}`, `{"a":}`, `{"a":1 "b":2}`, `{"a":1,"a":2}`, `{a:1}`, `{1:1}`, `{"a":1]`,
	`[1,2]`, `[1,]`, `[,1]`, `[1 2]`, `[1}`, `[1`, `[[1],[2,[3]]]`, `[{}]`, `[{},{}]`, `{"a":[{"b":[]}]}`, `]`, `}`,
	"\t\n\r {\n\"a\"\r:\t1\n}\n", "\v1", "\f1", "\u00a01", "{\"a\":1}\x00", `{"a":1}x`, `{} {}`,
	`{"index`, `{"index"`, `{"index":`, `{"error":`, `{"object":"`, `{"object":`, `{"finish_reason":`, `{"usage"  :`, `{"indeX":1}`,
	strings.Repeat("[", 512) + strings.Repeat("]", 512),
	strings.Repeat(`{"a":`, 511) + "1" + strings.Repeat("}", 511),
	strings.Repeat(`[{"a":`, 100) + "1" + strings.Repeat("}]", 100),
	strings.Repeat("[", 600),
}

// wholeJSON reports whether b is one JSON value and nothing else.
func wholeJSON(b []byte) bool {
	end, _, ok := CheckJSON(b, 0)
	return ok && SkipBlank(b, end, new(Notes)) == len(b)
}

// depthOf returns how deep valid JSON nests.
func depthOf(b []byte) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

func compareJSON(t *testing.T, b []byte) {
	t.Helper()
	want := json.Valid(b)
	if want && depthOf(b) > maxCheckDepth {
		want = false
	}
	if got := wholeJSON(b); got != want {
		t.Fatalf("%.200q: %v, want %v", b, got, want)
	}
}

func TestCheckJSON(t *testing.T) {
	for _, text := range jsonCases {
		// The padding moves every byte to every place in a word.
		for pad := range 9 {
			compareJSON(t, []byte(strings.Repeat(" ", pad)+text))
			compareJSON(t, []byte(`["`+strings.Repeat("x", pad)+`",`+text+`]`))
			compareJSON(t, []byte(`{"`+strings.Repeat("x", pad)+`":`+text+`,"y":"`+strings.Repeat("é", pad)+`"}`))
		}
		for cut := range min(len(text), 40) {
			compareJSON(t, []byte(text[:cut]))
		}
	}
}

func TestCheckJSONEveryByteInAString(t *testing.T) {
	for c := range 256 {
		for at := range 20 {
			text := []byte(`"` + strings.Repeat("a", 20) + `"`)
			text[1+at] = byte(c)
			compareJSON(t, text)
		}
	}
}

func TestCheckJSONDepth(t *testing.T) {
	for depth := 510; depth <= 514; depth++ {
		for _, pair := range [][2]string{{"[", "]"}, {`{"a":`, "}"}} {
			text := strings.Repeat(pair[0], depth) + "1" + strings.Repeat(pair[1], depth)
			if got, want := wholeJSON([]byte(text)), depth <= maxCheckDepth; got != want {
				t.Errorf("%d deep %s: %v", depth, pair[0], got)
			}
		}
	}
}

func TestCheckJSONNotes(t *testing.T) {
	for text, want := range map[string]Notes{
		`{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`:              {Objects: 1, Indexes: 1},
		`{"choices":[{"index":3 ,"finish_reason" : null},{"index":12}],"usage":null}`:         {Objects: 2, Indexes: 2, Index: 12},
		`{"choices":[{"index":0,"finish_reason":"stop"}]}`:                                    {Objects: 1, Indexes: 1, Telling: true},
		`{"choices":[{"index":0,"finish_reason" :  "stop"}]}`:                                 {Objects: 1, Indexes: 1, Telling: true},
		`{"choices":[{"index":0,"finish\u005freason":null}]}`:                                 {Objects: 1, Indexes: 1, Telling: true},
		`{"choices":[{"index":0,"finish\u005freason":"stop"}]}`:                               {Objects: 1, Indexes: 1, Telling: true},
		`{"choices":[{"delta":{"tool_calls":[{"index":7}]},"index":1,"finish_reason":null}]}`: {Objects: 1, Indexes: 1, Index: 1},
		`{"choices":[{"index":-1}]}`:                                                          {Objects: 1, Indexes: 1, Index: -1},
		`{"choices":[{"index":1.0}]}`:                                                         {Objects: 1, Indexes: 1, Index: -1},
		`{"choices":[{"index":1e3}]}`:                                                         {Objects: 1, Indexes: 1, Index: -1},
		`{"choices":[{"index":null}]}`:                                                        {Objects: 1, Indexes: 1, Index: -1},
		`{"choices":[{"index":9999999}]}`:                                                     {Objects: 1, Indexes: 1, Index: -1},
		`{"error":{}}`:                                                                        {Telling: true},
		`{"error":null}`:                                                                      {},
		`{"usage":{"prompt_tokens":1}}`:                                                       {Telling: true},
		`{"object":"error"}`:                                                                  {Telling: true},
		`{"object":"\u0065rror"}`:                                                             {Telling: true},
		`{"object":"chat.completion.chunk"}`:                                                  {},
		`{"text":"\"finish_reason\":\"x\""}`:                                                  {},
		`{"text":"error","b":["usage","err"]}`:                                                {},
		"{\"a\":\n1}":                                                                         {Broken: true},
		"{\"a\":1\r}":                                                                         {Broken: true},
		"{\"a\":[\n]}":                                                                        {Broken: true},
	} {
		end, got, ok := CheckJSON([]byte(text), 0)
		if !ok || end != len(text) || got != want {
			t.Errorf("%s: %+v, %v, ends at %d of %d; want %+v", text, got, ok, end, len(text), want)
		}
	}
}

// A value ends where it ends, whatever stands behind it, and the place of a
// mistake is inside the bytes.
func TestCheckJSONEnd(t *testing.T) {
	for _, text := range []string{`{"a":[1,{"b":"c"}]}`, `[1]`, `"x"`, `null`, `-1.5e3`} {
		for _, after := range []string{"", " ", "\n\n", "}", "x", "\x00"} {
			if strings.HasPrefix(text, "-") && after == "x" {
				continue
			}
			end, _, ok := CheckJSON([]byte("data: "+text+after), 6)
			if !ok || end != 6+len(text) {
				t.Errorf("%q before %q: ends at %d, %v", text, after, end, ok)
			}
		}
	}
	if end, _, ok := CheckJSON([]byte(`{"a":1,"b":!}`), 0); ok || end != 11 {
		t.Errorf("mistake at %d, %v", end, ok)
	}
}

func FuzzCheckJSON(f *testing.F) {
	for _, text := range jsonCases {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		compareJSON(t, b)
		end, n, _ := CheckJSON(b, 0)
		if end < 0 || n.Indexes < 0 || fmt.Sprint(n) == "" {
			t.Fatalf("%q: %d %+v", b, end, n)
		}
	})
}
