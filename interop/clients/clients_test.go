//go:build interop

// Package clients runs the official OpenAI and Anthropic clients against the
// built binary: what the scripts beside it check, they check through a client
// that nobody here wrote, over real sockets.
//
//	go test -tags interop ./interop/clients/
//
// WEIR_PYTHON names an interpreter with interop/requirements.txt installed,
// WEIR_NODE the node binary; node_modules is there after npm ci in this folder.
// A client that is not installed fails its test: an interop run that skips
// shows nothing. WEIR_URL and WEIR_ADMIN_URL use a running server instead of
// starting one.
package clients

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func TestOpenAIPython(t *testing.T) { runSuite(t, harness.Python, "openai_python.py", 20) }

func TestOpenAINode(t *testing.T) { runSuite(t, node, "openai_node.mjs", 20) }

func TestAnthropicNode(t *testing.T) { runSuite(t, node, "anthropic_node.mjs", 10) }

func TestAnthropicPython(t *testing.T) { runSuite(t, harness.Python, "anthropic_python.py", 20) }

// TestAnswerTypes reads answers strictly by published types.
func TestAnswerTypes(t *testing.T) { runSuite(t, harness.Python, "answer_types.py", 5) }

func node(testing.TB) string {
	if path := os.Getenv("WEIR_NODE"); path != "" {
		return path
	}
	return "node"
}

// runSuite starts a server and runs a script against it; each of the script's
// checks, of which there are some at least, is a subtest.
func runSuite(t *testing.T, interpreter func(testing.TB) string, script string, least int) {
	harness.Beside(t, harness.Light)
	args := []string{script, "--idle-metric", "weir_requests_in_flight"} // it must be 0 when nothing runs
	if url := os.Getenv("WEIR_URL"); url != "" {
		args = append(args, "--base-url", url, "--admin-url", os.Getenv("WEIR_ADMIN_URL"))
	} else {
		g := harness.StartGateway(t, "up")
		defer g.Interrupt()
		engines := g.Engines()
		if len(engines) == 0 {
			t.Error("weir up named no engine's state")
		}
		args = append(args, "--base-url", g.URL, "--admin-url", g.Admin)
		for _, url := range engines {
			args = append(args, "--engine-state", url+"/admin/state")
		}
	}
	harness.Checks(t, least, exec.Command(interpreter(t), append(args, realTexts(t)...)...))
}

// realTexts returns several dozen of this repository's and Go's documents and
// sources, chosen evenly.
func realTexts(t *testing.T) []string {
	t.Helper()
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("go env: %v", err)
	}
	goroot := strings.TrimSpace(string(out))
	files := slices.Concat(
		pick(t, repository, 20, ".md", ".proto", ".go"),
		pick(t, filepath.Join(goroot, "doc"), 8, ".md", ".html"),
		pick(t, filepath.Join(goroot, "src"), 40, ".go", ".s", ".txt"),
	)
	if len(files) < 48 {
		t.Fatalf("only %d files of real text under %s and %s", len(files), repository, goroot)
	}
	return files
}

// pick returns at most n files under root, evenly chosen of those with one of
// the extensions, text throughout, and long enough to say something.
func pick(t *testing.T, root string, n int, extensions ...string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (name == "node_modules" || strings.HasPrefix(name, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if slices.Contains(extensions, filepath.Ext(path)) {
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(fmt.Errorf("look for texts: %w", err))
	}
	var picked []string
	for i := range n {
		// The next usable one from each of n even places.
		for at := i * len(all) / n; at < len(all); at++ {
			if !slices.Contains(picked, all[at]) && isText(all[at]) {
				picked = append(picked, all[at])
				break
			}
		}
	}
	return picked
}

func isText(path string) bool {
	b, err := os.ReadFile(path)
	return err == nil && len(b) >= 500 && utf8.Valid(b) && !strings.Contains(string(b), "\x00")
}

// TestPick holds that the texts are what the scripts expect.
func TestPick(t *testing.T) {
	files := realTexts(t)
	if dup := len(files) - len(slices.Compact(slices.Sorted(slices.Values(files)))); dup > 0 {
		t.Errorf("%d files twice", dup)
	}
	if runtime.GOOS == "linux" && len(files) > 64 {
		t.Errorf("%d files", len(files))
	}
}
