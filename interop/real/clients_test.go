//go:build interop_engines

package real

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"weir/test/e2e/harness"

	"github.com/google/go-cmp/cmp"
)

// TestClientsBeforeVLLM has clients as released talk to vLLM's own server, to weir that relays
// it, and to weir before it by ids. What each client gives its caller must be the same of all
// three, but for a forced call, which weir has the engine keep to its schema.
func TestClientsBeforeVLLM(t *testing.T) {
	released, pythonPath := os.Getenv("WEIR_RELEASED"), harness.Python(t)
	if released == "" {
		t.Fatal("WEIR_RELEASED is not set: run make interop-engines")
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	folder, port := withoutPrefix(t), freePort(t)
	widen(t, folder)
	server := vllmOf(t, folder, []string{"PYTHONPATH=" + here}, "--max-model-len", fmt.Sprint(wide), "--logits-processors", "scripted:Scripted", "--port", port,
		"--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_v3", "--enable-prompt-tokens-details")
	direct := "http://127.0.0.1:" + port
	relay := serve(t, "--engine", "openai="+direct)
	ids := serve(t, "--engine", "vllm="+direct, "--model", "tiny="+folder+",reasoning-parser=think")
	relay.ready(true, server)
	ids.ready(true, server)

	node := func(modules string) []string { return []string{"NODE_FOLDER=" + filepath.Join(here, "..", modules)} }
	for _, client := range []struct {
		name    string
		least   int // dialogues
		env     []string
		command []string
	}{
		{"OpenAI's and Anthropic's for Python", 31, nil, []string{pythonPath, "clients/official.py"}},
		{"OpenAI's and Anthropic's for Node", 21, node("clients"), []string{"node", "clients/official.mjs"}},
		{"openai-go", 11, nil, []string{filepath.Join(released, "gosdk-dialogues")}},
		{"litellm", 14, nil, []string{filepath.Join(released, "litellm", "bin", "python"), "clients/via_litellm.py"}},
		{"LangChain", 24, nil, []string{filepath.Join(released, "langchain", "bin", "python"), "clients/via_langchain.py"}},
		{"AI SDK", 28, node("released/node"), []string{"node", "clients/via_ai.mjs"}},
		{"Agents SDK", 18, []string{"OPENAI_AGENTS_DISABLE_TRACING=1"}, []string{filepath.Join(released, "agents", "bin", "python"), "clients/via_agents.py"}},
		{"instructor", 14, nil, []string{filepath.Join(released, "instructor", "bin", "python"), "clients/via_instructor.py"}},
		{"pydantic-ai", 26, nil, []string{filepath.Join(released, "pydantic-ai", "bin", "python"), "clients/via_pydantic_ai.py"}},
		{"LlamaIndex", 10, nil, []string{filepath.Join(released, "llamaindex", "bin", "python"), "clients/via_llamaindex.py"}},
	} {
		t.Run(client.name, func(t *testing.T) {
			ask := func(url string) map[string]outcome {
				return dialogues(t, client.env, append(client.command, url, direct))
			}
			want := ask(direct)
			if len(want) < client.least {
				t.Errorf("%d dialogues, and there should be %d", len(want), client.least)
			}
			relayed, byID := ask(relay.URL), ask(ids.URL)
			for name, theirs := range want {
				t.Run(name, func(t *testing.T) {
					if wrong := theirs.wrong(name); wrong != "" {
						t.Errorf("vLLM itself: %s: %v", wrong, theirs)
					}
					if diff := cmp.Diff(theirs, relayed[name]); diff != "" {
						t.Errorf("vLLM (-) and its relay (+): %s", diff)
					}
					if strings.HasSuffix(name, "forced tool") {
						if got := fmt.Sprint(byID[name]); !keptToSchema.MatchString(got) {
							t.Errorf("by ids a forced call is to keep to its schema: %s", got)
						}
						return
					}
					if diff := cmp.Diff(theirs, byID[name]); diff != "" {
						t.Errorf("vLLM (-) and weir by its ids (+): %s", diff)
					}
				})
			}
		})
	}
	t.Run("programs", func(t *testing.T) {
		programsBefore(t, folder, []way{{"vLLM itself", direct, "tiny"}, {"its relay", relay.URL, "tiny"}, {"weir by its ids", ids.URL, "tiny"}})
	})
	for _, g := range []gateway{relay, ids} {
		if n, ok := metric(g.Admin, "weir_integrity_failures_total"); ok && n > 0 {
			t.Errorf("%v streams were found wanting", n)
		}
	}
}

// wide is the length of a model's context that holds the prompt of a program with all its tools.
const wide = 65536

// widen gives a model's folder that context.
func widen(t *testing.T, folder string) {
	t.Helper()
	file := filepath.Join(folder, "config.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]any
	if err := json.Unmarshal(text, &members); err != nil {
		t.Fatal(err)
	}
	members["max_position_embeddings"] = wide
	if text, err = json.Marshal(members); err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var keptToSchema = regexp.MustCompile(`^map\[calls:\[\[weather map\[n:[1-9]\]\]\]\]$`)

// outcome is what a client gave its caller in one dialogue (clients/dialogue.py).
type outcome map[string]any

// wrong reports what is wrong with an outcome by itself. vLLM does not keep a forced call to its
// schema, and a client may refuse what it makes of that.
func (o outcome) wrong(name string) string {
	_, broke := o["broke"]
	status, _ := o["status"].(float64)
	names, _ := o["names"].([]any)
	switch {
	case strings.HasSuffix(name, "forced tool"):
	case strings.Contains(name, "bad field"), strings.HasSuffix(name, "unknown model"):
		if want := map[bool]float64{true: 400, false: 404}[strings.Contains(name, "bad field")]; status != want || len(names) != 1 {
			return fmt.Sprintf("want an error of status %v that names what is wrong", want)
		}
	case strings.HasSuffix(name, "hang-up"):
		if o["engine"] != "ended early" {
			return "want the engine to end the answer"
		}
	case broke || status != 0 || len(o) == 0:
		return "want an answer"
	}
	return ""
}

// dialogues runs a client's script and gives its outcomes by their names.
func dialogues(t *testing.T, env, command []string) map[string]outcome {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LITELLM_LOCAL_MODEL_COST_MAP=True", "LANGSMITH_TRACING=false", "DO_NOT_TRACK=1"}, env...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %v\n%s", command, err, said.String())
	}
	all := map[string]outcome{}
	for line := range strings.Lines(string(out)) {
		var d struct {
			Dialogue string
			Outcome  outcome
		}
		if err := json.Unmarshal([]byte(line), &d); err != nil || d.Dialogue == "" || all[d.Dialogue] != nil {
			t.Errorf("%v printed %q: %v", command, line, err)
			continue
		}
		all[d.Dialogue] = d.Outcome
	}
	return all
}
