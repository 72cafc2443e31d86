package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// failure is a record of /admin/integrity.
type failure struct {
	Number     int
	Time       time.Time
	Engine     string
	Wire       string
	Reason     string
	Detail     string
	Requests   int
	RequestIDs []string `json:"request_ids"`
	Evidence   struct {
		// Of the plane.
		Steps []struct{ Sequence, Bytes, Slots int } `json:"last_steps"`
		Part  *struct {
			Before int `json:"received_before"`
			IDs    []int
			Total  int
		}
		// Of a relay.
		Before, Found struct{ Text, Quoted string }
	}
}

// failures reads what a gateway kept, the latest first.
func (g *gateway) failures() []failure {
	g.t.Helper()
	var view struct {
		Keep     int
		Failures []failure
	}
	if a := get(g.t, g.admin+"/admin/integrity"); json.Unmarshal(a.body, &view) != nil || view.Keep == 0 {
		g.t.Fatalf("status %d: %s", a.status, a.body)
	}
	return view.Failures
}

// setFaults replaces an engine's faults.
func (s *sim) setFaults(faults ...string) {
	s.t.Helper()
	body, err := json.Marshal(map[string][]string{"faults": faults})
	if err != nil {
		s.t.Fatal(err)
	}
	if a := post(s.t, s.admin+"/admin/faults", string(body)); a.status/100 != 2 {
		s.t.Fatalf("faults: %d %s", a.status, a.body)
	}
}

// wantTorn checks that an answer ended with an error event of that code on a
// broken connection, and not as if it were complete.
func wantTorn(t *testing.T, a answer, code string) {
	t.Helper()
	_, event, _ := bytes.Cut(a.body, []byte(`data: {"error":`))
	if a.status != 200 || a.err == nil || bytes.Contains(a.body, []byte("data: [DONE]")) || !bytes.Contains(event, []byte(`"`+code+`"`)) {
		t.Errorf("status %d, read error %v, want an error event with %s: %.100q ... %q", a.status, a.err, code, a.body, a.body[max(0, len(a.body)-300):])
	}
}

func wantComplete(t *testing.T, a answer) {
	t.Helper()
	if a.status != 200 || a.err != nil || !bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n")) || bytes.Contains(a.body, []byte(`{"error":`)) {
		t.Errorf("status %d, read error %v: %.300q", a.status, a.err, a.body)
	}
}

// settled waits until nothing of the requests is left.
func settled(t *testing.T, g *gateway, goroutines int, engines ...*sim) {
	t.Helper()
	g.balanced()
	for _, s := range engines {
		eventually(t, "free", func() bool { st := engineState(t, s.admin); return st.Running == 0 && st.Waiting == 0 })
	}
	eventually(t, "back to its goroutines", func() bool { return g.goroutines() <= goroutines+4 })
}

type integrityFault struct {
	fault, reason, code string
	// late says that what the fault strikes has a good part, which the client gets
	// first: no other engine can be asked then.
	late bool
}

