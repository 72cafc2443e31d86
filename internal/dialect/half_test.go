package dialect

import (
	"testing"

	"weir/internal/infer"
)

// A body becomes that of either half, and nothing of what a caller sent in the way of
// where halves meet is left, however it is spelled.
func TestHalf(t *testing.T) {
	const body = `{"model":"m","kv_transfer_params":{"do_remote_prefill":true},"prompt":"a","\u006bv_transfer_params":null,"max_tokens":9,"stream":true}`
	for _, x := range []struct {
		half infer.Half
		path string
		want string
	}{
		{infer.Half{Role: infer.RolePrefill, Params: []byte(`{"do_remote_decode":true}`)}, "/v1/completions", `{"model":"m","kv_transfer_params":{"do_remote_decode":true},"prompt":"a","max_tokens":1}`},
		{infer.Half{Role: infer.RoleDecode, Params: []byte(`{"remote_port": 1}`)}, "/v1/completions", `{"model":"m","kv_transfer_params":{"remote_port": 1},"prompt":"a","max_tokens":9,"stream":true}`},
		{infer.Half{Role: infer.RoleDecode, Params: []byte(`{}`)}, "/v1/other", `{"model":"m","kv_transfer_params":{},"prompt":"a","max_tokens":9,"stream":true}`},
		{infer.Half{Role: infer.RoleDecode}, "/v1/completions", `{"model":"m","prompt":"a","max_tokens":9,"stream":true}`},
		{infer.Half{Role: infer.RolePrefill, Params: []byte(`{}`)}, "/v1/other", ""},
	} {
		a := askedHead(t, body).Ask()
		if ok := a.Half(&x.half, x.path); ok != (x.want != "") {
			t.Errorf("%+v: %v", x.half, ok)
		}
		if got := string(a.Splice("m")); x.want != "" && got != x.want {
			t.Errorf("%s, want %s", got, x.want)
		}
	}
}

func TestPrefillAnswer(t *testing.T) {
	for answer, want := range map[string]string{
		` {"id":"cmpl-1","choices":[{"kv_transfer_params":{"a":1}}],"kv_transfer_params": {"remote_block_ids" : [[1, 2]], "x":"}"} , "usage":null} `: `{"remote_block_ids" : [[1, 2]], "x":"}"}`,
		`{"\u006bv_transfer_params":{"a":1}}`: `{"a":1}`,
		`{"kv_transfer_params":null}`:         "",
		`{"kv_transfer_params":[1]}`:          "",
		`{"choices":[]}`:                      "",
		`{"kv_transfer_params":{"a":1}`:       "", // cut
		`[{"kv_transfer_params":{}}]`:         "",
		`not JSON`:                            "",
		"":                                    "",
		" ":                                   "",
		`"`:                                   "",
	} {
		if _, _, got := PrefillAnswer([]byte(answer)); string(got) != want {
			t.Errorf("%s: %s, want %s", answer, got, want)
		}
	}
	for answer, want := range map[string]infer.Usage{
		`{"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4}},"kv_transfer_params":null}`: {PromptTokens: 9, CompletionTokens: 1, CachedTokens: 4},
		`{"choices":[{"usage":{"prompt_tokens":3}}],"usage":{"prompt_tokens":9}}`:                                                   {PromptTokens: 9, CachedTokens: -1},
		`{"usage":{"prompt_tokens":"nine"}}`: {},
		`{"usage":[9]}`:                      {},
		`{"usage":{"prompt_tokens":9}`:       {},
	} {
		if got, stated, _ := PrefillAnswer([]byte(answer)); got != want || stated != (want != infer.Usage{}) {
			t.Errorf("%s: %+v, %t; want %+v", answer, got, stated, want)
		}
	}
}
