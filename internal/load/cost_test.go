package load

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/wire/sse"
)

// serverEnv makes the test binary a server in a process of its own, so that
// the benchmarks' CPU time is the client's alone.
const serverEnv = "LOAD_TEST_SERVER"

const costTokens = 200

// serveIfAsked is the server's process: it answers each request with
// costTokens events, one write each, 2 ms apart, until its standard input ends.
func serveIfAsked() bool {
	if os.Getenv(serverEnv) == "" {
		return false
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return true
	}
	fmt.Println(l.Addr())
	r := whole(nil)
	var word = "data: " + r.text(" abc") + "\n\n"
	end := chunked([]string{"data: " + r.end() + "\n\n",
		fmt.Sprintf("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":%d}}\n\n", costTokens),
		"data: [DONE]\n\n"}) + lastChunk
	frame := []byte(chunked([]string{word}))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				br := bufio.NewReader(c)
				for readRequest(br) == nil {
					_, _ = io.WriteString(c, streamHead)
					for range costTokens {
						time.Sleep(2 * time.Millisecond)
						_, _ = c.Write(frame)
					}
					_, _ = io.WriteString(c, end)
				}
			}()
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

func startCostServer(b *testing.B) string {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return "http://" + strings.TrimSpace(line)
}

const costStreams = 256

// BenchmarkClientCPU measures the client's CPU per event over loopback, with
// the server in another process: this package's stream path, and the same
// parsing over net/http's client.
func BenchmarkClientCPU(b *testing.B) {
	b.Run("lean", func(b *testing.B) {
		url := startCostServer(b)
		for b.Loop() {
			r, err := Run(b.Context(), Plan{
				URL: url, Model: "m", Concurrency: costStreams, Requests: costStreams * 4, OutputTokens: costTokens,
			})
			if err != nil || r.Complete != costStreams*4 {
				b.Fatalf("%+v, %v", r, err)
			}
			b.ReportMetric(r.CPUPerEvent, "cpu-us/event")
			b.ReportMetric(float64(r.ITL.P99), "itl-p99-ms")
		}
	})
	b.Run("net-http", func(b *testing.B) {
		url := startCostServer(b)
		tr := &http.Transport{MaxIdleConnsPerHost: costStreams, DisableCompression: true}
		defer tr.CloseIdleConnections()
		for b.Loop() {
			before := cpuTime()
			var wg sync.WaitGroup
			var mu sync.Mutex
			events := 0
			for range costStreams {
				wg.Go(func() {
					n := 0
					for range 4 {
						n += readByNetHTTP(b, tr, url)
					}
					mu.Lock()
					events += n
					mu.Unlock()
				})
			}
			wg.Wait()
			b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(events), "cpu-us/event")
		}
	})
}

// readByNetHTTP reads one stream through net/http's client.
func readByNetHTTP(b *testing.B, tr *http.Transport, url string) (events int) {
	req, err := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader("{}"))
	if err != nil {
		b.Error(err)
		return 0
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		b.Error(err)
		return 0
	}
	defer resp.Body.Close()
	x := newExchange(&Plan{OutputTokens: costTokens}, nil, nil)
	var p sse.Parser
	buf := make([]byte, readBuffer)
	for {
		n, err := resp.Body.Read(buf)
		p.Feed(buf[:n])
		for ev, ok := p.Next(); ok; ev, ok = p.Next() {
			x.judge.event(ev, time.Now().UnixNano())
		}
		if err != nil {
			return x.sample.Events
		}
	}
}
