package openai

import (
	"encoding/json"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// FuzzRequest: no body panics, a refusal is coded, and what is accepted is in
// range and says what encoding/json reads in the body.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		chatBody(`"max_tokens":5,"stop":["a"],"stream":true,"stream_options":{"include_usage":true}`),
		chatBody(`"temperature":0.5,"top_p":0.9,"top_k":-1,"seed":7,"chat_template_kwargs":{"a":[1]},"tools":[],"user":"u"`),
		`{"model":"m","messages":[{"role":"assistant","content":[{"type":"text","text":"\ud83d\ude00"}],"tool_calls":[]},{"role":"user","content":"b","x":1}]}`,
		completionBody(`"logprobs":null,"n":1,"min_tokens":3,"stop_token_ids":[1,2]`),
		`{"model":"m","prompt":[1, 2 ,3]}`,
		`{"model":"m","prompt":[[1,2]]}`,
		`{"model":"m","prompt":["a","b"]}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, endpoint := range []Endpoint{Other, Chat, Completions} {
			r, err := decode(endpoint, string(body))
			if err != nil {
				var e *infer.Error
				if !errors.As(err, &e) || e.Code != infer.CodeInvalid && e.Code != infer.CodeUnsupported || e.Message == "" || !utf8.ValidString(e.Message+e.Param) || len(e.Message) > 4096 {
					t.Fatalf("error %#v", err)
				}
				continue
			}
			checkRequest(t, endpoint, r, body)
		}
	})
}

func checkRequest(t *testing.T, endpoint Endpoint, r *dialect.Request, body []byte) {
	t.Helper()
	var want map[string]any
	if err := json.Unmarshal(body, &want); err != nil {
		t.Fatalf("accepted %q: %v", body, err)
	}
	if r.Model != want["model"] {
		t.Fatalf("model %q in %q", r.Model, body)
	}
	if r.MaxTokens < 0 || r.MinTokens < 0 || r.MaxTokens > 0 && r.MinTokens > r.MaxTokens || len(r.Stop) > dialect.MaxStops || len(r.StopIDs) > dialect.MaxStopIDs {
		t.Fatalf("%+v", r)
	}
	if p := r.Sampling.Temperature; p != nil && (*p < 0 || *p > 2) {
		t.Fatalf("temperature %v", *p)
	}
	if p := r.Sampling.TopP; p != nil && (*p <= 0 || *p > 1) {
		t.Fatalf("top_p %v", *p)
	}
	if endpoint == Chat {
		var got any
		if err := json.Unmarshal(r.Messages, &got); err != nil {
			t.Fatalf("messages %q: %v", r.Messages, err)
		}
		if diff := cmp.Diff(want["messages"], got); diff != "" || len(got.([]any)) == 0 {
			t.Fatalf("messages of %q: %s", body, diff)
		}
		return
	}
	prompt := want["prompt"]
	if list, ok := prompt.([]any); ok {
		if _, ids := list[0].(float64); !ids {
			prompt = list[0]
		}
	}
	var got any = r.Prompt
	if r.PromptIDs != nil {
		ids := make([]any, len(r.PromptIDs))
		for i, id := range r.PromptIDs {
			ids[i] = float64(id)
		}
		got = ids
	}
	if diff := cmp.Diff(prompt, got); diff != "" || len(r.PromptIDs) == 0 && r.Prompt == "" {
		t.Fatalf("prompt of %q: %s", body, diff)
	}
}
