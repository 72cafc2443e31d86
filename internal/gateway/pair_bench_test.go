package gateway

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/relay"
	"weir/internal/engine/sglang"
	"weir/internal/fleet/route"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/observe/metrics"
	"weir/internal/observe/timeline"
	"weir/models"
)

// BenchmarkPair is what a request of four tokens costs that two engines serve, and one that
// one engine does, over loopback: of a token engine (SGLang's /generate) and of relays to
// SGLang, whose halves go at once, and to vLLM, whose decode half follows. The
// engines and the client are of the same process; they allocate nothing, and their part of the
// CPU is that of two system calls for each message.
func BenchmarkPair(b *testing.B) {
	room, pull := engine.Meets{Way: engine.ByRoom, Host: "127.0.0.1", Port: 8998, Ranks: 1}, engine.Meets{Way: engine.ByPull}
	for _, c := range []struct {
		name    string
		relayed bool
		meets   *engine.Meets // of a pair
	}{
		{"sglang/one engine", false, nil}, {"sglang/pair", false, &room},
		{"relay/one engine", true, nil}, {"relay/pair", true, &room}, {"relay/pair by pull", true, &pull},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkPair(b, c.relayed, c.meets) })
	}
}

// cannedEngine answers each POST on loopback with the same bytes, and nothing else.
func cannedEngine(b *testing.B, answer string) *url.URL {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	whole := []byte(answer)
	missing := []byte("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf, n := make([]byte, 64<<10), 0
				for {
					k, err := c.Read(buf[n:])
					if err != nil {
						return
					}
					n += k
					head := bytes.Index(buf[:n], []byte("\r\n\r\n"))
					if head < 0 {
						continue
					}
					length := 0
					if _, rest, ok := bytes.Cut(buf[:head], []byte("\r\nContent-Length: ")); ok {
						for _, d := range rest {
							if d < '0' || d > '9' {
								break
							}
							length = 10*length + int(d-'0')
						}
					}
					if n < head+4+length {
						continue
					}
					n = 0
					say := whole
					if bytes.HasPrefix(buf, []byte("GET ")) {
						say = missing
					}
					if _, err := c.Write(say); err != nil {
						return
					}
				}
			}()
		}
	}()
	u, err := url.Parse("http://" + l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	return u
}

// cannedEvents are an answer as a stream.
func cannedEvents(list ...string) string {
	s := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, e := range append(list, "[DONE]") {
		e = "data: " + e + "\n\n"
		s += fmt.Sprintf("%x\r\n%s\r\n", len(e), e)
	}
	return s + "0\r\n\r\n"
}

// cannedAnswers are those of a prefill engine and of one that generates four tokens.
func cannedAnswers(relayed bool, meets *engine.Meets) (prefill, decode string) {
	if relayed {
		body := func(end string) string {
			return `{"id":"c","object":"text_completion","created":1,"model":"relayed","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":` + end + `}`
		}
		whole := body(`"length"`) + `],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}`
		if meets != nil && meets.Way == engine.ByPull {
			whole += `,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6]],"remote_engine_id":"p","remote_request_id":"cmpl-1",` +
				`"remote_host":"127.0.0.1","remote_port":5601,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":96,"transfer_mode":"pull"}`
		}
		whole += "}"
		prefill = fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(whole), whole)
		text := body("null") + "]}"
		return prefill, cannedEvents(text, text, text, body(`"length"`)+"]}")
	}
	generated := func(n int) string {
		var list []string
		for i := range n {
			end := "null"
			if i == n-1 {
				end = fmt.Sprintf(`{"type":"length","length":%d}`, n)
			}
			list = append(list, fmt.Sprintf(`{"text":"","output_ids":[%d],"meta_info":{"finish_reason":%s,"completion_tokens":%d,"cached_tokens":0}}`, 300+i, end, i+1))
		}
		return cannedEvents(list...)
	}
	return generated(1), generated(4)
}

