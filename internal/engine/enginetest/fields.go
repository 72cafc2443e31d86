package enginetest

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
	"Temperature": "temperature", "TopP": "top_p", "TopK": "top_k", "Seed": "seed", "MinP": "min_p",
	"PresencePenalty": "presence_penalty", "FrequencyPenalty": "frequency_penalty", "RepetitionPenalty": "repetition_penalty",
	"LogitBias": "logit_bias", "Guide": "response_format", "Logprobs": "logprobs", "LogprobsFrom": "logprob_start_len", "Media": "image_url", "ToContext": "", "Priority": "priority",
	"Half": "half of a pair", "Portion": "an answer that is not streamed", "CacheSalt": "cache_salt",
}

// picture is the beginning of an image.
var picture = []infer.Media{{Kind: infer.MediaImage, Type: "image/png", Data: []byte("iVBORw==")}}

// Fields holds an adapter and docs/engines.md to infer.Request: each field
// changes what is written to the wire, or is refused with its name, and the
// table's column of this kind says which. It fails for a field that is added to
// Request and forgotten. table is the path of docs/engines.md.
func Fields(t *testing.T, table, kind string, write func(req *infer.Request) ([]byte, *infer.Error)) {
	t.Helper()
	says := column(t, table, kind)
	base := func() *infer.Request { return &infer.Request{ID: "a", Model: "m", Prompt: []uint32{1}, MaxTokens: 8} }
	plain, bad := write(base())
	if bad != nil {
		t.Fatal(bad)
	}
	try := func(name string, set func(r *infer.Request) reflect.Value) {
		field, known := wireFields[name]
		if !known {
			t.Errorf("infer.Request has a new field %s: carry it or refuse it by name, and say so in docs/engines.md", name)
			return
		}
		if name == "Model" { // not every wire tells it
			return
		}
		req, plain := base(), plain
		switch name {
		case "Media":
			req.Media = picture
		case "Half":
			req.Half = &infer.Half{Role: infer.RoleDecode, Bootstrap: infer.Bootstrap{Host: "b", Port: 5, Room: 5, Rank: 5}, Params: []byte(`{}`)}
		case "LogprobsFrom":
			req.Logprobs = new(int)
			if plain, bad = write(req); bad == nil {
				req.LogprobsFrom = new(int)
			}
		case "ToContext":
			req.Media = picture
			var bad *infer.Error
			if plain, bad = write(req); bad != nil {
				return // it is of no use without
			}
			req.ToContext = true
		default:
			fill(t, set(req))
		}
		wrote, bad := write(req)
		switch {
		case bad != nil && field == "":
			t.Errorf("%s is refused: %v", name, bad)
		case bad != nil && !strings.HasPrefix(says[field], "refused"):
			t.Errorf("%s is refused (%v), and docs/engines.md says of %s that it is %q", name, bad, field, says[field])
		case bad != nil:
		case bytes.Equal(wrote, plain) && name == "Portion":
			if !strings.HasPrefix(says[field], "every id") {
				t.Errorf("%s changes nothing on the wire, and docs/engines.md says of %s that it is %q", name, field, says[field])
			}
		case bytes.Equal(wrote, plain):
			t.Errorf("%s changes nothing on the wire, and is not refused", name)
		case field != "" && !strings.HasPrefix(says[field], "carried"):
			t.Errorf("%s is carried, and docs/engines.md says of %s that it is %q", name, field, says[field])
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

// column reads what the table of fields says of an engine kind, by field.
func column(t *testing.T, path, kind string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	says, at := map[string]string{}, 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case cells[0] == "field":
			for i, c := range cells {
				if c == kind {
					at = i
				}
			}
		case at > 0 && len(cells) > at:
			says[strings.Trim(cells[0], "`")] = cells[at]
		}
	}
	if at == 0 {
		t.Fatalf("%s has no table with a column %s", path, kind)
	}
	return says
}

// fill sets a value that a client may send and that is no default.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.String:
		v.SetString("b")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64, reflect.Float32:
		v.SetFloat(0.25)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(5)
	case reflect.Uint8:
		// A kind, whose first is as good as any.
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(5)
	default:
		t.Fatalf("a field of type %v: teach fill to set it", v.Type())
	}
}
