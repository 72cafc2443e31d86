package serve

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir/test/e2e/harness"
)

// lacksVariable has the numbers of system calls that the test's own binary, run again,
// takes from itself before it becomes weir: a kernel, or a container's profile, without
// them.
const lacksVariable = "WEIR_TEST_LACKS"

// Before any test, so that the process has done nothing that the calls would be missed for.
func init() {
	if err := becomeLacking(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// becomeLacking runs weir without some system calls, in place of the test. It returns nil if
// it is not asked to.
func becomeLacking() error {
	calls := os.Getenv(lacksVariable)
	if calls == "" {
		return nil
	}
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the call's number
	for _, call := range strings.Fields(calls) {
		n, err := strconv.Atoi(call)
		if err != nil {
			return err
		}
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: uint32(n)},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	runtime.LockOSThread() // the filter is the thread's, and what it executes keeps it
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return err
	}
	binary := os.Args[1]
	return syscall.Exec(binary, os.Args[1:], os.Environ())
}

// lacking returns the command of weir with these arguments and without these calls.
func lacking(t *testing.T, calls []int, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{harness.Binary}, args...)...)
	cmd.Env = []string{lacksVariable + "=" + strings.Trim(fmt.Sprint(calls), "[]")}
	return cmd
}

// TestLacking runs weir where something is missing that most machines have, and wants what
// docs/install.md says: it serves, or it says why not. That it needs no C library is
// shown by make release-check, where it runs beside no other file.
func TestLacking(t *testing.T) {
	up := []string{"up", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}
	for name, c := range map[string]struct {
		calls   []int
		logs    string // on standard error
		refuses bool
	}{
		"nothing":                           {calls: []int{100000}},
		"timerfd":                           {calls: []int{unix.SYS_TIMERFD_CREATE}, logs: "no canary"},
		"epoll_pwait2 and affinity":         {calls: []int{unix.SYS_EPOLL_PWAIT2, unix.SYS_SCHED_GETAFFINITY}},
		"io_uring, memfd, pidfd and rseq":   {calls: []int{unix.SYS_IO_URING_SETUP, unix.SYS_MEMFD_CREATE, unix.SYS_PIDFD_OPEN, unix.SYS_RSEQ}},
		"splice and sendfile":               {calls: []int{unix.SYS_SPLICE, unix.SYS_SENDFILE}},
		"setsockopt, which is refused then": {calls: []int{unix.SYS_SETSOCKOPT}, logs: "setsockopt: function not implemented", refuses: true},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			p := harness.StartCommand(t, lacking(t, c.calls, up...))
			if c.refuses {
				p.Wait()
				if p.Cmd.ProcessState.ExitCode() == 0 || !strings.Contains(p.Stderr.String(), "listen tcp") {
					t.Errorf("it ended with %d:\n%s", p.Cmd.ProcessState.ExitCode(), p.Stderr.String())
				}
			} else {
				answers(t, p)
			}
			if !strings.Contains(p.Stderr.String(), c.logs) {
				t.Errorf("the log has no %q:\n%s", c.logs, p.Stderr.String())
			}
		})
	}
	t.Run("a home, a folder for temporary files and an environment", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		cmd := exec.Command("env", append([]string{"-i", "HOME=/proc", "TMPDIR=/proc", "XDG_RUNTIME_DIR=/proc", harness.Binary}, up...)...)
		cmd.Dir = "/proc" // nothing can be written here, by root either
		answers(t, harness.StartCommand(t, cmd))
	})
}

// answers wants a stream of a gateway, whole, and an end with 0 then.
func answers(t *testing.T, p *harness.Process) {
	t.Helper()
	url, admin := p.Line("gateway"), p.Line("admin")
	harness.Eventually(t, "ready", func() bool { return harness.Get(t, admin+"/readyz").Status == 200 }, p)
	a := harness.Post(t, url+"/v1/chat/completions", `{"model": "weir-sim", "stream": true, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}`)
	if a.Status != 200 || !strings.HasSuffix(strings.TrimSpace(string(a.Body)), "data: [DONE]") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	p.Interrupt()
}
