//go:build interop_clients

// Package released runs clients as their projects release them against weir up, the built
// binary: programs and SDKs that many have and nobody here wrote.
//
//	make interop-clients
//
// WEIR_RELEASED names the folder that the Makefile installs them into (package programs).
package released

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/interop/released/programs"
	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// runAlone runs a client that prints its checks.
func runAlone(t *testing.T, least int, cmd *exec.Cmd) {
	t.Helper()
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up")
	defer g.Interrupt()
	cmd.Args = append(cmd.Args, g.URL)
	cmd.Env = programs.Alone(t)
	harness.Checks(t, least, cmd)
}

func python(t *testing.T, client, script string, least int) {
	t.Helper()
	runAlone(t, least, exec.Command(programs.Installed(t, client, "bin", "python"), script))
}

func TestAgentsSDK(t *testing.T) { python(t, "agents", "agents_sdk.py", 6) }

func TestInstructor(t *testing.T) { python(t, "instructor", "instructor_client.py", 3) }

func TestPydanticAI(t *testing.T) { python(t, "pydantic-ai", "pydantic_ai_client.py", 9) }

func TestLangChain(t *testing.T) { python(t, "langchain", "langchain_client.py", 9) }

func TestLlamaIndex(t *testing.T) { python(t, "llamaindex", "llamaindex_client.py", 4) }

func TestLiteLLM(t *testing.T) { python(t, "litellm", "litellm_client.py", 5) }

func TestAISDK(t *testing.T) { runAlone(t, 12, exec.Command("node", "node/ai.mjs")) }

func TestOpenAIGo(t *testing.T) { runAlone(t, 5, exec.Command(programs.Installed(t, "gosdk"))) }

// An engine breaks each stream after some tokens, and no other one is there: these clients say what
// weir says of that, and take no answer for a whole one.
func TestBrokenStreams(t *testing.T) {
	sim := harness.StartSim(t, append(harness.FastSim[:len(harness.FastSim):len(harness.FastSim)], "--fault", "cut,after=9")...)
	ids := harness.StartGateway(t, "serve", "--engine", sim.Spec("sglang"))
	for way, g := range map[string]*harness.Gateway{"by ids": ids, "over a relay": harness.StartGateway(t, "serve", "--engine", "openai="+ids.URL)} {
		for name, client := range map[string]struct {
			least int
			cmd   []string
		}{"AI SDK": {4, []string{"node", "node/ai.mjs"}}, "openai-go": {2, []string{programs.Installed(t, "gosdk")}}} {
			t.Run(way+"/"+name, func(t *testing.T) {
				harness.Beside(t, harness.Light)
				cmd := exec.Command(client.cmd[0], append(client.cmd[1:], "broken", g.URL)...)
				cmd.Env = programs.Alone(t)
				harness.Checks(t, client.least, cmd)
			})
		}
	}
}

// up starts weir up, and gives it as the server that programs ask.
func up(t *testing.T) (*harness.Gateway, programs.Server) {
	t.Helper()
	harness.Beside(t, harness.Light)
	folder, err := filepath.Abs("../../models/weir-sim")
	if err != nil {
		t.Fatal(err)
	}
	g := harness.StartGateway(t, "up")
	return g, programs.Server{URL: g.URL, Model: "weir-sim", Folder: folder}
}

// Claude Code runs the tool that the model calls, and gives it what came of it: with one
// tool of its own, and with all of them.
func TestClaudeCode(t *testing.T) {
	for name, tools := range map[string]string{"one tool": "Read", "all tools": "default"} {
		t.Run(name, func(t *testing.T) {
			g, server := up(t)
			defer g.Interrupt()
			session := server.ClaudeCode(t, t.TempDir(), "Read note.txt", tools)
			calls, results := session.Blocks("assistant", "tool_use"), session.Blocks("user", "tool_result")
			if len(calls) == 0 || len(results) == 0 || results[0]["tool_use_id"] != calls[0]["id"] || tools == "Read" && calls[0]["name"] != "Read" {
				t.Errorf("calls %v, results %v", calls, results)
			}
			if text, ok := session.Result(); !ok || strings.TrimSpace(text) == "" {
				t.Errorf("it ended with %v", session[max(0, len(session)-1):])
			}
			if n := g.Balanced(); n["finished"] < 2 || n["rejected"] > 0 || n["failed"] > 0 {
				t.Errorf("the requests: %v", n)
			}
		})
	}
}

// codex has Codex ask weir up something, with more in its configuration, and gives the items
// that it told of as completed. The question has the simulated engine call a tool that takes
// no arguments, by the name by which the model knows it: those that it makes up for others
// mostly do not parse.
func codex(t *testing.T, config, tool string) (items []map[string]any) {
	t.Helper()
	g, server := up(t)
	items = server.Codex(t, config, fmt.Sprintf("[weir-sim {\"tool_choice\": %q}]\nSay hello", tool))
	if !slices.ContainsFunc(items, func(item map[string]any) bool { return item["type"] == "agent_message" }) {
		t.Error("it had no message")
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
func TestCodex(t *testing.T) { codex(t, "", "get_goal") }

// Codex gives the tools of each MCP server as a namespace, and finds the tool that a call is
// meant for by the call's namespace and name.
func TestCodexMCP(t *testing.T) {
	rung := filepath.Join(t.TempDir(), "rung")
	var ran []string
	for _, item := range codex(t, programs.Bell(t, rung, "The bell has rung."), "mcp__bell__ring") {
		if item["type"] == "mcp_tool_call" {
			ran = append(ran, fmt.Sprint(item["server"], " ", item["tool"], " ", item["status"]))
		}
	}
	if calls, err := os.ReadFile(rung); err != nil || string(calls) != "\"ring\"\n" || len(ran) != 1 || ran[0] != "bell ring completed" {
		t.Errorf("the server saw %q (%v), and Codex said %q", calls, err, ran)
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

// AIPerf measures over three APIs, and the tokens are those that weir counts, where it does
// not count by itself.
func TestAIPerf(t *testing.T) {
	const requests, tokens = 12, 30
	for api, exact := range map[string]bool{"chat": true, "completions": true, "responses": false} {
		t.Run(api, func(t *testing.T) {
			g, server := up(t)
			r := server.AIPerf(t, api, requests, tokens)
			if r.Requests != requests || r.Errors > 0 || exact && r.Tokens != tokens || r.Tokens < tokens/2 || r.First <= 0 {
				t.Errorf("it reports %+v", r)
			}
			asked(t, g, requests, tokens)
		})
	}
}

// GuideLLM measures over three APIs.
func TestGuideLLM(t *testing.T) {
	const requests, tokens = 12, 24
	for name, path := range map[string]string{"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"} {
		t.Run(name, func(t *testing.T) {
			g, server := up(t)
			if r := server.GuideLLM(t, path, requests, tokens); r.Requests != requests || r.Errors > 0 {
				t.Errorf("it reports %+v", r)
			}
			asked(t, g, requests, tokens)
		})
	}
}
