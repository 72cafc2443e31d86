// Package keys_test has the built binary ask its callers who they are.
package keys_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// add makes a key with the binary and returns it.
func add(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, code := harness.Finish(t, "", append([]string{"keys", "add"}, args...)...)
	if code != 0 || !strings.HasPrefix(out, "weir_") {
		t.Fatalf("weir keys add %v: exit code %d, %s", args, code, errs)
	}
	return strings.TrimSpace(out)
}

// ask sends a request with a key and returns the status, the head and the body.
func ask(t *testing.T, method, url, body, header, key string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(harness.Context(t), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if header != "" {
		req.Header.Set(header, key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(all)
}

const chat = `{"model":"weir-sim","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`

// Keys of callers and operators, from the command that makes them to the one that revokes them.
// No key is in any output: answers, the log, the timeline, metrics, the admin listener, the file.
func TestKeys(t *testing.T) {
	dir := t.TempDir()
	callers, admin, timeline := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "admin.yaml"), filepath.Join(dir, "timeline.jsonl")
	alice := add(t, "alice", "--keys", callers, "--tenant", "research", "--tokens-per-day", "40")
	bob := add(t, "bob", "--keys", callers, "--models", "another")
	root, viewer := add(t, "root", "--keys", admin, "--role", "operate"), add(t, "viewer", "--keys", admin, "--role", "read")
	secrets := []string{alice, bob, root, viewer}

	p := harness.Start(t, "up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--keys", callers, "--admin-keys", admin, "--timeline", timeline, "--access-log", "1", "--log-level", "debug")
	base, operator := p.Line("gateway"), p.Line("admin")

	var said []string // all that anybody was answered
	want := func(status int, method, url, body, header, key, holds string) http.Header {
		t.Helper()
		got, head, text := ask(t, method, url, body, header, key)
		said = append(said, text)
		for _, values := range head {
			said = append(said, values...)
		}
		if got != status || !strings.Contains(text, holds) {
			t.Fatalf("%s %s: status %d, %s; want %d with %q", method, url, got, text, status, holds)
		}
		return head
	}
	chats := base + "/v1/chat/completions"
	if head := want(401, "POST", chats, chat, "", "", "invalid_api_key"); head.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("WWW-Authenticate %q", head.Get("WWW-Authenticate"))
	}
	want(401, "POST", chats, chat, "Authorization", "Bearer "+alice+"x", "not known")
	want(401, "POST", chats, chat, "Authorization", "Bearer "+strings.Repeat("k", 8<<10), "not known")
	want(401, "POST", chats, chat, "Authorization", "Bearer "+root, "not known") // an operator's
	want(401, "POST", base+"/v1/messages", chat, "X-Api-Key", "nobody", "authentication_error")
	want(404, "POST", chats, chat, "X-Api-Key", bob, "model_not_found")
	harness.Eventually(t, "an engine with its model", func() bool { return harness.Get(t, operator+"/readyz").Status == http.StatusOK })
	want(200, "GET", base+"/v1/models", "", "X-Api-Key", bob, `"data":[]`)
	want(200, "GET", base+"/v1/models", "", "X-Api-Key", alice, "weir-sim")
	want(200, "GET", base+"/health", "", "", "", "")
	begun := 0
	for begun < 20 {
		status, head, text := ask(t, "POST", chats, chat, "Authorization", "Bearer "+alice)
		if said = append(said, text); status == 429 {
			if head.Get("Retry-After") == "" || head.Get("X-Refusal-Reason") != "key_tokens_per_day" {
				t.Errorf("refused without a wait or a reason: %v", head)
			}
			break
		}
		begun++
	}
	if begun == 0 || begun == 20 {
		t.Errorf("%d requests of some 37 tokens each began, with a budget of 40", begun)
	}

	for _, path := range []string{"/engines", "/requests", "/records", "/stages", "/stalls", "/profiles", "/metrics", "/config", "/timeline/x", "/admin/fleet", "/live", "/nothing"} {
		want(401, "GET", operator+path, "", "", "", "operator's key")
		want(401, "GET", operator+path, "", "Authorization", "Bearer "+alice, "operator's key")
	}
	want(200, "GET", operator+"/healthz", "", "", "", "ok")
	want(200, "GET", operator+"/", "", "", "", "<html")
	want(200, "GET", operator+"/page.js", "", "", "", "Authorization") // the form asks for the key
	want(200, "GET", operator+"/page.css", "", "", "", "{")
	for _, path := range []string{"/engines", "/records", "/metrics", "/config", "/live"} {
		want(200, "GET", operator+path, "", "Authorization", "Bearer "+viewer, "")
	}
	want(403, "GET", operator+"/profiles", "", "Authorization", "Bearer "+viewer, "role read")
	want(403, "POST", operator+"/admin/engines/sim-1/drain", "", "Authorization", "Bearer "+viewer, "role read")
	want(200, "POST", operator+"/admin/engines/sim-1/drain", "", "Authorization", "Bearer "+root, "")

	file := filepath.Join(dir, "root.key")
	if err := os.WriteFile(file, []byte(root+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code := harness.Finish(t, "", "engines", "--admin", operator, "--admin-key-file", file)
	if said = append(said, out, errs); code != 0 || !strings.Contains(out, "sim-1") {
		t.Errorf("weir engines with a key: exit code %d, %s%s", code, out, errs)
	}
	out, errs, code = harness.Finish(t, "", "engines", "--admin", operator)
	if said = append(said, out, errs); code != 1 || !strings.Contains(errs, "--admin-key-file") {
		t.Errorf("weir engines without a key: exit code %d, %s%s", code, out, errs)
	}

	if out, errs, code = harness.Finish(t, "", "keys", "revoke", "bob", "--keys", callers); code != 0 {
		t.Fatalf("revoke: %s%s", out, errs)
	}
	for until := time.Now().Add(harness.Patience); ; time.Sleep(50 * time.Millisecond) {
		if status, _, _ := ask(t, "GET", base+"/v1/models", "", "X-Api-Key", bob); status == 401 {
			break
		}
		if time.Now().After(until) {
			t.Fatal("a revoked key goes on")
		}
	}
	p.Interrupt()
	p.Exits(0)
	for _, path := range []string{callers, admin, timeline} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, string(data))
	}
	if record := said[len(said)-1]; !strings.Contains(record, `"key":"alice","tenant":"research"`) {
		t.Error("the timeline does not name the caller")
	}
	said = append(said, p.Stderr.String(), p.Output())
	for _, text := range said {
		for i, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("key %d is in %.300q", i, text)
			}
		}
	}
}

// A listener that others reach is refused without keys.
func TestReachedByOthers(t *testing.T) {
	engine := []string{"serve", "--engine", "openai=http://127.0.0.1:1"}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "0.0.0.0:0"}, "add --keys FILE"},
		{[]string{"--listen", ":0"}, "--insecure"},
		{[]string{"--admin-listen", "[::]:0"}, "add --admin-keys FILE"},
		{[]string{"--client-ca", "x.pem"}, "add --tls-cert"},
		{[]string{"--keys", "/nowhere/keys.yaml"}, "/nowhere/keys.yaml"},
	} {
		_, errs, code := harness.Finish(t, "", append(engine, test.args...)...)
		if code != 2 || !strings.Contains(errs, test.want) {
			t.Errorf("%v: exit code %d, %s; want 2 with %q", test.args, code, errs, test.want)
		}
	}
}
