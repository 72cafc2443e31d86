//go:build linux

package hostile

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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

	"golang.org/x/net/http2"

	"weir/test/e2e/harness"
)

// carrier is a way of a client's bytes to the gateway's readers.
type carrier struct {
	name string
	addr string
	tls  *tls.Config
	cut  bool // bytes are sent in random pieces, so that net/http reads the head
	http http.Transport
}

// newCarriers starts the gateways of all carriers: a plain one, one with --h2c and one with TLS,
// before an engine that says what it is asked and one that says words. framed starts only those that
// speak HTTP/2.
func newCarriers(t *testing.T, framed bool) (all []*carrier, beds []*bed) {
	t.Helper()
	engine := startScripted(t, nil)
	sim := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	roots := harness.KeyPair(t, cert, key, 1)
	common := []string{"--keys", keysFile(t, 0), "--budget-file", "off", "--engine", "openai=" + engine.url() + ",model=m", "--engine", sim.Spec("plane")}
	for _, g := range []struct {
		flags    []string
		carriers []carrier
	}{
		{nil, []carrier{{name: "direct"}, {name: "net/http", cut: true}}},
		{[]string{"--h2c"}, []carrier{{name: "h2c"}}},
		{[]string{"--tls-cert", cert, "--tls-key", key}, []carrier{{name: "TLS", cut: true, tls: config(roots, "http/1.1")}, {name: "HTTP/2", tls: config(roots, "h2")}}},
	} {
		if framed && g.flags == nil {
			continue
		}
		var mine []*carrier
		calm := func() {
			for _, c := range mine {
				c.http.CloseIdleConnections()
			}
			engine.hangUp()
		}
		first := len(all)
		for i := range g.carriers {
			mine = append(mine, &g.carriers[i])
			all = append(all, &g.carriers[i])
		}
		beds = append(beds, serve(t, g.carriers[0].name, func(b *bed) {
			for _, c := range all[first:] {
				_, c.addr, _ = strings.Cut(b.URL, "://")
				c.http.MaxIdleConnsPerHost, c.http.TLSClientConfig, c.http.Protocols = 64, c.tls, new(http.Protocols)
				c.http.Protocols.SetHTTP1(!c.two())
				c.http.Protocols.SetHTTP2(c.two() && c.tls != nil)
				c.http.Protocols.SetUnencryptedHTTP2(c.two() && c.tls == nil)
				var many sync.WaitGroup
				for i := range 8 {
					many.Go(func() { c.victim(t, i) })
				}
				many.Wait()
			}
		}, calm, append(g.flags, common...)...))
	}
	return all, beds
}

// two reports whether victims speak HTTP/2 on the carrier.
func (c *carrier) two() bool { return c.name == "HTTP/2" || c.name == "h2c" }

func config(roots *x509.CertPool, protocol string) *tls.Config {
	return &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{protocol}}
}

func (c *carrier) dial() (net.Conn, error) {
	// On a machine without a core to spare a handshake may last longer than a gateway that is quick waits.
	for tries := 1; ; tries++ {
		began := time.Now()
		conn, err := c.dialOnce()
		if err != io.EOF || tries == 3 || time.Since(began) < quickTimeout {
			return conn, err
		}
	}
}

func (c *carrier) dialOnce() (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", c.addr, 5*time.Second)
	if err != nil || c.tls == nil {
		return conn, err
	}
	secure := tls.Client(conn, c.tls)
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if err := secure.Handshake(); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, conn.SetDeadline(time.Time{})
}

