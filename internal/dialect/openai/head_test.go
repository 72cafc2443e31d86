package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// wantError checks that an error is coded, and all it tells the caller.
func wantError(t *testing.T, err error, code infer.Code, param, message string) {
	t.Helper()
	var e *infer.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want %v", err, err, code)
	}
	if e.Code != code || e.Param != param || e.Message != message {
		t.Errorf("error %v, param %q, message\n\t%s\nwant %v, param %q, message\n\t%s", e.Code, e.Param, e.Message, code, param, message)
	}
}

func TestParseHeadRefuses(t *testing.T) {
	const prefix = "the body is not valid JSON: "
	for _, test := range []struct{ body, param, message string }{
		{"", "", "the body is empty; send a JSON object"},
		{" \n", "", "the body is empty; send a JSON object"},
		{"[1]", "", "the body must be a JSON object, found an array"},
		{`"x"`, "", "the body must be a JSON object, found a string"},
		{"12", "", "the body must be a JSON object, found a number"},
		{"null", "", "the body must be a JSON object, found null"},
		{"true", "", "the body must be a JSON object, found a boolean"},
		{"\uFEFF{}", "", prefix + "line 1, column 1: invalid character '\\ufeff' at start of value"},
		{"{", "", prefix + "line 1, column 2: unexpected end of the body"},
		{`{"a":1`, "", prefix + "line 1, column 7: unexpected end of the body"},
		{"{\n\"a\":\"x", "", prefix + "line 2, column 7: unexpected end of the body"},
		{`{"a":1,`, "", prefix + "line 1, column 8: unexpected end of the body"},
		{`{"a":[1,2`, "", prefix + "line 1, column 10: unexpected end of the body"},
		{"{\n  \"é\": 1\n  \"b\": 2}", "", prefix + "line 3, column 3: invalid character '\"' after object value (expecting ',' or '}')"},
		{`{"é" 1}`, "", prefix + "line 1, column 6: invalid character '1' after object name (expecting ':')"},
		{`{"a":1,}`, "", prefix + "line 1, column 8: invalid character '}' (expecting a field name in double quotes)"},
		{`{a:1}`, "", prefix + "line 1, column 2: invalid character 'a' (expecting a field name in double quotes)"},
		{`{"a":1, b:2}`, "", prefix + "line 1, column 9: invalid character 'b' (expecting a field name in double quotes)"},
		{`{"a":1 b:2}`, "", prefix + "line 1, column 8: invalid character 'b' after object value (expecting ',' or '}')"},
		{`{"a\q":1}`, "", prefix + "line 1, column 4: invalid escape sequence `\\q` in string"},
		{`{,}`, "", prefix + "line 1, column 2: invalid character ',' (expecting a field name in double quotes)"},
		{`{1:1}`, "", prefix + "line 1, column 2: object member name must be a string"},
		{`{"a":tru}`, "", prefix + "line 1, column 9: invalid character '}' in literal true (expecting 'e')"},
		{`{"a":NaN}`, "", prefix + "line 1, column 6: invalid character 'N' at start of value"},
		{`{"a":01}`, "", prefix + "line 1, column 7: invalid character '1' after object value (expecting ',' or '}')"},
		{`{"a":[1,2}`, "", prefix + "line 1, column 10: invalid character '}' after array element (expecting ',' or ']')"},
		{`{"a":{"b":1,}}`, "", prefix + "line 1, column 13: invalid character '}' at start of string (expecting '\"')"},
		{"{\"a\":\"x\ny\"}", "", prefix + "line 1, column 8: invalid character '\\n' in string (expecting non-control character)"},
		{`{"a":"\q"}`, "", prefix + "line 1, column 7: invalid escape sequence `\\q` in string"},
		{`{"a":1} x`, "", prefix + "line 1, column 9: invalid character 'x' after the object (expecting the end of the body)"},
		{`{"a":1}{}`, "", prefix + "line 1, column 8: invalid character '{' after the object (expecting the end of the body)"},
		{"{\"a\":\n\"\xff\"}", "", prefix + "line 2, column 2: byte 0xFF is not UTF-8"},
		{"{}", "model", "model is required: name the model to use"},
		{`{"model":""}`, "model", "model is empty: name the model to use"},
		{`{"model":null}`, "model", "model must be a string, found null"},
		{`{"model":7}`, "model", "model must be a string, found a number"},
		{`{"model":"\ud800"}`, "model", "model holds half a surrogate pair; both halves are needed"},
		{`{"model":"m","model":"n"}`, "model", "model is given twice; give it once"},
		{`{"model":"m","mod\u0065l":"n"}`, "model", "model is given twice; give it once"},
		{`{"model":"m","stream":true,"stream":true}`, "stream", "stream is given twice; give it once"},
		{`{"model":"m","n":1,"n":2}`, "n", "n is given twice; give it once"},
		{`{"model":"m","stream_options":{},"stream_options":null}`, "stream_options", "stream_options is given twice; give it once"},
		{`{"model":"m","stream":"yes"}`, "stream", "stream must be true or false, found a string"},
		{`{"model":"m","n":0}`, "n", "n must be between 1 and 128, found 0"},
		{`{"model":"m","n":1.5}`, "n", "n must be an integer, found 1.5"},
		{`{"model":"m","n":1e99}`, "n", "n must be between 1 and 128, found 1e99"},
		{`{"model":"m","n":"2"}`, "n", "n must be an integer, found a string"},
		{`{"model":"m","stream_options":[]}`, "stream_options", "stream_options must be an object, found an array"},
		{`{"model":"m","stream_options":{"include_usage":1}}`, "stream_options.include_usage", "stream_options.include_usage must be true or false, found a number"},
	} {
		_, err := Chat.ParseHead([]byte(test.body))
		t.Run(test.body, func(t *testing.T) { wantError(t, err, infer.CodeInvalid, test.param, test.message) })
	}
	many := `{"model":"m"` + strings.Repeat(`,"x":1`, dialect.MaxFields) + "}"
	_, err := Other.ParseHead([]byte(many))
	wantError(t, err, infer.CodeInvalid, "", "the body has more than 1024 fields")
}

