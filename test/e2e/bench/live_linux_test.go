package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weir/test/e2e/harness"
)

// terminal opens a pseudo terminal of a size: its own end, and that of the
// program.
func terminal(t *testing.T, columns, rows uint16) (own, program *os.File) {
	t.Helper()
	own, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	fd := int(own.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	resize(t, own, columns, rows)
	return own, program
}

func resize(t *testing.T, own *os.File, columns, rows uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(own.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		t.Fatal(err)
	}
}

// On a terminal a run is drawn in place while it is under way, no wider than the
// terminal, also when that becomes narrower, and is gone at the end. The report
// is not in the way.
func TestBenchLive(t *testing.T) {
	harness.Beside(t, harness.Light)
	e := harness.Start(t, "engine", "--listen", "127.0.0.1:0", "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	url := e.Line("openai ")
	own, program := terminal(t, 100, 30)
	cmd := exec.Command(harness.Binary, "bench", url, "--rate", "20", "--duration", "4s", "--output-tokens", "4")
	var report bytes.Buffer
	cmd.Stdout, cmd.Stderr = &report, program
	cmd.Env = append(os.Environ(), "TERM=xterm")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var drawn bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := own.Read(buf)
			mu.Lock()
			drawn.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	seen := func() string {
		mu.Lock()
		defer mu.Unlock()
		return drawn.String()
	}
	harness.Eventually(t, "drawn", func() bool { return strings.Contains(seen(), "in flight") })
	resize(t, own, 24, 10)
	wide := len(seen())
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, seen())
	}
	program.Close()
	<-read
	text := seen()
	if !strings.HasSuffix(text, "A\r\x1b[J") {
		t.Errorf("ends with %q", text[max(0, len(text)-40):])
	}
	// What was drawn after the first drawing in the new size is narrow.
	after := text[wide:]
	if _, rest, ok := strings.Cut(after, "\x1b[?7h"); ok {
		for line := range strings.SplitSeq(rest, "\r\n") {
			_, line, ok := strings.Cut(line, "\x1b[2K")
			if n := len([]rune(strings.TrimSuffix(line, "\r"))); ok && n > 23 {
				t.Errorf("%d columns: %q", n, line)
			}
		}
	}
	if !strings.Contains(report.String(), "verdict") || strings.Contains(report.String(), "\x1b") {
		t.Errorf("%q", report.String())
	}
}
