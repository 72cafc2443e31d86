package tenancy

import "time"

// Spending is what a request uses of the limits of its key. Tokens are charged as they come,
// and what was charged is corrected at the request's end, when it is known.
type Spending struct {
	account *Account // nil: the caller has none, or the request did not begin
	charged int64
}

// Enter lets the request of a caller begin, unless a limit of its key forbids it.
func (s *Spending) Enter(c *Caller, now time.Time) (r Refusal) {
	if c.Account == nil {
		return Refusal{}
	}
	if r = c.Account.Enter(now); r.Reason == "" {
		s.account = c.Account
	}
	return r
}

// Counts reports whether there is an account to charge.
func (s *Spending) Counts() bool { return s.account != nil }

// Charge adds tokens that have come. There is an account.
func (s *Spending) Charge(tokens int) {
	s.charged += int64(tokens)
	s.account.Charge(int64(tokens))
}

// Settle corrects what was charged to what the request used.
func (s *Spending) Settle(total int) {
	if s.account != nil {
		s.Charge(total - int(s.charged))
	}
}

// Leave ends the request for its key.
func (s *Spending) Leave() {
	if s.account != nil {
		s.account.Leave()
	}
}
