//go:build interop

package sglang

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/test/e2e/harness"
)

// server runs SGLang's own HTTP server and TokenizerManager before a scheduler.
func (s *setup) server(form string, schedArgs ...string) (url string, server, scheduler *harness.Process) {
	s.t.Helper()
	at := harness.FreeAddress(s.t)
	_, port, _ := net.SplitHostPort(at)
	args := []string{"--dir", s.dir, "--port", port}
	if form == "incremental" {
		args = append(args, "--incremental")
	}
	server = s.start("server.py", append(args, s.serverArgs...)...)
	server.Find("ready", func(l string) bool { return l == "ready" })
	scheduler = s.scheduler(append([]string{"--in", "ipc://" + s.dir + "/in", "--out", "ipc://" + s.dir + "/out"}, schedArgs...)...)
	return "http://" + at, server, scheduler
}

// before starts a gateway before SGLang's own server.
func before(t testing.TB, url string) *harness.Gateway {
	t.Helper()
	return harness.StartGateway(t, "serve", "--engine", "sglang="+url+",model=weir-sim", "--media", "any")
}

// TestServer: weir's sglang adapter in front of SGLang's own server, in both forms of
// its streams. Every text is right, counts of both ends are equal, and hang-ups reach
// the scheduler.
func TestServer(t *testing.T) {
	for _, form := range []string{"incremental", "cumulative"} {
		t.Run(form, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			s := newSetup(t)
			url, _, scheduler := s.server(form, "--step", "0.001")
			g := before(t, url)
			total := s.many(g, 64)
			n := scheduler.Counts(func(n map[string]int) bool { return n["finished"] == 64 })
			if n["ids"] != total || n["aborted"] != 0 {
				t.Errorf("the scheduler counts %v, and the client %d ids", n, total)
			}
			ctx := harness.Context(t)
			// Without a tokenizer the server loses a regular expression in silence.
			if a, err := g.Complete(ctx, "weir-sim", `,"max_tokens":20,"regex":"[a-z]+"`, nil); err == nil || !strings.Contains(err.Error(), "--skip-tokenizer-init") {
				t.Errorf("%+v, %v", a, err)
			}
			if a, err := g.Complete(ctx, "weir-sim", `,"max_tokens":20,"temperature":0,"top_k":5,"stop_token_ids":[9]`, nil); err != nil || a.Tokens != 20 {
				t.Errorf("%+v, %v", a, err)
			}
			for range 4 {
				within, cancel := context.WithCancel(ctx)
				if _, err := g.Complete(within, "weir-sim", endless, func(a *harness.Completion) bool { return len(a.Text) > 100 }); err != nil {
					t.Error(err)
				}
				cancel()
			}
			scheduler.Counts(func(n map[string]int) bool { return n["aborted"] == 4 && n["finished"] == 65 })
		})
	}
}

// imagePad is the id of weir-sim's placeholder for an image.
const imagePad = 32766

