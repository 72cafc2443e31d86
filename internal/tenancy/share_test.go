package tenancy

import (
	"testing"
	"time"
)

// counter is a count that answers by hand, in the same goroutine.
type counter struct {
	answers  func(s *Share) // nil: it does not answer
	outage   Outage
	gateways int
	alone    int
	changed  int
}

func (c *counter) Ask(s *Share, _ <-chan struct{}) {
	if c.answers != nil {
		c.answers(s)
	}
}
func (c *counter) Alone() (Outage, int) { c.alone++; return c.outage, c.gateways }
func (c *counter) Changed(*Share, bool) { c.changed++ }
func (c *counter) Known() bool          { return c.answers != nil }

// call wants a Call of a share.
func call(t *testing.T, s *Share, now time.Time) *Call {
	t.Helper()
	c, ok, _ := s.Call(now, true)
	if !ok {
		t.Fatal("there is no call")
	}
	return c
}

// Without the count a gateway allows its part of each limit. What it has allowed is reported to
// the count; after an outage only the tokens of the day are.
func TestShareAlone(t *testing.T) {
	now := time.Now()
	c := &counter{outage: OutageLocal, gateways: 3}
	a := NewAccount(Limits{Requests: 7, RequestsPerMinute: 30, TokensPerMinute: 300, TokensPerDay: 900}, now)
	s := a.Share("one", c)
	enters := func(want string) {
		t.Helper()
		if r := a.Enter(now); r.Reason != want {
			t.Fatalf("refused for %q, want %q", r.Reason, want)
		}
	}
	enters("")
	enters("")
	enters(OverRequests)
	for range 2 {
		a.Leave()
	}
	for range 8 {
		enters("")
		a.Leave()
	}
	enters(OverRequestsPerMinute)
	now = now.Add(time.Minute)
	a.Charge(250) // with the part of 100 a minute; it owes none of it later
	enters(OverTokensPerMinute)
	now = now.Add(time.Minute)
	enters("")
	a.Leave()
	a.Charge(50) // 300 here are 900 at all three
	now = now.Add(time.Minute)
	enters(OverTokensPerDay)

	if k := call(t, s, now); k.Took != 11 || k.Paid != 300 || k.Total != 300 || k.Running != 0 || k.Day != dayOf(now) {
		t.Errorf("reported %+v", k)
	}
	a.Charge(7)
	s.Lost(now)
	if k := call(t, s, now); k.Took != 0 || k.Paid != 0 || k.Total != 307 {
		t.Errorf("after an outage reported %+v", k)
	}
	c.outage = OutageAllow
	enters("")
	c.outage = OutageRefuse
	enters(Uncounted)
	if k := call(t, s, now); k.Took != 1 || k.Running != 1 {
		t.Errorf("reported %+v", k)
	}
}

// A request that stops waiting leaves nothing behind, because no Call may come for hours.
func TestShareOutageKeepsNoQuestions(t *testing.T) {
	now := time.Now()
	a := NewAccount(Limits{RequestsPerMinute: 100}, now)
	s := a.Share("one", &counter{outage: OutageAllow})
	for range 10 {
		a.Enter(now)
	}
	if len(s.asked) != 0 {
		t.Errorf("%d questions of requests that do not wait", len(s.asked))
	}
}

// The count grants places to requests that wait, in their order. A place for one that has stopped
// waiting is given back.
func TestShareAnswered(t *testing.T) {
	now := time.Now()
	c := &counter{outage: OutageRefuse}
	a := NewAccount(Limits{RequestsPerMinute: 5, TokensPerDay: 100}, now)
	s := a.Share("one", c)
	c.answers = func(s *Share) {
		k := call(t, s, now)
		s.Answered(k, Answer{Granted: k.Want, Others: 4, Requests: 2.5, Used: 60, Day: 9, Epoch: 1, Total: k.Total}, now)
	}
	if r := a.Enter(now); r.Reason != "" || c.alone != 0 {
		t.Fatalf("%+v", r)
	}
	a.Charge(10)
	u := a.Usage(now)
	if u.Running != 5 || u.TokensToday != 70 || *u.Left.TokensPerDay != 30 || *u.Left.RequestsPerMinute != 2 || u.Day != "1970-01-10" {
		t.Errorf("shown %+v", u)
	}
	c.answers = func(s *Share) {
		k := call(t, s, now)
		s.Answered(k, Answer{Refusal: Refusal{OverTokensPerDay, 100, time.Hour}, Used: 100, Day: 9, Epoch: 1, Total: k.Total}, now)
	}
	if r := a.Enter(now); r != (Refusal{OverTokensPerDay, 100, time.Hour}) {
		t.Errorf("%+v", r)
	}
	a.Leave()

	var k *Call
	c.answers = func(s *Share) { k = call(t, s, now) } // the answer comes too late
	if r := a.Enter(now); r.Reason != Uncounted {
		t.Errorf("%+v", r)
	}
	s.Answered(k, Answer{Granted: 1, Day: 9, Epoch: 1, Total: k.Total}, now)
	if k = call(t, s, now); k.Took != -1 || k.Running != 0 {
		t.Errorf("reported %+v", k)
	}
	// Tokens of the day are of an epoch. Those that come while a call is under way are reported
	// with the next one.
	a.Charge(5)
	k = call(t, s, now)
	a.Charge(3)
	s.Answered(k, Answer{Day: 10, Epoch: 2, Total: 0}, now)
	if k = call(t, s, now); k.Total != 3 || k.Paid != 3 || k.Epoch != 2 {
		t.Errorf("in a new day reported %+v", k)
	}
	s.Failed(k)
	if k = call(t, s, now); k.Total != 3 || k.Paid != 0 {
		t.Errorf("after a failure reported %+v", k)
	}
	s.Answered(k, Answer{Day: 10, Epoch: 2, Total: 3}, now)
	if _, ok, idle := s.Call(now, false); ok || !idle {
		t.Error("there is something to report of an account that is at rest")
	}
}

// A caller whose limits are of one request alone is never counted.
func TestShareWithoutLimits(t *testing.T) {
	now := time.Now()
	c := &counter{outage: OutageRefuse}
	a := NewAccount(Limits{PromptTokens: 10}, now)
	a.Share("one", c)
	if r := a.Enter(now); r.Reason != "" || c.alone != 0 {
		t.Errorf("%+v", r)
	}
}
