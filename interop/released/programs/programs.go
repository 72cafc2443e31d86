// Package programs runs programs that are clients, as their projects release them, against a
// server: for the tests of interop/released, whose server is weir up, and of interop/real,
// which have them ask vLLM as released too. It judges nothing but that a program ends well.
//
// WEIR_RELEASED names the folder that the Makefile installs them into. A program that is not
// there fails its test. None reaches any network but the loopback: each has a proxy that
// refuses every connection, so that one that calls home must do without.
package programs

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Server is what a program is to ask.
type Server struct {
	URL    string
	Model  string // its name
	Folder string // its tokenizer's, which load generators count with
}

// Installed returns the path of a part of the installation.
func Installed(t *testing.T, parts ...string) string {
	t.Helper()
	folder := os.Getenv("WEIR_RELEASED")
	if folder == "" {
		t.Fatal("WEIR_RELEASED is not set: run make interop-clients")
	}
	return there(t, filepath.Join(append([]string{folder}, parts...)...))
}

// npm returns the absolute path of a file of the packages from npm. Tests run in a folder
// beside interop/released, or in it.
func npm(t *testing.T, path string) string {
	t.Helper()
	return there(t, filepath.Join("..", "released", "node", "node_modules", path))
}

// there returns the absolute path of a file that must be there.
func there(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: run make interop-clients", err)
	}
	return path
}

// Alone returns a client's environment: a home of its own, no network, nothing that calls home.
func Alone(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir(),
		"HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "https_proxy=http://127.0.0.1:9", "http_proxy=http://127.0.0.1:9",
		"NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost",
		"DO_NOT_TRACK=1", "OPENAI_AGENTS_DISABLE_TRACING=1", "LITELLM_LOCAL_MODEL_COST_MAP=True", "LANGSMITH_TRACING=false",
	}, more...)
}

// patience is how long a program may take. One whose tool call fails may have the model call the
// tool for ever.
const patience = 5 * time.Minute

// events runs a program that prints a JSON object for each thing that happens, and returns
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

// ClaudeSession is what Claude Code printed of a session.
type ClaudeSession []map[string]any

// ClaudeCode runs Claude Code in a folder with a prompt, and the tools that --tools names.
func (s Server) ClaudeCode(t *testing.T, dir, prompt, tools string) ClaudeSession {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm(t, "@anthropic-ai/claude-code-linux-x64/claude"), "-p", prompt, "--model", s.Model, "--output-format", "stream-json", "--verbose", "--max-turns", "8", "--tools", tools)
	cmd.Dir = dir
	cmd.Env = Alone(t, "ANTHROPIC_BASE_URL="+s.URL, "ANTHROPIC_API_KEY=sk-none", "ENABLE_TOOL_SEARCH=false", "CLAUDE_CODE_MAX_OUTPUT_TOKENS=4000",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_TELEMETRY=1", "DISABLE_AUTOUPDATER=1", "DISABLE_ERROR_REPORTING=1")
	return events(t, cmd)
}

