package completion

import (
	"testing"

	"weir/internal/infer"
	"weir/internal/sim/simserver/exchange/exchangetest"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/web"
)

// FuzzDecode reads any body as a completion: it is refused with an error for
// the caller or gives prompts, never anything else.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"prompt":[[1,2],"a"],"stop":["x","y"],"n":2,"max_tokens":3,"unknown":{"a":null}}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":"hi"}],"stop":"x","max_completion_tokens":null}`))
	f.Add([]byte(`{"prompt":null,"stop":null}`))
	_, v := exchangetest.Engine(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		forCaller := func(err error) {
			if err != nil && infer.AsError(err).Code != infer.CodeInvalid {
				t.Fatalf("%q: %v is not the caller's", body, err)
			}
		}
		var req Request
		if err := web.Decode(body, &req); err != nil {
			forCaller(err)
			return
		}
		n, err := req.limit()
		forCaller(err)
		if err == nil && n < 0 {
			t.Fatalf("%q: limit %d", body, n)
		}
		stops, err := fields.Stops(req.Stop)
		forCaller(err)
		for _, s := range stops {
			if s == "" {
				t.Fatalf("%q: an empty stop string", body)
			}
		}
		_, err = v.Prompts("prompt", req.Prompt)
		forCaller(err)
		_, err = v.Chat(t.Context(), "", req.Messages, req.Offered(), req.TemplateKwargs)
		forCaller(err)
	})
}
