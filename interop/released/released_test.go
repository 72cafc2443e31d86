//go:build interop_clients

// Package released runs clients as their projects release them against weir up, the built
// binary: programs and SDKs that many have and nobody here wrote.
//
//	make interop-clients
//
// WEIR_RELEASED names the folder that the Makefile installs them into. A client that is not
// there fails its test. None reaches any network but the loopback: each has a proxy that
// refuses every connection, so that one that calls home must do without.
package released

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// installed gives the path of a part of the installation.
func installed(t *testing.T, parts ...string) string {
	t.Helper()
	folder := os.Getenv("WEIR_RELEASED")
	if folder == "" {
		t.Fatal("WEIR_RELEASED is not set: run make interop-clients")
	}
	path := filepath.Join(append([]string{folder}, parts...)...)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run make interop-clients", err)
	}
	return path
}

// alone is a client's environment: a home of its own, no network, nothing that calls home.
func alone(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir(),
		"HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "https_proxy=http://127.0.0.1:9", "http_proxy=http://127.0.0.1:9",
		"NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost",
		"DO_NOT_TRACK=1", "OPENAI_AGENTS_DISABLE_TRACING=1", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LANGSMITH_TRACING=false",
	}, more...)
}

// runAlone runs a client that prints its checks.
func runAlone(t *testing.T, least int, cmd *exec.Cmd) {
	t.Helper()
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up")
	defer g.Interrupt()
	cmd.Args = append(cmd.Args, g.URL)
	cmd.Env = alone(t)
	harness.Checks(t, least, cmd)
}

func python(t *testing.T, client, script string, least int) {
	t.Helper()
	runAlone(t, least, exec.Command(installed(t, client, "bin", "python"), script))
}

func TestAgentsSDK(t *testing.T) { python(t, "agents", "agents_sdk.py", 6) }

func TestInstructor(t *testing.T) { python(t, "instructor", "instructor_client.py", 3) }

func TestPydanticAI(t *testing.T) { python(t, "pydantic-ai", "pydantic_ai_client.py", 9) }

func TestLangChain(t *testing.T) { python(t, "langchain", "langchain_client.py", 9) }

func TestLlamaIndex(t *testing.T) { python(t, "llamaindex", "llamaindex_client.py", 4) }

func TestLiteLLM(t *testing.T) { python(t, "litellm", "litellm_client.py", 5) }

func TestAISDK(t *testing.T) { runAlone(t, 12, exec.Command("node", "node/ai.mjs")) }

func TestOpenAIGo(t *testing.T) { runAlone(t, 5, exec.Command(installed(t, "gosdk"))) }

// events runs a program that prints a JSON object for each thing that happens, and gives
// them; what is not JSON is left out.
func events(t *testing.T, cmd *exec.Cmd) (all []map[string]any) {
	t.Helper()
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v: %v\n%s\n%s", cmd.Args, err, out, said.String())
	}
	for line := range strings.Lines(string(out)) {
		var e map[string]any
		if json.Unmarshal([]byte(line), &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// blocks gives the blocks of a type in the messages that Claude Code tells of.
func blocks(all []map[string]any, message, kind string) (found []map[string]any) {
	for _, e := range all {
		m, _ := e["message"].(map[string]any)
		content, _ := m["content"].([]any)
		for _, c := range content {
			if b, _ := c.(map[string]any); e["type"] == message && b["type"] == kind {
				found = append(found, b)
			}
		}
	}
	return found
}

// Claude Code runs the tool that the model calls, and gives it what came of it: with one
// tool of its own, and with all of them.
func TestClaudeCode(t *testing.T) {
	for name, tools := range map[string]string{"one tool": "Read", "all tools": "default"} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			g := harness.StartGateway(t, "up")
			defer g.Interrupt()
			cmd := exec.Command("node_modules/@anthropic-ai/claude-code-linux-x64/claude", "-p", "Read note.txt", "--model", "weir-sim", "--output-format", "stream-json", "--verbose", "--max-turns", "8", "--tools", tools)
			program, err := filepath.Abs(filepath.Join("node", cmd.Path))
			if err != nil {
				t.Fatal(err)
			}
			cmd.Path, cmd.Dir = program, t.TempDir()
			cmd.Env = alone(t, "ANTHROPIC_BASE_URL="+g.URL, "ANTHROPIC_API_KEY=sk-none", "ENABLE_TOOL_SEARCH=false",
				"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_TELEMETRY=1", "DISABLE_AUTOUPDATER=1", "DISABLE_ERROR_REPORTING=1")
			all := events(t, cmd)
			calls, results := blocks(all, "assistant", "tool_use"), blocks(all, "user", "tool_result")
			if len(calls) == 0 || len(results) == 0 || results[0]["tool_use_id"] != calls[0]["id"] || tools == "Read" && calls[0]["name"] != "Read" {
				t.Errorf("calls %v, results %v", calls, results)
			}
			if len(all) == 0 {
				t.Fatal("it printed nothing")
			}
			last := all[len(all)-1]
			if text, _ := last["result"].(string); last["type"] != "result" || last["is_error"] != false || strings.TrimSpace(text) == "" {
				t.Errorf("it ended with %v", last)
			}
			if n := g.Balanced(); n["finished"] < 2 || n["rejected"] > 0 || n["failed"] > 0 {
				t.Errorf("the requests: %v", n)
			}
		})
	}
}

