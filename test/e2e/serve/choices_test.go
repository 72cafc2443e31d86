package serve

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// scoredAnswer is what an answer says of its choices, streamed or whole.
type scoredAnswer struct {
	texts   []string
	bytes   []string // of the entries, put together
	values  [][]float64
	tops    int // alternatives in all
	finish  []string
	tokens  int // completion_tokens
	prompts int
}

// readScored reads an answer of n choices to a chat.
func readScored(t *testing.T, a harness.Answer, n int) scoredAnswer {
	t.Helper()
	if a.Status != 200 || a.Err != nil {
		t.Fatalf("status %d, %v: %s", a.Status, a.Err, a.Body)
	}
	out := scoredAnswer{texts: make([]string, n), bytes: make([]string, n), values: make([][]float64, n), finish: make([]string, n)}
	docs := []string{string(a.Body)}
	if rest, ok := strings.CutSuffix(string(a.Body), "data: [DONE]\n\n"); ok {
		docs = strings.Split(strings.TrimSuffix(rest, "\n\n"), "\n\n")
	}
	for _, doc := range docs {
		var o struct {
			Choices []struct {
				Index          int
				Delta, Message struct{ Content string }
				Logprobs       *struct {
					Content []struct {
						Token   string
						Logprob float64
						Bytes   []int
						Top     []struct{ Logprob float64 } `json:"top_logprobs"`
					}
				}
				FinishReason *string `json:"finish_reason"`
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(doc, "data: ")), &o); err != nil {
			t.Fatalf("%v: %s", err, doc)
		}
		for _, c := range o.Choices {
			i := c.Index
			out.texts[i] += c.Delta.Content + c.Message.Content
			if c.FinishReason != nil {
				out.finish[i] = *c.FinishReason
			}
			if c.Logprobs == nil {
				continue
			}
			for _, e := range c.Logprobs.Content {
				for _, b := range e.Bytes {
					out.bytes[i] += string([]byte{byte(b)})
				}
				out.values[i] = append(out.values[i], e.Logprob)
				out.tops += len(e.Top)
			}
		}
		if o.Usage != nil {
			out.tokens, out.prompts = o.Usage.Completion, o.Usage.Prompt
		}
	}
	return out
}

// Over every wire that carries ids, streamed and whole: n choices are n answers,
// each that of its seed, and each token has its log probability, the same on every
// wire.
func TestChoicesAndLogprobs(t *testing.T) {
	harness.Beside(t, harness.Light)
	const tokens, n, top = 12, 3, 2
	var first *scoredAnswer
	for _, path := range []string{"plane", "sglang", "sglang incremental", "vllm", "vllm scale-out"} {
		kind, way, _ := strings.Cut(path, " ")
		var args []string
		switch way {
		case "incremental":
			args = append(args, "--incremental-streaming-output")
		case "scale-out":
			args = append(args, "--enable-scale-out")
		}
		engine := harness.StartSim(t, slices.Concat(harness.FastSim, args)...)
		g := harness.StartGateway(t, "serve", "--engine", engine.Spec(kind))
		ask := func(n, seed int, stream bool) scoredAnswer {
			return readScored(t, harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(
				`{"model":"weir-sim","messages":[{"role":"user","content":"Of weirs."}],"max_tokens":%d,"ignore_eos":true,"seed":%d,"n":%d,"stream":%t,"logprobs":true,"top_logprobs":%d%s}`,
				tokens, seed, n, stream, top, map[bool]string{true: `,"stream_options":{"include_usage":true}`}[stream])), n)
		}
		whole := ask(n, 7, false)
		for i := range n {
			if len(whole.values[i]) != tokens || whole.bytes[i] != whole.texts[i] || whole.finish[i] != "length" {
				t.Errorf("%s, choice %d: %d entries with %q, text %q, finish %q", path, i, len(whole.values[i]), whole.bytes[i], whole.texts[i], whole.finish[i])
			}
			alone := ask(1, 7+i, i%2 == 0)
			if kind == "plane" && alone.texts[0] != whole.texts[i] { // whose engine heeds a seed
				t.Errorf("%s, choice %d: %q, alone %q", path, i, whole.texts[i], alone.texts[0])
			}
		}
		if whole.tokens != n*tokens || whole.tops != n*tokens*top || whole.prompts == 0 {
			t.Errorf("%s: %d tokens, %d alternatives, prompt %d", path, whole.tokens, whole.tops, whole.prompts)
		}
		streamed := ask(n, 7, true)
		if fmt.Sprint(streamed) != fmt.Sprint(whole) {
			t.Errorf("%s: streamed %+v\nwhole %+v", path, streamed, whole)
		}
		if first == nil {
			first = &whole
		} else if first.texts[0] != whole.texts[0] || !slices.Equal(first.values[0], whole.values[0]) {
			t.Errorf("%s: %v, on the first wire %v", path, whole.values[0], first.values[0])
		}
		if ended := g.Balanced(); ended["finished"] != 2+n {
			t.Errorf("%s: ended %v", path, ended)
		}
		if s := harness.EngineState(t, engine.Admin); s.Received != n+n+n || s.Finished != s.Received || s.Running != 0 {
			t.Errorf("%s: the engine's own counts %+v", path, s)
		}
		g.Interrupt()
	}
}
