package change

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// A model with a folder is added over the admin listener and an engine for it by the command,
// then the model's folder changes, and both leave again. Meanwhile streams of another model go
// on, and so does a stream of the model that leaves.
func TestModelsUnderLoad(t *testing.T) {
	harness.Beside(t, harness.Light)
	// Prompts by the second folder are longer.
	first := harness.SimFolder(t, func(_, text string) string { return text })
	second := harness.SimFolder(t, func(file, text string) string {
		if file == "chat_template.jinja" {
			text = "ten more words stand before each chat of this one" + text
		}
		return text
	})
	g := harness.StartGateway(t, "serve", "--submit-timeout", harness.Unhurried, "--engine", harness.StartSim(t, engineFlags...).Spec("plane")+",name=a")
	b := harness.StartSim(t, append([]string{"--model", "other=" + first}, engineFlags...)...)
	harness.Eventually(t, "ready", func() bool { return stateOf(g, "a") == "ready" })
	stop := underLoad(t, g.URL, *streams, 40)

	for _, path := range []string{"sglang", "vllm", "plane"} {
		const chat = `{"model":"other","messages":[{"role":"user","content":"a b c"}],"ignore_eos":true,"max_tokens":5}`
		if a := harness.Post(t, g.URL+"/v1/chat/completions", chat); a.Status != http.StatusNotFound {
			t.Errorf("%s: before it is added: %d %s", path, a.Status, a.Body)
		}
		wants(g, "PUT", "/admin/models/other", map[string]any{"spec": "other=" + first})
		if out, stderr, code := harness.Finish(t, "", "engines", "add", b.Spec(path)+",name=b", "--admin", g.Admin); code != 0 {
			t.Fatalf("%s: add: %d %s %s", path, code, out, stderr)
		}
		harness.Eventually(t, "the engine of the model is ready", func() bool { return stateOf(g, "b") == "ready" })
		prompt := func() (n int) {
			t.Helper()
			a := harness.Post(t, g.URL+"/v1/chat/completions", chat)
			var answer struct {
				Usage struct {
					Prompt int `json:"prompt_tokens"`
					Output int `json:"completion_tokens"`
				}
			}
			if err := json.Unmarshal(a.Body, &answer); err != nil || a.Status != http.StatusOK || answer.Usage.Output != 5 {
				t.Fatalf("%s: %d %s", path, a.Status, a.Body)
			}
			return answer.Usage.Prompt
		}
		short := prompt()
		again := wants(g, "PUT", "/admin/models/other", map[string]any{"spec": "other=" + first})
		if len(again.Changes) > 0 {
			t.Errorf("%s: the same model again changes %+v", path, again.Changes)
		}
		wants(g, "PUT", "/admin/models/other", map[string]any{"spec": "other=" + second})
		harness.Eventually(t, "the engine takes the new folder's ids", func() bool { return stateOf(g, "b") == "ready" })
		if long := prompt(); long <= short {
			t.Errorf("%s: prompts have %d tokens by the new folder, %d by the old one", path, long, short)
		}

		rest := make(chan harness.Answer, 1)
		go func() {
			rest <- harness.Post(t, g.URL+"/v1/chat/completions", strings.Replace(chat, `"max_tokens":5`, `"max_tokens":200,"stream":true`, 1))
		}()
		harness.Eventually(t, "it streams", func() bool { return harness.EngineState(t, b.Admin).Running == 1 })
		if out, stderr, code := harness.Finish(t, "", "engines", "remove", "b", "--force", "--admin", g.Admin); code != 0 {
			t.Fatalf("%s: remove: %d %s %s", path, code, out, stderr)
		}
		wants(g, "DELETE", "/admin/models/other", nil)
		if status, out := ask(g, "DELETE", "/admin/models/other", nil); status != http.StatusNotFound {
			t.Errorf("%s: removed twice: %d %+v", path, status, out)
		}
		harness.WantComplete(t, <-rest)
		if models := fmt.Sprint(fleet(g).Models); strings.Contains(models, "other") {
			t.Errorf("%s: the models are %s", path, models)
		}
	}
	if whole, wrong := stop(); wrong != nil || whole == 0 {
		t.Errorf("%d whole; %v", whole, wrong)
	}
}
