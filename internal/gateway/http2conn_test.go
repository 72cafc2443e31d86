package gateway

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"weir/internal/fleet/route"
	"weir/internal/gateway/front"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/models"
	"weir/test/certtest"
)

// inFront is a gateway's server on two networks in memory, one of them with TLS.
type inFront struct {
	t           *testing.T
	g           *Gateway
	server      *http.Server
	plain, over *memListener
}

// inFrontOf runs a test against such a server in virtual time.
func inFrontOf(t *testing.T, test func(f *inFront)) {
	cert, key := keyPair(t, 1)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	words()
	synctest.Test(t, func(t *testing.T) {
		fleet := fleetOf(nil, &tokenEngine{name: "a"})
		f := &inFront{t: t, plain: newMemListener(), over: newMemListener()}
		f.g = New(Options{Snapshot: func() *route.Snapshot { return fleet }, Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: simModel()}}})
		f.g.front.Hangups, f.g.driver.Polls = memHangups{}, memPolls{}
		f.server = f.g.Server()
		server := f.server
		server.Protocols.SetUnencryptedHTTP2(true)
		server.TLSConfig = f.g.front.TLS(&tls.Config{Certificates: []tls.Certificate{pair}})
		var served sync.WaitGroup
		served.Go(func() { _ = server.Serve(f.g.front.PlainListener(f.plain)) }) // each ends by Close
		served.Go(func() { _ = server.Serve(f.g.front.Returned()) })
		served.Go(func() { _ = server.ServeTLS(f.g.front.Listener(f.over), "", "") })
		defer f.g.Close()
		defer served.Wait()
		defer server.Close()
		synctest.Wait()
		test(f)
	})
}

// secure is a client's connection over TLS by a protocol.
func (f *inFront) secure(protocol string) *tls.Conn {
	c := tls.Client(f.over.dial(4<<20), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
	if err := c.Handshake(); err != nil {
		f.t.Fatal(err)
	}
	return c
}

// What net/http refuses by itself, before any handler and with no hook for one, has no Cache-Control
// and no X-Content-Type-Options of the API. It needs none: it is plain text of net/http's own, without
// a byte of the client's, and its connection ends (docs/security.md).
func TestRefusalsOfNetHTTP(t *testing.T) {
	const canary = "<script>canary</script>"
	inFrontOf(t, func(f *inFront) {
		for head, want := range map[string]int{
			canary + "\r\n\r\n":                                                                           400,
			"GET /" + canary + " HTTP/1.1\r\n\r\n":                                                        400, // no Host
			"GET /v1/models HTTP/1.1\r\nHost: " + canary + "\r\n\r\n":                                     400,
			"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + canary + ": x\r\n\r\n":                             400,
			"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat(canary, 100_000) + "\r\n\r\n":    431,
			"POST /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + canary + "\r\n\r\n":            501,
			"POST /v1/models HTTP/1.1\r\nHost: x\r\nExpect: " + canary + "\r\nContent-Length: 1\r\n\r\nx": 417,
			"GET /v1/models HTTP/3.0" + canary + "\r\nHost: x\r\n\r\n":                                    400,
			"GET /v1/models HTTP/7.0\r\nHost: x\r\nX: " + canary + "\r\n\r\n":                             505,
		} {
			for _, secure := range []bool{false, true} {
				var c net.Conn = f.plain.dial(4 << 20)
				if secure {
					c = f.secure("http/1.1")
				}
				go func() { _, _ = io.WriteString(c, head) }() // it may be refused before all of it is there
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Errorf("%.60q, TLS %v: %v", head, secure, err)
					c.Close()
					continue
				}
				body, _ := io.ReadAll(resp.Body)
				c.Close()
				if text := fmt.Sprint(resp.Status, resp.Header, string(body)); resp.StatusCode != want || !resp.Close || strings.Contains(text, "canary") || len(body) > 0 && resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
					t.Errorf("%.60q, TLS %v: %s, closed %v", head, secure, text, resp.Close)
				}
			}
		}
		time.Sleep(time.Second) // net/http waits behind a 431
	})
}

