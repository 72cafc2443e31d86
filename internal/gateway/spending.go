package gateway

import (
	"time"

	"weir/internal/infer"
	"weir/internal/tenancy"
)

// spending is what a request uses of the limits of its key. Tokens are charged as they come,
// and what was charged is corrected at the request's end, when it is known.
type spending struct {
	account *tenancy.Account // nil: the caller has none, or the request did not begin
	charged int64
	prompt  bool // it was charged
}

// enter lets the request begin, unless a limit of its key forbids it.
func (s *spending) enter(c *tenancy.Caller, now time.Time) error {
	if c.Account == nil {
		return nil
	}
	if r := c.Account.Enter(now); r.Reason != "" {
		return overLimit(c, r)
	}
	s.account = c.Account
	return nil
}

// overLimit is the error of a request that may not begin now.
func overLimit(c *tenancy.Caller, r tenancy.Refusal) error {
	what := map[string]string{
		tenancy.OverRequests:          "has as many requests under way as it may have",
		tenancy.OverRequestsPerMinute: "has sent as many requests within a minute as it may send",
		tenancy.OverTokensPerMinute:   "has used as many tokens within a minute as it may use",
		tenancy.OverTokensPerDay:      "has used its tokens of the day, which ends at midnight UTC",
	}[r.Reason]
	e := infer.Errorf(infer.CodeOverloaded, "the key %s %s (%d)", c.Key, what, r.Limit)
	if r.Reason == tenancy.Uncounted {
		e = infer.Errorf(infer.CodeUnavailable, "the limits of the key %s cannot be counted now: the store of limits does not answer", c.Key)
	}
	if e.Reason, e.RetryAfter = r.Reason, r.After; e.RetryAfter == 0 {
		e.RetryAfter = time.Second // when a request ends is not known
	}
	return e
}

// charge adds tokens that have come.
func (s *spending) charge(tokens int) {
	s.charged += int64(tokens)
	s.account.Charge(int64(tokens))
}

// chargePrompt adds those of the prompt, once, when it goes to an engine.
func (s *spending) chargePrompt(tokens int) {
	if s.account != nil && !s.prompt {
		s.prompt = true
		s.charge(tokens)
	}
}

// settle corrects what was charged to what the request used.
func (s *spending) settle(total int) {
	if s.account != nil {
		s.charge(total - int(s.charged))
	}
}

// leave ends the request for its key.
func (s *spending) leave() {
	if s.account != nil {
		s.account.Leave()
	}
}
