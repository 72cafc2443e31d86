package keys_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// A budget of a day is not renewed by a restart: neither by one that is asked for nor after
// SIGKILL, where the file has all but what was used within its last second. A stream spends as
// it goes. A file that is none stops the start, and names the way out.
func TestBudgetOutlivesRestarts(t *testing.T) {
	dir := t.TempDir()
	callers := filepath.Join(dir, "keys.yaml")
	alice := add(t, "alice", "--keys", callers, "--tokens-per-day", "150")
	args := []string{"up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--keys", callers}
	var p *harness.Process
	start := func() { p = harness.Start(t, args...) }
	used := func() (n int) {
		t.Helper()
		_, _, text := ask(t, "GET", p.Line("admin")+"/admin/limits/alice", "", "", "")
		var v struct {
			Used struct {
				Tokens int `json:"tokens_today"`
			}
		}
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return v.Used.Tokens
	}
	send := func(body string) int {
		t.Helper()
		status, _, _ := ask(t, "POST", p.Line("gateway")+"/v1/chat/completions", body, "X-Api-Key", alice)
		return status
	}
	start()
	if status := send(strings.Replace(chat, `"max_tokens":4`, `"stream":true,"max_tokens":20`, 1)); status != 200 {
		t.Fatalf("status %d", status)
	}
	first := used()
	if first < 20 {
		t.Fatalf("a stream of 20 tokens has used %d", first)
	}
	harness.Eventually(t, "the file has what was used", func() bool {
		files, _ := filepath.Glob(callers + ".used")
		if len(files) == 0 {
			return false
		}
		var f struct {
			Accounts map[string]struct{ Tokens int }
		}
		return json.Unmarshal([]byte(read(t, files[0])), &f) == nil && f.Accounts["alice"].Tokens == first
	})
	p.Kill()
	start()
	if n := used(); n != first {
		t.Fatalf("%d used after SIGKILL, want %d", n, first)
	}
	begun := 0
	for send(chat) == 200 {
		if begun++; begun > 20 {
			t.Fatal("a budget of 150 tokens does not end")
		}
	}
	second := used()
	p.Interrupt()
	p.Exits(0)
	start()
	if n := used(); n != second || n < 150 || send(chat) != 429 {
		t.Errorf("%d used after a restart, want %d, and the budget to be used up", n, second)
	}
	p.Interrupt()
	p.Exits(0)
	if text := read(t, callers+".used"); strings.Contains(text, alice) {
		t.Error("a key is in the file of what is used")
	}
	harness.WriteFile(t, callers+".used", "{")
	if _, errs, code := harness.Finish(t, "", args...); code != 2 || !strings.Contains(errs, "keys.yaml.used is no file of used budgets") || !strings.Contains(errs, "remove this one") {
		t.Errorf("a file that is none: exit code %d, %s", code, errs)
	}
	args = append(args, "--budget-file", "off")
	start()
	if n := used(); n != 0 {
		t.Errorf("%d used without a file", n)
	}
	p.Interrupt()
	p.Exits(0)
}
