//go:build linux

package hostile

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/internal/lab/proc"
	"weir/test/e2e/harness"
)

// The bounds of what a part may leave behind.
const (
	settleTime = 5 * time.Second
	heapSlack  = 10 << 20
	slack      = 5 // goroutines and descriptors: a scrape of the metrics, an engine's new connection
)

// bed is a gateway under attack.
type bed struct {
	*harness.Gateway
	t     *testing.T
	name  string
	calm  func() // ends what the part itself holds open
	first state  // before the attacks
}

// state is what a gateway has of things that are to be as many afterwards.
type state struct{ goroutines, descriptors, connections, busy, requests, bodies, panics, heap int }

// quickTimeout bounds the bodies and handshakes of a gateway that is quick.
const quickTimeout = 2 * time.Second

// quick are flags by which a gateway waits for nobody for long.
var quick = []string{"--pprof", "--body-timeout", quickTimeout.String(), "--write-timeout", "2s", "--drain-timeout", "1s", "--stall-threshold", "0", "--log-level", "error", "--watch-cpu", "0", "--timeline", "off"}

// serve starts a gateway whose baseline is taken after warm has been through it twice.
func serve(t *testing.T, name string, warm func(b *bed), calm func(), args ...string) *bed {
	t.Helper()
	b := &bed{t: t, name: name, calm: calm, Gateway: harness.StartGateway(t, slices.Concat([]string{"serve"}, quick, args)...)}
	for range 2 {
		warm(b)
	}
	b.calm()
	harness.Eventually(t, "at rest", func() bool { s := b.state(); return s.requests == 0 && s.busy == 0 })
	time.Sleep(200 * time.Millisecond) // the connections that calm closed
	b.first = b.state()
	b.first.heap = b.heap()
	return b
}

// get reads a page of the admin listener. A compressed one would leave its compressor in the heap.
func (b *bed) get(path string) []byte {
	b.t.Helper()
	resp, err := admin.Get(b.Admin + path)
	if err != nil {
		b.t.Fatal(err)
	}
	return harness.Read(resp).Body
}

var admin = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableCompression: true}}

// state reads the metrics.
func (b *bed) state() (s state) {
	b.t.Helper()
	into := map[string]*int{"go_goroutines": &s.goroutines, "process_open_fds": &s.descriptors, "weir_connections": &s.connections, "weir_connections_idle": &s.busy, "weir_requests_in_flight": &s.requests, "weir_body_bytes": &s.bodies}
	for line := range strings.Lines(string(b.get("/metrics"))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, "weir_panics_total") {
			n, _ := strconv.Atoi(value)
			s.panics += n
		}
		if to := into[name]; to != nil {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.t.Fatal(err)
			}
			*to = int(f)
		}
	}
	s.busy = s.connections - s.busy
	return s
}

var heapAlloc = regexp.MustCompile(`# HeapAlloc = (\d+)`)

// heap is the live heap after a forced collection. The first collection leaves what pools hold.
func (b *bed) heap() (n int) {
	b.t.Helper()
	for range 2 {
		m := heapAlloc.FindSubmatch(b.get("/debug/pprof/heap?gc=1&debug=1"))
		if m == nil {
			b.t.Fatal("no HeapAlloc in the profile of the heap")
		}
		n, _ = strconv.Atoi(string(m[1]))
	}
	return n
}

// resident is the most memory that a process has had resident, in MB; 0 if it has ended.
func resident(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	m := highWater.FindSubmatch(status)
	if m == nil {
		return 0
	}
	kb, _ := strconv.Atoi(string(m[1]))
	return kb / 1024
}

var highWater = regexp.MustCompile(`VmHWM:\s*(\d+)`)

// lives reports whether the process runs, and fails the test once if it does not.
func (b *bed) lives(row string) bool {
	b.t.Helper()
	select {
	case <-b.Exited:
		b.t.Errorf("%s: the gateway has ended: %v\n%.3000s", row, b.Err, b.Stderr.String())
		return false
	default:
		return true
	}
}