func TestParseHeadReads(t *testing.T) {
	for _, test := range []struct {
		endpoint Endpoint
		body     string
		want     dialect.Head
	}{
		{Chat, `{"model":"m"}`, dialect.Head{Model: "m", N: 1}},
		{Chat, " {\"stream\" :true,\"m\\u006fdel\":\"a\\n\\ud83d\\ude00\" , \"n\":3.0,\"stream_options\":{\"include_usage\":true}}\r\n\t ",
			dialect.Head{Model: "a\n😀", Stream: true, N: 3}},
		{Completions, `{"model":"m","stream":null,"n":null,"stream_options":null}`, dialect.Head{Model: "m", N: 1}},
		{Completions, `{"model":"m","stream_options":{"include_usage":null,"x":1}}`, dialect.Head{Model: "m", N: 1}},
		// A relay passes names that occur twice, if weir does not act on them, half a surrogate
		// pair, and numbers of any depth and size.
		{Chat, `{"seed":1,"seed":2,"x":1,"x":2,"a":{"b":1,"b":2},"t":"\ud800","big":1e999,"model":"m"}`, dialect.Head{Model: "m", N: 1}},
		{Other, `{"model":"m","stream":true,"n":"all","stream_options":7}`, dialect.Head{Model: "m", Stream: true, N: 1}},
		{Other, `{"model":"m","stream":"later"}`, dialect.Head{Model: "m", N: 1}},
	} {
		h, err := test.endpoint.ParseHead([]byte(test.body))
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		got := dialect.Head{Model: h.Model, Stream: h.Stream, N: h.N}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(dialect.Head{})); diff != "" {
			t.Errorf("%s: %s", test.body, diff)
		}
	}
}

var heads = []string{
	`{"model":"m"}`,
	`{"a":9007199254740993,"model" :  "m\u0065" ,"b":[1.0,{"<":null}],"b":2}`,
	"{\r\n\t\"model\":\"\",\"x\":\"\\ud800\"}",
	`{"model":"m","messages":[{"role":"user","content":"hé"}],"stream":true,"n":2}`,
	`{"stream":tru}`,
}

func FuzzSplice(f *testing.F) {
	for _, body := range heads {
		f.Add([]byte(body), "another \"name\"\n")
	}
	f.Fuzz(func(t *testing.T, body []byte, model string) {
		h, err := Other.ParseHead(bytes.Clone(body))
		if err != nil {
			var e *infer.Error
			if !errors.As(err, &e) || e.Code != infer.CodeInvalid || e.Message == "" || !utf8.ValidString(e.Message) {
				t.Fatalf("error %#v", err)
			}
			return
		}
		out := h.Splice(model)
		if !bytes.Equal(h.Body, body) {
			t.Fatal("the body itself was changed")
		}
		at := h.Fields[slices.IndexFunc(h.Fields, func(f dialect.Span) bool { return f.Name == "model" })]
		if len(out) < len(body)-(at.End-at.Start) {
			t.Fatalf("%q became %q", body, out)
		}
		tail := len(body) - at.End
		if !bytes.Equal(out[:at.Start], body[:at.Start]) || !bytes.Equal(out[len(out)-tail:], body[at.End:]) {
			t.Fatalf("%q became %q", body, out)
		}
		if model == "" {
			return
		}
		again, err := Other.ParseHead(out)
		if err != nil {
			t.Fatalf("%q became %q: %v", body, out, err)
		}
		if want := string([]rune(model)); again.Model != want {
			t.Fatalf("model %q, want %q", again.Model, want)
		}
		if len(again.Fields) != len(h.Fields) {
			t.Fatalf("%d fields became %d", len(h.Fields), len(again.Fields))
		}
	})
}

// FuzzParseHead holds the scan against encoding/json: the same bodies are
// JSON objects, and the fields have the same values.
func FuzzParseHead(f *testing.F) {
	for _, body := range heads {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var want map[string]json.RawMessage
		if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) && utf8.Valid(body) {
			if err := json.Unmarshal(body, &want); err != nil {
				want = nil
			}
		}
		h, err := Other.ParseHead(body)
		if err != nil {
			if want == nil {
				return
			}
			var e *infer.Error
			errors.As(err, &e)
			if dialect.Steers(e.Param) || len(want) > dialect.MaxFields || strings.Contains(e.Message, "more than") || strings.Contains(e.Message, "max depth") {
				return
			}
			t.Fatalf("%q: %v", body, err)
		}
		if want == nil {
			t.Fatalf("%q is no JSON object", body)
		}
		last := make(map[string]json.RawMessage)
		for _, at := range h.Fields {
			last[at.Name] = body[at.Start:at.End]
		}
		if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(last)); diff != "" {
			t.Fatalf("%q: %s", body, diff)
		}
	})
}
