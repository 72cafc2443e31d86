package harness

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Python returns the interpreter that has interop's reference libraries.
func Python(t testing.TB) string {
	t.Helper()
	path := os.Getenv("WEIR_PYTHON")
	if path == "" {
		t.Fatal("WEIR_PYTHON is not set: it names a Python that has the packages of interop/requirements.txt, as make interop has it")
	}
	return path
}

// Checks runs a script to its end that prints a JSON object for each of its checks, {"check": NAME,
// "ok": BOOL, "detail": TEXT}, and last {"checks": COUNT}. Each check is a subtest, and there must
// be at least this many.
func Checks(t *testing.T, least int, cmd *exec.Cmd) {
	t.Helper()
	p := StartCommand(t, cmd)
	p.Wait()
	seen, total := 0, -1
	for line := range strings.Lines(p.Output()) {
		var r struct {
			Check  string
			OK     bool
			Detail string
			Checks *int
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Errorf("%v printed %q: %v", cmd.Args, line, err)
			continue
		}
		if r.Checks != nil {
			total = *r.Checks
			continue
		}
		seen++
		t.Run(r.Check, func(t *testing.T) {
			if !r.OK {
				t.Error(r.Detail)
			}
		})
	}
	if p.Err != nil || total < least || seen != total {
		t.Errorf("%v: %v, %d checks, and it has %d", cmd.Args, p.Err, seen, total)
	}
}

// Counts waits until an engine that interop plays is at rest with counts that
// match. Such an engine prints them as JSON when nothing runs.
func (p *Process) Counts(matches func(n map[string]int) bool) map[string]int {
	p.T.Helper()
	var n struct {
		Counts map[string]int
		Live   int
	}
	p.Find("counts", func(line string) bool {
		n.Counts, n.Live = nil, 0
		return json.Unmarshal([]byte(line), &n) == nil && n.Counts != nil && n.Live == 0 && matches(n.Counts)
	})
	return n.Counts
}

// Peer is a running program that answers questions from its standard input on its standard output:
// a reference library, in interop.
type Peer struct {
	io.Writer
	*bufio.Reader
}

// StartPeer runs a program that ends when its standard input does, which is at the
// end of the test. It must exit with 0.
func StartPeer(t testing.TB, cmd *exec.Cmd) *Peer {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v\n%s", cmd.Args, err, stderr.String())
		}
	})
	return &Peer{in, bufio.NewReaderSize(out, 1<<20)}
}
