package relay

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// rawEngine answers every POST with bytes, in pieces as given, and then closes
// the connection, or leaves it to weir to.
type rawEngine struct {
	url string

	mu     sync.Mutex
	pieces []string
	wait   time.Duration // between pieces
	read   chan struct{} // closed when the client has the first piece; nil: nobody says so
	hold   bool          // do not close
	open   int           // connections of POSTs
	asked  int
	left   time.Time // when the last of them was closed by the gateway
}

func startRawEngine(t *testing.T) *rawEngine {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &rawEngine{url: "http://" + l.Addr().String()}
	var conns sync.WaitGroup
	var all sync.Map
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Store(c, nil)
			conns.Go(func() { defer c.Close(); e.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		conns.Wait()
	})
	return e
}

func (e *rawEngine) serve(c net.Conn) {
	// The whole request is read: to close a socket that holds unread bytes resets the
	// connection, and the answer is lost with it.
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if bytes.Contains(body, []byte(`"max_tokens":1`)) { // weir's own probe, of an engine that has been silent
		const one = `{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}]}`
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(one), one)
		return
	}
	if r.Method == http.MethodGet {
		const models = `{"data":[{"id":"m"}]}`
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(models), models)
		return
	}
	e.mu.Lock()
	pieces, wait, read, hold := e.pieces, e.wait, e.read, e.hold
	e.open++
	e.asked++
	e.mu.Unlock()
	for i, p := range pieces {
		switch {
		case i == 1 && read != nil:
			<-read
		case i > 0:
			time.Sleep(wait) // for the bytes to be read apart: the engine's pace, not a wait for weir
		}
		if _, err := io.WriteString(c, p); err != nil {
			break
		}
	}
	if hold {
		_, _ = io.Copy(io.Discard, c) // until the gateway leaves
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	e.left = time.Now()
}

func (e *rawEngine) script(hold bool, wait time.Duration, pieces ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pieces, e.hold, e.wait, e.read = pieces, hold, wait, nil
}

// post asks g for an answer of which the engine says the second piece when the first has
// come as far as to the client: a busy machine may read both at once otherwise.
func (e *rawEngine) post(g *harness.Gateway, ask, first string) harness.Answer {
	g.T.Helper()
	read := make(chan struct{})
	e.mu.Lock()
	e.read = read
	e.mu.Unlock()
	resp, err := harness.Client.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(ask))
	var begun []byte
	if err == nil {
		begun = make([]byte, len(first))
		var n int
		n, _ = io.ReadFull(resp.Body, begun)
		begun = begun[:n]
	}
	close(read)
	if err != nil {
		g.T.Fatal(err)
	}
	a := harness.Read(resp)
	a.Body = append(begun, a.Body...)
	return a
}

func (e *rawEngine) requests() (open, asked int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open, e.asked
}

