//go:build linux

package hostile

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/test/e2e/harness"
)

// listen serves connections by a function until the test ends.
func listen(t *testing.T, serve func(c net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c) }()
		}
	}()
	return l.Addr().String()
}

// testStore has the limits' store answer nonsense. Requests are answered all the same, by --limits-outage.
func testStore(t *testing.T) {
	var now atomic.Pointer[string]
	store := listen(t, func(c net.Conn) {
		buf := make([]byte, 64<<10)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
			head, again, endless := strings.Cut(*now.Load(), "~~~")
			if _, err := io.WriteString(c, head); err != nil {
				return
			}
			for sent := 0; endless && sent < 256<<20; sent += len(again) * 4096 {
				if _, err := io.WriteString(c, strings.Repeat(again, 4096)); err != nil {
					return
				}
			}
		}
	})
	engine := startScripted(t, nil)
	silent := ""
	now.Store(&silent)
	hurry := client(20 * time.Second)
	b := serve(t, "store", func(b *bed) { ask(hurry, b.URL, chat("m", "warm")) }, func() { engine.hangUp(); hurry.CloseIdleConnections() },
		"--engine", "openai="+engine.url()+",model=m", "--keys", keysFile(t, 0, "requests_per_minute: 100000"), "--budget-file", "off", "--limits", "redis://"+store)
	for _, r := range rows(t, "store.txt") {
		text := grammar(nil).expand(nil, strings.Join(r.texts, ""), nil)
		now.Store(&text)
		for began := time.Now(); time.Since(began) < 1200*time.Millisecond; time.Sleep(100 * time.Millisecond) {
			if s, body := ask(hurry, b.URL, chat("m", r.title)); s != 200 || answerText(body) != r.title {
				t.Errorf("the store answers %s: %d %.300s", r.title, s, body)
				until(time.Second, func() bool { return exited(b.Process) })
				break
			}
		}
		if !b.lives(r.title) {
			return
		}
	}
	now.Store(&silent)
	b.settled("nonsense of the store", 200)
}

