package simserver

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-json-experiment/json"

	"weir/internal/sim/simserver/flags"
)

const generatePath = "/inference/v1/generate"

// said posts to the vllm server and gives the answer as it came.
func (b *bench) said(path, body string) (status int, text string) {
	b.t.Helper()
	resp, err := b.client.Post(b.vllm+path, "application/json", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

// idsGenerated is an event or an answer of /inference/v1/generate.
type idsGenerated struct {
	RequestID string `json:"request_id"`
	Usage     *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
	Choices []struct {
		Index    int      `json:"index"`
		Finish   *string  `json:"finish_reason"`
		Stop     any      `json:"stop_reason"`
		TokenIDs []uint32 `json:"token_ids"`
		Logprobs *struct {
			Content []struct {
				ID    uint32  `json:"token_id"`
				Value float64 `json:"logprob"`
				Rank  int     `json:"rank"`
				Top   []struct {
					ID   uint32 `json:"token_id"`
					Rank int    `json:"rank"`
				} `json:"top_logprobs"`
			} `json:"content"`
		} `json:"logprobs"`
	} `json:"choices"`
}

// Without the flag the endpoint is forbidden, in the words of vLLM 0.32.
func TestGenerateIDsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		status, text := b.said(generatePath, `{"token_ids":[1]}`)
		const want = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
		var said struct {
			Error struct {
				Message, Type string
				Code          int
			}
		}
		if err := json.Unmarshal([]byte(text), &said, json.MatchCaseInsensitiveNames(true)); err != nil || status != 403 ||
			said.Error.Message != want || said.Error.Type != "PermissionDeniedError" || said.Error.Code != 403 {
			t.Errorf("%d %s, %v", status, text, err)
		}
	})
}

// The events of vLLM 0.32, byte for byte but for what a run decides.
func TestGenerateIDsShapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{VLLM: flags.VLLM{ScaleOut: true}})
		const request = `{"request_id":"r1","token_ids":[97,98,99],"sampling_params":{"max_tokens":4,"ignore_eos":true,"nonsense":1,"temperature":0}`
		status, text := b.said(generatePath, request+`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
		events := strings.Split(strings.TrimSpace(text), "\n\n")
		if status != 200 || len(events) < 3 || events[len(events)-1] != "data: [DONE]" {
			t.Fatalf("%d %s", status, text)
		}
		var ids []uint32
		for i, event := range events[:len(events)-2] {
			var g idsGenerated
			if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &g); err != nil {
				t.Fatal(err)
			}
			fresh := g.Choices[0].TokenIDs
			ids = append(ids, fresh...)
			finish := "null"
			if i == len(events)-3 {
				finish = `"length"`
			}
			list, _ := json.Marshal(fresh)
			want := fmt.Sprintf(`data: {"request_id":"generate-tokens-r1","usage":{"prompt_tokens":3,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null,"completion_tokens_details":null},"output_mode":"tokens","choices":[{"index":0,"finish_reason":%s,"stop_reason":null,"token_ids":%s,"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}]}`,
				3+len(ids), len(ids), finish, list)
			if event != want {
				t.Errorf("event %d:\n%s\n%s", i, event, want)
			}
		}
		if want := `data: {"request_id":"generate-tokens-r1","usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4},"output_mode":"tokens","choices":[]}`; events[len(events)-2] != want {
			t.Errorf("last event:\n%s\n%s", events[len(events)-2], want)
		}
		// A completion of the same ids has the same answer, whole and streamed.
		whole, _ := b.complete(b.vllm+"/v1/completions", `{"prompt":[97,98,99],"max_tokens":4,"ignore_eos":true,"return_token_ids":true}`)
		status, text = b.said(generatePath, request+`}`)
		var g idsGenerated
		if err := json.Unmarshal([]byte(text), &g); err != nil || status != 200 || g.Usage.Completion != 4 || *g.Choices[0].Finish != "length" {
			t.Fatalf("%d %s, %v", status, text, err)
		}
		if !slices.Equal(ids, whole[0].Choices[0].TokenIDs) || !slices.Equal(ids, g.Choices[0].TokenIDs) {
			t.Errorf("%v, %v and %v", ids, whole[0].Choices[0].TokenIDs, g.Choices[0].TokenIDs)
		}
	})
}

// Requests beside ids: log probabilities by id, several choices, a stop id, which is sent, and
// refusals by name.
func TestGenerateIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{VLLM: flags.VLLM{ScaleOut: true}})
		ask := func(rest string) (g idsGenerated) {
			t.Helper()
			status, text := b.said(generatePath, `{"token_ids":[97,98,99],`+rest+`}`)
			if err := json.Unmarshal([]byte(text), &g); err != nil || status != 200 {
				t.Fatalf("%d %s, %v", status, text, err)
			}
			return g
		}
		g := ask(`"sampling_params":{"max_tokens":5,"ignore_eos":true,"logprobs":2}`)
		first := g.Choices[0].TokenIDs
		scored := g.Choices[0].Logprobs.Content
		if len(scored) != 5 || scored[1].ID != first[1] || len(scored[1].Top) != 2 || scored[1].Top[0].ID != first[1] || scored[1].Top[1].Rank != 2 {
			t.Errorf("%+v", scored)
		}
		texts, _ := b.complete(b.vllm+"/v1/completions", `{"prompt":[97,98,99],"max_tokens":5,"ignore_eos":true,"logprobs":2,"return_tokens_as_token_ids":true}`)
		if l := texts[0].Choices[0].Logprobs; l.Tokens[1] != fmt.Sprint("token_id:", first[1]) || l.TokenLogprobs[1] != scored[1].Value || len(l.TopLogprobs[1]) != 2 {
			t.Errorf("%+v", l)
		}
		if g := ask(`"sampling_params":{"max_tokens":5,"ignore_eos":true,"n":3}`); len(g.Choices) != 3 || g.Usage.Completion != 15 || slices.Equal(g.Choices[0].TokenIDs, g.Choices[2].TokenIDs) {
			t.Errorf("%+v", g)
		}
		g = ask(fmt.Sprintf(`"sampling_params":{"max_tokens":5,"ignore_eos":true,"stop_token_ids":[%d]}`, first[2]))
		if at := slices.Index(first, first[2]); !slices.Equal(g.Choices[0].TokenIDs, first[:at+1]) || *g.Choices[0].Finish != "stop" || g.Choices[0].Stop != float64(first[2]) {
			t.Errorf("%+v", g)
		}
		for body, want := range map[string]string{
			`{}`:                                    "token_ids",
			`{"token_ids":[],"sampling_params":{}}`: "token_ids",
			`{"token_ids":[1]}`:                     "sampling_params",
			`{"token_ids":[1],"sampling_params":{},"output_mode":"text"}`:                  "output_mode",
			`{"token_ids":[4000000000],"sampling_params":{"max_tokens":1}}`:                "vocabulary",
			`{"token_ids":[1],"sampling_params":{"n":2,"temperature":0,"max_tokens":1}}`:   "n must be 1 when using greedy sampling, got 2",
			`{"token_ids":[1],"sampling_params":{"max_tokens":0}}`:                         "max_tokens",
			`{"token_ids":[1],"sampling_params":{"max_tokens":1},"model":"no such model"}`: "no such model",
		} {
			if status, text := b.said(generatePath, body); status/100 != 4 || !strings.Contains(text, want) {
				t.Errorf("%s: %d %s", body, status, text)
			}
		}
	})
}
