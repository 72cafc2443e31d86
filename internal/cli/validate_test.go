package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"weir/test/certtest"
)

// The settings of the example that are in comment are right too, with files where it has
// them, and a mistake in one of them is found: each line was taken for a key.
func TestExampleOutOfComment(t *testing.T) {
	commandLines(t)
	t.Parallel()
	text, err := os.ReadFile("../../examples/serve/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key, err := certtest.Make("gateway", 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"cert.pem": cert, "key.pem": key, "ca.pem": cert, "engine.key": []byte("secret\n"), "keys.yaml": []byte("keys: {}\n")} {
		writeFile(t, filepath.Join(dir, name), string(content))
	}
	folder, err := filepath.Abs("../../models/weir-sim")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^#(\S)`).ReplaceAllString(string(text), "$1") // #key: value
	all = regexp.MustCompile(`(?m)^#( +- \{)`).ReplaceAllString(all, " $1")      // # - {an engine}
	all = strings.NewReplacer("/etc/weir", dir, "/var/log/weir", dir, "/var/lib/weir", dir, "/models/llama", folder).Replace(all)
	file := filepath.Join(dir, "all.yaml")
	writeFile(t, file, all)
	if code, stdout, stderr := runWith(t, "", "validate", file); code != 0 || !strings.Contains(stdout, "5 engines, 2 models") {
		t.Fatalf("exit code %d: %s%s\n%s", code, stdout, stderr, all)
	}
	for _, wrong := range [][2]string{{"key-file: " + dir + "/engine.key", "key-file: " + dir + "/no.key"}, {"tls-key: " + dir + "/key.pem", "tls-key: " + dir + "/cert.pem"}, {"dir: " + folder, "dir: " + dir}, {"timeline-max-size: 1GiB", "timeline-max-size: 1 GB too much"}} {
		writeFile(t, file, strings.Replace(all, wrong[0], wrong[1], 1))
		if code, _, stderr := runWith(t, "", "validate", file); code != 1 || !strings.Contains(stderr, "1 problem\n") {
			t.Errorf("%s: exit code %d: %s", wrong[1], code, stderr)
		}
	}
}

// A valid file is followed by what the chat template of each model takes, and by what its folder
// lacks.
func TestValidateTemplates(t *testing.T) {
	commandLines(t)
	t.Parallel()
	folder, err := filepath.Abs("../../models/weir-sim")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "weir.yaml")
	writeFile(t, file, "engine: openai=http://127.0.0.1:1\nmodel:\n- {name: m, dir: "+folder+", tool-parser: kimi-k2}\n- {name: o, dir: "+folder+"}\n")
	code, stdout, stderr := runWith(t, "", "validate", file)
	for _, line := range []string{"model m: its chat template (docs/templates.md)", "  developer          as system",
		"  note: its tool-parser kimi-k2 reads none of the calls that its chat template writes; hermes does", "model o: its chat template (docs/templates.md)"} {
		if code != 0 || strings.Count(stdout, line+"\n") == 0 {
			t.Errorf("exit code %d, without %q: %s%s", code, line, stdout, stderr)
		}
	}
	if n := strings.Count(stdout, "note:"); n != 1 {
		t.Errorf("%d notes: %s", n, stdout)
	}
}