func benchmarkPair(b *testing.B, relayed bool, meets *engine.Meets) {
	prefill, decode := cannedAnswers(relayed, meets)
	roles, answers := []infer.Role{infer.RoleBoth}, []string{decode}
	if meets == nil {
		meets = &engine.Meets{}
	} else {
		roles, answers = []infer.Role{infer.RolePrefill, infer.RoleDecode}, []string{prefill, decode}
	}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var engines []any
	var adapters []engine.Adapter
	for i, role := range roles {
		at, name, model := cannedEngine(b, answers[i]), role.String(), models.SimName
		var adapter engine.Adapter
		if relayed {
			model = "relayed"
			adapter = relay.New(relay.Options{Name: name, URL: at, Model: model})
			engines = append(engines, &relayEngine{name: name, role: role, meets: *meets})
		} else {
			adapter = sglang.New(sglang.Options{Name: name, URL: at, Model: model})
			engines = append(engines, &tokenEngine{name: name, role: role, meets: *meets})
		}
		ready := make(chan struct{})
		once := sync.OnceFunc(func() { close(ready) })
		running.Go(func() { adapter.Run(ctx, func(engine.State) { once() }) })
		<-ready
		adapters = append(adapters, adapter)
	}
	fleet := fleetOf(nil, engines...)
	for i, e := range fleet.Engines { // the adapters are in place of scripted engines
		if e.Tokens, e.Relay = nil, nil; relayed {
			e.Relay = adapters[i].(engine.Relay)
		} else {
			e.Tokens = adapters[i].(engine.Tokens)
		}
	}
	var snapshot atomic.Pointer[route.Snapshot]
	snapshot.Store(fleet)
	recorder, err := timeline.New(timeline.Options{File: filepath.Join(b.TempDir(), "timeline"), Keep: 16})
	if err != nil {
		b.Fatal(err)
	}
	defer recorder.Close()
	g := New(Options{Snapshot: snapshot.Load, Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: simModel()}}, Metrics: metrics.New(), Record: record.Options{Timeline: recorder}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := g.Server()
	for _, l := range []net.Listener{g.front.PlainListener(l), g.front.Returned()} {
		go func() { _ = server.Serve(l) }() // ends by Close
	}
	defer g.Close()
	defer server.Close()
	for !g.front.Returned().Serving.Load() { // before that, net/http serves each connection
		time.Sleep(time.Millisecond)
	}
	name := models.SimName
	if relayed {
		name = "relayed"
	}
	body := fmt.Sprintf(`{"model":%q,"prompt":"Once upon a time there was","max_tokens":4,"stream":true}`, name)
	ask := fmt.Appendf(nil, "POST /v1/completions HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 64<<10)
	request := func() {
		if _, err := c.Write(ask); err != nil {
			b.Fatal(err)
		}
		n := 0
		for !answered(buf[:n]) {
			k, err := c.Read(buf[n:])
			if err != nil {
				b.Fatal(err)
			}
			n += k
		}
		if !bytes.HasPrefix(buf[:n], []byte("HTTP/1.1 200 ")) || bytes.Contains(buf[:n], []byte(`"error"`)) {
			b.Fatalf("%s", buf[:n])
		}
	}
	for range 64 {
		request()
	}
	before := used(b)
	b.ReportAllocs()
	for b.Loop() {
		request()
	}
	b.ReportMetric(float64(used(b)-before)/float64(b.N), "CPU-ns/op")
}

// answered reports whether an answer is whole, in chunks or by its declared length.
func answered(b []byte) bool {
	head := bytes.Index(b, []byte("\r\n\r\n"))
	if head < 0 {
		return false
	}
	_, length, declared := bytes.Cut(b[:head], []byte("\r\nContent-Length: "))
	if !declared {
		return bytes.HasSuffix(b, []byte("\r\n0\r\n\r\n"))
	}
	length, _, _ = bytes.Cut(length, []byte("\r\n"))
	n, err := strconv.Atoi(string(length))
	return err == nil && len(b) == head+4+n
}

// used is the CPU time of the process.
func used(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
