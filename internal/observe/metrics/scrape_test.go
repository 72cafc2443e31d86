package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/trace"
)

// protobuf is how Prometheus asks for native histograms.
const protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,text/plain;version=0.0.4;q=0.3"

// scrape returns what is scraped in a format.
func scrape(t testing.TB, h http.Handler, accept string) (families map[string]*dto.MetricFamily, size int) {
	t.Helper()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("status %d %s", w.Code, w.Body)
	}
	families, size = map[string]*dto.MetricFamily{}, w.Body.Len()
	for d := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header())); ; {
		f := new(dto.MetricFamily)
		if err := d.Decode(f); err == io.EOF {
			return families, size
		} else if err != nil {
			t.Fatal(err)
		}
		families[f.GetName()] = f
	}
}

// TestGzip has scrapers get the same answer whether they take gzip or not, one after another, and
// short ones as whole as long ones.
func TestGzip(t *testing.T) {
	busy, _ := busyGateway(3)
	for name, m := range map[string]*Metrics{"long": busy, "short": New()} {
		h := m.Handler()
		ask := func(accept string) (body []byte, coding string) {
			r := httptest.NewRequest("GET", "/metrics", nil)
			r.Header.Set("Accept-Encoding", accept)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Header(); w.Code != 200 || !slices.Contains(got.Values("Vary"), "Accept-Encoding") || got.Get("Content-Length") != strconv.Itoa(w.Body.Len()) {
				t.Errorf("%s, %q: status %d, %v for %d bytes", name, accept, w.Code, got, w.Body.Len())
			}
			return w.Body.Bytes(), w.Header().Get("Content-Encoding")
		}
		for range 3 {
			plain, coding := ask("gzip;q=0, br")
			if coding != "" {
				t.Errorf("%s: %q to one that takes no gzip", name, coding)
			}
			small, coding := ask("br, gzip")
			if coding != "gzip" || len(small) > len(plain)/4 {
				t.Errorf("%s: %q, %d bytes of %d", name, coding, len(small), len(plain))
			}
			z, err := gzip.NewReader(bytes.NewReader(small))
			if err != nil {
				t.Fatal(err)
			}
			again, err := io.ReadAll(z)
			if err != nil || named(again) != named(plain) {
				t.Errorf("%s: %v, and other series than without gzip", name, err)
			}
		}
	}
}

// named are the lines of an answer without their values, which go on.
func named(answer []byte) string {
	var names []string
	for line := range strings.Lines(string(answer)) {
		name, _, _ := strings.Cut(line, "} ")
		if !strings.HasPrefix(line, "#") {
			name, _, _ = strings.Cut(name, " ")
		}
		names = append(names, name)
	}
	return strings.Join(names, "\n")
}

// shown has every histogram filled.
func shown() *Metrics {
	m := New()
	r := ended(infer.Finished, "")
	r.Stream, r.Model, r.PromptTokens, r.CompletionTokens, r.FirstFlushed = true, "m", 7, 5, 6000
	r.Attempts = []trace.Attempt{{Legs: []trace.Leg{{Engine: "a", Handed: 100, ToServer: 200, Acked: 400, Known: 500, Stamps: infer.Stamps{ServerCreated: 300, FirstOutput: 5000}}}}}
	m.Received("other")
	m.Ended(r)
	m.Receive("weir").Batch(3, 1000, 2000)
	m.Receive("weir").Merged().Add(2, 1)
	m.Gaps("m").Add(20_000_000, 7)
	return m
}

// Who asks for text gets classic buckets, and who asks for protobuf native ones besides, of
// every histogram.
func TestFormats(t *testing.T) {
	m := shown()
	text, _ := scrape(t, m.Handler(), "text/plain;version=0.0.4")
	proto, _ := scrape(t, m.Handler(), protobuf)
	histograms := 0
	for name, f := range proto {
		if f.GetType() != dto.MetricType_HISTOGRAM || !strings.HasPrefix(name, "weir_") {
			continue
		}
		histograms++
		for i, s := range f.GetMetric() {
			h, plain := s.GetHistogram(), text[name].GetMetric()[i].GetHistogram()
			if h.GetSchema() != 3 || len(h.GetPositiveSpan()) == 0 && h.GetZeroThreshold() == 0 || len(h.GetBucket()) < 10 {
				t.Errorf("%s as protobuf: schema %d, %d spans, %d classic buckets", name, h.GetSchema(), len(h.GetPositiveSpan()), len(h.GetBucket()))
			}
			if n := len(plain.GetBucket()); n != len(h.GetBucket())+1 || plain.GetSampleCount() != h.GetSampleCount() || len(plain.GetPositiveSpan()) != 0 {
				t.Errorf("%s as text: %d classic buckets with +Inf, %d counted", name, n, plain.GetSampleCount())
			}
		}
	}
	if histograms < 10 {
		t.Errorf("%d histograms", histograms)
	}
}

