package report

import "fmt"

// Choices describes the results of choosing engines, over the requests whose records
// contain them.
type Choices struct {
	Requests int `json:"requests"`
	// Engines is how many there were to choose from, at the most.
	Engines int `json:"engines"`
	// Imbalance is how many requests the engine had that had most, as a multiple of the mean
	// of all engines; 0 where no request has an engine.
	Imbalance float64 `json:"imbalance"`
	// CachedShare is the share of prompt tokens that engines found in their caches, over
	// the requests for which they reported it: Told, with this many prompt tokens.
	CachedShare  float64 `json:"cached_share"`
	Told         int     `json:"told"`
	PromptTokens int64   `json:"prompt_tokens"`
	// Regret is by how much more a request was predicted to cost where it went than where it
	// would have cost least, the mean in milliseconds.
	Regret float64 `json:"regret_ms"`
}

// Choice is the gateway's record of the choice for an attempt.
type Choice struct {
	Engines int    `json:"engines"`
	Prompt  int64  `json:"prompt_tokens"`
	Cached  *int64 `json:"cached_tokens"` // nil: the engine has not said it
	Regret  int64  `json:"predicted_regret"`
}

// choices sums the choices of the rows; it returns nil if no record has any.
func choices(rows []Row, engines []Engine) *Choices {
	var all Choices
	for i := range rows {
		g := rows[i].Gateway
		if g == nil || len(g.Attempts) == 0 || g.Attempts[len(g.Attempts)-1].Choice == nil {
			continue
		}
		c := g.Attempts[len(g.Attempts)-1].Choice
		one := Choices{Requests: 1, Engines: c.Engines, Regret: float64(c.Regret) / 1e6}
		if c.Cached != nil && c.Prompt > 0 {
			one.Told, one.PromptTokens, one.CachedShare = 1, c.Prompt, float64(min(*c.Cached, c.Prompt))/float64(c.Prompt)
		}
		all.add(&one)
	}
	return all.settled(engines)
}

// add adds those of other requests.
func (c *Choices) add(o *Choices) {
	if n := float64(c.Requests + o.Requests); n > 0 {
		c.Regret = (c.Regret*float64(c.Requests) + o.Regret*float64(o.Requests)) / n
	}
	if n := float64(c.PromptTokens + o.PromptTokens); n > 0 {
		c.CachedShare = (c.CachedShare*float64(c.PromptTokens) + o.CachedShare*float64(o.PromptTokens)) / n
	}
	c.Requests, c.Told, c.PromptTokens, c.Engines = c.Requests+o.Requests, c.Told+o.Told, c.PromptTokens+o.PromptTokens, max(c.Engines, o.Engines)
}

// settled works out the imbalance from how the requests fell on the engines.
func (c *Choices) settled(engines []Engine) *Choices {
	if c.Requests == 0 {
		return nil
	}
	total, most := 0, 0
	for i := range engines {
		total, most = total+engines[i].Requests, max(most, engines[i].Requests)
	}
	if n := max(c.Engines, len(engines)); total > 0 {
		c.Imbalance = float64(most) * float64(n) / float64(total)
	}
	return c
}

// cells are max/mean, cached share and regret for a table.
func (c *Choices) cells() []string {
	if c == nil {
		return []string{"-", "-", "-"}
	}
	cached := "-"
	if c.Told > 0 {
		cached = fmt.Sprintf("%.1f", 100*c.CachedShare)
	}
	return []string{fmt.Sprintf("%.2f", c.Imbalance), cached, fmt.Sprintf("%.1f", c.Regret)}
}

// choiceHead are their heads.
var choiceHead = []string{"max/mean", "cached %", "regret ms"}

// String is for the report of a run.
func (c *Choices) String() string {
	cached := "no engine told what it had cached"
	if c.Told > 0 {
		cached = fmt.Sprintf("%.1f %% of the prompt tokens were cached (told of %d requests)", 100*c.CachedShare, c.Told)
	}
	return fmt.Sprintf("the engine with most requests had %.2f times the mean of %d; %s; mean regret %.1f ms", c.Imbalance, c.Engines, cached, c.Regret)
}
