package bench

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// BenchmarkEngineHTTP is what a token of a stream costs the simulated engine
// over HTTP: the engine has a process of its own and one core's worth of Go
// (GOMAXPROCS=1), and its clients here only count bytes. It reports the tokens
// per second that were generated and the engine's CPU seconds per million of
// them. At a step of 10 ms each token is an event and a write of its own; at 1 ms
// the engine cannot keep up and merges, which is its limit.
func BenchmarkEngineHTTP(b *testing.B) {
	if runtime.GOOS != "linux" {
		b.Skip("needs /proc")
	}
	const ask = `"ignore_eos":true,"stream":true`
	for _, c := range []struct {
		name, wire, path, body string
		args                   []string
	}{
		{"generate-incremental", "sglang", "/generate", `{"text":"x","stream":true,"sampling_params":{"ignore_eos":true,"max_new_tokens":100000}}`, []string{"--incremental-streaming-output"}},
		{"generate-cumulative", "sglang", "/generate", `{"text":"x","stream":true,"sampling_params":{"ignore_eos":true,"max_new_tokens":100000}}`, nil},
		{"sglang-completions", "sglang", "/v1/completions", `{"prompt":"x","max_tokens":100000,` + ask + `}`, []string{"--incremental-streaming-output"}},
		{"vllm-completions", "vllm", "/v1/completions", `{"prompt":"x","max_tokens":100000,` + ask + `}`, nil},
		{"openai-completions", "openai", "/v1/completions", `{"prompt":"x","max_tokens":100000,` + ask + `}`, nil},
	} {
		for _, step := range []string{"10ms", "1ms"} {
			b.Run(c.name+"/step="+step, func(b *testing.B) {
				const streams = 512
				b.Setenv("GOMAXPROCS", "1")
				p := harness.Start(b, append([]string{"engine", "--wire", c.wire + "=127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--max-running-requests", strconv.Itoa(streams),
					"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", step}, c.args...)...)
				addr, admin := strings.TrimPrefix(p.Line(c.wire), "http://"), p.Line("admin")
				var clients sync.WaitGroup
				var conns []net.Conn
				for range streams {
					conn, err := net.Dial("tcp", addr)
					if err != nil {
						b.Fatal(err)
					}
					conns = append(conns, conn)
					fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", c.path, len(c.body), c.body)
					clients.Go(func() {
						_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 64<<10))
					})
				}
				harness.Eventually(b, "all streams", func() bool { return harness.EngineState(b, admin).Running == streams })
				tokens := func() int { return harness.EngineState(b, admin).GeneratedTokens }
				from, cpu, began := tokens(), processCPU(b, p.Cmd.Process.Pid), time.Now()
				for b.Loop() {
					time.Sleep(time.Millisecond)
				}
				n, took := float64(tokens()-from), time.Since(began).Seconds()
				b.ReportMetric(n/took, "tokens/s")
				b.ReportMetric((processCPU(b, p.Cmd.Process.Pid)-cpu)/n*1e6, "cpu-s/Mtoken")
				for _, conn := range conns {
					conn.Close()
				}
				clients.Wait()
			})
		}
	}
}

// processCPU returns the CPU seconds that a process has used.
func processCPU(b *testing.B, pid int) float64 {
	b.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	// After the name, which may hold anything: state is the first field.
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	var ticks float64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return ticks / 100 // USER_HZ
}