// However many models there seem to be, a gateway has only this many series.
func TestManyModels(t *testing.T) {
	m := New()
	models := map[string]*route.Model{}
	queues := map[string]QueueStats{}
	for i := range 5000 {
		name := fmt.Sprintf("model-%d", i)
		models[name] = &route.Model{Name: name}
		queues[name] = QueueStats{OldestSeconds: float64(i)}
	}
	m.Fleet(func() *route.Snapshot { return &route.Snapshot{Models: models} })
	m.Queue(func() map[string]QueueStats { return queues })
	count := func() (n int) {
		families, _ := scrape(t, m.Handler(), protobuf)
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	for _, name := range []string{"a\xffb", strings.Repeat("x", 1<<20), ""} {
		m.Ended(&trace.Record{Model: name})
	}
	var first int
	for round := range 4 {
		for i := range 2500 {
			r := ended(infer.Finished, "")
			r.Model, r.PromptTokens, r.CompletionTokens = fmt.Sprintf("model-%d", round*2500+i), 1, 1
			m.Received("other")
			m.Ended(r)
			m.Gaps(r.Model).Add(1, 1)
			m.RetryRefused(r.Model, "budget")
		}
		n := count()
		if round == 0 {
			first = n
		}
		if n != first {
			t.Errorf("%d series, and %d of the first thousands", n, first)
		}
	}
	families, size := scrape(t, m.Handler(), protobuf)
	labels := map[string]bool{}
	for _, s := range families["weir_request_seconds"].GetMetric() {
		for _, l := range s.GetLabel() {
			if l.GetName() == "model" {
				labels[l.GetValue()] = true
			}
		}
	}
	if len(labels) != MaxModels+1 || !labels["other"] || !labels["a?b"] || size > 4<<20 {
		t.Errorf("%d labels of models in %d bytes", len(labels), size)
	}
}

// fleetOf is a fleet of engines with all of their metrics.
func fleetOf(n int) *route.Snapshot {
	s := &route.Snapshot{Index: kvindex.New(1 << 20)}
	judges, now := judge.New(judge.Options{}), trace.Now()
	for i := range n {
		e := &route.Engine{Name: fmt.Sprintf("engine-%d", i), Kind: "weir", Ready: true}
		e.Load = func() (engine.Load, bool) { return engine.Load{Running: 5, Waiting: 2, KVUsage: .5}, true }
		e.Metrics = func() (all []engine.Metric) {
			for k := range 20 {
				all = append(all, engine.NewCounter(fmt.Sprintf("weir_wire_figure_%d_total", k), "Figure.", float64(k)))
			}
			return all
		}
		e.Ranks = []*route.Rank{route.Whole(e.Name)}
		e.Ranks[0].Health, e.Ranks[0].There = judges.Add(e.Name, -1, nil), true
		e.Ranks[0].Health.Is(judge.Presence{Ready: true, Fresh: true})
		e.Ranks[0].Books = route.NewBooks(cost.NewModel(cost.Typical), s.Index, new(route.Shares), &e.Facts, now)
		s.Engines = append(s.Engines, e)
	}
	return s
}

// busyGateway is one with a hundred engines, each of which has had everything.
func busyGateway(engines int) (m *Metrics, series int) {
	m = shown()
	fleet := fleetOf(engines)
	m.Fleet(func() *route.Snapshot { return fleet })
	for i, e := range fleet.Engines {
		r := ended(infer.Finished, "")
		r.Model = fmt.Sprintf("m%d", i%10)
		r.Stream, r.PromptTokens, r.CompletionTokens, r.FirstFlushed = true, 7, 5, 6000
		r.Attempts = []trace.Attempt{{Legs: []trace.Leg{{Engine: e.Name, Handed: 100, ToServer: 200, Acked: 400, Known: 500, Stamps: infer.Stamps{ServerCreated: 300, FirstOutput: 5000}}}}}
		for range 20 {
			r.Finished += 1_000_000
			m.Received("other")
			m.Ended(r)
		}
		m.EngineFault(e.Name, infer.CodeEngine)
		m.Gaps(r.Model).Add(1, 1)
	}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			series++
		}
	}
	return m, series
}

