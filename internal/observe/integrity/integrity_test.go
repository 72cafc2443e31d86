package integrity

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"weir/internal/infer"
)

// fault is a failure with evidence.
type fault struct {
	infer.Flaw
	evidence any
	shared   bool
}

func (f *fault) Evidence() any { return f.evidence }
func (f *fault) Shared() bool  { return f.shared }

func failure(f infer.Fault) error {
	return fmt.Errorf("somewhere: %w", &infer.Error{Code: infer.CodeIntegrity, Message: "3 where 2 were received", Cause: f})
}

// The log is bounded, whatever is added, and the latest comes first.
func TestBounded(t *testing.T) {
	counted := map[string]int{}
	l := New(Options{Count: func(engine, reason string) { counted[engine+" "+reason]++ }})
	const n = 3*Keep + 7
	for i := range n {
		l.Add("openai", "e", fmt.Sprint("r", i), failure(&fault{"not_json", strings.Repeat("x", 1<<i%32), false}))
	}
	records := l.Records()
	if len(records) != Keep {
		t.Fatalf("%d records, want %d", len(records), Keep)
	}
	for i, r := range records {
		if want := n - i; r.Number != uint64(want) || r.RequestIDs[0] != fmt.Sprint("r", want-1) || r.Requests != 1 {
			t.Fatalf("record %d is number %d of %v", i, r.Number, r.RequestIDs)
		}
		if len(r.Evidence) > maxEvidence || len(r.Evidence) == 0 || !r.Evidence.IsValid() {
			t.Errorf("%d bytes of evidence", len(r.Evidence))
		}
		if r.Reason != "not_json" || r.Detail != "3 where 2 were received" || r.Time.IsZero() {
			t.Errorf("%+v", r)
		}
	}
	if counted["e not_json"] != n {
		t.Errorf("counted %v", counted)
	}
}

// A failure that ends many requests is one, and so is one that no request
// suffers from until later.
func TestShared(t *testing.T) {
	counts := 0
	l := New(Options{Count: func(string, string) { counts++ }})
	f := &fault{"sequence_gap", nil, true}
	l.Add("weir", "e", "", failure(f))
	before := l.Records()[0]
	var many sync.WaitGroup
	for i := range 100 {
		many.Go(func() { l.Add("weir", "e", fmt.Sprint(i), failure(f)) })
	}
	many.Wait()
	l.Add("weir", "e", "other", failure(&fault{"sequence_gap", nil, true}))
	records := l.Records()
	if len(records) != 2 || records[1].Requests != 100 || len(records[1].RequestIDs) != maxRequests || counts != 2 {
		t.Errorf("%d counted, %+v", counts, records)
	}
	if before.Requests != 0 || len(before.RequestIDs) != 0 {
		t.Errorf("a record that was read has changed: %+v", before)
	}
}

// An error that is not about an engine's output is no failure, and a log is not needed.
func TestOthers(t *testing.T) {
	l := New(Options{})
	l.Add("weir", "e", "r", errors.New("the connection was lost"))
	l.Add("weir", "e", "r", nil)
	if r := l.Records(); len(r) != 0 {
		t.Errorf("%+v", r)
	}
	var none *Log
	none.Add("weir", "e", "r", failure(infer.Flaw("x")))
	if none.Records() != nil {
		t.Error("a nil log keeps something")
	}
}

// The log says what happened in one line, and nothing that the evidence holds.
func TestLogLine(t *testing.T) {
	var text strings.Builder
	l := New(Options{Log: slog.New(slog.NewTextHandler(&text, nil))})
	l.Add("openai", "e", "r1", failure(&fault{"not_json", map[string]string{"found": "a user's secret"}, false}))
	l.Add("openai", "e", "r2", failure(&fault{"usage", func() {}, false})) // not for JSON
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != 2 || strings.Contains(text.String(), "secret") || !strings.Contains(lines[0], "reason=not_json") || !strings.Contains(lines[0], "request_id=r1") {
		t.Errorf("logged\n%s", text.String())
	}
	if e := l.Records()[0].Evidence; !strings.Contains(string(e), "cannot be shown") {
		t.Errorf("evidence %s", e)
	}
}