// codex has Codex ask a gateway something, with more in its configuration, and gives the
// items that it told of as completed. The question has the simulated engine call a tool that
// takes no arguments, by the name by which the model knows it: those that it makes up for
// others mostly do not parse.
func codex(t *testing.T, g *harness.Gateway, config, tool string) (items []map[string]any) {
	t.Helper()
	program, err := filepath.Abs("node/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	config = `model = "weir-sim"
model_provider = "weir"
check_for_update_on_startup = false
[model_providers.weir]
name = "weir"
base_url = "` + g.URL + `/v1"
env_key = "WEIR_KEY"
wire_api = "responses"
[analytics]
enabled = false
` + config
	if err := os.MkdirAll(filepath.Join(home, ".codex"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".codex", "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "exec", "--skip-git-repo-check", "--json", "--sandbox", "read-only", fmt.Sprintf("[weir-sim {\"tool_choice\": %q}]\nSay hello", tool))
	cmd.Dir, cmd.Env = t.TempDir(), alone(t, "WEIR_KEY=none", "CODEX_HOME="+filepath.Join(home, ".codex"))
	var said int
	var last map[string]any
	for _, e := range events(t, cmd) {
		item, _ := e["item"].(map[string]any)
		switch last = e; {
		case e["type"] == "item.completed":
			items = append(items, item)
			if item["type"] == "agent_message" {
				said++
			}
		case e["type"] == "turn.failed":
			t.Errorf("%v", e)
		}
	}
	if said == 0 || last["type"] != "turn.completed" {
		t.Errorf("%d messages, and it ended with %v", said, last)
	}
	g.Balanced()
	g.Interrupt()
	records := g.Records()
	if len(records) != 2 || records[0].Outcome != "finished" || records[1].Outcome != "finished" || records[1].PromptTokens <= records[0].PromptTokens {
		t.Errorf("the requests: %+v", records)
	}
	return items
}

// Codex runs the tool that the model calls, and gives it what came of it, which the model
// then sees: its second prompt is the longer one.
func TestCodex(t *testing.T) {
	harness.Beside(t, harness.Light)
	codex(t, harness.StartGateway(t, "up"), "", "get_goal")
}

// Codex gives the tools of each MCP server as a namespace, and finds the tool that a call is
// meant for by the call's namespace and name.
func TestCodexMCP(t *testing.T) {
	harness.Beside(t, harness.Light)
	server, err := filepath.Abs("mcp_server.py")
	if err != nil {
		t.Fatal(err)
	}
	rung := filepath.Join(t.TempDir(), "rung")
	config := fmt.Sprintf("[mcp_servers.bell]\ncommand = \"python3\"\nargs = [%q, %q]\n", server, rung)
	var ran []string
	for _, item := range codex(t, harness.StartGateway(t, "up"), config, "mcp__bell__ring") {
		if item["type"] == "mcp_tool_call" {
			ran = append(ran, fmt.Sprint(item["server"], " ", item["tool"], " ", item["status"]))
		}
	}
	if calls, err := os.ReadFile(rung); err != nil || string(calls) != "\"ring\"\n" || len(ran) != 1 || ran[0] != "bell ring completed" {
		t.Errorf("the server saw %q (%v), and Codex said %q", calls, err, ran)
	}
}

// model is the built-in model's folder, whose tokenizer the load generators count with.
func model(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs("../../models/weir-sim")
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// measured runs a load generator and reads the report that it writes into file.
func measured(t *testing.T, cmd *exec.Cmd, file string, report any) {
	t.Helper()
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, said)
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(written, report); err != nil {
		t.Fatal(err)
	}
}

// asked waits until a gateway has answered so many requests, all of them whole and of so
// many tokens, and ends it.
func asked(t *testing.T, g *harness.Gateway, requests, tokens int) {
	t.Helper()
	if n := g.Balanced(); n["finished"] != requests || n["rejected"] > 0 || n["failed"] > 0 {
		t.Errorf("the requests: %v", n)
	}
	g.Interrupt()
	for _, r := range g.Records() {
		if r.CompletionTokens != tokens {
			t.Errorf("%s has %d tokens, and %d were wanted", r.RequestID, r.CompletionTokens, tokens)
		}
	}
}

// AIPerf measures over three APIs. It takes a tokenizer of the hub's alone, or one from the
// hub's cache. The tokens are those that weir counts, but over Responses, where it reads the
// usage of answers that end by themselves alone, and counts the text otherwise.
func TestAIPerf(t *testing.T) {
	const requests, tokens = 12, 30
	for api, counting := range map[string][]string{"chat": {"--use-server-token-count", "--per-chunk-usage"}, "completions": {"--use-server-token-count"}, "responses": nil} {
		t.Run(api, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			g := harness.StartGateway(t, "up")
			hub, out := t.TempDir(), t.TempDir()
			const revision = "0000000000000000000000000000000000000000"
			folder := filepath.Join(hub, "hub", "models--weir--weir-sim")
			if err := os.CopyFS(filepath.Join(folder, "snapshots", revision), os.DirFS(model(t))); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(folder, "refs"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, "refs", "main"), []byte(revision), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(installed(t, "aiperf", "bin", "aiperf"), append([]string{"profile", "-m", "weir-sim", "--url", g.URL, "--endpoint-type", api, "--streaming", "--tokenizer", "weir/weir-sim",
				"--concurrency", "4", "--request-count", fmt.Sprint(requests), "--isl", "100", "--osl", fmt.Sprint(tokens), "--extra-inputs", "ignore_eos:true", "--artifact-dir", out, "--ui", "none"}, counting...)...)
			cmd.Env, cmd.Dir = alone(t, "HF_HOME="+hub, "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1"), t.TempDir()
			type figure struct{ Avg float64 }
			var r struct {
				Requests figure `json:"request_count"`
				Errors   figure `json:"error_request_count"`
				Tokens   figure `json:"output_sequence_length"`
				First    figure `json:"time_to_first_token"`
			}
			measured(t, cmd, filepath.Join(out, "profile_export_aiperf.json"), &r)
			if r.Requests.Avg != requests || r.Errors.Avg > 0 || counting != nil && r.Tokens.Avg != tokens || r.Tokens.Avg < tokens/2 || r.First.Avg <= 0 {
				t.Errorf("it reports %+v", r)
			}
			asked(t, g, requests, tokens)
		})
	}
}

// GuideLLM measures over three APIs. It wants torch for nothing but the order of its prompts;
// guidellm_torch stands in for that.
func TestGuideLLM(t *testing.T) {
	const requests, tokens = 12, 24
	for name, api := range map[string]string{"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			g := harness.StartGateway(t, "up")
			torch, err := filepath.Abs("guidellm_torch")
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "report.json")
			cmd := exec.Command(installed(t, "guidellm", "bin", "guidellm"), "run", "--backend", "kind=openai_http,model=weir-sim,target="+g.URL+",request_format="+api,
				"--profile", "kind=concurrent,streams=4", "--constraint", fmt.Sprint("kind=max_requests,count=", requests), "--tokenizer", "kind=hf_auto,model="+model(t),
				"--data", fmt.Sprint("kind=synthetic_text,prompt_tokens=64,output_tokens=", tokens), "--output", "kind=json,path="+out, "--disable-console")
			cmd.Env, cmd.Dir = alone(t, "PYTHONPATH="+torch, "USE_TORCH=0", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "HF_DATASETS_OFFLINE=1"), t.TempDir()
			var r struct {
				Benchmarks []struct {
					Metrics struct {
						Totals struct{ Successful, Errored, Incomplete int } `json:"request_totals"`
					}
				}
			}
			measured(t, cmd, out, &r)
			if len(r.Benchmarks) != 1 || r.Benchmarks[0].Metrics.Totals.Successful != requests || r.Benchmarks[0].Metrics.Totals.Errored > 0 {
				t.Errorf("it reports %+v", r)
			}
			asked(t, g, requests, tokens)
		})
	}
}
