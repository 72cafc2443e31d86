package keys_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"weir/test/e2e/harness"
)

// uploads are the ways in which a client sends a body to a gateway. Each returns the answer, and an
// error if a part of the body could not be sent.
type uploads struct {
	t    *testing.T
	dial func(protocol string) (net.Conn, error)
	http map[string]*http.Client
	url  string
}

// refusedUpload is a request that is refused before its body was read.
type refusedUpload struct{ path, key, body string }

// raw sends all of a request before it reads the answer, as many clients do.
func (u *uploads) raw(r refusedUpload, fields, body string) (*http.Response, []byte, error) {
	conn, err := u.dial("http/1.1")
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(harness.Patience))
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n%s", r.path, r.key, fields, body); err != nil {
		return nil, nil, err
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(resp.Body)
	return resp, text, err
}

// chunks is a body in chunks.
func chunks(body string) string {
	var b strings.Builder
	for part := range partsOf(body, 100_000) {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(part), part)
	}
	return b.String() + "0\r\n\r\n"
}

func partsOf(text string, size int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			n := min(size, len(text))
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

// client sends a request by Go's client, which reads the answer while it sends.
func (u *uploads) client(c *http.Client, r refusedUpload, body io.Reader) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(harness.Context(u.t), http.MethodPost, u.url+r.path, body)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.key)
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, text, err
}

// frames sends all of a request over HTTP/2 before it looks at the answer, as far as the windows
// allow, as curl does. A stream that is reset before both have ended is an error.
func (u *uploads) frames(r refusedUpload) (*http.Response, []byte, error) {
	conn, err := u.dial("h2")
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(harness.Patience))
	var block bytes.Buffer
	fields := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", r.path}, {":authority", "x"},
		{"content-type", "application/json"}, {"content-length", fmt.Sprint(len(r.body))}, {"authorization", "Bearer " + r.key}} {
		if err := fields.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, nil, err
		}
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = io.WriteString(conn, http2.ClientPreface)
	err = errors.Join(err, framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	const atFirst = 65535
	resp, text, ended := &http.Response{Header: http.Header{}}, []byte(nil), false
	for whole, part, rest := atFirst, atFirst, r.body; err == nil && (len(rest) > 0 || !ended); {
		for n := min(len(rest), whole, part, 16<<10); n > 0 && err == nil; n = min(len(rest), whole, part, 16<<10) {
			err = framer.WriteData(1, n == len(rest), []byte(rest[:n]))
			rest, whole, part = rest[n:], whole-n, part-n
		}
		if err != nil {
			break
		}
		var f http2.Frame
		if f, err = framer.ReadFrame(); err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if first, ok := f.Value(http2.SettingInitialWindowSize); ok {
				part += int(first) - atFirst
			}
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.WindowUpdateFrame:
			if f.StreamID == 0 {
				whole += int(f.Increment)
			} else {
				part += int(f.Increment)
			}
		case *http2.MetaHeadersFrame:
			resp.StatusCode, err = strconv.Atoi(f.PseudoValue("status"))
			for _, field := range f.RegularFields() {
				resp.Header.Add(field.Name, field.Value)
			}
			ended = f.StreamEnded()
		case *http2.DataFrame:
			text, ended = append(text, f.Data()...), f.StreamEnded()
		case *http2.RSTStreamFrame:
			err = fmt.Errorf("the stream is reset (%v) while %d bytes of its body were not sent", f.ErrCode, len(rest))
		}
	}
	return resp, text, err
}

// ways returns them by name.
func (u *uploads) ways() map[string]func(r refusedUpload) (*http.Response, []byte, error) {
	const expect = "\r\nExpect: 100-continue"
	length := func(r refusedUpload) string { return fmt.Sprintf("Content-Length: %d", len(r.body)) }
	const chunked = "Transfer-Encoding: chunked"
	ways := map[string]func(r refusedUpload) (*http.Response, []byte, error){
		"declared": func(r refusedUpload) (*http.Response, []byte, error) { return u.raw(r, length(r), r.body) },
		"chunked":  func(r refusedUpload) (*http.Response, []byte, error) { return u.raw(r, chunked, chunks(r.body)) },
		// Nothing of the body is sent, as nobody says that it may come.
		"declared, expects": func(r refusedUpload) (*http.Response, []byte, error) { return u.raw(r, length(r)+expect, "") },
		"chunked, expects":  func(r refusedUpload) (*http.Response, []byte, error) { return u.raw(r, chunked+expect, "") },
		"HTTP/2 to its end": u.frames,
		"declared, no wait": func(r refusedUpload) (*http.Response, []byte, error) { return u.raw(r, length(r)+expect, r.body) },
		"chunked, no wait":  func(r refusedUpload) (*http.Response, []byte, error) { return u.raw(r, chunked+expect, chunks(r.body)) },
	}
	for name, c := range u.http {
		ways[name] = func(r refusedUpload) (*http.Response, []byte, error) {
			return u.client(c, r, strings.NewReader(r.body))
		}
		ways[name+" of no length"] = func(r refusedUpload) (*http.Response, []byte, error) {
			return u.client(c, r, struct{ io.Reader }{strings.NewReader(r.body)})
		}
	}
	return ways
}