// victim asks for a stream of words, and for an answer that says what it asks for, and checks each word.
func (c *carrier) victim(t *testing.T, turn int) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client := http.Client{Transport: &c.http, Timeout: 20 * time.Second}
	scheme := "http://"
	if c.tls != nil {
		scheme = "https://"
	}
	if turn%2 == 0 {
		want := fmt.Sprintf("victim %d at %d", turn, time.Now().UnixNano())
		if status, body := ask(&client, scheme+c.addr, chat("m", want)); (status != 200 || answerText(body) != want) && t.Context().Err() == nil {
			t.Errorf("a victim over %s: status %d, %.300s; want %q", c.name, status, body, want)
		}
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+c.addr+"/v1/chat/completions", strings.NewReader(`{"model":"weir-sim","stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":12,"messages":[{"role":"user","content":"go on"}]}`))
	if err != nil {
		t.Error(err)
		return
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer weir_good"}}
	resp, err := client.Do(req)
	if err != nil {
		if t.Context().Err() == nil {
			t.Errorf("a victim's stream over %s: %v", c.name, err)
		}
		return
	}
	defer resp.Body.Close()
	words, err := harness.SimWords()
	if err != nil {
		t.Error(err)
		return
	}
	if n, err := harness.Follow(words, resp.Body, nil); (err != nil || n != 12) && t.Context().Err() == nil {
		t.Errorf("a victim's stream over %s: status %d, %d words, %v", c.name, resp.StatusCode, n, err)
	}
}

// victims asks on all carriers until stop is called.
func victims(t *testing.T, carriers []*carrier) (stop func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	var n atomic.Int64
	for _, c := range carriers {
		all.Go(func() {
			for turn := 0; ; turn++ {
				select {
				case <-done:
					return
				case <-time.After(50 * time.Millisecond):
					c.victim(t, turn)
					n.Add(1)
				}
			}
		})
	}
	return func() { close(done); all.Wait(); t.Logf("%d victims", n.Load()) }
}

// answer is one answer on a connection.
type answer struct {
	status int
	said   string
}

func answerText(body string) string {
	var r struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if json.Unmarshal([]byte(body), &r) != nil || len(r.Choices) == 0 {
		return ""
	}
	return r.Choices[0].Message.Content
}

// answers reads at most n answers: to the connection's end, or until it has been quiet for a time.
func answers(conn net.Conn, in *bufio.Reader, n int, quiet time.Duration) (all []answer, closed bool, err error) {
	for len(all) < n {
		_ = conn.SetReadDeadline(time.Now().Add(quiet))
		if _, err := in.Peek(1); err != nil {
			return all, !errors.Is(err, os.ErrDeadlineExceeded), nil
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			rest, _ := in.Peek(in.Buffered())
			if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(err.Error(), "reset") {
				return all, true, nil // cut by a reset, which its own bytes may have brought about
			}
			return all, false, fmt.Errorf("no answer of HTTP: %w before %.100q", err, rest)
		}
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode/100 != 1 {
			all = append(all, answer{resp.StatusCode, answerText(string(body))})
		}
		if err != nil {
			return all, true, nil
		}
		if resp.Close {
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, err := in.Peek(1)
			return all, !errors.Is(err, os.ErrDeadlineExceeded), nil
		}
	}
	return all, false, nil
}

// send writes text, in random pieces where rng is not nil.
func send(conn net.Conn, text string, rng *rand.Rand) error {
	_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	for text != "" {
		n := len(text)
		if rng != nil && n > 1 && rng.IntN(4) > 0 {
			n = 1 + rng.IntN(min(n, 1+rng.IntN(400)))
		}
		if rng != nil && len(text) > 20_000 {
			n = max(n, 4000)
		}
		if _, err := io.WriteString(conn, text[:n]); err != nil {
			return err
		}
		if text = text[n:]; rng != nil && text != "" && rng.IntN(3) == 0 {
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
		}
	}
	return nil
}

// endings are the ways to leave a connection.
var endings = []func(conn net.Conn, tcp *net.TCPConn){
	func(conn net.Conn, _ *net.TCPConn) { conn.Close() },
	func(conn net.Conn, tcp *net.TCPConn) { _ = tcp.SetLinger(0); tcp.Close() },
	func(conn net.Conn, tcp *net.TCPConn) {
		_ = tcp.CloseWrite()
		_ = tcp.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		_, _ = io.Copy(io.Discard, tcp)
		tcp.Close()
	},
	func(conn net.Conn, tcp *net.TCPConn) { time.Sleep(300 * time.Millisecond); tcp.Close() },
}

