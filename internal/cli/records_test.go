package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"weir/internal/infer"
	"weir/internal/trace"
)

// asked returns what the admin listener answers.
func asked(t *testing.T, p *process, path string) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	p.adminHandler(t.Context()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
	if w.Code == http.StatusOK && !json.Valid(w.Body.Bytes()) {
		t.Errorf("%s: no JSON: %s", path, w.Body)
	}
	return w.Code, w.Body.String()
}

// Records are found by what is asked for, and whatever strings they have come as JSON.
func TestAdminRecords(t *testing.T) {
	p := adminOf(t, gatewayFlags{})
	hostile := "m\xff\"</script><img src=x onerror=alert(1)>\u2028\x00"
	now := trace.Now()
	add := func(id string, took int64, change func(*trace.Record)) {
		rec := &trace.Record{RequestID: id, Stream: true, Model: "m", Endpoint: "/v1/completions", Arrival: now - took, FirstFlushed: now - took/2, Finished: now}
		rec.Ledger.Start(trace.Read, rec.Arrival)
		rec.Ledger.Enter(trace.Engine, now-took/4)
		rec.Ledger.Enter(trace.Finish, now)
		if change != nil {
			change(rec)
		}
		p.timeline.Add(rec)
	}
	add("slow", 8e9, nil)
	add("fast", 8e6, nil)
	add("bad", 8e7, func(r *trace.Record) {
		r.Model, r.Outcome, r.Code, r.Message = hostile, infer.Failed, "engine", hostile
		r.Attempts = []trace.Attempt{{Legs: []trace.Leg{{Engine: hostile}}}}
	})
	var view recordsView
	get := func(query string) []string {
		t.Helper()
		code, body := asked(t, p, "/records"+query)
		view = recordsView{}
		if err := json.Unmarshal([]byte(body), &view); code != http.StatusOK || err != nil {
			t.Fatalf("%s: %d, %v: %s", query, code, err, body)
		}
		ids := []string{}
		for _, r := range view.Records {
			ids = append(ids, r.RequestID)
		}
		return ids
	}
	for query, want := range map[string]string{
		"?order=total": "slow bad fast", "?order=ttft&limit=1": "slow", "?outcome=failed": "bad", "?code=engine": "bad", "?id=fast": "fast",
		"?model=m&order=total": "slow fast", "?model=none": "", "?since=1h&order=total": "slow bad fast",
	} {
		if got := strings.Join(get(query), " "); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	get("?id=slow")
	if r := view.Records[0]; r.TTFT == nil || *r.TTFT != 4000 || r.Total != 8000 || r.Slowest != "read" || r.SlowestFor != 6000 || view.Kept != 3 || view.Matched != 1 {
		t.Errorf("%+v of %+v", r, view)
	}
	for _, wrong := range []string{"?limit=0", "?limit=10001", "?order=best", "?outcome=good", "?since=-1s", "?since=x", "?what=1", "?%zz"} {
		if code, body := asked(t, p, "/records"+wrong); code != http.StatusBadRequest || len(strings.TrimSpace(body)) < 10 {
			t.Errorf("%s: %d %s, want a 400 that says why", wrong, code, body)
		}
	}
}

// Without records the listener says so.
func TestAdminWithoutRecords(t *testing.T) {
	p := adminOf(t, gatewayFlags{})
	p.timeline = nil
	for _, path := range []string{"/records", "/timeline", "/timeline/x"} {
		if code, body := asked(t, p, path); code != http.StatusNotFound || !strings.Contains(body, "--timeline off") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}