// What an engine sends that does not add up, on either wire: after the first
// byte the stream ends with an error event, before it another engine answers.
// Either way it is counted and logged once, and the evidence is kept.
func TestIntegrityFaults(t *testing.T) {
	t.Parallel()
	quick := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms"}
	for _, path := range []struct {
		name, wire string
		faults     []integrityFault
	}{
		{"plane", "weir", []integrityFault{
			{"garble", "malformed", "integrity_error", false},
			{"skip", "sequence_gap", "integrity_error", false},
			{"repeat", "sequence_gap", "integrity_error", true},
			{"swap", "sequence_gap", "integrity_error", false},
			{"stray", "unknown_slot", "integrity_error", true},
			{"backward", "count_backwards", "integrity_error", false},
			{"oversize", "oversized", "integrity_error", false},
			{"miscount", "completion_mismatch", "integrity_error", true},
		}},
		{"relay", "openai", []integrityFault{
			{"garble", "not_json", "integrity_error", false},
			{"stray", "choice_range", "integrity_error", false},
			{"truncate", "incomplete", "engine_error", false},
		}},
		{"sglang", "sglang", []integrityFault{
			{"garble", "bad_event", "integrity_error", false},
			{"skip", "total_mismatch", "integrity_error", false},
			{"repeat", "total_mismatch", "integrity_error", true},
			{"miscount", "total_mismatch", "integrity_error", true},
		}},
	} {
		t.Run(path.name, func(t *testing.T) {
			beside(t, light)
			bad, good := startSim(t, append(quick, "--name", "bad")...), startSim(t, quick...)
			one := startGateway(t, "serve", "--engine", bad.spec(path.name)+",name=bad")
			two := startGateway(t, "serve", "--engine", bad.spec(path.name)+",name=bad", "--engine", good.spec(path.name)+",name=good")
			eventually(t, "both ready", func() bool { return metric(t, two.admin, "weir_engine_ready") == 2 })
			wantComplete(t, post(t, one.url+"/v1/chat/completions", askStream))
			wantComplete(t, post(t, two.url+"/v1/chat/completions", askStream))
			beforeOne, beforeTwo := one.goroutines(), two.goroutines()
			for i, c := range path.faults {
				t.Run(c.fault, func(t *testing.T) {
					one.t, two.t, bad.t = t, t, t
					counted := metric(t, one.admin, "weir_integrity_failures_total", `engine="bad"`, `reason="`+c.reason+`"`)
					after := ",after=10"
					if c.fault == "miscount" { // its place is the end
						after = ""
					}
					bad.setFaults(c.fault + after + ",nth=1")
					a := post(t, one.url+"/v1/chat/completions", askStream, "X-Request-Id", "torn")
					wantTorn(t, a, c.code)
					settled(t, one, beforeOne, bad)
					if n := metric(t, one.admin, "weir_integrity_failures_total", `engine="bad"`, `reason="`+c.reason+`"`); n != counted+1 {
						t.Errorf("%v failures counted, want one more than %v", n, counted)
					}
					kept := one.failures()
					if len(kept) != i+1 {
						t.Fatalf("%d failures kept, want %d", len(kept), i+1)
					}
					f := kept[0]
					if f.Engine != "bad" || f.Wire != path.wire || f.Reason != c.reason || f.Detail == "" || time.Since(f.Time).Abs() > time.Minute ||
						f.Requests != 1 || len(f.RequestIDs) != 1 || f.RequestIDs[0] != "torn" {
						t.Errorf("kept %+v", f)
					}
					if path.name == "plane" {
						wantSteps(t, c.fault, f)
					} else if c.fault == "garble" && !strings.Contains(f.Evidence.Found.Text, `"choices":[{"index":`) {
						t.Errorf("evidence %+v", f.Evidence)
					}
					// The engine serves on, over a new session where the old one was lost.
					eventually(t, "ready", func() bool { return get(t, one.admin+"/readyz").status == 200 })
					wantComplete(t, post(t, one.url+"/v1/chat/completions", askStream))

					if c.late {
						return
					}
					eventually(t, "ready", func() bool { return metric(t, two.admin, "weir_engine_ready") == 2 })
					counted = metric(t, two.admin, "weir_integrity_failures_total")
					bad.setFaults(c.fault + ",nth=1")
					for range 2 { // one of them is the bad engine's turn
						wantComplete(t, post(t, two.url+"/v1/chat/completions", askStream))
					}
					settled(t, two, beforeTwo, bad, good)
					if n := metric(t, two.admin, "weir_integrity_failures_total", `engine="bad"`); n != counted+1 {
						t.Errorf("before the first byte: %v failures counted, want one more than %v", n, counted)
					}
				})
			}
			one.t, two.t, bad.t = t, t, t
			if ended := one.balanced(); ended["failed"] != len(path.faults) {
				t.Errorf("ended %v", ended)
			}
			if ended := two.balanced(); ended["failed"] != 0 {
				t.Errorf("ended %v: all should have gone to the other engine", ended)
			}
			one.interrupt()
			two.interrupt()
			if n := strings.Count(one.stderr.String(), `msg="integrity failure"`); n != len(path.faults) {
				t.Errorf("%d lines about integrity in the log, want %d:\n%s", n, len(path.faults), one.stderr.String())
			}
			if strings.Contains(one.stderr.String(), "data: ") || strings.Contains(one.stderr.String(), "panic") {
				t.Errorf("the log holds text of an answer, or a panic:\n%s", one.stderr.String())
			}
		})
	}
}