// testModel serves models whose folders are hostile: templates and tokenizers that blow up.
func testModel(t *testing.T) {
	sim := harness.StartSim(t)
	all := rows(t, "model.txt")
	beside(3, all, func(r row) {
		folder := harness.SimFolder(t, func(file, text string) string {
			edit := strings.Join(r.texts, "\n")
			switch {
			case file == r.want["file"] && file == "chat_template.jinja":
				return edit
			case file == r.want["file"]:
				var all map[string]json.RawMessage
				if json.Unmarshal([]byte(text), &all) != nil {
					return text
				}
				all[r.want["member"]] = json.RawMessage(grammar(nil).expand(nil, edit, nil))
				changed, _ := json.Marshal(all)
				return string(changed)
			}
			return text
		})
		if r.want["kind"] == "fifo" {
			path := filepath.Join(folder, r.want["file"])
			_ = os.Remove(path)
			_ = syscall.Mkfifo(path, 0o600)
		}
		p := limited(t, 3<<20, append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--engine", sim.Spec("plane"), "--model", "weir-sim=" + folder}, quick...)...)
		if r.want["end"] == "exit" {
			if !until(5*time.Second, func() bool { return exited(p) }) || p.Cmd.ProcessState.ExitCode() == 0 {
				t.Errorf("%s: the start does not fail within 5 s", r.title)
			}
			return
		}
		url := ""
		if !until(20*time.Second, func() bool {
			_, rest, ok := strings.Cut(p.Output(), "gateway   ")
			url, _, _ = strings.Cut(rest, "\n")
			return ok || exited(p)
		}) || exited(p) {
			p.Kill()
			t.Errorf("%s: the gateway does not listen: %.300s", r.title, p.Stderr.String())
			return
		}
		c := client(10 * time.Second)
		defer c.CloseIdleConnections()
		until(20*time.Second, func() bool { s, _ := ask(c, url, `{}`); return s != 503 && s != -1 })
		began := time.Now()
		s, body := ask(c, url, chat("weir-sim", grammar(nil).expand(nil, r.want["prompt"], nil)))
		took, peak := time.Since(began), resident(p.Cmd.Process.Pid)
		t.Logf("%s: %d after %.1f s, %d MB", r.title, s, took.Seconds(), peak)
		if most := r.number(t, "peak", 500); s == -1 || exited(p) || peak > most {
			t.Errorf("%s: %d %.200s after %.1f s, %d MB of %d at the peak", r.title, s, body, took.Seconds(), peak, most)
		}
		p.Kill()
		bomb(t, r.title, p.Stderr.String())
	})
}

func exited(p *harness.Process) bool {
	select {
	case <-p.Exited:
		return true
	default:
		return false
	}
}

// testPeers leaves connections to --peer-listen silent, or says nonsense there.
func testPeers(t *testing.T) {
	engine := startScripted(t, nil)
	at := harness.FreeAddress(t)
	b := serve(t, "peers", func(b *bed) { ask(client(5*time.Second), b.URL, chat("m", "warm")) }, engine.hangUp,
		"--engine", "openai="+engine.url()+",model=m", "--peers", "127.0.0.1:1", "--peer-listen", at)
	var conns []net.Conn
	for i := range 200 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			break // there may be a bound
		}
		defer c.Close()
		_, _ = io.WriteString(c, []string{"", "\x00\xff", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\n\r\n"}[i%4])
		conns = append(conns, c)
	}
	// The peer's own end of each of them is closed by a deadline.
	if began := time.Now(); !until(20*time.Second, func() bool { return b.state().descriptors <= b.first.descriptors+slack }) {
		t.Errorf("%d silent connections: %v later there are %+v; before %+v", len(conns), time.Since(began), b.state(), b.first)
	}
	b.settled("silent peers", 150)
}

// testProxy begins connections of a trusted proxy with heads of the PROXY protocol that are none.
func testProxy(t *testing.T) {
	engine := startScripted(t, nil)
	c := &carrier{name: "PROXY"}
	vars, _ := variables(nil)
	good := func(b *bed) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.URL, "http://"))
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		vars, id := variables(nil)
		_ = send(conn, "PROXY TCP4 203.0.113.1 127.0.0.1 4711 8000\r\n"+vars["last"], nil)
		if got, err := io.ReadAll(io.LimitReader(conn, 1<<20)); !strings.Contains(string(got), id) {
			t.Errorf("a client behind the proxy: %.200q %v", got, err)
		}
	}
	b := serve(t, "proxy", good, engine.hangUp, "--engine", "openai="+engine.url()+",model=m", "--keys", keysFile(t, 0), "--budget-file", "off", "--proxy-protocol", "--trusted-proxies", "127.0.0.0/8")
	c.addr = strings.TrimPrefix(b.URL, "http://")
	beside(8, rows(t, "proxy.txt"), func(r row) {
		conn, err := c.dial()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_ = send(conn, grammar(nil).expand(nil, strings.Join(r.texts, ""), vars), nil)
		_ = conn.SetReadDeadline(time.Now().Add(15 * time.Second))
		got, err := io.ReadAll(io.LimitReader(conn, 1<<20))
		if wrong := strings.Contains(string(got), " 200 "); wrong || os.IsTimeout(err) {
			t.Errorf("%s: %.200q, %v; want the connection to end unserved", r.title, got, err)
		}
		for range 10 {
			abuse(c, grammar(nil).expand(nil, strings.Join(r.texts, ""), vars), random(r.title))
		}
	})
	good(b)
	b.settled("heads of a proxy", 150)
}