// A large body that is refused before it is read costs its client nothing but the request: the body
// can be sent to its end, over each protocol, and the answer has the status and the text that
// a small body gets.
func TestRefusedUploads(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	dir := t.TempDir()
	keys, cert, key := filepath.Join(dir, "keys.yaml"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	free, limited := add(t, "free", "--keys", keys), add(t, "limited", "--keys", keys, "--requests-per-minute", "6000")
	pool := harness.KeyPair(t, cert, key, 1)
	nobody := harness.FreeAddress(t)
	for name, more := range map[string][]string{"plain": {"--h2c"}, "TLS": {"--tls-cert", cert, "--tls-key", key}} {
		t.Run(name, func(t *testing.T) {
			// The store of limits is down, so who has limits is refused with 503. A stream holds the one
			// place for a request, so who has none is refused with 429.
			args := []string{"up", "--keys", keys, "--max-requests", "1", "--limits", "redis://" + nobody, "--limits-outage", "refuse"}
			g := harness.StartUnready(t, append(args, more...)...)
			harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
			config := &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}
			u := &uploads{t: t, url: g.URL, http: map[string]*http.Client{}}
			scheme, addr, _ := strings.Cut(g.URL, "://")
			if want := map[string]string{"plain": "http", "TLS": "https"}[name]; scheme != want {
				t.Fatalf("%s at %s", name, g.URL)
			}
			u.dial = func(protocol string) (net.Conn, error) {
				if name == "TLS" {
					config := config.Clone()
					config.NextProtos = []string{protocol}
					return tls.Dial("tcp", addr, config)
				}
				return net.Dial("tcp", addr)
			}
			for version, set := range map[string]func(*http.Protocols){
				"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
				"HTTP/2":   func(p *http.Protocols) { p.SetHTTP2(true); p.SetUnencryptedHTTP2(true) },
			} {
				transport := &http.Transport{TLSClientConfig: config.Clone(), Protocols: new(http.Protocols)}
				set(transport.Protocols)
				defer transport.CloseIdleConnections()
				u.http[version] = &http.Client{Transport: transport}
			}
			ctx, stream := harness.Context(t), u.http["HTTP/1.1"]
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/v1/chat/completions",
				strings.NewReader(`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":100000,"messages":[{"role":"user","content":"go on"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+free)
			running, err := stream.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer running.Body.Close()
			if _, err := bufio.NewReader(running.Body).ReadString('\n'); err != nil || running.StatusCode != http.StatusOK {
				t.Fatalf("the stream that holds the place: %s, %v", running.Status, err)
			}

			ways := u.ways()
			for _, dialect := range []struct {
				path, body string
				overloaded int // the status of a request for which there is no place
			}{
				{"/v1/chat/completions", `{"model":"weir-sim","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, 429},
				{"/v1/messages", `{"model":"weir-sim","max_tokens":4,"messages":[{"role":"user","content":%q}]}`, 529},
				{"/v1/responses", `{"model":"weir-sim","max_output_tokens":4,"input":%q}`, 429},
				{"/generate", `{"text":%q,"sampling_params":{"max_new_tokens":4}}`, 503},
			} {
				for _, refusal := range []struct {
					key    string
					status int
				}{{"weir_nobody", 401}, {free, dialect.overloaded}, {limited, 503}} {
					key, status := refusal.key, refusal.status
					small := refusedUpload{dialect.path, key, fmt.Sprintf(dialect.body, "hi")}
					resp, want, err := ways["HTTP/1.1"](small)
					if err != nil || resp.StatusCode != status || !bytes.Contains(want, []byte(`"message":"`)) {
						t.Fatalf("%s: a small body: want status %d: %+v, %s, %v", dialect.path, status, resp, want, err)
					}
					sizes := []int{300_000}
					if dialect.path == "/v1/chat/completions" {
						sizes = []int{200_000, 300_000, 12_000_000} // the last is more than sockets hold
					}
					for _, size := range sizes {
						large := refusedUpload{dialect.path, key, fmt.Sprintf(dialect.body, strings.Repeat("all work and no play ", size/21))}
						for way, ask := range ways {
							resp, got, err := ask(large)
							switch {
							case err != nil:
								t.Errorf("%s, %s, %d bytes, want %d: %v", dialect.path, way, size, status, err)
							case resp.StatusCode != status || !bytes.Equal(got, want) || resp.Header.Get("Content-Type") != "application/json":
								t.Errorf("%s, %s, %d bytes: status %d, %v, %s; want %d, %s", dialect.path, way, size, resp.StatusCode, resp.Header, got, status, want)
							}
						}
					}
				}
			}
			running.Body.Close()
			ended := g.Balanced()
			if ended["failed"] > 0 || ended["finished"] > 0 || ended["cancelled"] != 1 {
				t.Errorf("ended %v", ended)
			}
			g.Interrupt()
		})
	}
}
