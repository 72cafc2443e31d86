package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// weir engines shows what each engine said of itself, and why one is not ready.
func TestEngines(t *testing.T) {
	beside(t, light)
	nobody := freeAddress(t)
	s := startSim(t, "--max-running-requests", "7", "--max-total-tokens", "20000")
	g := startGateway(t, "serve", "--engine", s.spec("sglang")+",name=a", "--engine", s.spec("plane")+",name=b", "--engine", "sglang=http://"+nobody+",name=c")
	eventually(t, "two ready", func() bool { return metric(t, g.admin, "weir_engine_ready") == 2 })

	ask := func(args ...string) (stdout, stderr string, code int) {
		t.Helper()
		return finish(t, "", append([]string{"engines"}, args...)...)
	}
	var fields [][]string
	table, _, code := ask("--admin", g.admin)
	for line := range strings.Lines(table) {
		fields = append(fields, strings.Fields(line))
	}
	want := [][]string{
		strings.Fields("ENGINE KIND STATE RUNNING WAITING KV MAX CONTEXT SOFTWARE MODELS"),
		strings.Fields("a sglang ready 0 0 0% 7 131072 sglang 0.5.16 weir-sim"),
		strings.Fields("b weir ready 0 0 - 7 131072 weir-sim 0.1 weir-sim"),
		strings.Fields("c sglang down - - - - - - -"),
	}
	if len(fields) != 5 || code != 0 {
		t.Fatalf("exit %d:\n%s", code, table)
	}
	for i, w := range want {
		if strings.Join(fields[i], " ") != strings.Join(w, " ") {
			t.Errorf("%q, want %q", fields[i], w)
		}
	}
	if last := strings.Join(fields[4], " "); !strings.HasPrefix(last, "c: ") || !strings.Contains(last, "refused") {
		t.Errorf("%q", last)
	}

	var views []struct {
		Name    string
		Carries []string
	}
	text, _, _ := ask("--json", "--admin", strings.TrimPrefix(g.admin, "http://"))
	if err := json.Unmarshal([]byte(text), &views); err != nil || len(views) != 3 || len(views[0].Carries) == 0 {
		t.Errorf("%v: %s", err, text)
	}
	for addr, word := range map[string]string{g.url: "admin listener", nobody: "is a gateway running", "http://x y": "--admin"} {
		if _, stderr, code := ask("--admin", addr); code == 0 || !strings.Contains(stderr, word) {
			t.Errorf("%s: exit %d: %s", addr, code, stderr)
		}
	}
	g.interrupt()
}