// A request whose body does not come, or not all of it, leaves nothing in the gateway when its
// client has gone. If the client stays and is silent, nothing is left soon after. The heads are
// drawn: no text in them changes that.
func TestNothingStays(t *testing.T) {
	var heads []string
	for _, method := range []string{"POST", "GET", "PRI", "CONNECT", "OPTIONS"} {
		for _, target := range []string{"*", "/v1/models", "/v1//models", chatPath, "weir:80"} {
			for _, version := range []string{"1.0", "1.1", "2.0", "3.0"} {
				for _, rest := range []string{
					"", "Content-Length: 10", "Content-Length: 300000", "Transfer-Encoding: chunked", "Expect: 100-continue\r\nContent-Length: 10",
					"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 10",
				} {
					heads = append(heads, strings.ReplaceAll(fmt.Sprintf("%s %s HTTP/%s\r\nHost: weir\r\n%s\r\n\r\n", method, target, version, rest), "\r\n\r\n\r\n", "\r\n\r\n"))
				}
			}
		}
	}
	heads = append(heads, http2.ClientPreface, http2.ClientPreface[:20], "PRI * HTTP/2.0\r\n\r\n")
	inFrontOf(t, func(f *inFront) {
		begin := func(head string, secure bool) net.Conn {
			var c net.Conn
			if secure {
				c = f.secure("http/1.1")
			} else {
				c = f.plain.dial(4 << 20)
			}
			if _, err := io.WriteString(c, head); err != nil {
				t.Fatal(err)
			}
			return c
		}
		left := func(within time.Duration, what string) {
			t.Helper()
			time.Sleep(within)
			if synctest.Wait(); f.g.front.Conns().Open != 0 || f.g.Served() != 0 {
				t.Fatalf("%s: %d connections and %d requests are left", what, f.g.front.Conns().Open, f.g.Served())
			}
		}
		for i, head := range heads {
			c := begin(head, i%8 == 0 || strings.HasPrefix(head, "PRI"))
			synctest.Wait()
			c.Close()
			left(time.Second, fmt.Sprintf("closed behind %q", head))
		}
		for _, head := range heads {
			begin(head, false)
		}
		left(front.KeepAliveTimeout+time.Minute, "silent")
	})
}

// floods are frames of a client that bring nothing, as many as wanted.
var floods = map[string]func(f *http2.Framer) error{
	"pings":                        func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) },
	"settings":                     func(f *http2.Framer) error { return f.WriteSettings() },
	"acknowledgements":             func(f *http2.Framer) error { return f.WritePing(true, [8]byte{}) },
	"priorities":                   func(f *http2.Framer) error { return f.WritePriority(7, http2.PriorityParam{StreamDep: 5}) },
	"window updates":               func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1) },
	"window updates of the stream": func(f *http2.Framer) error { return f.WriteWindowUpdate(1, 1) },
	"empty data":                   func(f *http2.Framer) error { return f.WriteData(1, false, nil) },
	"data by the byte":             func(f *http2.Framer) error { return f.WriteData(1, false, []byte(" ")) },
	"frames of no known kind":      func(f *http2.Framer) error { return f.WriteRawFrame(200, 0, 0, nil) },
	"empty continuations":          func(f *http2.Framer) error { return f.WriteContinuation(3, false, nil) },
}

// openPost begins a request whose body is to come.
func openPost(f *http2.Framer, stream uint32, ended bool) error {
	var head bytes.Buffer
	fields := hpack.NewEncoder(&head)
	for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "weir"}, {":path", chatPath}, {"content-type", "application/json"}} {
		_ = fields.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // into memory
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndHeaders: ended})
}

