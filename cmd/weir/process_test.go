package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// binary is the built program that these tests run, over real sockets.
var binary string

func TestMain(m *testing.M) {
	moreAtOnce()
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "weir")
	args := []string{"build", "-ldflags=-s -w", "-o", binary} // linking debug information takes as long as the rest
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	code := 1
	if err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// finish runs the binary to its end.
func finish(t testing.TB, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// weir is a running process of the binary.
type weir struct {
	t      testing.TB
	cmd    *exec.Cmd
	exited chan struct{} // closed when err is set
	err    error
	stderr bytes.Buffer

	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed and replaced with every line
}

// start runs the binary; the test's end stops it.
func start(t testing.TB, args ...string) *weir {
	t.Helper()
	return startWith(t, nil, nil, args...)
}

// startWith is start with files to inherit, from descriptor 3 on, and more of an
// environment.
func startWith(t testing.TB, files []*os.File, env []string, args ...string) *weir {
	t.Helper()
	p := &weir{t: t, cmd: exec.Command(binary, args...), exited: make(chan struct{}), more: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	p.cmd.ExtraFiles = files
	p.cmd.Env = append(append(os.Environ(), "GORACE=halt_on_error=1 exitcode=66"), env...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		select {
		case <-p.exited:
		default:
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
		if t.Failed() {
			t.Logf("%v printed:\n%s\n%s", args, strings.Join(p.lines, "\n"), p.stderr.String())
		}
	})
	return p
}

// line waits for a line that begins so and gives its next word.
func (p *weir) line(prefix string) string {
	p.t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		p.mu.Lock()
		for _, l := range p.lines {
			if rest, ok := strings.CutPrefix(l, prefix); ok {
				p.mu.Unlock()
				word, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
				return word
			}
		}
		more := p.more
		p.mu.Unlock()
		select {
		case <-more:
		case <-p.exited:
			p.t.Fatalf("exited (%v) before it printed %q:\n%s", p.err, prefix, p.stderr.String())
		case <-deadline:
			p.t.Fatalf("never printed %q", prefix)
		}
	}
}

// interrupt sends SIGINT and wants the process to exit with 0.
func (p *weir) interrupt() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		p.t.Fatal(err)
	}
	p.exits(0)
}

func (p *weir) exits(code int) {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(5 * time.Minute):
		p.t.Fatal("still running")
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("exit code %d, want %d\n%s", got, code, p.stderr.String())
	}
}

// gateway is a running gateway.
type gateway struct {
	*weir
	url, admin string
	timeline   string
}

var anyPort = []string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}

// startGateway runs up or serve on free ports with a timeline file, and waits
// until it is ready.
func startGateway(t testing.TB, args ...string) *gateway {
	t.Helper()
	return startGatewayWith(t, nil, args...)
}

// startGatewayWith is startGateway with more of an environment.
func startGatewayWith(t testing.TB, env []string, args ...string) *gateway {
	t.Helper()
	g := startUnreadyWith(t, env, args...)
	eventually(t, "ready", func() bool { return get(t, g.admin+"/readyz").status == http.StatusOK })
	return g
}

// startUnready is startGateway that does not wait.
func startUnready(t testing.TB, args ...string) *gateway {
	t.Helper()
	return startUnreadyWith(t, nil, args...)
}

func startUnreadyWith(t testing.TB, env []string, args ...string) *gateway {
	t.Helper()
	file := filepath.Join(t.TempDir(), "timeline.jsonl")
	args = append(append(args[:1:1], append(anyPort, "--timeline", file)...), args[1:]...)
	p := startWith(t, nil, env, args...)
	return &gateway{p, p.line("gateway"), p.line("admin"), file}
}

// sim is a running simulated engine.
type sim struct {
	*weir
	openai string // base URL
	sglang string // base URL
	plane  string // host:port
	admin  string
}

// paths are the ways to an engine, and spec is the --engine of one.
var paths = []string{"plane", "relay", "sglang"}

func (s *sim) spec(path string) string {
	switch path {
	case "plane":
		return "weir=" + s.plane
	case "sglang":
		return "sglang=" + s.sglang
	}
	return "openai=" + s.openai
}

