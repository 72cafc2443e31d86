package dialect

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/internal/infer"
)

func askedHead(t testing.TB, body string) *Head {
	t.Helper()
	h, err := ParseHead([]byte(body), NewNames("model"), func(*Head, string, []byte) error { return nil })
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return h
}

// Fields are set and taken out, and no byte of another changes.
func TestAsked(t *testing.T) {
	set := func(name, value string) func(*Asked) { return func(a *Asked) { a.Set(name, value) } }
	del := func(name string) func(*Asked) { return func(a *Asked) { a.Delete(name) } }
	for _, x := range []struct {
		body, model string
		edits       []func(*Asked)
		want        string
	}{
		{`{"model":"m"}`, "m", nil, `{"model":"m"}`},
		{" { \"model\" : \"m\" \n} ", "m", nil, " { \"model\" : \"m\" \n} "},
		{`{"a":1,"model":"m"}`, "x", []func(*Asked){set("a", "2"), set("b", "[]")}, `{"a":2,"model":"x","b":[]}`},
		{" { \"a\" : 1 ,\n \"model\" : \"m\" \n} ", "m", []func(*Asked){del("a")}, " {\n \"model\" : \"m\" \n} "},
		{" { \"model\" : \"m\" ,\n \"a\" : 1 \n} ", "m", []func(*Asked){del("a")}, " { \"model\" : \"m\"  \n} "},
		{` { "model" : "m" , "a" : 1 } `, "m", []func(*Asked){del("a"), set("b", "2")}, ` { "model" : "m" ,"b":2 } `},
		{` { "model" : "m" , "a" : 1 } `, "m", []func(*Asked){set("a", "[1, 2]")}, ` { "model" : "m" , "a" : [1, 2] } `},
		// Twice, and spelled with escapes: once when it is set, never when it is taken out.
		{`{"a":1,"model":"m","\u0061":[{"a":1}],"a":"}"}`, "m", []func(*Asked){set("a", "0")}, `{"a":0,"model":"m"}`},
		{`{"\u0061":1,"model":"m","a":2}`, "m", []func(*Asked){set("a", "0")}, `{"\u0061":0,"model":"m"}`},
		{`{"a":1,"model":"m","\u0061":[{"a":1}],"a":"}","b":{"a":1}}`, "m", []func(*Asked){del("a")}, `{"model":"m","b":{"a":1}}`},
		{`{"a":1,"model":"m"}`, "m", []func(*Asked){del("model"), del("a")}, `{}`},
		{`{"a":1,"model":"m"}`, "m", []func(*Asked){del("model"), del("a"), set("b", "1")}, `{"b":1}`},
		{`{"a":1,"model":"m"}`, "m", []func(*Asked){del("a"), set("a", "2"), set("c", "1"), del("c"), del("d")}, `{"a":2,"model":"m"}`},
		{`{"s":"\ud800","model":"m","s\ud800":1.0e2,"a":null}`, "m", []func(*Asked){del("a"), set("s\ufffd", "7")}, `{"s":"\ud800","model":"m","s\ud800":7}`},
	} {
		h := askedHead(t, x.body)
		a := h.Ask()
		for _, edit := range x.edits {
			edit(a)
		}
		if got := string(a.Splice(x.model)); got != x.want {
			t.Errorf("%s became %s, want %s", x.body, got, x.want)
		}
		if got := string(a.Splice(x.model)); got != x.want { // of each attempt
			t.Errorf("%s became %s the second time, want %s", x.body, got, x.want)
		}
		if string(h.Body) != x.body {
			t.Errorf("%s itself was changed: %s", x.body, h.Body)
		}
	}
}

// A prefill engine is asked for one id in one piece, in the field that the caller used.
func TestFirstID(t *testing.T) {
	for _, x := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":77,"n":1,"min_tokens":5}`, `{"model":"m","max_completion_tokens":1}`},
		{"/v1/chat/completions", `{"model":"m","max_tokens":7}`, `{"model":"m","max_tokens":1}`},
		{"/v1/chat/completions", `{"model":"m","max_tokens":7,"max_completion_tokens":null}`, `{"model":"m","max_tokens":1,"max_completion_tokens":1}`},
		{"/v1/chat/completions", `{"model":"m"}`, `{"model":"m","max_tokens":1}`},
		{"/v1/completions", `{"best_of":1,"model":"m","prompt":"a","max_completion_tokens":7}`, `{"model":"m","prompt":"a","max_completion_tokens":7,"max_tokens":1}`},
		{"/base/v1/messages", `{"model":"m","max_tokens":9,"stream":false}`, `{"model":"m","max_tokens":1}`},
		{"/v1/responses", `{"model":"m","max_tokens":9}`, `{"model":"m","max_tokens":9,"max_output_tokens":1}`},
		{"/v1/embeddings", `{"model":"m","stream":true}`, ""},
		{"/v1/chat/completions/batch", `{"model":"m","stream":true}`, ""},
	} {
		a := askedHead(t, x.body).Ask()
		ok := a.FirstID(x.path)
		if want := x.want != ""; ok != want {
			t.Errorf("%s: %v, want %v", x.path, ok, want)
		}
		if x.want == "" {
			x.want = x.body
		}
		if got := string(a.Splice("m")); got != x.want {
			t.Errorf("%s: %s became %s, want %s", x.path, x.body, got, x.want)
		}
	}
}