// A connection of many frames that bring nothing is told to go away and ends, without TLS and over
// it.
func TestFramesWithoutWork(t *testing.T) {
	for name, flood := range floods {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", TLS ", secure), func(t *testing.T) {
				inFrontOf(t, func(f *inFront) {
					var c net.Conn
					if secure {
						c = f.secure("h2")
					} else {
						c = f.plain.dial(4 << 20)
					}
					defer c.Close()
					read := make(chan error)
					var code atomic.Uint32
					go func() {
						in := http2.NewFramer(nil, c)
						for {
							frame, err := in.ReadFrame()
							if err != nil {
								read <- err
								return
							}
							if away, ok := frame.(*http2.GoAwayFrame); ok {
								code.Store(uint32(away.ErrCode))
							}
						}
					}()
					var out bytes.Buffer
					framer := http2.NewFramer(&out, nil)
					framer.AllowIllegalWrites = true
					out.WriteString(http2.ClientPreface)
					err := errors.Join(framer.WriteSettings(), openPost(framer, 1, true))
					if name == "empty continuations" {
						err = errors.Join(err, openPost(framer, 3, false))
					}
					if err != nil {
						t.Fatal(err)
					}
					sent := 0
					for ; sent < 2*front.FrameBurst; sent++ {
						if err := flood(framer); err != nil {
							t.Fatal(err)
						}
						if out.Len() > 8<<10 {
							if _, err := c.Write(out.Bytes()); err != nil {
								break
							}
							out.Reset()
							if synctest.Wait(); code.Load() != 0 {
								break
							}
						}
					}
					if err := <-read; err != io.EOF || http2.ErrCode(code.Load()) != http2.ErrCodeEnhanceYourCalm {
						t.Errorf("after %d frames: %v, the connection ends with %v", sent, http2.ErrCode(code.Load()), err)
					}
					if sent < front.FrameBurst-2 {
						t.Errorf("told to go away after %d frames", sent)
					}
					time.Sleep(time.Second)
					if synctest.Wait(); f.g.front.Conns().Open != 0 || f.g.Served() != 0 {
						t.Errorf("%d connections and %d requests are left", f.g.front.Conns().Open, f.g.Served())
					}
				})
			})
		}
	}
}

// Frames that belong to work are never too many: pings and updates of windows for each part of an
// answer, a body in small parts, and pings without a pause that keep a connection alive.
func TestFramesOfWork(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inOneWay(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		s := b.dialHTTP2()
		defer s.conn.Close()
		body := askStream(`,"max_tokens":100000`)
		_, stream := s.open(chatPath, body, len(body))
		stays := e.call(t, 1)
		for i := range 10000 {
			stays.send(words()[0])
			s.write(func(f *http2.Framer) error {
				return errors.Join(f.WriteWindowUpdate(0, 200), f.WriteWindowUpdate(stream, 200), f.WritePing(false, [8]byte{1}))
			})
			if s.read(); s.goAway {
				t.Fatalf("at part %d of an answer", i)
			}
		}
		large := askStream(``) + strings.Repeat(" ", 1<<20)
		_, upload := s.open(chatPath, "", len(large)+1)
		for at := 0; at < len(large); at += 100 {
			part := large[at:min(at+100, len(large))]
			s.write(func(f *http2.Framer) error { return f.WriteData(upload, false, []byte(part)) })
			if s.read(); s.goAway {
				t.Fatalf("at %d of a body", at)
			}
		}
		s.cancel(upload)
		for range 2 * front.FrameBurst {
			time.Sleep(5 * time.Millisecond)
			s.write(func(f *http2.Framer) error { return f.WritePing(false, [8]byte{2}) })
		}
		stays.end(infer.ReasonStop, words()[0])
		if s.read(); s.goAway || !s.ended[stream] {
			t.Errorf("go away %v, ended %v", s.goAway, s.ended[stream])
		}
	})
}

// keyPair makes a certificate of the given serial number, as PEM.
func keyPair(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	cert, key, err := certtest.Make("weir", serial)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}