// TestServerSees: images that a client sends, as data URLs and by reference, are what
// SGLang's own code reads of weir's request, byte for byte and in order; and what the
// engine makes of them is in the usage.
func TestServerSees(t *testing.T) {
	harness.Beside(t, harness.Light)
	const patches = 5
	s := newSetup(t)
	s.serverArgs = []string{"--see", strconv.Itoa(imagePad), "--patches", strconv.Itoa(patches)}
	url, server, _ := s.server("incremental", "--step", "0.001")
	g := before(t, url)
	first, second := []byte("\x89PNG\r\n\x1a\nfirst\x00"), []byte("\xff\xd8\xffsecond\xfe")
	files := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(second) }))
	defer files.Close()
	type part map[string]any
	image := func(url string) part { return part{"type": "image_url", "image_url": part{"url": url}} }
	data := func(kind string, b []byte) string {
		return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(b)
	}
	ask := func(parts ...part) (prompt int) {
		t.Helper()
		body, err := json.Marshal(part{"model": "weir-sim", "max_tokens": len(s.ids), "messages": []part{{"role": "user", "content": parts}}})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post(g.URL+"/v1/chat/completions", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var a struct {
			Choices []struct{ Message struct{ Content string } }
			Usage   struct {
				Prompt int `json:"prompt_tokens"`
			}
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil || json.Unmarshal(text, &a) != nil || len(a.Choices) != 1 || a.Choices[0].Message.Content != harness.Said {
			t.Fatalf("%s: %s, %v", resp.Status, text, err)
		}
		return a.Usage.Prompt
	}
	words := part{"type": "text", "text": "and"}
	plain := ask(words)
	hash := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
	for _, test := range []struct {
		name  string
		parts []part
		want  []string
	}{
		{"data", []part{words, image(data("image/png", first))}, []string{hash(first)}},
		{"a reference", []part{image(files.URL + "/a.jpeg"), words}, []string{hash(second)}},
		{"both, in order", []part{image(data("image/jpeg", second)), words, image(data("image/png", first)), image(files.URL + "/b")}, []string{hash(second), hash(first), hash(second)}},
	} {
		prompt := ask(test.parts...)
		seen := server.Find("what it has seen of "+test.name, func(l string) bool { return l == `{"seen": ["`+strings.Join(test.want, `", "`)+`"]}` })
		// Around a placeholder the template writes nothing else.
		if want := plain + len(test.want)*patches; prompt != want {
			t.Errorf("%s: %d prompt tokens, want %d; %s", test.name, prompt, want, seen)
		}
	}
}

// clock is what a scheduler's ids count: milliseconds, up to this.
const clock = 30_000

// BenchmarkBacklog holds weir over sglang-ipc against SGLang's own server, the one
// that yields each chunk: the same scheduler with the same streams, ids alone, an
// event for what there is. The ids are the time at which they were generated, so that
// the delay of each is known where it arrives.
//
// Seconds of CPU and of time are counted from the first id on: what requests cost is
// not in them.
//
//	go test -tags interop -run '^$' -bench Backlog -benchtime 1x ./interop/sglang
func BenchmarkBacklog(b *testing.B) {
	for _, who := range []string{"SGLang's server", "weir sglang-ipc"} {
		for _, rate := range []int{10_000, 20_000, 30_000, 45_000, 60_000, 90_000, 120_000} {
			held := false
			b.Run(fmt.Sprintf("%s/%dk", who, rate/1000), func(b *testing.B) {
				for range b.N {
					held = backlog(b, who, 1024, 1024/float64(rate))
				}
			})
			if !held {
				break // more would only wait longer
			}
		}
	}
}

// BenchmarkStreams has more and more streams of 20 ids a second, of SGLang's own server and of weir by
// turns, until the delay of either is not held.
func BenchmarkStreams(b *testing.B) {
	held := map[string]bool{"SGLang's server": true, "weir sglang-ipc": true}
	for _, streams := range []int{64, 256, 512, 1024, 2048, 4096} {
		for who := range held {
			if held[who] {
				b.Run(fmt.Sprintf("%d/%s", streams, who), func(b *testing.B) {
					for range b.N {
						held[who] = backlog(b, who, streams, 0.05)
					}
				})
			}
		}
	}
}

const backlogSeconds = 5

// backlog has streams that get an id with each step of so many seconds. It reports whether the delay
// of the last second was held under one.
func backlog(b *testing.B, who string, streams int, step float64) bool {
	tokens := int(backlogSeconds / step)
	schedArgs := []string{"--clock", strconv.Itoa(clock), "--start", strconv.Itoa(streams), "--step", fmt.Sprint(step)}
	s := newSetup(b)
	body := fmt.Sprintf(`{"input_ids":[1,2,3],"stream":true,"sampling_params":{"max_new_tokens":%d}`, tokens)
	var url string
	var p *harness.Process
	if who == "SGLang's server" {
		url, p, _ = s.server("incremental", schedArgs...)
		body += "}"
	} else {
		p = harness.Start(b, "serve", "--engine", "sglang-ipc="+s.dir+",model=weir-sim", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
		g := &harness.Gateway{Process: p, URL: p.Line("gateway"), Admin: p.Line("admin")}
		s.scheduler(append([]string{"--weir", s.dir}, schedArgs...)...)
		ready(g)
		url = g.URL
		body += `,"model":"weir-sim","incremental_streaming_output":true,"skip_tokenizer_init":true}`
	}
	var before float64
	var began time.Time
	var once sync.Once
	first := func() { once.Do(func() { before, began = cpuSeconds(b, p), time.Now() }) }
	delays := make([][]int, streams)
	events := make([]int, streams)
	transport := &http.Transport{MaxIdleConns: 1, DisableKeepAlives: true, ReadBufferSize: 16 << 10}
	defer transport.CloseIdleConnections()
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			var err error
			if delays[i], events[i], err = readDelays(transport, url, body, first); err == nil && len(delays[i]) != tokens {
				err = fmt.Errorf("%d ids of %d", len(delays[i]), tokens)
			}
			if err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	used := cpuSeconds(b, p) - before
	if b.Failed() {
		return false
	}
	// The delay of what was generated last: whether it was held, or grew.
	var last, every []int
	n := 0
	for i := range delays {
		tail := delays[i][len(delays[i])-max(1, len(delays[i])/backlogSeconds):]
		last, every = append(last, tail...), append(every, delays[i]...)
		n += events[i]
	}
	slices.Sort(last)
	slices.Sort(every)
	total := float64(len(every))
	b.ReportMetric(total/took, "tokens/s")
	b.ReportMetric(used/total*1e6, "CPU-s/Mtoken")
	b.ReportMetric(float64(every[len(every)/2]), "p50-ms")
	b.ReportMetric(float64(every[len(every)*99/100]), "p99-ms")
	b.ReportMetric(float64(last[len(last)*99/100]), "last-second-p99-ms")
	b.ReportMetric(total/float64(n), "tokens/event")
	b.ReportMetric(0, "ns/op")
	return last[len(last)*99/100] < 1000
}

var idsKey = []byte(`"output_ids":[`)

// readDelays reads a stream and gives how late each of its ids arrived, in ms.
func readDelays(transport *http.Transport, url, body string, first func()) (delays []int, events int, err error) {
	req, err := http.NewRequest("POST", url+"/generate", strings.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		return nil, 0, fmt.Errorf("%s: %s", resp.Status, b)
	}
	r := bufio.NewReaderSize(resp.Body, 16<<10)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return delays, events, err
		}
		at := bytes.Index(line, idsKey)
		if at < 0 {
			continue
		}
		if events++; events == 1 {
			first()
		}
		now := monotonicMS()
		for rest := line[at+len(idsKey):]; ; {
			end := bytes.IndexAny(rest, ",]")
			if end <= 0 {
				break
			}
			id, err := strconv.Atoi(string(bytes.TrimSpace(rest[:end])))
			if err != nil {
				return delays, events, err
			}
			delays = append(delays, (now-id+clock)%clock)
			if rest[end] == ']' {
				break
			}
			rest = rest[end+1:]
		}
	}
}