func startSim(t testing.TB, args ...string) *sim {
	t.Helper()
	p := start(t, append([]string{"engine", "--wire", "openai=127.0.0.1:0", "--wire", "sglang=127.0.0.1:0", "--wire", "weir=127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, args...)...)
	return &sim{p, p.line("openai"), p.line("sglang"), p.line("weir"), p.line("admin")}
}

// state is what a simulated engine counts itself.
type state struct {
	Running, Waiting                      int
	Received, Finished, Aborted, Rejected int
	GeneratedTokens                       int `json:"generated_tokens"`
}

func engineState(t testing.TB, admin string) state {
	t.Helper()
	var s state
	if err := json.Unmarshal(get(t, admin+"/admin/state").body, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// answer is an HTTP response read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error // of reading the body
}

// client bounds a request, so that a hang fails its own test.
var client = &http.Client{Timeout: 2 * time.Minute}

func get(t testing.TB, url string) answer {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	return read(resp)
}

func post(t testing.TB, url, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return read(resp)
}

// postRaw asks for a chat completion on a connection, and leaves its answer there.
func postRaw(t testing.TB, conn net.Conn, body string, headers ...string) {
	t.Helper()
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for i := 0; i+1 < len(headers); i += 2 {
		head += headers[i] + ": " + headers[i+1] + "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", head, len(body), body); err != nil {
		t.Fatal(err)
	}
}

func read(resp *http.Response) answer {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body, err}
}

// apiError is the OpenAI error shape.
type apiError struct {
	Error struct {
		Message string
		Type    string
		Param   *string
		Code    *string
	}
}

// freePort is below those that a kernel gives away by itself, so that no other
// process takes one unasked between the choice and its use.
var freePort atomic.Uint32

// freeAddress gives an address that nobody listens on, to one test alone.
func freeAddress(t testing.TB) string {
	t.Helper()
	first, _ := neighbours(t)
	return first
}

// neighbours gives two free addresses whose ports are next to each other.
func neighbours(t testing.TB) (first, second string) {
	t.Helper()
	const low, high = 12_000, 32_000
	freePort.CompareAndSwap(0, 1+rand.Uint32N(high-low)) // another process of tests begins elsewhere
	free := func(port uint32) (string, bool) {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return "", false
		}
		defer l.Close()
		return l.Addr().String(), true
	}
	for range 100 {
		port := low + freePort.Add(2)%(high-low)
		first, one := free(port)
		second, two := free(port + 1)
		if one && two {
			return first, second
		}
	}
	t.Fatal("no two free ports next to each other")
	return "", ""
}

// eventually polls until a condition holds that another process brings about.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not %s in time", what)
		}
	}
}

// metric sums the samples of a metric whose labels contain all that is given.
func metric(t testing.TB, admin, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for line := range strings.Lines(string(get(t, admin+"/metrics").body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		matches := true
		for _, l := range labels {
			matches = matches && strings.Contains(rest, l)
		}
		if !matches {
			continue
		}
		fields := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			t.Fatalf("metric %s: %v", line, err)
		}
		sum += v
	}
	return sum
}

// balanced checks the accounting identity at rest: everything received has
// ended.
func (g *gateway) balanced() map[string]int {
	g.t.Helper()
	eventually(g.t, "at rest", func() bool { return metric(g.t, g.admin, "weir_requests_in_flight") == 0 })
	ended := map[string]int{}
	sum := 0
	for _, outcome := range []string{"finished", "cancelled", "rejected", "failed"} {
		ended[outcome] = int(metric(g.t, g.admin, "weir_requests_total", `outcome="`+outcome+`"`))
		sum += ended[outcome]
	}
	ended["received"] = int(metric(g.t, g.admin, "weir_requests_received_total"))
	if ended["received"] != sum {
		g.t.Errorf("received %d, ended %d: %v", ended["received"], sum, ended)
	}
	return ended
}

// record is a line of the timeline.
type record struct {
	RequestID string `json:"request_id"`
	Outcome   string
	Code      string
	Status    int
	Residual  int64
	Stages    map[string]int64
	Total     int64 `json:"total_latency"`
	TTFT      int64 `json:"ttft"`
	Attempts  []struct {
		Legs []map[string]any
	}
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
}

// records reads the timeline file after the gateway has ended.
func (g *gateway) records() []record {
	g.t.Helper()
	f, err := os.Open(g.timeline)
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	var all []record
	dec := json.NewDecoder(f)
	for {
		var r record
		err := dec.Decode(&r)
		if err == io.EOF {
			return all
		}
		if err != nil {
			g.t.Fatal(err)
		}
		all = append(all, r)
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
