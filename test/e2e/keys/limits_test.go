package keys_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// Limits are shown and set while the gateway runs: they hold at the next request and are in the
// keys file, which keeps its comments. A role that may only look, a bad value and a file that
// cannot be written are refused, and change nothing.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	callers, admin, root := filepath.Join(dir, "keys", "keys.yaml"), filepath.Join(dir, "admin.yaml"), filepath.Join(dir, "root.key")
	if err := os.Mkdir(filepath.Dir(callers), 0o700); err != nil {
		t.Fatal(err)
	}
	alice := add(t, "alice", "--keys", callers, "--tenant", "research", "--tokens-per-day", "40")
	bob := add(t, "bob", "--keys", callers, "--tenant", "sales")
	harness.WriteFile(t, root, add(t, "root", "--keys", admin, "--role", "operate"))
	viewer := add(t, "viewer", "--keys", admin, "--role", "read")
	data, err := os.ReadFile(callers)
	if err != nil {
		t.Fatal(err)
	}
	harness.WriteFile(t, callers, "# who may ask\n"+string(data))
	p := harness.Start(t, "up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--keys", callers, "--admin-keys", admin)
	base, operator := p.Line("gateway"), p.Line("admin")
	limits := func(code int, holds string, args ...string) string {
		t.Helper()
		out, errs, got := harness.Finish(t, "", append(append([]string{"limits"}, args...), "--admin", operator, "--admin-key-file", root)...)
		if got != code || !strings.Contains(out+errs, holds) {
			t.Errorf("weir limits %v: exit code %d, %s%s; want %d with %q", args, got, out, errs, code, holds)
		}
		return out
	}
	chats := func(status int, key string) string {
		t.Helper()
		got, head, text := ask(t, "POST", base+"/v1/chat/completions", chat, "X-Api-Key", key)
		if got != status {
			t.Fatalf("status %d, %s; want %d", got, text, status)
		}
		return head.Get("X-Refusal-Reason")
	}
	used := func(name string) (n int) {
		t.Helper()
		var v struct {
			Used struct {
				Tokens int `json:"tokens_today"`
			}
		}
		if err := json.Unmarshal([]byte(limits(0, `"name": "`+name+`"`, name, "--json")), &v); err != nil {
			t.Fatal(err)
		}
		return v.Used.Tokens
	}
	chats(200, alice)
	one := used("alice")
	if one == 0 {
		t.Fatal("a request used no tokens")
	}
	limits(0, fmt.Sprintf("%d/40", one))
	limits(0, "caller alice changed: tokens_per_day 40 -> 1", "set", "alice", "--tokens-per-day", "1")
	if why := chats(429, alice); why != "key_tokens_per_day" {
		t.Errorf("refused for %q", why)
	}
	limits(0, "nothing to change", "set", "alice", "--tokens-per-day", "1")
	limits(0, "models all -> another, tokens_per_day 1 -> none", "set", "alice", "--tokens-per-day", "none", "--models", "another")
	chats(404, alice)
	limits(0, "models another -> all", "set", "alice", "--models", "all", "--share", "3", "--band", "night shift", "--max-output-tokens", "3")
	if chats(400, alice); used("alice") != one {
		t.Errorf("refused requests have used tokens")
	}
	limits(0, "max_output_tokens 3 -> none", "set", "alice", "--max-output-tokens", "none")
	if chats(200, alice); used("alice") <= one {
		t.Errorf("%d tokens used, and %d after another request", one, used("alice"))
	}
	if out := limits(0, "sales", "--tenant", "sales"); strings.Contains(out, "alice") {
		t.Errorf("alice is of another tenant: %s", out)
	}

	// Limits that make no sense, and callers that may not set any.
	limits(2, "--tokens-per-day -5: want a whole number", "set", "alice", "--tokens-per-day=-5")
	limits(2, "--share 0.5: want a weight", "set", "alice", "--share", "0.5")
	limits(2, "nothing to set", "set", "alice")
	limits(1, `has the name "carol"`, "set", "carol", "--share", "2")
	limits(1, `has the name "carol"`, "carol")
	for body, want := range map[string]string{
		`{"tokens_per_dya":1}`: "did you mean tokens_per_day?", `{"share":"x"}`: "share: want a weight", `{"models":[]}`: "models: want a list", `{`: "the body",
		`{"hash":"sha256:00"}`: "hash: there is no such limit", `{"tokens_per_day":1.5}`: "tokens_per_day: want a whole number", `{"max_requests":true}`: "max_requests: want a number",
	} {
		if status, text := patch(t, operator, "alice", body, strings.TrimSpace(read(t, root))); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: status %d, %s; want 400 with %q", body, status, text, want)
		}
	}
	if status, text := patch(t, operator, "alice", `{"share":2}`, viewer); status != 403 || !strings.Contains(text, "role read") {
		t.Errorf("set by the role read: status %d, %s", status, text)
	}
	if status, text := patch(t, operator, "alice", `{"share":2}`, alice); status != 401 {
		t.Errorf("set by a caller's key: status %d, %s", status, text)
	}
	if status, _, text := ask(t, "GET", operator+"/admin/limits", "", "Authorization", "Bearer "+viewer); status != 200 || !strings.Contains(text, `"night shift"`) || strings.Contains(text, "sha256") {
		t.Errorf("shown to the role read: status %d, %s", status, text)
	}

	// The file has the limits in force. An edit by hand takes effect without a restart, and a
	// reload reports it.
	text := read(t, callers)
	for _, want := range []string{"# who may ask\n", "share: 3\n", `band: "night shift"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the keys file lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "tokens_per_day") || strings.Contains(text, "models") {
		t.Errorf("the keys file has what was taken out:\n%s", text)
	}
	harness.Rewrite(t, callers, strings.Replace(text, "share: 3", "share: 4", 1))
	p.Find("the change of the file", func(line string) bool { return strings.Contains(line, "caller alice changed: share 3 -> 4") })
	limits(0, "share 4 -> 5", "set", "alice", "--share", "5")

	harness.WriteFile(t, callers, "keys:\n  alice: "+alice+"\n")
	limits(1, "line 2: alice: want fields", "set", "alice", "--share", "6")
	chats(200, bob)
	p.Interrupt()
	p.Exits(0)
	for _, said := range []string{p.Stderr.String(), p.Output()} {
		if strings.Contains(said, alice) || strings.Contains(said, bob) {
			t.Errorf("a key is in %s", said)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// patch sends a change of limits with an operator's key.
func patch(t *testing.T, operator, name, body, key string) (int, string) {
	t.Helper()
	status, _, text := ask(t, "PATCH", operator+"/admin/limits/"+name, body, "Authorization", "Bearer "+key)
	return status, text
}