// cpuSeconds returns what a process has used, of user and system.
func cpuSeconds(b testing.TB, p *harness.Process) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	if err1 != nil || err2 != nil {
		b.Fatal(err1, err2)
	}
	return (user + system) / 100 // USER_HZ, which is 100 on Linux
}

// monotonicMS is the clock that the scheduler reads, in ms.
func monotonicMS() int {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return int(ts.Nano()/1e6) % clock
}

// TestRelayJudged: a relay of SGLang's own server reads its mode from the page that the
// server has, and refuses by name what the server would lose.
func TestRelayJudged(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := newSetup(t)
	url, _, _ := s.server("incremental", "--step", "0.001")
	g := harness.StartGateway(t, "serve", "--engine", "openai="+url)
	for field, words := range map[string]string{
		`"seed":7`:       "without --enable-deterministic-inference",
		`"min_tokens":3`: "--skip-tokenizer-init",
		`"response_format":{"type":"json_object"}`: "makes no grammar backend",
		`"regex":"a+"`:                       "makes no grammar backend",
		`"structured_outputs":{"regex":"a"}`: "whose API has no such field",
		`"bad_words":["x"]`:                  "whose API has no such field",
	} {
		resp, err := http.Post(g.URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"sim","prompt":[1,2],`+field+`}`))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || !bytes.Contains(body, []byte(words)) {
			t.Errorf("%s: status %d, %s, %v; want 400 with %q", field, resp.StatusCode, body, err, words)
		}
	}
}