// For any body and any fields to set or remove: the result has each field that was set once, none
// that was removed, and every other field in its place with all its bytes.
func FuzzAsked(f *testing.F) {
	for _, body := range []string{
		`{"model":"m"}`, `{"a":9007199254740993,"model" :  "m\u0065" ,"b":[1.0,{"<":null}],"b":2}`,
		"{\r\n\t\"model\":\"\\n\",\"x\":\"\\ud800\" , \"\\u0061\":{} }", ` { "a" : "\"}," , "a":1 ,"model":"m","stream":true } `,
	} {
		f.Add([]byte(body), "a", "b", "x")
	}
	f.Fuzz(func(t *testing.T, body []byte, set, del, model string) {
		h, err := ParseHead(bytes.Clone(body), NewNames("model"), func(*Head, string, []byte) error { return nil })
		if err != nil || h.NeedModel() != nil || set == "model" || del == "model" || set == del || model == "" || len(h.Fields) > MaxFields-1 {
			return
		}
		set, del, model = strings.ToValidUTF8(set, "?"), strings.ToValidUTF8(del, "?"), strings.ToValidUTF8(model, "?")
		if set == del || set == "model" || del == "model" {
			return
		}
		a := h.Ask()
		a.Set(set, `{"new" : [1]}`)
		a.Delete(del)
		out := a.Splice(model)
		if !bytes.Equal(h.Body, body) {
			t.Fatal("the body itself was changed")
		}
		again, err := ParseHead(out, NewNames("model"), func(*Head, string, []byte) error { return nil })
		if err != nil {
			t.Fatalf("%q became %q: %v", body, out, err)
		}
		if again.Model != model {
			t.Fatalf("%q became %q", body, out)
		}
		var want []string
		there := false
		for _, f := range h.Fields {
			value := string(h.Body[f.Start:f.End])
			switch f.Name {
			case del:
				continue
			case set:
				if there {
					continue
				}
				there, value = true, `{"new" : [1]}`
			case "model":
				if model != h.Model {
					value = string(AppendString(nil, model))
				}
			}
			want = append(want, fmt.Sprintf("%q %s", f.Name, value))
		}
		if !there {
			want = append(want, fmt.Sprintf("%q %s", set, `{"new" : [1]}`))
		}
		var got []string
		for _, f := range again.Fields {
			got = append(got, fmt.Sprintf("%q %s", f.Name, out[f.Start:f.End]))
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q became %q: %q, want %q", body, out, got, want)
		}
		// With nothing set, nothing is taken from the spaces between either.
		if same := h.Ask().Splice(h.Model); !bytes.Equal(same, body) {
			t.Fatalf("%q became %q untouched", body, same)
		}
	})
}

// The halves of a body for SGLang differ in how they are answered, and meet in one place.
func TestMeet(t *testing.T) {
	b := infer.Bootstrap{Host: `a"b`, Port: 8998, Room: 1<<63 - 1, Rank: -1}
	const body, meet = `{"stream":true,"model":"m","bootstrap_room":4,"stream_options":{"include_usage":true},"n":1}`, `"bootstrap_host":"a\"b","bootstrap_port":8998`
	for role, want := range map[infer.Role]string{
		infer.RolePrefill: `{"model":"m","bootstrap_room":9223372036854775807,"n":1,` + meet + `}`,
		infer.RoleDecode:  `{"stream":true,"model":"m","bootstrap_room":9223372036854775807,"stream_options":{"include_usage":true},"n":1,` + meet + `}`,
	} {
		a := askedHead(t, body).Ask()
		if a.Meet(role, b); string(a.Splice("m")) != want {
			t.Errorf("%v: %s, want %s", role, a.Splice("m"), want)
		}
	}
}