func end(conn net.Conn, how int) {
	tcp, ok := conn.(*net.TCPConn)
	if secure, over := conn.(*tls.Conn); over {
		tcp, ok = secure.NetConn().(*net.TCPConn)
	}
	if !ok {
		panic("no TCP connection")
	}
	endings[how](conn, tcp)
}

var ids atomic.Int64

// variables are those of one request: a body whose id the answer says.
func variables(g grammar) (vars map[string]string, id string) {
	id = fmt.Sprint("id-", ids.Add(1))
	body := chat("m", id)
	vars = map[string]string{"chat": body, "len": fmt.Sprint(len(body)), "len+1": fmt.Sprint(len(body) + 1), "len-1": fmt.Sprint(len(body) - 1),
		"hex": fmt.Sprintf("%x", len(body)), "first": body[:20], "rest": body[20:], "hexrest": fmt.Sprintf("%x", len(body)-20),
		"key": "Authorization: Bearer weir_good\r\nContent-Type: application/json\r\n"}
	vars["plain"] = fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", vars["key"], len(body), body)
	vars["post"], vars["auth"] = ":method=POST", "authorization=Bearer+weir_good" // of HTTP/2
	vars["last"] = strings.Replace(vars["plain"], "Host: x\r\n", "Host: x\r\nConnection: close\r\n", 1)
	return vars, id
}

// wireRow sends a row over a carrier and judges what comes back.
func wireRow(t *testing.T, c *carrier, g grammar, r row, rng *rand.Rand) {
	vars, id := variables(g)
	text := ""
	for _, line := range r.texts {
		text += g.expand(rng, line, vars)
	}
	conn, err := c.dial()
	if err != nil {
		t.Errorf("%s over %s: %v", r.title, c.name, err)
		return
	}
	defer conn.Close()
	cuts := rng
	if !c.cut {
		cuts = nil
	}
	_ = send(conn, text, cuts) // it may be refused before all of it is there
	want, all := slices.Repeat(strings.Fields(r.want["answers"]), r.number(t, "times", 1)), 100
	if r.want["end"] != "closed" {
		all = len(want)
	}
	in := bufio.NewReader(conn)
	got, closed, err := answers(conn, in, all, 8*time.Second)
	bad := err != nil || len(want) > 0 && len(got) != len(want)
	for i := range min(len(got), len(want)) {
		bad = bad || !status(want[i], got[i].status) || got[i].status == 200 && got[i].said != id && r.want["says"] != "nothing"
	}
	switch r.want["end"] {
	case "closed":
		bad = bad || !closed
	case "open":
		vars, id := variables(g)
		_ = send(conn, vars["plain"], cuts)
		more, _, err := answers(conn, in, 1, 8*time.Second)
		bad = bad || err != nil || len(more) != 1 || more[0] != answer{200, id}
	}
	if bad {
		t.Errorf("%s over %s: %v (%v), closed %t; want %v, %s", r.title, c.name, got, err, closed, want, r.want["end"])
	}
}

// status reports whether a status is of a class such as 4xx, or is the one.
func status(want string, got int) bool {
	return fmt.Sprint(got) == want || strings.HasSuffix(want, "xx") && fmt.Sprint(got/100)+"xx" == want
}

// abuse sends a text, or a part of it, and leaves.
func abuse(c *carrier, text string, rng *rand.Rand) {
	conn, err := c.dial()
	if err != nil {
		return
	}
	if rng.IntN(2) == 0 {
		text = text[:rng.IntN(len(text)+1)]
	}
	_ = send(conn, text, nil)
	end(conn, rng.IntN(len(endings)))
}

// oneOne are the carriers of HTTP/1.1.
func oneOne(all []*carrier) []*carrier {
	return slices.DeleteFunc(slices.Clone(all), func(c *carrier) bool { return c.name == "HTTP/2" })
}

