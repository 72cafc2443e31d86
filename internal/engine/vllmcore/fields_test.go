package vllmcore

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"weir/internal/infer"
)

// wireFields are the fields of a request as clients write them. What is about no
// field of a client's is empty.
var wireFields = map[string]string{
	"ID": "", "Model": "", "Prompt": "",
	"MaxTokens": "max_tokens", "MinTokens": "min_tokens", "IgnoreEOS": "ignore_eos", "StopIDs": "stop_token_ids",
	"Temperature": "temperature", "TopP": "top_p", "TopK": "top_k", "Seed": "seed",
}

// TestEveryFieldReachesTheWire fails for a field that is added to infer.Request and
// forgotten here: it must change what is written, or be refused by check. And it
// must stand in docs/engines.md.
func TestEveryFieldReachesTheWire(t *testing.T) {
	table, err := os.ReadFile("../../../docs/engines.md")
	if err != nil {
		t.Fatal(err)
	}
	base := func() *infer.Request { return &infer.Request{ID: "a", Prompt: []uint32{1}, MaxTokens: 8} }
	o := &Options{EndIDs: []uint32{2}}
	plain := appendAdd(nil, base(), o, 1)
	try := func(name string, set func(r *infer.Request) reflect.Value) {
		field, known := wireFields[name]
		if !known {
			t.Errorf("infer.Request has a new field %s: carry it or refuse it by name (check), and say so in docs/engines.md", name)
			return
		}
		if field != "" && !strings.Contains(string(table), "| `"+field+"` | carried") {
			t.Errorf("docs/engines.md has no row for %s", field)
		}
		if name == "Model" { // the engine serves one and is not told
			return
		}
		req := base()
		v := set(req)
		fill(t, v)
		if e := check(req); e != nil {
			if e.Param != field {
				t.Errorf("%s is refused as %q", name, e.Param)
			}
			return
		}
		if bytes.Equal(appendAdd(nil, req, o, 1), plain) {
			t.Errorf("%s changes nothing on the wire, and is not refused", name)
		}
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[infer.Request]()) {
		if f.Name == "Sampling" {
			continue
		}
		try(f.Name, func(r *infer.Request) reflect.Value { return reflect.ValueOf(r).Elem().FieldByIndex(f.Index) })
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[infer.Sampling]()) {
		try(f.Name, func(r *infer.Request) reflect.Value {
			return reflect.ValueOf(&r.Sampling).Elem().FieldByIndex(f.Index)
		})
	}
}

// fill sets a value that a client may send and that is no default.
func fill(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0))
	case reflect.String:
		v.SetString("b")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64, reflect.Float32:
		v.SetFloat(0.25)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(5)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(5)
	case reflect.Struct, reflect.Map, reflect.Interface:
		t.Fatalf("a field of type %v: teach fill to set it", v.Type())
	default:
		t.Fatalf("a field of kind %v", v.Kind())
	}
}
