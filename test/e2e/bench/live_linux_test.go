package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
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
	cmd := exec.Command(harness.Binary, "bench", url, "--rate", "20", "--duration", "1h", "--output-tokens", "4")
	var report bytes.Buffer
	cmd.Stdout, cmd.Stderr = &report, program
	cmd.Env = append(os.Environ(), "TERM=xterm")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
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
	// columns is how wide the widest line of each whole drawing is.
	columns := func() (widths []int) {
		drawings := strings.Split(seen(), "\x1b[?7h")
		for _, d := range drawings[:len(drawings)-1] {
			width := 0
			for line := range strings.SplitSeq(d, "\r\n") {
				if _, line, ok := strings.Cut(line, "\x1b[2K"); ok {
					width = max(width, len([]rune(strings.TrimSuffix(line, "\r"))))
				}
			}
			widths = append(widths, width)
		}
		return widths
	}
	const wide, narrow = 99, 23
	last := func(width int) bool {
		all := columns()
		return len(all) > 0 && all[len(all)-1] <= width
	}
	harness.Eventually(t, "drawn", func() bool { return last(wide) && strings.Contains(seen(), "in flight") })
	if last(narrow) {
		t.Fatalf("nothing that is drawn is wider than %d columns: %q", narrow, seen())
	}
	// A drawing may be under way when the size changes; those behind the first narrow one
	// were begun after it.
	resize(t, own, narrow+1, 10)
	harness.Eventually(t, "drawn in the new size", func() bool { return last(narrow) })
	before := len(columns())
	harness.Eventually(t, "drawn again", func() bool { return len(columns()) >= before+2 })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatalf("%v: %s", err, seen())
	}
	program.Close()
	<-read
	text := seen()
	if !strings.HasSuffix(text, "A\r\x1b[J") {
		t.Errorf("ends with %q", text[max(0, len(text)-40):])
	}
	for _, width := range columns()[before:] {
		if width > narrow {
			t.Errorf("%d columns in a terminal of %d: %q", width, narrow+1, text)
		}
	}
	if !strings.Contains(report.String(), "verdict") || strings.Contains(report.String(), "\x1b") {
		t.Errorf("%q", report.String())
	}
}
