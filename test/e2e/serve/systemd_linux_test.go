package serve

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// A service manager, which reads datagrams from the socket that NOTIFY_SOCKET names,
// learns when the gateway listens, reads its configuration again, and stops.
func TestReportsToSystemd(t *testing.T) {
	harness.Beside(t, harness.Light)
	path := filepath.Join(harness.SocketDir(t), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	report := func() string {
		t.Helper()
		if err := manager.SetReadDeadline(time.Now().Add(harness.Patience)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		n, err := manager.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	g := harness.StartUnreadyWith(t, []string{"NOTIFY_SOCKET=" + path}, "up")
	if got := report(); got != "READY=1" {
		t.Errorf("listening: %q", got)
	}
	if a := harness.Get(t, g.Admin+"/healthz"); a.Status != 200 {
		t.Errorf("it was ready before it listened: %+v", a)
	}
	if err := g.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	began, clock, found := strings.Cut(report(), "\nMONOTONIC_USEC=")
	if _, err := strconv.ParseUint(strings.TrimSpace(clock), 10, 64); began != "RELOADING=1" || !found || err != nil {
		t.Errorf("a reload begins with %q, %q", began, clock)
	}
	if got := report(); got != "READY=1" {
		t.Errorf("a reload ends with %q", got)
	}
	if err := g.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := report(); got != "STOPPING=1" {
		t.Errorf("stopping: %q", got)
	}
	g.Exits(0)
}
