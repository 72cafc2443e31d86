//go:build linux

package hostile

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// testSlow has clients ask for streams that they do not read, hundreds at once, and thousands where the
// corpus has minutes, beside good streams. Each is given up after --write-timeout, and its engine's stream
// with it.
func testSlow(t *testing.T) {
	slowReaders := 100
	if *duration > time.Minute { // the kernel has megabytes for each
		slowReaders = 1000
	}
	event := `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 8000) + `"},"finish_reason":null}]}` + "\n\n"
	engine := startScripted(t, map[string]string{"flood": "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n~~~" + event})
	sim := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms")
	good := &carrier{name: "direct"}
	good.http.MaxIdleConnsPerHost = 64
	b := serve(t, "slow", func(b *bed) {
		good.addr = strings.TrimPrefix(b.URL, "http://")
		for i := range 8 {
			good.victim(t, i)
		}
	}, func() { good.http.CloseIdleConnections(); engine.hangUp() },
		"--write-timeout", "8s", // so that all of them are there at once on a busy machine, too
		"--keys", keysFile(t, 0), "--budget-file", "off", "--engine", "openai="+engine.url()+",model=m", "--engine", sim.Spec("plane"))
	stop := victims(t, []*carrier{good})
	small := net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}}
	body := strings.Replace(chat("m", "@flood@"), "{", `{"stream":true,`, 1)
	text := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer weir_good\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	conns := make([]net.Conn, slowReaders)
	var all sync.WaitGroup
	for i := range conns {
		all.Go(func() {
			c, err := small.DialContext(t.Context(), "tcp", good.addr)
			if err != nil {
				t.Errorf("reader %d: %v", i, err)
				return
			}
			conns[i] = c
			_, _ = io.WriteString(c, text)
		})
	}
	all.Wait()
	most, now := 0, 0
	for range 80 {
		time.Sleep(250 * time.Millisecond) // a look costs more than a stream
		now = b.state().requests
		if most = max(most, now); most > slowReaders/2 && now < 10 {
			break
		}
	}
	if most <= slowReaders/2 || now >= 10 {
		t.Errorf("%d slow readers were served at once; %d still are", most, now)
	}
	stop()
	t.Logf("%d slow readers at once, %d MB at the peak", most, resident(b.Cmd.Process.Pid))
	for _, c := range conns {
		if c != nil {
			c.Close()
		}
	}
	b.settled("slow readers", 330+slowReaders/10) // of which 256 MB are what the collector may leave (docs/operating.md)
}