// testSockets has engines that exchange ids say nonsense: a server of SGLang's, a scheduler and an engine core.
func testSockets(t *testing.T) {
	t.Run("sglang", func(t *testing.T) {
		t.Parallel()
		engine := startScripted(t, map[string]string{})
		b := serve(t, "sglang", func(*bed) {}, engine.hangUp, "--engine", "sglang="+engine.url()+",model=weir-sim", "--first-timeout", "1s", "--idle-timeout", "1s")
		c := client(12 * time.Second)
		for _, r := range rows(t, "ids.txt") {
			script := grammar(nil).expand(nil, strings.Join(r.texts, ""), nil)
			engine.always(script)
			for _, stream := range []string{"true", "false"} {
				s, body := ask(c, b.URL, strings.Replace(chat("weir-sim", "hi"), "{", `{"stream":`+stream+",", 1))
				whole := s == 200 && !strings.Contains(body, `"error"`)
				if want := r.want["body"] == "whole"; s == -1 && stream == "false" || whole != want && s != -1 {
					t.Errorf("%s, stream %s: %d %.300s; want it whole: %t", r.title, stream, s, body, want)
				}
			}
		}
		c.CloseIdleConnections()
		b.settled("answers in ids", 250)
	})
	t.Run("vllm-core", func(t *testing.T) {
		t.Parallel()
		_, env := harness.ShortTemp(t)
		at := harness.FreeAddress(t)
		g := harness.StartUnreadyWith(t, env, append([]string{"serve", "--engine", "vllm-core=tcp://" + at + ",model=weir-sim", "--first-timeout", "1s"}, quick...)...)
		nonsense(t, g, func(n int) (func(), error) {
			core, err := coretest.Start(harness.Context(t), coretest.Options{Handshake: "tcp://" + at})
			if err != nil {
				return nil, err
			}
			return func() { _ = core.Raw(garbage[n]...); time.Sleep(50 * time.Millisecond); core.Close() }, nil
		}, at)
	})
	t.Run("sglang-ipc", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(harness.SocketDir(t), "sg")
		g := harness.StartUnready(t, append([]string{"serve", "--engine", "sglang-ipc=" + dir + ",model=weir-sim", "--first-timeout", "1s"}, quick...)...)
		nonsense(t, g, func(n int) (func(), error) {
			s, err := schedtest.Start(harness.Context(t), schedtest.Options{Dir: dir, Connected: func(*schedtest.Scheduler) {}, Receive: func(s *schedtest.Scheduler, m schedtest.Message) {
				if m.Tag == "ConfigureLoggingReq" {
					_ = s.Answer(m)
				}
			}})
			if err != nil {
				return nil, err
			}
			if err := schedtest.Write(dir, schedtest.Manifest(nil)); err != nil {
				return nil, err
			}
			return func() { _ = s.Raw(garbage[n]...); time.Sleep(50 * time.Millisecond); s.Close() }, nil
		}, "")
	})
}

// garbage are messages of an engine: frames that are none, claims of counts and lengths, depth, and size.
var garbage = [][][]byte{
	{{}}, {[]byte("hello")}, {{0xc1}}, {{0xdd, 0xff, 0xff, 0xff, 0xff}}, {{0xdf, 0xff, 0xff, 0xff, 0xff}}, {{0xc6, 0xff, 0xff, 0xff, 0xff}},
	{{0x92, 0x00, 0xdd, 0x7f, 0xff, 0xff, 0xff}}, {[]byte(strings.Repeat("\x91", 1_000_000))}, {make([]byte, 10_000_000)},
	{{0x92, 0x00}, {}, {}, {}}, {[]byte(strings.Repeat("\xdd\x00\x01\x00\x00", 100_000))},
	{schedtest.AppendStep(nil, schedtest.Output{ID: "nobody", IDs: []uint32{1 << 31}, Count: -5})},
	{coretest.Append(nil, coretest.Batch{Outputs: []coretest.Output{{ID: "nobody", IDs: []uint32{1 << 31}, Finish: 1}}}, "0.33.0")},
}

// nonsense connects an engine for each message of garbage, asks it something, and has it say that. at is where
// bytes of no protocol go.
func nonsense(t *testing.T, g *harness.Gateway, connect func(n int) (say func(), err error), at string) {
	b := &bed{t: t, name: t.Name(), Gateway: g, calm: func() { http.DefaultClient.CloseIdleConnections() }}
	c := client(8 * time.Second)
	for n := -1; n < len(garbage); n++ {
		say, err := connect(max(n, 0))
		if err != nil {
			t.Errorf("message %d: %v", n, err)
			return
		}
		go ask(c, b.URL, chat("weir-sim", "hi"))
		time.Sleep(30 * time.Millisecond)
		say()
		if at != "" {
			if conn, err := net.Dial("tcp", at); err == nil {
				fmt.Fprintf(conn, "%s", strings.Repeat("\xff", 1+100*max(n, 0)))
				conn.Close()
			}
		}
		if !b.lives(fmt.Sprintf("message %d", n)) {
			return
		}
		if n < 0 { // the first one warms up
			c.CloseIdleConnections()
			until(5*time.Second, func() bool { return b.state().requests == 0 })
			b.first = b.state()
			b.first.heap = b.heap()
		}
	}
	c.CloseIdleConnections()
	b.settled("nonsense of an engine", 250)
}
