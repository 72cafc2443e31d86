package relay

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// Turns of conversations go to the engine that has their beginning, also over relayed engines,
// for which weir has only the text of the prompts. The cached tokens that engines report are
// clearly more than with round-robin.
func TestRelayedConversationsStay(t *testing.T) {
	harness.Beside(t, harness.Light)
	// A busy machine makes an engine slow for a while, so that it costs more or is avoided.
	harness.OnceOf(t, 4, func() string {
		share := map[string]float64{}
		for _, policy := range []string{"cost", "round-robin"} {
			args := []string{"serve", "--policy", policy}
			for range 2 {
				url, _ := harness.StartWire(t, "openai", append([]string{"--max-total-tokens", "400000"}, harness.FastSim...)...)
				args = append(args, "--engine", "openai="+url)
			}
			g := harness.StartGateway(t, args...)
			harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
			share[policy] = converse(t, g)
			g.Balanced()
			g.Interrupt()
		}
		said := fmt.Sprintf("of the prompts' tokens the engines had %.2f by cost, and %.2f by turns", share["cost"], share["round-robin"])
		if share["cost"] < 0.6 || share["cost"] < share["round-robin"]+0.15 {
			return said
		}
		t.Log(said)
		return ""
	})
}

// converse has conversations whose turns alternate, and gives the share of their prompts
// that engines had. Bodies spell the same in several ways, and half of the answers are
// streamed.
func converse(t *testing.T, g *harness.Gateway) float64 {
	// An odd number, so that by turns a conversation comes to another engine each time.
	const conversations, turns = 7, 5
	dialog := make([]string, conversations)
	for i := range dialog {
		dialog[i] = fmt.Sprintf(`{"role":"system","content":"%s"}`, strings.Repeat(fmt.Sprintf(`You help customer %d of the shop.\n`, 1000+i), 60))
	}
	prompt, cached := 0, 0
	for turn := range turns {
		for i := range dialog {
			dialog[i] += fmt.Sprintf(`,{"role":"user","content":"%s"}`, strings.Repeat(fmt.Sprintf("Question %d. ", turn), 60))
			body := fmt.Sprintf(`{"model":"weir-sim","messages":[%s],"max_tokens":16,"ignore_eos":true}`, dialog[i])
			switch turn % 3 {
			case 1:
				body = fmt.Sprintf(`{"stream":true,"stream_options":{"include_usage":true},"max_tokens":16,"ignore_eos":true,"temperature":0.5,
					"messages": [%s], "model":"weir-sim"}`, strings.ReplaceAll(dialog[i], "You help", `\u0059ou \u0068elp`))
			case 2:
				body = fmt.Sprintf(`{"messages":[%s],"user":"u","model":"weir-sim","max_tokens":16,"ignore_eos":true}`, strings.ReplaceAll(dialog[i], `"role":"system","content"`, `"name":null,"content"`))
				body = strings.Replace(body, `"},{"role":"user"`, `","role":"system"},{"role":"user"`, 1)
			}
			a := harness.Post(t, g.URL+"/v1/chat/completions", body)
			if a.Status != 200 || a.Err != nil {
				t.Fatalf("status %d, %v: %.300s", a.Status, a.Err, a.Body)
			}
			text := ""
			for line := range strings.Lines(string(a.Body)) {
				line = strings.TrimSpace(strings.TrimPrefix(line, "data: "))
				if !strings.HasPrefix(line, "{") {
					continue
				}
				var said struct {
					Choices []struct{ Message, Delta struct{ Content string } }
					Usage   *struct {
						Prompt  int `json:"prompt_tokens"`
						Details struct {
							Cached int `json:"cached_tokens"`
						} `json:"prompt_tokens_details"`
					}
				}
				if err := json.Unmarshal([]byte(line), &said); err != nil {
					t.Fatalf("%v in %s", err, line)
				}
				for _, c := range said.Choices {
					text += c.Message.Content + c.Delta.Content
				}
				if said.Usage != nil {
					prompt += said.Usage.Prompt
					cached += said.Usage.Details.Cached
				}
			}
			content, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			dialog[i] += fmt.Sprintf(`,{"role":"assistant","content":%s}`, content)
		}
	}
	if prompt == 0 {
		t.Fatal("no engine said how long prompts are")
	}
	return float64(cached) / float64(prompt)
}
