//go:build interop

// Package kvevents follows SGLang's own publishers of KV events, of the first release
// that can be had and of the newest: what they publish, what is lost on the way, a
// publisher that stands still, that begins anew, that floods, and one that sends what is
// no event.
package kvevents

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/kvsub"
	"weir/internal/infer"
	"weir/internal/wire/zmtp"
	"weir/test/e2e/harness"
)

func python() string {
	if p := os.Getenv("WEIR_PYTHON"); p != "" {
		return p
	}
	return "python3"
}

// releases are the files of SGLang's that have its publisher, by their form.
func releases(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command(python(), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'], end='')").Output()
	if err != nil {
		t.Fatal(err)
	}
	const file = "sglang/srt/disaggregation/kv_events.py"
	all := map[string]string{"array": filepath.Join(string(out), file), "map": filepath.Join(os.Getenv("WEIR_SGLANG_PARSERS"), file)}
	for _, f := range all {
		if _, err := os.Stat(f); err != nil {
			t.Fatalf("%v: run make interop", err)
		}
	}
	return all
}

// publisher is a running one.
type publisher struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	port int
}

func start(t *testing.T, file string, port int) *publisher {
	t.Helper()
	p := &publisher{t: t, port: port, cmd: exec.Command(python(), "publisher.py", file, strconv.Itoa(port))}
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	t.Cleanup(p.kill)
	p.wait()
	return p
}

func (p *publisher) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *publisher) wait() {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the publisher has ended: %v", p.out.Err())
	}
}

// do has it do something, and returns when that was sent.
func (p *publisher) do(command map[string]any) {
	p.t.Helper()
	line, err := json.Marshal(command)
	if err == nil {
		_, err = p.in.Write(append(line, '\n'))
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.wait()
}

func ids(seed, n int) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = uint32(seed*1000 + i)
	}
	return all
}

func resident(r *kvevents.Rank, ids []uint32) int {
	return r.Resident(kvindex.AppendChain(nil, kvindex.Root(0), ids, 16), len(ids)+1)
}

// root is where prompts with a salt begin; those without begin at 0.
func root(_, salt string) kvindex.Block {
	if salt == "" {
		return kvindex.Root(0)
	}
	return kvindex.Root(0, salt)
}

// follow follows until the test ends.
func follow(t *testing.T, port int, budget *kvevents.Budget) *kvevents.Rank {
	t.Helper()
	at := func(port int) zmtp.Endpoint {
		return zmtp.Endpoint{Network: "tcp", Address: fmt.Sprintf("127.0.0.1:%d", port)}
	}
	r := kvevents.New(kvevents.Options{IndexTokens: 16, Replays: true, Budget: budget, Root: root})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		kvsub.Follow(ctx, kvsub.Options{Events: at(port), Replay: at(port + 1), Replays: true, Topic: "kv@", Rank: r,
			Panicked: func(p *infer.Panic) { t.Errorf("%v\n%s", p, p.Stack) }})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

func freePort(t *testing.T) int {
	_, port, err := splitPort(harness.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func splitPort(address string) (host string, port int, err error) {
	for i := len(address) - 1; i >= 0; i-- {
		if address[i] == ':' {
			port, err = strconv.Atoi(address[i+1:])
			return address[:i], port, err
		}
	}
	return "", 0, fmt.Errorf("%q has no port", address)
}

func TestSGLangPublisher(t *testing.T) {
	for form, file := range releases(t) {
		t.Run(form, func(t *testing.T) {
			port := freePort(t)
			p := start(t, file, port)
			p.do(map[string]any{"store": ids(1, 100), "page": 16})
			r := follow(t, port, kvevents.NewBudget(64<<20))
			has := func(what string, ids []uint32, blocks int, k kvevents.Knowledge) {
				t.Helper()
				harness.Eventually(t, what, func() bool { return resident(r, ids) == blocks && r.Knowledge() == k })
			}
			has("what was published before", ids(1, 100), 6, kvevents.Known)
			p.do(map[string]any{"store": ids(2, 64), "page": 16})
			has("what is published", ids(2, 64), 4, kvevents.Known)
			p.do(map[string]any{"remove": ids(2, 64), "page": 16})
			has("what is removed", ids(2, 64), 0, kvevents.Known)
			p.do(map[string]any{"lose": map[string]any{"store": ids(3, 64), "page": 16}})
			p.do(map[string]any{"store": ids(4, 64), "page": 16})
			has("what was lost", ids(3, 64), 4, kvevents.Known)
			if s := r.Stats(); s.Gaps != 1 || s.Rebuilds != 0 || s.Ignored+s.Bad+s.Strange != 0 {
				t.Errorf("%+v", s)
			}
			// One that stands still is waited for.
			if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if got := resident(r, ids(1, 100)); got != 6 {
				t.Errorf("%d blocks while it stands still", got)
			}
			if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			p.do(map[string]any{"clear": true})
			has("all are cleared", ids(1, 100), 0, kvevents.Known)
			p.do(map[string]any{"store": ids(5, 64), "page": 16})
			has("and some stored", ids(5, 64), 4, kvevents.Known)

			// A message that is not a batch: the blocks that it may have removed are no longer
			// believed.
			p.do(map[string]any{"raw": []string{"6b76406d", "0000000000000007", "c1c1"}})
			harness.Eventually(t, "garbage", func() bool { return r.Stats().Bad == 1 })
			if resident(r, ids(5, 64)) != 0 || r.Knowledge() == kvevents.Known {
				t.Errorf("%d blocks, %v", resident(r, ids(5, 64)), r.Knowledge())
			}
			// Bytes that are not a message end the connection, and everything is fetched again.
			p.do(map[string]any{"raw": []string{"6b76406d", "00"}})
			has("it comes back", ids(5, 64), 4, kvevents.Known)

			// Another one at its place begins with 0.
			p.kill()
			harness.Eventually(t, "lost", func() bool { return r.Knowledge() == kvevents.Unknown })
			p = start(t, file, port)
			for i := range 12 {
				p.do(map[string]any{"store": ids(20+i, 64), "page": 16})
			}
			has("the new one's", ids(31, 64), 4, kvevents.Known)
			has("and not the old one's", ids(5, 64), 0, kvevents.Known)
		})
	}
}

// A publisher that floods takes the memory of its budget and no more.
func TestFlood(t *testing.T) {
	port := freePort(t)
	p := start(t, releases(t)["map"], port)
	const max = 1 << 20
	budget := kvevents.NewBudget(max)
	r := follow(t, port, budget)
	p.do(map[string]any{"store": ids(1, 64), "page": 16})
	harness.Eventually(t, "the first", func() bool { return r.Stats().Batches > 0 })
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p.do(map[string]any{"flood": 50_000})
	harness.Eventually(t, "the flood", func() bool { return r.Stats().Overflows > 10 })
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); budget.Used() > max || grown > 16<<20 {
		t.Errorf("%d bytes are counted, the heap has grown by %d", budget.Used(), grown)
	}
	t.Logf("%+v", r.Stats())
}
