//go:build linux

package hostile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/lab/proc"
)

// reply is an engine's answer as a client gets it.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// through asks with a head and a body, by the direct reader or, in chunks, by net/http.
func through(c *carrier, body, id string, direct bool) (r reply) {
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nAuthorization: Bearer weir_good\r\nX-Request-Id: " + id + "\r\n"
	text := fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, len(body), body)
	if direct {
		text = fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", strings.Replace(head, "Connection: close\r\n", "", 1), len(body), body)
	}
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		return reply{err: err}
	}
	defer conn.Close()
	if err := send(conn, text, nil); err != nil {
		return reply{err: err}
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return reply{err: err}
	}
	text, err = drain(resp)
	return reply{resp.StatusCode, resp.Header, text, err}
}

// drain reads a body; of a long one it keeps the beginning.
func drain(resp *http.Response) (string, error) {
	defer resp.Body.Close()
	var kept strings.Builder
	buf := make([]byte, 64<<10)
	for {
		n, err := resp.Body.Read(buf)
		if kept.Len() < 64<<10 {
			kept.Write(buf[:n])
		}
		if err != nil {
			if err.Error() == "EOF" {
				err = nil
			}
			return kept.String(), err
		}
	}
}

// passed are the fields that an answer of the API may have.
var passed = []string{"Content-Type", "Content-Length", "Transfer-Encoding", "Date", "X-Request-Id", "Cache-Control", "X-Content-Type-Options", "Retry-After", "Connection", "Trailer", "Weir-Ignored", "X-Refusal-Reason", "X-Accel-Buffering", "Vary", "Openai-Processing-Ms", "Content-Encoding"}

// readScripts returns the rows of engine.txt, and the answer of each by its title.
func readScripts(t *testing.T) (all []row, scripts map[string]string) {
	all, scripts = rows(t, "engine.txt"), map[string]string{}
	for _, r := range all {
		answer := answerOf("hello", `{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}`)
		vars := map[string]string{"answer": answer, "alen": fmt.Sprint(len(answer)), "ahex": fmt.Sprintf("%x", len(answer))}
		if usage, ok := r.want["usage"]; ok {
			body := answerOf("hello", usage)
			scripts[r.title] = fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			continue
		}
		scripts[r.title] = grammar(nil).expand(nil, strings.Join(r.texts, ""), vars)
	}
	return all, scripts
}

// testBench has the load generator before a server of the same answers, and before one of which not even
// the list of models ends. It ends, within its memory.
func testBench(t *testing.T) {
	all, scripts := readScripts(t)
	engine := startScripted(t, nil)
	var next atomic.Int64
	server := listen(t, func(c net.Conn) {
		for in := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			if !engine.play(c, scripts[all[int(next.Add(1))%len(all)].title]) {
				return
			}
		}
	})
	endless := listen(t, func(c net.Conn) { engine.play(c, "HTTP/1.1 200 OK\r\n~~~X-A: b\r\n") })
	for _, args := range [][]string{
		{"http://" + server, "--model", "m", "--requests", fmt.Sprint(len(all)), "--output-tokens", "4"},
		{"http://" + endless, "--requests", "8"},
	} {
		u := command(t, 40*time.Second, nil, append([]string{"bench", "--concurrency", "4", "--timeout", "2s"}, args...)...)
		t.Logf("weir bench: exit code %d, %.1f s, %.1f s of CPU, %d MB", u.code, u.wall.Seconds(), u.cpu.Seconds(), u.peak)
		if bomb(t, "weir bench", u.output); u.code < 1 || u.peak > 400 || u.cpu > 10*time.Second {
			t.Errorf("weir bench: exit code %d, %.1f s, %.1f s of CPU, %d MB: %.2000s", u.code, u.wall.Seconds(), u.cpu.Seconds(), u.peak, u.output)
		}
	}
}