// A scrape takes at most 2 us a series, in either format.
func BenchmarkBoundScrape(b *testing.B) {
	m, series := busyGateway(100)
	for _, c := range []struct{ name, accept string }{{"text", "text/plain;version=0.0.4"}, {"openmetrics", "application/openmetrics-text;version=1.0.0"}, {"protobuf", protobuf}} {
		b.Run(c.name, func(b *testing.B) {
			r := httptest.NewRequest("GET", "/metrics", nil)
			r.Header.Set("Accept", c.accept)
			r.Header.Set("Accept-Encoding", "gzip")
			least := time.Hour
			b.ReportAllocs()
			for b.Loop() {
				for range 5 { // what others take of this machine is none of the scrape's
					w := httptest.NewRecorder()
					began := time.Now()
					m.Handler().ServeHTTP(w, r)
					least = min(least, time.Since(began))
				}
			}
			per := float64(least.Nanoseconds()) / float64(series) / 1e3
			b.ReportMetric(per, "us/series")
			b.ReportMetric(float64(series), "series")
			if per > 2 {
				b.Errorf("%.2f us a series of %d", per, series)
			}
		})
	}
}

// slowly reads a byte at a time, with pauses, until the connection ends, and gives what it
// read.
func slowly(conn net.Conn, pause time.Duration) (n int) {
	b := make([]byte, 1)
	for {
		k, err := conn.Read(b)
		if n += k; err != nil {
			return n
		}
		time.Sleep(pause)
	}
}

// Scrapers that read a byte at a time keep no lock, are bounded in number, and end; others
// are answered meanwhile.
func TestSlowScrapers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := busyGateway(20)
		s := m.Handler().(*scrapes)
		l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: s}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		const slow = MaxScrapes - 1
		began := time.Now()
		var ended sync.WaitGroup
		for range slow {
			conn := l.dial()
			fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
			ended.Go(func() { slowly(conn, 50*time.Millisecond) })
		}
		synctest.Wait()
		if left := len(s.turns); left != MaxScrapes-slow {
			t.Fatalf("%d scrapes can begin beside %d slow ones", left, slow)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return l.dial(), nil }}}
		for range 3 {
			m.Ended(&trace.Record{Model: "m"}) // no lock is held
			resp, err := client.Get("http://x/metrics")
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || !bytes.Contains(body, []byte("weir_requests_in_flight")) {
				t.Fatalf("status %d, %v", resp.StatusCode, err)
			}
		}
		<-s.turns // as if there were one more
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("status %d of one too many", w.Code)
		}
		s.turns <- new(buffers)
		ended.Wait()
		if took := time.Since(began); took < scrapeTimeout || took > scrapeTimeout+time.Second {
			t.Errorf("they ended after %v, want %v", took, scrapeTimeout)
		}
		if synctest.Wait(); len(s.turns) != MaxScrapes {
			t.Errorf("%d scrapes have not ended", MaxScrapes-len(s.turns))
		}
	})
}

// pipes listens in memory, where nothing is kept of what is written until it is read.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error { close(p.closed); return nil }

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A scraper that says how long it waits is given up then.
func TestScrapersPatience(t *testing.T) {
	s := &scrapes{within: scrapeTimeout}
	for said, want := range map[string]time.Duration{"": scrapeTimeout, "10": 10 * time.Second, "2.5": 2500 * time.Millisecond, "100": scrapeTimeout, "-1": scrapeTimeout, "NaN": scrapeTimeout, "1e-9": time.Nanosecond, "x": scrapeTimeout} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", said)
		if got := s.patience(r); got != want {
			t.Errorf("%q: %v, want %v", said, got, want)
		}
	}
}
