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
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
)

// idleMetrics must all be 0 when nothing runs.
var idleMetrics = []string{"weir_requests_in_flight"}

const (
	startTimeout = 30 * time.Second
	suiteTimeout = 5 * time.Minute
	stopTimeout  = 30 * time.Second
)

func TestOpenAIPython(t *testing.T) {
	runSuite(t, getenv("WEIR_PYTHON", "python3"), "openai_python.py", 20)
}

func TestOpenAINode(t *testing.T) {
	runSuite(t, getenv("WEIR_NODE", "node"), "openai_node.mjs", 20)
}

func TestAnthropicNode(t *testing.T) {
	runSuite(t, getenv("WEIR_NODE", "node"), "anthropic_node.mjs", 10)
}

func TestAnthropicPython(t *testing.T) {
	runSuite(t, getenv("WEIR_PYTHON", "python3"), "anthropic_python.py", 20)
}

func getenv(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// runSuite starts a server and runs a script against it; each of the script's
// checks, of which there are some at least, is a subtest.
func runSuite(t *testing.T, interpreter, script string, least int) {
	files := realTexts(t)
	at := startWeir(t)
	if os.Getenv("WEIR_URL") == "" && len(at.engines) == 0 {
		t.Error("weir up named no engine's state")
	}
	ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
	defer cancel()
	args := []string{script, "--base-url", at.gateway, "--admin-url", at.admin}
	for _, m := range idleMetrics {
		args = append(args, "--idle-metric", m)
	}
	for _, url := range at.engines {
		args = append(args, "--engine-state", url)
	}
	cmd := exec.CommandContext(ctx, interpreter, append(args, files...)...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	names := map[string]bool{}
	total := -1
	for line := range strings.Lines(string(out)) {
		var r struct {
			Check  string
			OK     bool
			Detail string
			Checks *int
		}
		if e := json.Unmarshal([]byte(line), &r); e != nil {
			t.Errorf("%s says %q: %v", script, line, e)
			continue
		}
		if r.Checks != nil {
			total = *r.Checks
			continue
		}
		names[r.Check] = true
		t.Run(r.Check, func(t *testing.T) {
			if !r.OK {
				t.Error(r.Detail)
			}
		})
	}
	if total < least || len(names) != total {
		t.Errorf("%s reported %d checks and said it has %d", script, len(names), total)
	}
	if err != nil {
		t.Errorf("%s: %v\n%s", script, err, complaints.String())
	}
}

// addresses are where a running weir is.
type addresses struct {
	gateway, admin string
	engines        []string // URLs of the embedded engines' states
}

// startWeir builds and starts weir up, and gives its addresses. At the end of
// the test it is interrupted and must exit with 0.
func startWeir(t *testing.T) addresses {
	t.Helper()
	if url := os.Getenv("WEIR_URL"); url != "" {
		return addresses{gateway: url, admin: os.Getenv("WEIR_ADMIN_URL")}
	}
	bin := filepath.Join(t.TempDir(), "weir")
	build := exec.Command("go", "build", "-o", bin, "weir/cmd/weir")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	cmd := exec.Command(bin, "up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var logs strings.Builder
	cmd.Stderr = &logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started := make(chan addresses, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		readAddresses(stdout, started)
	}()
	t.Cleanup(func() { stopWeir(t, cmd, ended, &logs) })
	select {
	case at := <-started:
		return at
	case <-ended:
		t.Fatal("weir up ended before it printed its addresses")
	case <-time.After(startTimeout):
		t.Fatalf("weir up printed no addresses within %v", startTimeout)
	}
	return addresses{}
}

// readAddresses reads what weir up prints to its end, and sends the addresses
// once the blank line behind them came.
func readAddresses(stdout io.Reader, started chan<- addresses) {
	var at addresses
	for scan := bufio.NewScanner(stdout); scan.Scan(); {
		f := strings.Fields(scan.Text())
		switch {
		case len(f) == 0 && at.gateway != "" && at.admin != "":
			select {
			case started <- at:
			default: // sent at an earlier blank line
			}
		case len(f) >= 2 && f[0] == "gateway":
			at.gateway = f[1]
		case len(f) >= 2 && f[0] == "admin":
			at.admin = f[1]
		case len(f) >= 2 && f[0] == "engine" && f[len(f)-2] == "state":
			at.engines = append(at.engines, f[len(f)-1])
		}
	}
}

func stopWeir(t *testing.T, cmd *exec.Cmd, ended <-chan struct{}, logs *strings.Builder) {
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Errorf("interrupt: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(stopTimeout):
		t.Errorf("weir up did not end within %v of an interrupt", stopTimeout)
		_ = cmd.Process.Kill()
		<-ended
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("weir up: %v", err)
	}
	if t.Failed() {
		t.Logf("weir up logged:\n%s", logs.String())
	}
}

// realTexts gives several dozen of this repository's and Go's documents and
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

// pick gives at most n files under root, evenly chosen of those with one of
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