func testEngine(t *testing.T) {
	all, scripts := readScripts(t)
	engine := startScripted(t, scripts)
	log := filepath.Join(t.TempDir(), "usage.jsonl")
	keys := keysFile(t, 0, "tokens_per_day: 900000000000")
	b := serve(t, "relay", func(b *bed) {
		if s, body := ask(client(10*time.Second), b.URL, chat("m", "warm")); s != 200 {
			t.Fatalf("%d %s", s, body)
		}
	}, engine.hangUp, "--engine", "openai="+engine.url()+",model=m", "--keys", keys, "--usage-log", log, "--first-timeout", "5s", "--idle-timeout", "1s")
	c := &carrier{addr: strings.TrimPrefix(b.URL, "http://")}
	beside(8, all, func(r row) {
		body := strings.Replace(chat("m", "@"+r.title+"@"), "{", `{"stream":`+fmt.Sprint(r.want["stream"] != "")+",", 1)
		var got [2]reply
		var both sync.WaitGroup
		for i, direct := range []bool{true, false} {
			both.Go(func() { got[i] = through(c, body, fmt.Sprintf("%s-%d", slug(r.title), i), direct) })
		}
		both.Wait()
		for i, g := range got {
			where := fmt.Sprintf("%s, through %s: %d %v %.200q (%v)", r.title, []string{"the direct writer", "net/http"}[i], g.status, g.header, g.body, g.err)
			if want := r.want["status"]; want != "" && !status(want, g.status) {
				t.Errorf("%s; want status %s", where, want)
			}
			if g.status == 0 {
				continue
			}
			for name := range g.header {
				if !slices.Contains(passed, name) {
					t.Errorf("%s has %s", where, name)
				}
			}
			if v := g.header.Values("Cache-Control"); len(v) != 1 || v[0] != "no-store, no-transform" || g.header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s: want Cache-Control: no-store, no-transform and X-Content-Type-Options: nosniff", where)
			}
			if want := r.want["body"]; want == "whole" && (g.err != nil || !strings.Contains(g.body, "hello")) || want == "cut" && g.err == nil && !strings.Contains(g.body, `"error"`) {
				t.Errorf("%s; want the body %s", where, want)
			}
		}
		if got[0].status != got[1].status || (got[0].err == nil) != (got[1].err == nil) || got[0].err == nil && got[0].header.Get("Content-Type") != got[1].header.Get("Content-Type") {
			t.Errorf("%s: through the direct writer %d (%v), through net/http %d (%v)", r.title, got[0].status, got[0].err, got[1].status, got[1].err)
		}
	})
	b.settled("answers", 450)
	paid(t, b, log, all)
	late(t, engine)
}

// slug is a title as an id of a request.
func slug(title string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(title))
}

// usageLine is a line of the usage log.
type usageLine struct {
	ID         string `json:"request_id"`
	Prompt     int    `json:"prompt_tokens"`
	Completion int    `json:"completion_tokens"`
	Estimated  bool
	Clipped    bool
}

// usageLines reads a usage log, whose lines must be whole.
func usageLines(t *testing.T, path string) (all []usageLine) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return nil
	}
	for line := range strings.Lines(string(text)) {
		var u usageLine
		if err := json.Unmarshal([]byte(line), &u); err != nil {
			t.Errorf("%s: %v: %.200q", path, err, line)
		}
		all = append(all, u)
	}
	return all
}

// paid wants the budget to have paid what the usage log says, and nonsense to be estimated and clipped there.
func paid(t *testing.T, b *bed, log string, all []row) {
	t.Helper()
	var sum, budget int
	until(3*time.Second, func() bool { // lines are written a little later
		sum = 0
		for _, u := range usageLines(t, log) {
			sum += u.Prompt + u.Completion
		}
		budget = usedToday(b)
		return sum == budget
	})
	if sum != budget {
		t.Errorf("the lines of the usage log come to %d tokens, the budget has paid %d", sum, budget)
	}
	for _, u := range usageLines(t, log) {
		for _, r := range all {
			if strings.TrimRight(u.ID, "01") != slug(r.title)+"-" {
				continue
			}
			if _, ok := r.want["estimated"]; ok && !u.Estimated {
				t.Errorf("%s: not estimated: %+v", r.title, u)
			}
			if most := r.number(t, "most", 1<<62); u.Prompt > most || u.Completion > 8 && r.want["usage"] != "" {
				t.Errorf("%s: %+v, want at most %d tokens of the prompt and the 8 that were asked for", r.title, u, most)
			}
		}
	}
}

func usedToday(b *bed) int {
	var v struct {
		Used struct {
			Tokens int `json:"tokens_today"`
		}
	}
	if json.Unmarshal(b.get("/admin/limits/good"), &v) != nil {
		return -1
	}
	return v.Used.Tokens
}

// late wants a caller whose engine has counted a hundred million tokens to be answered at once, and operators too.
func late(t *testing.T, engine *scripted) {
	quick := client(10 * time.Second)
	b := serve(t, "debt", func(*bed) {}, func() { engine.hangUp(); quick.CloseIdleConnections() }, "--engine", "openai="+engine.url()+",model=m", "--keys", keysFile(t, 0, "tokens_per_minute: 1"), "--budget-file", "off")
	cpu := func() float64 {
		u, err := proc.Of([]int{b.Cmd.Process.Pid})
		if err != nil {
			t.Error(err)
		}
		return u.CPU
	}
	// A body of 16 MB may have as many tokens.
	if s, text := ask(quick, b.URL, chat("m", "@a count of 10^8@"+strings.Repeat("x", 16<<20))); s != 200 {
		t.Errorf("a count of 10^8: %d %.200s", s, text)
	}
	before := cpu()
	for range 2 {
		if s, text := ask(quick, b.URL, chat("m", "hi")); s != 429 {
			t.Errorf("a caller in debt: %d %s", s, text)
		}
	}
	if usedToday(b) < 0 {
		t.Error("operators cannot read the limits of a caller in debt")
	}
	if took := cpu() - before; took > 0.4 {
		t.Errorf("two requests of a caller in debt took %.1f s of CPU", took)
	}
	b.settled("debt", 250)
}
