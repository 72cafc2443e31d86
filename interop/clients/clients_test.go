//go:build interop

// Package clients runs the official OpenAI clients against the built binary:
// what the scripts beside it check, they check through a client that nobody
// here wrote, over real sockets.
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
	runSuite(t, getenv("WEIR_PYTHON", "python3"), "openai_python.py")
}

func TestOpenAINode(t *testing.T) {
	runSuite(t, getenv("WEIR_NODE", "node"), "openai_node.mjs")
}

func getenv(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// runSuite starts a server and runs a script against it; each of the script's
// checks is a subtest.
func runSuite(t *testing.T, interpreter, script string) {
	files := realTexts(t)
	url, admin := startWeir(t)
	ctx, cancel := context.WithTimeout(t.Context(), suiteTimeout)
	defer cancel()
	args := []string{script, "--base-url", url, "--admin-url", admin}
	for _, m := range idleMetrics {
		args = append(args, "--idle-metric", m)
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
	if total < 20 || len(names) != total {
		t.Errorf("%s reported %d checks and said it has %d", script, len(names), total)
	}
	if err != nil {
		t.Errorf("%s: %v\n%s", script, err, complaints.String())
	}
}

// startWeir builds and starts weir up, and gives its two addresses. At the end
// of the test it is interrupted and must exit with 0.
func startWeir(t *testing.T) (gateway, admin string) {
	t.Helper()
	if url := os.Getenv("WEIR_URL"); url != "" {
		return url, os.Getenv("WEIR_ADMIN_URL")
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
	addresses := make(chan [2]string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		var got [2]string
		for scan := bufio.NewScanner(stdout); scan.Scan(); {
			switch f := strings.Fields(scan.Text()); {
			case len(f) >= 2 && f[0] == "gateway":
				got[0] = f[1]
			case len(f) >= 2 && f[0] == "admin":
				got[1] = f[1]
			}
			if got[0] != "" && got[1] != "" {
				select {
				case addresses <- got:
				default:
				}
			}
		}
	}()
	t.Cleanup(func() { stopWeir(t, cmd, read, &logs) })
	select {
	case got := <-addresses:
		return got[0], got[1]
	case <-read:
		t.Fatal("weir up ended before it printed its addresses")
	case <-time.After(startTimeout):
		t.Fatalf("weir up printed no addresses within %v", startTimeout)
	}
	return "", ""
}

func stopWeir(t *testing.T, cmd *exec.Cmd, read <-chan struct{}, logs *strings.Builder) {
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Errorf("interrupt: %v", err)
	}
	select {
	case <-read:
	case <-time.After(stopTimeout):
		t.Errorf("weir up did not end within %v of an interrupt", stopTimeout)
		_ = cmd.Process.Kill()
		<-read
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
