//go:build interop_engines

package real

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/interop/released/programs"

	"github.com/google/go-cmp/cmp"
)

// toolCall is how the model calls a tool.
func toolCall(name string, arguments fields) string {
	text, _ := json.Marshal(arguments)
	return fmt.Sprintf("<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>", name, text)
}

const sunny = "Sunny."

// programsBefore runs programs that are clients against each of the ways to a model, the first
// of which is vLLM itself: what they make of it must be the same.
func programsBefore(t *testing.T, folder string, ways []way) {
	const requests, tokens = 8, 16
	for name, run := range map[string]func(t *testing.T, s programs.Server) outcome{
		"Claude Code, one tool":  func(t *testing.T, s programs.Server) outcome { return claude(t, s, "Read") },
		"Claude Code, all tools": func(t *testing.T, s programs.Server) outcome { return claude(t, s, "default") },
		"Codex CLI":              codex,
		"AIPerf chat":            func(t *testing.T, s programs.Server) outcome { return aiperf(t, s, "chat", requests, tokens) },
		"AIPerf completions":     func(t *testing.T, s programs.Server) outcome { return aiperf(t, s, "completions", requests, tokens) },
		"AIPerf responses":       func(t *testing.T, s programs.Server) outcome { return aiperf(t, s, "responses", requests, tokens) },
		"GuideLLM chat":          func(t *testing.T, s programs.Server) outcome { return guidellm(t, s, chatPath, requests, tokens) },
		"GuideLLM completions":   func(t *testing.T, s programs.Server) outcome { return guidellm(t, s, completionPath, requests, tokens) },
		"GuideLLM responses":     func(t *testing.T, s programs.Server) outcome { return guidellm(t, s, responsesPath, requests, tokens) },
	} {
		t.Run(name, func(t *testing.T) {
			var want outcome
			for i, w := range ways {
				got := run(t, programs.Server{URL: w.url, Model: w.model, Folder: folder})
				if i == 0 {
					want = got
					t.Logf("%s: %v", w.name, got)
				} else if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-) and %s (+): %s", ways[0].name, w.name, diff)
				}
			}
		})
	}
}

// claude has Claude Code read a file, which says what the engine answers then. It asks for
// reasoning, and vLLM's parser takes an answer without an end of reasoning for reasoning.
func claude(t *testing.T, s programs.Server, tools string) outcome {
	dir := t.TempDir()
	note, last := filepath.Join(dir, "note.txt"), say("<think>\nIt is.\n</think>\n\n"+sunny)
	if err := os.WriteFile(note, []byte(last+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	session := s.ClaudeCode(t, dir, say("<think>\nWhat is there?\n</think>\n\n"+toolCall("Read", fields{"file_path": note})), tools)
	calls, results := session.Blocks("assistant", "tool_use"), session.Blocks("user", "tool_result")
	if len(calls) != 1 || len(results) != 1 || results[0]["tool_use_id"] != calls[0]["id"] || !strings.Contains(fmt.Sprint(results[0]["content"]), last) {
		t.Errorf("calls %v, results %v", calls, results)
	}
	text, ok := session.Result()
	if text = strings.TrimSpace(text); !ok || text != sunny {
		t.Errorf("it ended with %v", session[max(0, len(session)-1):])
	}
	o := outcome{"text": text}
	var thinking []string
	for _, b := range session.Blocks("assistant", "thinking") {
		text, _ := b["thinking"].(string) // vLLM leaves the marker in it where it comes together with more
		thinking = append(thinking, strings.TrimSpace(strings.TrimPrefix(text, "<think>")))
	}
	o["thinking"] = strings.Join(thinking, " ")
	for _, c := range calls {
		o["call"] = []any{c["name"], strings.ReplaceAll(fmt.Sprint(c["input"]), dir, "DIR")}
	}
	return o
}

// codex has Codex call a tool of an MCP server, whose result says what the engine answers then.
func codex(t *testing.T, s programs.Server) outcome {
	rung := filepath.Join(t.TempDir(), "rung")
	o := outcome{}
	for _, item := range s.Codex(t, programs.Bell(t, rung, say(sunny)), say(toolCall("mcp__bell__ring", fields{}))) {
		if kind, _ := item["type"].(string); kind != "error" { // that it knows no such model
			delete(item, "id")
			o[kind] = item
		}
	}
	if calls, err := os.ReadFile(rung); err != nil || string(calls) != "\"ring\"\n" {
		t.Errorf("the server saw %q, %v", calls, err)
	}
	if kinds := slices.Sorted(maps.Keys(o)); !slices.Equal(kinds, []string{"agent_message", "mcp_tool_call"}) {
		t.Errorf("it had %v", o)
	}
	return o
}

func aiperf(t *testing.T, s programs.Server, api string, requests, tokens int) outcome {
	r := s.AIPerf(t, api, requests, tokens)
	if r.Requests != requests || r.Errors > 0 || r.First <= 0 {
		t.Errorf("it reports %+v", r)
	}
	if api == "responses" { // it counts by itself
		return outcome{"requests": r.Requests}
	}
	return outcome{"requests": r.Requests, "tokens": r.Tokens}
}

func guidellm(t *testing.T, s programs.Server, path string, requests, tokens int) outcome {
	r := s.GuideLLM(t, path, requests, tokens)
	if r.Requests != requests || r.Errors > 0 {
		t.Errorf("it reports %+v", r)
	}
	return outcome{"requests": r.Requests}
}
