package sglang

import (
	"testing"

	"weir/internal/infer"
	"weir/internal/sim/simserver/exchange/exchangetest"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/web"
)

// FuzzGenerate reads any body as a request to /generate: it is refused with an
// error for the caller or gives items whose lists fit together.
func FuzzGenerate(f *testing.F) {
	f.Add([]byte(`{"text":["a","b"],"rid":["x","y"],"sampling_params":[{"n":1},{"max_new_tokens":0}],"return_logprob":[true,false]}`))
	f.Add([]byte(`{"input_ids":[[1,2],[3]],"rid":"x","sampling_params":{"n":3,"stop":["a"],"logit_bias":{"1":2}},"lora_path":[null,null]}`))
	f.Add([]byte(`{"input_ids":[1,2],"sampling_params":{"json_schema":"{}","temperature":0},"token_ids_logprob":[[1,2]],"top_logprobs_num":2}`))
	f.Add([]byte(`{"text":"a","sampling_params":null,"stream":true,"logprob_start_len":0}`))
	run, v := exchangetest.Engine(f)
	s := New(run, v, &flags.SGLang{})
	f.Fuzz(func(t *testing.T, body []byte) {
		var req generateRequest
		err := web.Decode(body, &req)
		var items []item
		if err == nil {
			items, _, err = s.items(t.Context(), "", &req)
		}
		if err != nil {
			if code := infer.AsError(err).Code; code != infer.CodeInvalid && code != infer.CodeContext {
				t.Fatalf("%q: %v is not the caller's", body, err)
			}
			return
		}
		if len(items) == 0 || len(items) > fields.MaxChoices {
			t.Fatalf("%q: %d items", body, len(items))
		}
		for i := range items {
			if it := &items[i]; it.limit < 0 || it.params.MaxTokens < 1 || it.top < 0 || it.start < -1 {
				t.Fatalf("%q: item %+v", body, it)
			}
		}
	})
}
