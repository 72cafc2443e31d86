package vllmserver

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
)

func TestRelease(t *testing.T) {
	for text, want := range map[string]Release{
		"0.32.0": {0, 32}, "0.34.1rc1.dev7+g0123": {0, 34}, "1.2": {1, 2}, "": {}, "main": {}, "0.0.0+dev": {},
	} {
		if got := ParseRelease(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if !(Release{0, 11}).Before(WithIDs) || (Release{}).Before(WithIDs) || (Release{1, 0}).Before(Newest) || Newest.Before(Newest) {
		t.Error("the order of releases")
	}
}

// Whether a server has an endpoint is told by what it says to a request without a prompt.
func TestServes(t *testing.T) {
	for _, c := range []struct {
		status int
		has    bool
		fails  bool
	}{{400, true, false}, {422, true, false}, {403, false, false}, {404, false, false}, {405, false, false}, {501, false, false}, {500, false, true}, {401, false, true}} {
		asked := ""
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type")
			w.WriteHeader(c.status)
		}))
		u, err := url.Parse(h.URL)
		if err != nil {
			t.Fatal(err)
		}
		client := upstream.New(upstream.Options{URL: u})
		has, err := Serves(t.Context(), client, GeneratePath)
		if has != c.has || (err != nil) != c.fails || asked != "POST /inference/v1/generate application/json" {
			t.Errorf("status %d: %t, %v after %q", c.status, has, err, asked)
		}
		client.CloseIdle()
		h.Close()
	}
}

func TestKVEvents(t *testing.T) {
	got, err := parseKVEvents([]byte(`{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5657", "replay_endpoint": "tcp://*:5658", "buffer_steps": 10000, "hwm": 100000, "max_queue_size": 100000, "topic": "kv@tiny"},
		"1": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5660", "replay_endpoint": null, "topic": ""},
		"2": {"enable_kv_cache_events": false, "publisher": "zmq", "endpoint": "tcp://*:1"}, "3": null, "x": {"enable_kv_cache_events": true}, "4": {"enable_kv_cache_events": true, "publisher": "null"}}`), "gpu1")
	want := map[int]engine.KVEvents{
		0: {Endpoint: "tcp://*:5657", Replay: "tcp://*:5658", Topic: "kv@tiny", Host: "gpu1"},
		1: {Endpoint: "tcp://*:5660", Host: "gpu1"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := parseKVEvents([]byte(`[1]`), ""); err == nil {
		t.Error("what is no object")
	}
}

const twoRanks = `vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4 1700000000
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="900"} 1.0
`

// The figures of each engine are a rank's, and ranks that are not numbered from 0 belong to
// several servers.
func TestMetrics(t *testing.T) {
	f := parseMetrics(twoRanks)
	want := &Figures{Load: engine.Load{Running: 7, KVUsage: 0.5, Ranks: []engine.RankLoad{{Running: 3, KVUsage: 0.25}, {Rank: 1, Running: 4, KVUsage: 0.75}}}, Ranks: []RankFigures{{0, 16000}, {1, 14400}}}
	if diff := cmp.Diff(want, f); diff != "" || f.Apart() != 2 {
		t.Errorf("%s, %d ranks", diff, f.Apart())
	}
	f = parseMetrics("vllm:num_requests_running{engine=\"0\",pid=\"7\"} 3\nvllm:num_requests_running{engine=\"0\",pid=\"8\"} 2\nvllm:num_requests_running{engine=\"1\",pid=\"7\"} 1\n")
	if f.Load.Running != 6 || f.Load.Ranks[0].Running != 5 || f.Apart() != 2 {
		t.Errorf("series of two processes: %+v", f)
	}
	if f := parseMetrics(`vllm:num_requests_running{engine="3"} 1`); f.Apart() != 0 || len(f.Ranks) != 1 || f.Ranks[0].Number != 3 {
		t.Errorf("%+v", f)
	}
	if f := parseMetrics("vllm:num_requests_running{engine=\"1\"} 1\nvllm:num_requests_running{engine=\"3\"} 1\n"); f.Apart() != 0 {
		t.Errorf("%+v", f)
	}
	if (*Figures)(nil).Apart() != 0 || parseMetrics("process_open_fds 3") != nil {
		t.Error("figures of a server that has none")
	}
}

// parseMetrics reads a whole document.
func parseMetrics(text string) *Figures {
	var s sums
	for line := range strings.Lines(text) {
		s.line([]byte(strings.TrimSuffix(line, "\n")))
	}
	return s.figures()
}

// The metrics of a server of vLLM, with its histograms.
func BenchmarkMetrics(b *testing.B) {
	var text strings.Builder
	text.WriteString(twoRanks)
	for h := range 25 {
		fmt.Fprintf(&text, "# HELP vllm:histogram_%d Histogram of something in seconds.\n# TYPE vllm:histogram_%d histogram\n", h, h)
		for le := range 24 {
			fmt.Fprintf(&text, "vllm:histogram_%d_bucket{engine=\"0\",le=\"%d.0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 1234.0\n", h, le)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text.String()) }))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		b.Fatal(err)
	}
	c := upstream.New(upstream.Options{URL: u})
	defer c.CloseIdle()
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if f, err := Metrics(b.Context(), c, nil); err != nil || f.Load.Running != 7 {
			b.Fatalf("%+v, %v", f, err)
		}
	}
}

// For any metrics of a server, its load is unknown or plausible.
func FuzzMetrics(f *testing.F) {
	f.Add(twoRanks)
	f.Add("vllm:num_requests_running} 1\nvllm:num_requests_waiting{}} -Inf\n")
	f.Add(`vllm:cache_config_info{block_size="2147483647",engine="1023",num_gpu_blocks="2147483647"} 1` + "\nvllm:num_requests_running{} 1")
	f.Fuzz(func(t *testing.T, metrics string) {
		got := parseMetrics(metrics)
		if got == nil {
			return
		}
		if l := got.Load; l.Running < 0 || l.Waiting < 0 || l.KVUsage != l.KVUsage {
			t.Fatalf("%q: %+v", metrics, l)
		}
		for i, r := range got.Ranks {
			if r.KVTokens < 0 || r.Number < 0 || r.Number >= maxRanks || i > 0 && r.Number <= got.Ranks[i-1].Number {
				t.Fatalf("%q: %+v", metrics, got.Ranks)
			}
		}
	})
}
