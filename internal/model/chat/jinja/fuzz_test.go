package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzTemplate parses and renders any text: no panic, no endless work, and
// every failure an *Error.
func FuzzTemplate(f *testing.F) {
	paths, err := filepath.Glob("../testdata/templates/*.jinja")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no templates: %v", err)
	}
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(raw))
	}
	raw, err := os.ReadFile("testdata/snippets.golden.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for dec := json.NewDecoder(bytes.NewReader(raw)); dec.More(); {
		var row struct{ Source string }
		if err := dec.Decode(&row); err != nil {
			f.Fatal(err)
		}
		f.Add(row.Source)
	}
	vars, err := os.ReadFile("testdata/vars.json")
	if err != nil {
		f.Fatal(err)
	}
	decoded, err := DecodeJSON(vars)
	if err != nil {
		f.Fatal(err)
	}
	m := map[string]Value{"bos_token": Str("<s>"), "add_generation_prompt": Bool(true)}
	for k, v := range decoded.(*Dict).All() {
		m[k] = v
	}
	f.Fuzz(func(t *testing.T, source string) {
		tmpl, err := Parse(source)
		var e *Error
		if err != nil {
			if !errors.As(err, &e) {
				t.Fatalf("not an *Error: %v", err)
			}
			return
		}
		out, err := tmpl.Render(nil, m, Options{MaxSteps: 100_000, MaxAlloc: 1 << 24, MaxOutput: 1 << 20, Now: now()})
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("not an *Error: %v", err)
		}
		again, err2 := tmpl.Render(nil, m, Options{MaxSteps: 100_000, MaxAlloc: 1 << 24, MaxOutput: 1 << 20, Now: now()})
		if string(out) != string(again) || (err == nil) != (err2 == nil) {
			t.Fatalf("two renderings differ:\n%q, %v\n%q, %v", out, err, again, err2)
		}
	})
}

// FuzzDecodeJSON holds what tojson prints of decoded JSON to be the same
// JSON once decoded again.
func FuzzDecodeJSON(f *testing.F) {
	for _, s := range []string{`{"a": [1, 2.5, "x\u00e9\n", null, true, 12345678901234567890]}`, `[1e400, -0.0, 1E5]`, `"`, `{"a":1,"a":2}`} {
		f.Add(s)
	}
	tmpl, err := Parse("{{ v|tojson }}")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := DecodeJSON([]byte(s))
		if err != nil {
			return
		}
		one, err := tmpl.Render(nil, map[string]Value{"v": v}, Options{})
		if err != nil {
			t.Fatalf("cannot print what was decoded from %q: %v", s, err)
		}
		v, err = DecodeJSON(one)
		if err != nil {
			if !bytes.Contains(one, []byte("Infinity")) {
				t.Fatalf("cannot read back %q: %v", one, err)
			}
			return
		}
		two, err := tmpl.Render(nil, map[string]Value{"v": v}, Options{})
		if err != nil || string(one) != string(two) {
			t.Fatalf("%q became %q, %v", one, two, err)
		}
	})
}
