package engines

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// scoredMembers are what an answer of /generate says of ids, beside what differs from request to
// request.
var scoredMembers = []string{"prompt_tokens", "completion_tokens", "finish_reason", "input_token_logprobs", "input_top_logprobs", "output_token_logprobs", "output_top_logprobs"}

// scoredAnswers returns what the answers to a request of /generate say, by their place in a list and
// the number of their ids, which tells the events of a stream apart.
func scoredAnswers(t *testing.T, url, body string) map[string]any {
	t.Helper()
	a := harness.Post(t, url+"/generate", body)
	if a.Status != http.StatusOK {
		t.Fatalf("%s: %d %s", body, a.Status, a.Body)
	}
	answers := map[string]any{}
	for part := range strings.SplitSeq(strings.TrimSpace(string(a.Body)), "\n\n") {
		data := strings.TrimPrefix(part, "data: ")
		if data == "[DONE]" {
			continue
		}
		var list []map[string]any
		if data[0] != '[' {
			data = "[" + data + "]"
		}
		if err := json.Unmarshal([]byte(data), &list); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		for i, o := range list {
			meta, _ := o["meta_info"].(map[string]any)
			says := map[string]any{"text": o["text"], "output_ids": o["output_ids"]}
			for _, name := range scoredMembers {
				if v, ok := meta[name]; ok {
					says[name] = v
				}
			}
			answers[fmt.Sprint(i, " ", meta["completion_tokens"])] = says
		}
	}
	return answers
}

// The log probabilities of a prompt come through weir as the engine itself tells them, streamed
// and not, from an engine that serves requests whole and from a pair, whose prefill engine alone
// has them.
func TestPromptScores(t *testing.T) {
	harness.Beside(t, harness.Light)
	c := startCouple(t, "sglang")
	alone := startHalf(t, "sglang", "")
	one := harness.StartGateway(t, "serve", "--engine", "sglang="+alone.url)
	asked := 0
	for _, ask := range []string{
		`"text":"Once upon a time","logprob_start_len":0,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}`,
		`"text":"Once upon a time","logprob_start_len":0,"top_logprobs_num":2,"return_text_in_logprobs":true,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}`,
		`"input_ids":[11,12,13,14],"logprob_start_len":3,"sampling_params":{"max_new_tokens":5,"ignore_eos":true}`,
		`"input_ids":[11,12,13,14],"logprob_start_len":1,"sampling_params":{"max_new_tokens":0}`,
		`"text":["Once upon","a time there was"],"logprob_start_len":1,"sampling_params":{"max_new_tokens":4,"ignore_eos":true}`,
	} {
		for _, stream := range []string{"false", "true"} {
			if stream == "true" && strings.Contains(ask, "[\"Once") {
				continue // whose events the simulated engine merges in its own way
			}
			body := `{"return_logprob":true,"stream":` + stream + `,` + ask + `}`
			want := scoredAnswers(t, alone.url, body)
			for name, url := range map[string]string{"a pair": c.URL, "one engine": one.URL} {
				// Events of a busy machine may have met, on either side; those that both have say the
				// same, and the last one is among them.
				got := scoredAnswers(t, url, body)
				last := slices.Max(slices.Collect(maps.Keys(want)))
				if got[last] == nil || stream == "false" && len(got) != len(want) {
					t.Errorf("%s, %s: %d answers, want %d, and %q", body, name, len(got), len(want), last)
				}
				for n, says := range got {
					if own, ok := want[n]; ok && !reflect.DeepEqual(says, own) {
						t.Errorf("%s: %s says\n%v\nthe engine itself\n%v", body, name, says, own)
					}
				}
			}
			asked++
		}
	}
	c.free(t)
	if ended := c.Balanced(); ended["finished"] != asked {
		t.Errorf("ended %v of %d", ended, asked)
	}
	a := harness.Post(t, c.URL+"/generate", `{"input_ids":[11,12],"return_logprob":true,"logprob_start_len":2}`)
	if a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "input_ids has 2 tokens, so that it may be at most 1") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	one.Interrupt()
	alone.Interrupt()
	c.end()
}