// wantSteps checks the evidence of the plane: the last steps, and what the
// last one says of the slot where it can be read.
func wantSteps(t *testing.T, fault string, f failure) {
	t.Helper()
	e := f.Evidence
	if len(e.Steps) < 8 {
		t.Errorf("%d steps kept: %+v", len(e.Steps), e.Steps)
		return
	}
	for i := 1; i < len(e.Steps)-1; i++ {
		if e.Steps[i].Sequence != e.Steps[i-1].Sequence+1 || e.Steps[i].Bytes == 0 {
			t.Errorf("steps %+v", e.Steps)
		}
	}
	switch fault {
	case "stray", "backward", "miscount":
		if p := e.Part; p == nil || len(p.IDs) == 0 && fault != "miscount" || fault == "backward" && p.Total >= p.Before {
			t.Errorf("part %+v", p)
		}
	}
}

// rawEngine answers every POST with bytes, in pieces as given, and then closes
// the connection, or leaves it to weir to.
type rawEngine struct {
	url string

	mu     sync.Mutex
	pieces []string
	wait   time.Duration // between pieces
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
	head := make([]byte, 0, 64<<10)
	for !bytes.Contains(head, []byte("\r\n\r\n")) {
		n, err := c.Read(head[len(head):cap(head)])
		if err != nil {
			return
		}
		head = head[:len(head)+n]
	}
	if bytes.HasPrefix(head, []byte("GET ")) {
		const models = `{"data":[{"id":"m"}]}`
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(models), models)
		return
	}
	e.mu.Lock()
	pieces, wait, hold := e.pieces, e.wait, e.hold
	e.open++
	e.asked++
	e.mu.Unlock()
	for i, p := range pieces {
		if i > 0 {
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
	e.pieces, e.hold, e.wait = pieces, hold, wait
}

func (e *rawEngine) requests() (open, asked int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.open, e.asked
}

// A relayed answer's events, and how they travel.
const (
	chunkedHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	word        = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"secret\"}}]}\n\n"
	stop        = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	done        = "data: [DONE]\n\n"
)

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// Whatever is wrong with a relay's answer: after the first event it ends with
// an error event and a broken connection, before it another engine is asked.
// Nothing is left behind.
func TestRelayFaults(t *testing.T) {
	beside(t, light)
	huge := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + strings.Repeat("x", 300<<10) + "\"}}]}\n\n"
	end := chunk(word) + chunk(stop+done) + "0\r\n\r\n"
	bad, good := startRawEngine(t), startRawEngine(t)
	flags := []string{"--first-timeout", "1s", "--idle-timeout", "1s"}
	one := startGateway(t, append([]string{"serve", "--engine", "openai=" + bad.url + ",name=bad"}, flags...)...)
	two := startGateway(t, append([]string{"serve", "--engine", "openai=" + bad.url + ",name=bad", "--engine", "openai=" + good.url + ",name=good"}, flags...)...)
	eventually(t, "both ready", func() bool { return metric(t, two.admin, "weir_engine_ready") == 2 })
	good.script(false, 0, chunkedHead+end)
	bad.script(false, 0, chunkedHead+end)
	const ask = `{"model":"m","stream":true,"messages":[]}`
	wantComplete(t, post(t, one.url+"/v1/chat/completions", ask))
	wantComplete(t, post(t, two.url+"/v1/chat/completions", ask))
	beforeOne, beforeTwo := one.goroutines(), two.goroutines()

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
			one.t, two.t = t, t
			kept := len(one.failures())
			bad.script(c.hold, 20*time.Millisecond, append([]string{chunkedHead + chunk(word)}, c.rest...)...)
			a := post(t, one.url+"/v1/chat/completions", ask)
			switch {
			case c.code == "":
				if a.err == nil || bytes.Contains(a.body, []byte(`{"error"`)) {
					t.Errorf("read error %v, body ends %q", a.err, a.body[max(0, len(a.body)-100):])
				}
			case c.done:
				if a.err == nil || !bytes.Contains(a.body, []byte(`data: {"error":`)) || !bytes.Contains(a.body, []byte(c.code)) {
					t.Errorf("read error %v, body %q", a.err, a.body)
				}
			default:
				wantTorn(t, a, c.code)
			}
			if !bytes.HasPrefix(a.body, []byte(word)) {
				t.Errorf("what was in order is missing: %.100q", a.body)
			}
			settled(t, one, beforeOne)
			eventually(t, "rid of the engine's connections", func() bool { open, _ := bad.requests(); return open == 0 })
			failures := one.failures()
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
				wantComplete(t, post(t, two.url+"/v1/chat/completions", ask))
			}
			if _, asked := bad.requests(); asked == before {
				t.Error("the bad engine was not asked")
			}
			settled(t, two, beforeTwo)
			eventually(t, "rid of the engine's connections", func() bool { open, _ := bad.requests(); return open == 0 })
		})
	}
	one.t, two.t = t, t

	t.Run("heads", func(t *testing.T) {
		for _, head := range []string{
			"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 10\r\nContent-Length: 11\r\n\r\n" + word,
			"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n" + end,
			"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
			"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 2000) + "\r\n",
			"SSH-2.0-OpenSSH\r\n\r\n",
			"",
		} {
			bad.script(false, 0, head)
			if a := post(t, one.url+"/v1/chat/completions", ask); a.status != 502 || a.err != nil || !bytes.Contains(a.body, []byte("engine")) {
				t.Errorf("%.60q: status %d, %s", head, a.status, a.body)
			}
			for range 2 {
				wantComplete(t, post(t, two.url+"/v1/chat/completions", ask))
			}
		}
		settled(t, one, beforeOne)
		settled(t, two, beforeTwo)
	})
	t.Run("an event larger than the hold passes", func(t *testing.T) {
		answer := word + huge + stop + done
		bad.script(false, 0, chunkedHead+chunk(answer)+"0\r\n\r\n")
		if a := post(t, one.url+"/v1/chat/completions", ask); a.err != nil || string(a.body) != answer {
			t.Errorf("read error %v, %d bytes of %d", a.err, len(a.body), len(answer))
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
			resp, err := client.Post(one.url+"/v1/chat/completions", "application/json", strings.NewReader(ask))
			if err != nil {
				t.Fatal(err)
			}
			a := read(resp)
			wantComplete(t, a)
			if string(a.body) != word+stop+done {
				t.Errorf("body %q", a.body)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the end took %v", took)
			}
			eventually(t, "rid of the engine's connection", func() bool { open, _ := bad.requests(); return open == 0 })
		}
		settled(t, one, beforeOne)
	})
	if ended := two.balanced(); ended["failed"] != 0 {
		t.Errorf("ended %v", ended)
	}
	one.interrupt()
	two.interrupt()
	for _, g := range []*gateway{one, two} {
		if strings.Contains(g.stderr.String(), "panic") || strings.Contains(g.stderr.String(), "secret") {
			t.Errorf("the log holds text of an answer, or a panic:\n%s", g.stderr.String())
		}
	}
}
