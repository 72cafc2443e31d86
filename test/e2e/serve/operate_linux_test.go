package serve

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weir/test/e2e/harness"
)

// signalTo sends a signal to a program.
func signalTo(t *testing.T, p *harness.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// SIGHUP reads the certificate and opens the timeline again, and says so; a stream in
// flight does not notice.
func TestSIGHUP(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	harness.KeyPair(t, cert, key, 1)
	for _, ignored := range []bool{false, true} {
		file := filepath.Join(dir, fmt.Sprintf("t-%t.jsonl", ignored))
		cmd := exec.Command(harness.Binary, "up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--timeline", file)
		if ignored { // as nohup does it
			cmd = exec.Command("sh", "-c", `trap "" HUP; exec "$0" "$@" --tls-cert `+cert+` --tls-key `+key, harness.Binary)
			cmd.Args = append(cmd.Args, "up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--timeline", file)
		}
		p := harness.StartCommand(t, cmd)
		g := &harness.Gateway{Process: p, URL: p.Line("gateway"), Admin: p.Line("admin"), Timeline: file}
		harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
		if ignored {
			signalTo(t, p, syscall.SIGHUP)
			p.Find("the same certificate", func(line string) bool { return strings.Contains(line, "certificate read again, it is the same") })
			harness.KeyPair(t, cert, key, 2)
			signalTo(t, p, syscall.SIGHUP)
			p.Find("another certificate", func(line string) bool { return strings.Contains(line, "certificate read again, valid until") })
			harness.WriteFile(t, cert, "no certificate")
			signalTo(t, p, syscall.SIGHUP)
			p.Find("no certificate", func(line string) bool { return strings.Contains(line, "old certificate stays") })
			g.Interrupt()
			continue
		}
		if a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream); a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		lines := func(file string) int {
			data, _ := os.ReadFile(file) // none is no line
			return bytes.Count(data, []byte("\n"))
		}
		harness.Eventually(t, "recorded", func() bool { return lines(file) == 1 })
		stream := g.Begun()
		if err := os.Rename(file, file+".old"); err != nil {
			t.Fatal(err)
		}
		signalTo(t, p, syscall.SIGHUP)
		p.Find("timeline opened again", func(line string) bool { return strings.Contains(line, "timeline opened again") })
		if a := harness.Read(stream); a.Err != nil || !bytes.Contains(a.Body, []byte("[DONE]")) {
			t.Errorf("the stream in flight: %v, %.300s", a.Err, a.Body)
		}
		harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream))
		// On a busy machine the stream ends before the file is opened again.
		harness.Eventually(t, "recorded in a new file, and everything once", func() bool { return lines(file) > 0 && lines(file)+lines(file+".old") == 3 })
		g.Interrupt()
	}
}

// A gateway whose output nobody reads any more, or that has none, goes on: what it
// prints is lost, and no stream.
func TestOutputGone(t *testing.T) {
	harness.Beside(t, harness.Light)
	api, admin := harness.Neighbours(t)
	args := []string{"up", "--listen", api, "--admin-listen", admin}
	works := func(p *harness.Process) {
		t.Helper()
		for range 3 {
			signalTo(t, p, syscall.SIGHUP) // which prints
			if a := harness.Post(t, "http://"+api+"/v1/chat/completions", harness.AskStream); a.Status != http.StatusOK || !bytes.Contains(a.Body, []byte("[DONE]")) {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
		}
		p.Interrupt()
	}
	ready := func(p *harness.Process) {
		t.Helper()
		harness.Eventually(t, "ready", func() bool {
			resp, err := http.Get("http://" + admin + "/readyz")
			if err != nil {
				return false
			}
			resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		}, p)
	}
	closed := harness.StartCommand(t, exec.Command("sh", append([]string{"-c", `exec "$0" "$@" >&- 2>&-`, harness.Binary}, args...)...))
	ready(closed)
	works(closed)

	// Its output is a pipe that nobody reads.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", append([]string{"-c", `exec "$0" "$@" >&3 2>&3 3>&-`, harness.Binary}, args...)...)
	cmd.ExtraFiles = []*os.File{w}
	p := harness.StartCommand(t, cmd)
	w.Close()
	if line, err := bufio.NewReader(io.LimitReader(r, 16)).ReadString(' '); err != nil || line != "page " {
		t.Fatalf("%q, %v", line, err)
	}
	r.Close()
	ready(p)
	works(p)
}

// A timeline that reaches the limit of a file's size, as on a full disk, ends with a
// whole line; the counts are those of the file, and what waited is written when there
// is room.
func TestTimelineFull(t *testing.T) {
	harness.Beside(t, harness.Light)
	file := filepath.Join(t.TempDir(), "timeline.jsonl")
	// The log goes to the output, where the test can follow it.
	p := harness.StartCommand(t, exec.Command("sh", "-c", `exec "$0" "$@" 2>&1`, harness.Binary, "up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--timeline", file,
		"--engines", "1", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms"))
	g := &harness.Gateway{Process: p, URL: p.Line("gateway"), Admin: p.Line("admin"), Timeline: file}
	harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
	logged := func(what string) {
		t.Helper()
		p.Find(what, func(line string) bool { return strings.Contains(line, what) })
	}
	limit := func(bytes uint64) {
		t.Helper()
		all := uint64(unix.RLIM_INFINITY)
		if err := unix.Prlimit(g.Cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: all}, nil); err != nil {
			t.Fatal(err)
		}
	}
	requests := func(n int) {
		t.Helper()
		for range n {
			if a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream); a.Status != http.StatusOK || !bytes.Contains(a.Body, []byte("[DONE]")) {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
		}
	}
	// whole wants the file to have this many lines, and the counts to say it.
	whole := func(least, most int) (lines int) {
		t.Helper()
		data, err := os.ReadFile(g.Timeline)
		if err != nil {
			t.Fatal(err)
		}
		lines = bytes.Count(data, []byte("\n"))
		written, dropped := harness.Metric(t, g.Admin, "weir_timeline_written_total"), harness.Metric(t, g.Admin, "weir_timeline_dropped_total")
		if !bytes.HasSuffix(data, []byte("}\n")) || float64(lines) != written || lines < least || lines > most || dropped != 0 {
			t.Errorf("%d lines, which end in %.20q; %v written, %v dropped; want %d to %d lines", lines, data[max(0, len(data)-20):], written, dropped, least, most)
		}
		return lines
	}
	limit(8 << 10)
	requests(20)
	logged("the timeline cannot be written")
	begun := whole(2, 10)
	limit(unix.RLIM_INFINITY)
	logged("the timeline is written again")
	if n := whole(20, 20); n <= begun {
		t.Errorf("%d lines after %d", n, begun)
	}
	requests(5)
	g.Interrupt()
	if n := len(g.Records()); n != 25 {
		t.Errorf("%d records, want 25", n)
	}
	if n := strings.Count(g.Output(), "the timeline"); n != 2 {
		t.Errorf("said %d times, want once full and once written again", n)
	}
}
