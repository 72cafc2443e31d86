package relay

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"weir/test/e2e/harness"
)

// mortal is an engine that closes the connection on a poisonous request, as one does
// that dies of it, and answers others.
func mortal(t *testing.T) (url string, hits *atomic.Int64) {
	hits = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method == http.MethodGet:
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
		case bytes.Contains(body, []byte("poison")):
			hits.Add(1)
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			if hits.Load()%2 == 0 {
				_ = c.(*net.TCPConn).SetLinger(0) // a reset
			}
			c.Close()
		default:
			_, _ = io.WriteString(w, `{"choices":[]}`)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, hits
}

// A request that ends its engine goes elsewhere once: no engine is hit twice, though
// each has a connection at hand that was used before.
func TestPoisonHitsEachOnce(t *testing.T) {
	harness.Beside(t, harness.Light)
	a, hitsA := mortal(t)
	b, hitsB := mortal(t)
	c, hitsC := mortal(t)
	g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", "openai="+a, "--engine", "openai="+b, "--engine", "openai="+c)
	harness.Eventually(t, "all ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 3 })
	const path = "/v1/chat/completions"
	for poisons := int64(1); poisons <= 4; poisons++ {
		for range 6 { // a connection to each that is kept
			if got := harness.Post(t, g.URL+path, `{"model":"m","messages":[]}`); got.Status != 200 {
				t.Fatalf("status %d: %s", got.Status, got.Body)
			}
		}
		before := []int64{hitsA.Load(), hitsB.Load(), hitsC.Load()}
		got := harness.Post(t, g.URL+path, `{"model":"m","messages":[{"role":"user","content":"poison"}]}`)
		if got.Status != 502 {
			t.Errorf("status %d: %s", got.Status, got.Body)
		}
		total := int64(0)
		for i, hits := range []*atomic.Int64{hitsA, hitsB, hitsC} {
			n := hits.Load() - before[i]
			if total += n; n > 1 {
				t.Errorf("engine %d was hit %d times by one request", i, n)
			}
		}
		if total != 2 {
			t.Errorf("%d engines were hit, want 2", total)
		}
	}
	g.Interrupt()
}