// Blocks returns the blocks of a type in messages.
func (c ClaudeSession) Blocks(message, kind string) (found []map[string]any) {
	for _, e := range c {
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

// Result returns the text that the session ended with, and whether it ended well.
func (c ClaudeSession) Result() (text string, ok bool) {
	if len(c) == 0 {
		return "", false
	}
	last := c[len(c)-1]
	text, _ = last["result"].(string)
	return text, last["type"] == "result" && last["is_error"] == false
}

// Codex runs Codex CLI with a prompt, and with more in its configuration, and returns the items
// that it reported as completed. It fails the test where the turn does not end well.
func (s Server) Codex(t *testing.T, config, prompt string) (items []map[string]any) {
	t.Helper()
	home := filepath.Join(t.TempDir(), ".codex")
	config = `model = "` + s.Model + `"
model_provider = "weir"
check_for_update_on_startup = false
[model_providers.weir]
name = "weir"
base_url = "` + s.URL + `/v1"
env_key = "WEIR_KEY"
wire_api = "responses"
[analytics]
enabled = false
` + config
	err := os.Mkdir(home, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm(t, "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"), "exec", "--skip-git-repo-check", "--json", "--sandbox", "read-only", prompt)
	cmd.Dir, cmd.Env = t.TempDir(), Alone(t, "WEIR_KEY=none", "CODEX_HOME="+home)
	var last map[string]any
	for _, e := range events(t, cmd) {
		switch last = e; e["type"] {
		case "item.completed":
			item, _ := e["item"].(map[string]any)
			items = append(items, item)
		case "turn.failed":
			t.Errorf("%v", e)
		}
	}
	if last["type"] != "turn.completed" {
		t.Errorf("it ended with %v", last)
	}
	return items
}

// Bell is the configuration by which Codex has a tool of an MCP server: ring, which takes
// nothing, writes its name into the file rung, and gives back an answer.
func Bell(t *testing.T, rung, answer string) string {
	t.Helper()
	return fmt.Sprintf("[mcp_servers.bell]\ncommand = \"python3\"\nargs = [%q, %q, %q]\n", there(t, filepath.Join("..", "released", "mcp_server.py")), rung, answer)
}

// Measured is what a load generator reports.
type Measured struct {
	Requests, Errors int
	Tokens           float64 // of an answer, in the mean; 0 if not reported
	First            float64 // milliseconds to the first token, in the mean; 0 if not reported
}

// measured runs a load generator and reads the report that it writes into file.
func measured(t *testing.T, cmd *exec.Cmd, file string, report any) {
	t.Helper()
	said, err := cmd.CombinedOutput()
	var written []byte
	if err == nil {
		written, err = os.ReadFile(file)
	}
	if err == nil {
		err = json.Unmarshal(written, report)
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, said)
	}
}

// AIPerf has AIPerf measure over an API: chat, completions or responses. It takes a tokenizer
// of the hub's alone, or one from the hub's cache. Over Responses it reads the usage of answers
// that end by themselves alone, and counts the text otherwise.
func (s Server) AIPerf(t *testing.T, api string, requests, tokens int) Measured {
	t.Helper()
	const revision = "0000000000000000000000000000000000000000"
	hub, out := t.TempDir(), t.TempDir()
	short, err := os.MkdirTemp("", "aiperf") // it binds Unix sockets below it, whose names are bounded
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	folder := filepath.Join(hub, "hub", "models--weir--model")
	err = os.CopyFS(filepath.Join(folder, "snapshots", revision), os.DirFS(s.Folder))
	if err == nil {
		err = os.Mkdir(filepath.Join(folder, "refs"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "refs", "main"), []byte(revision), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	counting := map[string][]string{"chat": {"--use-server-token-count", "--per-chunk-usage"}, "completions": {"--use-server-token-count"}}[api]
	cmd := exec.Command(Installed(t, "aiperf", "bin", "aiperf"), append([]string{"profile", "-m", s.Model, "--url", s.URL, "--endpoint-type", api, "--streaming", "--tokenizer", "weir/model",
		"--concurrency", "4", "--request-count", fmt.Sprint(requests), "--isl", "100", "--osl", fmt.Sprint(tokens), "--extra-inputs", "ignore_eos:true", "--artifact-dir", out, "--ui", "none"}, counting...)...)
	cmd.Env, cmd.Dir = Alone(t, "TMPDIR="+short, "HF_HOME="+hub, "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1"), t.TempDir()
	type figure struct{ Avg float64 }
	var r struct {
		Requests figure `json:"request_count"`
		Errors   figure `json:"error_request_count"`
		Tokens   figure `json:"output_sequence_length"`
		First    figure `json:"time_to_first_token"`
	}
	measured(t, cmd, filepath.Join(out, "profile_export_aiperf.json"), &r)
	return Measured{int(r.Requests.Avg), int(r.Errors.Avg), r.Tokens.Avg, r.First.Avg}
}

// GuideLLM has GuideLLM measure over the API at a path. It wants torch for nothing but the order
// of its prompts; guidellm_torch stands in for that.
func (s Server) GuideLLM(t *testing.T, path string, requests, tokens int) Measured {
	t.Helper()
	out := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command(Installed(t, "guidellm", "bin", "guidellm"), "run", "--backend", "kind=openai_http,model="+s.Model+",target="+s.URL+",request_format="+path,
		"--profile", "kind=concurrent,streams=4", "--constraint", fmt.Sprint("kind=max_requests,count=", requests), "--tokenizer", "kind=hf_auto,model="+s.Folder,
		"--data", fmt.Sprint("kind=synthetic_text,prompt_tokens=64,output_tokens=", tokens), "--output", "kind=json,path="+out, "--disable-console")
	cmd.Env, cmd.Dir = Alone(t, "PYTHONPATH="+there(t, filepath.Join("..", "released", "guidellm_torch")), "USE_TORCH=0", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "HF_DATASETS_OFFLINE=1"), t.TempDir()
	var r struct {
		Benchmarks []struct {
			Metrics struct {
				Totals struct{ Successful, Errored, Incomplete int } `json:"request_totals"`
			}
		}
	}
	measured(t, cmd, out, &r)
	var m Measured
	for _, b := range r.Benchmarks {
		m.Requests += b.Metrics.Totals.Successful
		m.Errors += b.Metrics.Totals.Errored + b.Metrics.Totals.Incomplete
	}
	return m
}