func testWire(t *testing.T) {
	g := readGrammar(t, "wire-grammar.txt")
	carriers, beds := newCarriers(t, false)
	reference := startReference(t)
	stop := victims(t, carriers)
	attacks := rows(t, "wire.txt")
	var all sync.WaitGroup
	for i, c := range oneOne(carriers) {
		all.Go(func() {
			beside(8, attacks, func(r row) { // most of it is waiting
				rng := random(fmt.Sprint(r.title, i))
				wireRow(t, c, g, r, rng)
				for range r.number(t, "repeat", 4) {
					vars, _ := variables(g)
					abuse(c, g.expand(rng, r.texts[0], vars), rng)
				}
			})
		})
	}
	all.Wait()
	began, drawn, refused := time.Now(), new(atomic.Int64), new(atomic.Int64)
	for i, c := range oneOne(carriers) {
		all.Go(func() {
			rng := random(fmt.Sprint("grammar ", i))
			for n := 0; n < 25 || time.Since(start) < *duration-settleTime; n++ {
				if drawn.Add(1); rng.IntN(2) == 0 {
					vars, _ := variables(g)
					abuse(c, g.expand(rng, "{request}", vars), rng)
				} else if !pipeline(t, c, reference, g, rng) {
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	stop()
	t.Logf("%d attacks of the grammar in %.1f s, %d pipelines of which the gateway answered less than net/http", drawn.Load(), time.Since(began).Seconds(), refused.Load())
	for _, b := range beds {
		b.settled("attacks", 200)
	}
}

// pipeline sends the same requests to the gateway and to a server of net/http. The gateway must answer
// none that net/http has not read, in the same order; all, if each is clean. It reports whether both
// answered the same.
func pipeline(t *testing.T, c, reference *carrier, g grammar, rng *rand.Rand) (same bool) {
	kind := "request"
	if rng.IntN(3) == 0 {
		kind = "clean"
	}
	text, clean := "", []string(nil)
	for range 1 + rng.IntN(4) {
		vars, id := variables(g)
		text += g.expand(rng, "{"+kind+"}", vars)
		clean = append(clean, id)
	}
	vars, id := variables(g)
	text, clean = text+vars["last"], append(clean, id)
	cuts := rng
	if !c.cut && rng.IntN(2) == 0 {
		cuts = nil
	}
	ask := func(to *carrier, quiet time.Duration) (said []string) {
		conn, err := to.dial()
		if err != nil {
			t.Errorf("%s: %v", to.name, err)
			return nil
		}
		_ = send(conn, text, cuts)
		all, closed, err := answers(conn, bufio.NewReader(conn), 100, quiet)
		two := to.name == "h2c" && strings.Contains(text, http2.ClientPreface) // what follows is of HTTP/2
		if err != nil && !two || kind == "clean" && !closed {
			t.Errorf("%s: %v, closed %t, %v\nof %q", to.name, all, closed, err, text)
		}
		for _, a := range all {
			if a.status == 200 && strings.HasPrefix(a.said, "id-") { // a list of models says nothing
				said = append(said, a.said)
			}
		}
		end(conn, rng.IntN(len(endings)))
		return said
	}
	if kind == "clean" {
		got := ask(c, 10*time.Second)
		if len(got) > len(clean) || !slices.Equal(got, clean[:len(got)]) { // it may close behind chunks
			t.Errorf("%s answered %q of a clean pipeline, want %q\nof %q", c.name, got, clean, text)
		}
		return len(got) == len(clean)
	}
	got, want := ask(c, 250*time.Millisecond), ask(reference, 250*time.Millisecond)
	if !within(got, want) {
		want = ask(reference, 5*time.Second) // it was busy
	}
	if !within(got, want) {
		t.Errorf("%s answered %q, and net/http %q\nof %q", c.name, got, want, text)
	}
	return slices.Equal(got, want)
}

// within reports whether all of the ids are among others, in their order.
func within(ids, others []string) bool {
	for _, id := range ids {
		n := slices.Index(others, id)
		if n < 0 {
			return false
		}
		others = others[n+1:]
	}
	return true
}

// startReference is a server of net/http's that says what it is asked.
func startReference(t *testing.T) *carrier {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: 2 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 32<<20))
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, said(body))
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return &carrier{name: "net/http", addr: l.Addr().String()}
}