// settled wants the gateway back at its baseline, its live heap too, no panic, and its peak of memory below a bound in MB.
func (b *bed) settled(after string, most int) {
	b.t.Helper()
	if !b.lives(after) {
		return
	}
	b.calm()
	began, now := time.Now(), state{}
	for {
		now = b.state()
		f := b.first
		now.heap = b.heap()
		if now.heap <= f.heap+heapSlack && now.goroutines <= f.goroutines+slack && now.descriptors <= f.descriptors+slack && now.connections <= f.connections && now.busy <= f.busy && now.requests <= f.requests && now.bodies <= f.bodies {
			break
		}
		if time.Since(began) > settleTime {
			b.t.Errorf("%s, %s: %v after it there are %+v; before it there were %+v", b.name, after, settleTime, now, f)
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	took := time.Since(began)
	peak := resident(b.Cmd.Process.Pid)
	if peak > most {
		b.t.Errorf("%s, %s: %d MB resident at the peak, the bound is %d MB", b.name, after, peak, most)
	}
	if now.panics > 0 {
		b.t.Errorf("%s, %s: %d panics", b.name, after, now.panics)
	}
	used, _ := proc.Of([]int{b.Cmd.Process.Pid})
	b.t.Logf("%s, %s: at rest after %.1f s; %d goroutines (%d before), heap %d MB (%d), peak %d MB of %d, %.1f s of CPU", b.name, after, took.Seconds(), now.goroutines, b.first.goroutines, now.heap>>20, b.first.heap>>20, peak, most, used.CPU)
}

// keysFile writes a keys file of "good", whose limits are lines of YAML, and of n others.
func keysFile(t testing.TB, n int, limits ...string) string {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	harness.WriteFile(t, path, keysText(n, limits...))
	return path
}

func keysText(n int, limits ...string) string {
	var b strings.Builder
	b.WriteString("keys:\n")
	for i := range n {
		fmt.Fprintf(&b, "  u%d:\n    hash: sha256:%064x\n", i, i+1)
	}
	fmt.Fprintf(&b, "  good:\n    hash: sha256:%x\n", sha256.Sum256([]byte("weir_good")))
	for _, l := range limits {
		fmt.Fprintf(&b, "    %s\n", l)
	}
	return b.String()
}

// ask posts a chat with the good key, and returns the status and the body; -1 is no answer.
func ask(client *http.Client, base, body string, fields ...string) (int, string) {
	req, err := http.NewRequest(http.MethodPost, base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return -1, err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer weir_good")
	for i := 0; i+1 < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return -1, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return -1, err.Error()
	}
	return resp.StatusCode, string(text)
}

// chat is the body of a request whose one message is content.
func chat(model, content string) string {
	return fmt.Sprintf(`{"model":%q,"max_tokens":8,"messages":[{"role":"user","content":%q}]}`, model, content)
}

// client is an HTTP client of its own, whose requests last at most as long as given.
func client(most time.Duration) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: most}
}

// used is what a command took.
type used struct {
	code      int // -1: it was killed at its bound of time
	cpu, wall time.Duration
	peak      int // MB
	output    string
}

// command runs weir for at most a time, and with at most 1.5 GB resident. begun may act on the process.
func command(t *testing.T, most time.Duration, begun func(pid int), args ...string) (u used) {
	t.Helper()
	p := limited(t, 4<<20, args...)
	began := time.Now()
	if begun != nil {
		begun(p.Cmd.Process.Pid)
	}
	// The kernel's own peak of a child begins with its parent's.
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-p.Exited:
			tick.Stop()
			s := p.Cmd.ProcessState
			u.code, u.cpu, u.wall, u.output = s.ExitCode(), s.UserTime()+s.SystemTime(), time.Since(began), p.Output()+p.Stderr.String()
			return u
		case <-tick.C:
			if u.peak = max(u.peak, resident(p.Cmd.Process.Pid)); time.Since(began) > most || u.peak > 1500 {
				p.Kill()
			}
		}
	}
}

// limited starts weir with at most so many KB of addresses.
func limited(t *testing.T, kb int, args ...string) *harness.Process {
	t.Helper()
	return harness.StartCommand(t, exec.Command("sh", slices.Concat([]string{"-c", fmt.Sprintf("ulimit -v %d; exec \"$@\"", kb), "sh", harness.Binary}, args)...))
}

// bomb fails the test if what a process printed is a runtime's crash.
func bomb(t *testing.T, row, output string) {
	t.Helper()
	for _, word := range []string{"fatal error:", "panic:", "goroutine 1 ["} {
		if i := bytes.Index([]byte(output), []byte(word)); i >= 0 {
			t.Errorf("%s: %.300s", row, output[i:])
			return
		}
	}
}
