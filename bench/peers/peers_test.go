//go:build linux

package peers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/lab"
	"weir/internal/lab/cell"
)

func TestAll(t *testing.T) {
	known := map[string]bool{}
	for _, g := range lab.Gateways() {
		known[g.Name] = true
	}
	folder := t.TempDir()
	for _, g := range All(folder) {
		if known[g.Name] || !g.Peer || !g.Relayed && !g.DialsIn {
			t.Errorf("%+v", g)
		}
		known[g.Name] = true
		if g.Name == HAProxy {
			continue // comes with the system
		}
		c := &cell.Cell{Gateway: "127.0.0.1:1", Engine: "127.0.0.1:2"}
		if _, err := g.Args(nil, c, t.TempDir(), "127.0.0.1:3"); err == nil || !strings.Contains(err.Error(), "make bench-peers") {
			t.Errorf("%s is not there, and the error is %v", g.Name, err)
		}
	}
}

// A gateway's package states its version. A gateway that is not set up has none.
func TestVersion(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct{ name, file, text, want string }{
		{SMG, "smg/lib/python3.11/site-packages/smg-1.2.3.dist-info/METADATA", "", "1.2.3"},
		{Router, "sglang-router/lib/python3.11/site-packages/sglang_router-0.3.2.dist-info/METADATA", "", "0.3.2"},
		{LiteLLM, "litellm/lib/python3.11/site-packages/litellm-1.0.dist-info/METADATA", "", "1.0"},
		{"", "litellm/lib/python3.11/site-packages/litellm_enterprise-7.dist-info/METADATA", "", ""},
		{Portkey, "portkey/node_modules/@portkey-ai/gateway/package.json", `{"version":"1.15.2"}`, "1.15.2"},
		{VLLMRouter, "", "", ""},
	} {
		if c.file != "" {
			path := filepath.Join(folder, c.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := Version(folder, c.name); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Each gateway that pip installs has a lock file that pins it.
func TestLocks(t *testing.T) {
	for _, name := range []string{SMG, Router, VLLMRouter, LiteLLM} {
		data, err := os.ReadFile(name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		pinned := false
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			pkg, version, ok := strings.Cut(line, "==")
			if !ok || version == "" {
				t.Errorf("%s.txt: %q pins nothing", name, line)
			}
			pinned = pinned || pkg == name
		}
		if !pinned {
			t.Errorf("%s.txt does not pin %s", name, name)
		}
	}
}