// A relayed answer's events, and how they travel.
const (
	// The engine closes after each answer, and says so: a gateway that sent it one more
	// request in that instant could not know whether that was begun.
	chunkedHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
	word        = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"secret\"}}]}\n\n"
	stop        = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	done        = "data: [DONE]\n\n"
)

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// For each fault of a relay's answer: after the first event, the answer ends with an error event
// and a broken connection; before it, another engine is asked. Nothing is left behind.
func TestRelayFaults(t *testing.T) {
	harness.Beside(t, harness.Light)
	huge := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + strings.Repeat("x", 300<<10) + "\"}}]}\n\n"
	end := chunk(word) + chunk(stop+done) + "0\r\n\r\n"
	bad, good := startRawEngine(t), startRawEngine(t)
	// pair is a gateway with the bad engine alone, and one with both.
	type pair struct {
		one, two             *harness.Gateway
		beforeOne, beforeTwo int // goroutines at rest
	}
	good.script(false, 0, chunkedHead+end)
	const ask = `{"model":"m","stream":true,"messages":[]}`
	// An engine that fails three times in a row is avoided; answers in between keep it in.
	well := func(t *testing.T, p *pair) {
		t.Helper()
		bad.script(false, 0, chunkedHead+end)
		for _, g := range []*harness.Gateway{p.one, p.two, p.two} {
			harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", ask))
		}
	}
	start := func(flags ...string) *pair {
		p := &pair{
			one: harness.StartGateway(t, append([]string{"serve", "--engine", "openai=" + bad.url + ",name=bad"}, flags...)...),
			two: harness.StartGateway(t, append([]string{"serve", "--policy", "round-robin", "--engine", "openai=" + bad.url + ",name=bad", "--engine", "openai=" + good.url + ",name=good"}, flags...)...),
		}
		harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, p.two.Admin, "weir_engine_ready") == 2 })
		well(t, p)
		p.beforeOne, p.beforeTwo = p.one.Goroutines(), p.two.Goroutines()
		return p
	}
	// A second is short for the good engine too, where the machine is busy: it is for those
	// that fall silent alone.
	patient, hasty := start(), start("--first-timeout", "1s", "--idle-timeout", "1s")
	for _, c := range []struct {
		name   string
		rest   []string // after the head and a first event
		hold   bool     // the connection stays open
		code   string   // empty: no error event fits in
		reason string   // in /admin/integrity; empty: nothing is kept
		found  string   // there
		passes bool     // some of the rest is in order and goes to the client
		done   bool     // and so does an end marker
	}{
		{"a chunk's size is no number", []string{"xyz\r\n" + word}, false, "engine_error", "framing", "xyz\r\n", false, false},
		{"a chunk is longer than its size", []string{"5\r\n" + word + "\r\n"}, false, "engine_error", "framing", " {", false, false},
		{"a chunk's size is negative", []string{"-5\r\n" + word + "\r\n"}, false, "engine_error", "framing", "-5", false, false},
		{"a chunk's size is enormous", []string{"ffffffffffffffffff\r\n" + word}, true, "engine_error", "framing", "f", false, false},
		{"a size line without end", []string{strings.Repeat("0", 64<<10)}, true, "engine_error", "framing", "0", false, false},
		{"bare line feeds", []string{fmt.Sprintf("%x\n%s\n", len(word), word)}, false, "engine_error", "framing", "\n", false, false},
		{"trailers that are none", []string{chunk(stop + done), "0\r\nno trailer\r\n\r\n"}, false, "engine_error", "framing", " trailer", true, true},
		{"ends inside a chunk", []string{"ff\r\ndata: {"}, false, "engine_error", "", "", false, false},
		{"ends without a last chunk", []string{chunk(word)}, false, "engine_error", "", "", true, false},
		{"garbage in an event", []string{chunk("data: {\"choices\":[}\n\n"), end}, false, "integrity_error", "not_json", "data: {\"choices\":[}\n\n", false, false},
		{"not UTF-8", []string{chunk("data: \xff\xfe\n\n"), end}, false, "integrity_error", "not_json", `"data: \xff\xfe\n\n"`, false, false},
		{"no end marker", []string{"0\r\n\r\n"}, false, "engine_error", "incomplete", "", false, false},
		{"ends inside an event", []string{chunk("data: {\"half") + "0\r\n\r\n"}, false, "engine_error", "incomplete", "data: {\"half", false, false},
		{"an end marker too early", []string{chunk(done) + "0\r\n\r\n"}, false, "integrity_error", "no_finish_reason", done, false, false},
		{"silence", nil, true, "deadline_exceeded", "", "", false, false},
		{"silence inside an event", []string{chunk("data: {")}, true, "deadline_exceeded", "", "", false, false},
		{"an event after the end marker", []string{chunk(stop + done + word), "0\r\n\r\n"}, false, "integrity_error", "after_done", word, true, true},
		{"an event after the end marker, later", []string{chunk(stop + done), chunk(word) + "0\r\n\r\n"}, false, "integrity_error", "after_done", word, true, true},
		{"an event larger than the hold is cut", []string{chunk(huge[:200<<10])}, false, "", "", "", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := patient
			if c.code == "deadline_exceeded" {
				p = hasty
			}
			one, two := p.one, p.two
			one.T, two.T = t, t
			well(t, p)
			kept := len(one.Failures())
			bad.script(c.hold, 20*time.Millisecond, append([]string{chunkedHead + chunk(word)}, c.rest...)...)
			a := bad.post(one, ask, word)
			switch {
			case c.code == "":
				if a.Err == nil || bytes.Contains(a.Body, []byte(`{"error"`)) {
					t.Errorf("read error %v, body ends %q", a.Err, a.Body[max(0, len(a.Body)-100):])
				}
			case c.done:
				if a.Err == nil || !bytes.Contains(a.Body, []byte(`data: {"error":`)) || !bytes.Contains(a.Body, []byte(c.code)) {
					t.Errorf("read error %v, body %q", a.Err, a.Body)
				}
			default:
				harness.WantTorn(t, a, c.code)
			}
			if !bytes.HasPrefix(a.Body, []byte(word)) {
				t.Errorf("what was in order is missing: %.100q", a.Body)
			}
			harness.Settled(t, one, p.beforeOne)
			harness.Eventually(t, "rid of the engine's connections", func() bool { open, _ := bad.requests(); return open == 0 })
			failures := one.Failures()
			switch {
			case c.reason == "" && len(failures) != kept:
				t.Errorf("kept %+v", failures[0])
			case c.reason != "":
				if len(failures) != kept+1 || failures[0].Reason != c.reason || failures[0].Engine != "bad" {
					t.Fatalf("kept %+v", failures)
				}
				found := failures[0].Evidence.Found
				if !strings.HasPrefix(found.Text+found.Quoted, c.found) {
					t.Errorf("evidence %+v", failures[0].Evidence)
				}
			}

			// The same before anything was forwarded: another engine answers.
			if c.passes {
				return
			}
			bad.script(c.hold, 0, append([]string{chunkedHead}, c.rest...)...)
			_, before := bad.requests()
			for range 2 {
				harness.WantComplete(t, harness.Post(t, two.URL+"/v1/chat/completions", ask))
			}
			if _, asked := bad.requests(); asked == before {
				t.Error("the bad engine was not asked")
			}
			harness.Settled(t, two, p.beforeTwo)
			harness.Eventually(t, "rid of the engine's connections", func() bool { open, _ := bad.requests(); return open == 0 })
		})
	}
	for _, g := range []*harness.Gateway{patient.one, patient.two, hasty.one, hasty.two} {
		g.T = t
	}
	one, two := patient.one, patient.two

	t.Run("heads", func(t *testing.T) {
		for _, head := range []string{
			"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 10\r\nContent-Length: 11\r\n\r\n" + word,
			"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n" + end,
			"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
			"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 2000) + "\r\n",
			"SSH-2.0-OpenSSH\r\n\r\n",
			"",
		} {
			well(t, patient)
			bad.script(false, 0, head)
			if a := harness.Post(t, one.URL+"/v1/chat/completions", ask); a.Status != 502 || a.Err != nil || !bytes.Contains(a.Body, []byte("engine")) {
				t.Errorf("%.60q: status %d, %s", head, a.Status, a.Body)
			}
			for range 2 {
				harness.WantComplete(t, harness.Post(t, two.URL+"/v1/chat/completions", ask))
			}
		}
		harness.Settled(t, one, patient.beforeOne)
		harness.Settled(t, two, patient.beforeTwo)
	})
	t.Run("an event larger than the hold passes", func(t *testing.T) {
		answer := word + huge + stop + done
		bad.script(false, 0, chunkedHead+chunk(answer)+"0\r\n\r\n")
		if a := harness.Post(t, one.URL+"/v1/chat/completions", ask); a.Err != nil || string(a.Body) != answer {
			t.Errorf("read error %v, %d bytes of %d", a.Err, len(a.Body), len(answer))
		}
	})
	// The stream is whole with [DONE]: the client has its end soon after, and
	// its connection, though the engine leaves the answer open.
	t.Run("left open after the end marker", func(t *testing.T) {
		client := &http.Client{Timeout: 20 * time.Second}
		for _, split := range []bool{false, true} {
			pieces := []string{chunkedHead + chunk(word+stop+done)}
			if split {
				pieces = []string{chunkedHead + chunk(word), chunk(stop), chunk(done)}
			}
			bad.script(true, 20*time.Millisecond, pieces...)
			began := time.Now()
			resp, err := client.Post(one.URL+"/v1/chat/completions", "application/json", strings.NewReader(ask))
			if err != nil {
				t.Fatal(err)
			}
			a := harness.Read(resp)
			harness.WantComplete(t, a)
			if string(a.Body) != word+stop+done {
				t.Errorf("body %q", a.Body)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the end took %v", took)
			}
			harness.Eventually(t, "rid of the engine's connection", func() bool { open, _ := bad.requests(); return open == 0 })
		}
		harness.Settled(t, one, patient.beforeOne)
	})
	for _, p := range []*pair{patient, hasty} {
		if ended := p.two.Balanced(); ended["failed"] != 0 {
			t.Errorf("ended %v", ended)
		}
		for _, g := range []*harness.Gateway{p.one, p.two} {
			g.Interrupt()
			if strings.Contains(g.Stderr.String(), "panic") || strings.Contains(g.Stderr.String(), "secret") {
				t.Errorf("the log holds text of an answer, or a panic:\n%s", g.Stderr.String())
			}
		}
	}
}
