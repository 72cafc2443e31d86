package cli

import (
	"errors"
	"slices"
	"testing"
	"time"

	"weir/internal/observe/metrics"
)

// A flag that differs from the start waits for a restart, a secret one without its values.
// A flag that a running process changes does not wait for a restart.
func TestNeedRestart(t *testing.T) {
	args := []string{"serve", "--engine", "http://a:1", "--otlp", "http://c:4317"}
	began, _ := inForce(t, append(args, "--otlp-headers", "a=s3cret", "--policy", "round-robin")...)
	next, _ := inForce(t, append(args, "--otlp-headers", "a=0ther", "--engine", "http://b:1", "--max-queue", "9")...)
	got := needRestart(began, next)
	if len(got) != 3 {
		t.Fatalf("%+v", got)
	}
	slices.SortFunc(got, func(a, b waiting) int { return len(a.Name) - len(b.Name) })
	want := []waiting{{Name: "policy", InForce: "round-robin", Wanted: got[0].Wanted}, {Name: "max-queue", InForce: got[1].InForce, Wanted: "9"}, {Name: "otlp-headers", Hidden: true}}
	if !slices.Equal(got, want) || got[0].Wanted == "round-robin" || got[1].InForce == "9" {
		t.Errorf("%+v, want %+v", got, want)
	}
	if all := needRestart(began, began); len(all) > 0 {
		t.Errorf("nothing differs: %+v", all)
	}
}

// A reading that fails leaves what the one before has found to wait for a restart, and a keys
// file fails since its first error.
func TestPending(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := &process{changes: &changes{}, keys: new(keys), sources: &sources{failing: map[string]bool{"gone": true, "there": false}}}
	s := p.sources
	s.last.restart = []waiting{{Name: "policy", InForce: "cost", Wanted: "least-load"}}
	s.last.done(outcome{}, errors.New(`engine "http://me:s3cret@h": it is wrong`), at)
	p.keys.unread.note("--keys", errors.New("line 1"), at)
	p.keys.unread.note("--keys", errors.New("line 2"), at.Add(time.Minute))
	p.keys.unread.note("--admin-keys", errors.New("line 3"), at)
	p.keys.unread.note("--admin-keys", nil, at)
	var v pendingView
	s.showPending(&v)
	v.Keys = p.keys.unread.list()
	if r := v.Reading; r == nil || r.Result != metrics.Failed || r.Error != `engine (a URL that cannot be read) it is wrong` || !r.At.Equal(at) {
		t.Errorf("%+v", v.Reading)
	}
	if !slices.Equal(v.Restart, s.last.restart) || !slices.Equal(v.Names, []string{"gone"}) || !slices.Equal(v.Keys, []keysFailure{{"--keys", at, "line 2"}}) {
		t.Errorf("%+v", v)
	}
	s.last.done(outcome{}, nil, at)
	s.showPending(&v)
	if v.Reading.Result != metrics.Unchanged || v.Reading.Error != "" {
		t.Errorf("%+v", v.Reading)
	}
}
