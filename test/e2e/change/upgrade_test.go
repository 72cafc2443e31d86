//go:build linux

package change

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// A gateway takes the place of another one, which drains, by sharing its port or by a socket
// that both inherit. Requests are sent meanwhile, each over a connection of its own, and none
// fails.
func TestUpgradeInPlace(t *testing.T) {
	for _, way := range []string{"reuse-port", "activation"} {
		t.Run(way, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			sim := harness.StartSim(t, engineFlags...)
			addr := harness.FreeAddress(t)
			args := []string{"serve", "--engine", sim.Spec("relay"), "--listen", addr, "--admin-listen", "127.0.0.1:0", "--reuse-port"}
			start := func() *harness.Process { return harness.Start(t, args...) }
			if way == "activation" {
				l, err := net.Listen("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				socket, err := l.(*net.TCPListener).File()
				if err != nil {
					t.Fatal(err)
				}
				defer socket.Close()
				args = append(args[:3:3], "--admin-listen", "127.0.0.1:0")
				start = func() *harness.Process {
					return harness.StartWith(t, []*os.File{socket}, []string{"LISTEN_FDS=1"}, args...)
				}
			}
			begin := func() *harness.Gateway {
				p := start()
				g := &harness.Gateway{Process: p, URL: p.Line("gateway"), Admin: p.Line("admin")}
				harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
				return g
			}
			old := begin()
			if !strings.HasSuffix(old.URL, addr) {
				t.Fatalf("it listens at %s, and was given %s", old.URL, addr)
			}

			// One stream that outlasts the change, and many requests meanwhile.
			var running sync.WaitGroup
			long := make(chan harness.Answer, 1)
			running.Go(func() {
				long <- harness.Post(t, old.URL+"/v1/completions", `{"model":"weir-sim","prompt":"a","stream":true,"ignore_eos":true,"max_tokens":400}`)
			})
			harness.Eventually(t, "given the stream", func() bool { return harness.EngineState(t, sim.Admin).Running == 1 })
			stop := make(chan struct{})
			var mu sync.Mutex
			answered := 0
			var wrong []string
			for range 8 {
				running.Go(func() {
					client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
					for {
						select {
						case <-stop:
							return
						default:
						}
						resp, err := client.Post("http://"+addr+"/v1/completions", "application/json", strings.NewReader(`{"model":"weir-sim","prompt":"a","max_tokens":2}`))
						mu.Lock()
						switch {
						case err != nil:
							wrong = append(wrong, err.Error())
						case resp.StatusCode != http.StatusOK:
							wrong = append(wrong, resp.Status)
						default:
							answered++
						}
						mu.Unlock()
						if err == nil {
							resp.Body.Close()
						}
					}
				})
			}
			count := func() int { mu.Lock(); defer mu.Unlock(); return answered }
			harness.Eventually(t, "answering", func() bool { return count() > 50 })

			next := begin()
			if err := old.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "the only one that requests come to", func() bool {
				return strings.Contains(old.Output(), "draining") && harness.Metric(t, next.Admin, "weir_requests_received_total") > 50
			})
			old.Exits(0)
			since := count()
			harness.Eventually(t, "answering alone", func() bool { return count() > since+50 })
			close(stop)
			running.Wait()
			if len(wrong) > 0 {
				t.Errorf("%d requests failed, and %d were answered: %q", len(wrong), answered, wrong[:min(5, len(wrong))])
			}
			harness.WantComplete(t, <-long)
			t.Logf("%d requests answered, none failed", answered)
		})
	}
}

// The gateway that leaves is stopped again and again, for longer than any fixed delay would
// cover. Every connection made to it before there was another gateway is answered and sent
// elsewhere.
func TestUpgradeOfAStalledGateway(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t, engineFlags...)
	addr := harness.FreeAddress(t)
	begin := func() *harness.Gateway {
		p := harness.Start(t, "serve", "--engine", sim.Spec("relay"), "--listen", addr, "--admin-listen", "127.0.0.1:0", "--reuse-port")
		g := &harness.Gateway{Process: p, URL: p.Line("gateway"), Admin: p.Line("admin")}
		harness.Eventually(t, "ready", func() bool { return harness.Get(t, g.Admin+"/readyz").Status == http.StatusOK })
		return g
	}
	old := begin()
	signal := func(s syscall.Signal) {
		if err := old.Cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}
	signal(syscall.SIGSTOP)
	const n = 1000
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := net.Dial("tcp", addr) // the kernel answers
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	ask := func(c net.Conn) {
		const body = `{"model":"weir-sim","prompt":"a","max_tokens":2}`
		if _, err := io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body); err != nil {
			t.Error(err)
		}
	}
	early, late := conns[:n/2], conns[n/2:]
	for _, c := range early {
		ask(c)
	}
	next := begin()
	signal(syscall.SIGTERM)
	for range 8 {
		signal(syscall.SIGCONT)
		time.Sleep(2 * time.Millisecond)
		signal(syscall.SIGSTOP)
		time.Sleep(300 * time.Millisecond)
	}
	signal(syscall.SIGCONT)
	harness.Eventually(t, "the old gateway to leave", func() bool { return harness.Get(t, old.Admin+"/readyz").Status == http.StatusServiceUnavailable })
	for _, c := range late {
		ask(c)
	}
	answers := func(of []net.Conn) (broken, kept int) {
		for _, c := range of {
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			switch {
			case err != nil, resp.StatusCode != http.StatusOK:
				broken++
			case !resp.Close:
				kept++
			}
		}
		return broken, kept
	}
	// Some of the early ones may be answered before the gateway has noticed the signal.
	if broken, _ := answers(early); broken > 0 {
		t.Errorf("of %d requests from before the signal %d failed", len(early), broken)
	}
	if broken, kept := answers(late); broken > 0 || kept > 0 {
		t.Errorf("of %d requests from after it %d failed, and %d were answered on connections that stay open", len(late), broken, kept)
	}
	old.Exits(0)
	harness.WantComplete(t, harness.Post(t, next.URL+"/v1/completions", `{"model":"weir-sim","prompt":"a","stream":true,"max_tokens":2}`))
}
