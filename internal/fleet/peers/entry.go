package peers

import (
	"errors"
	"math"

	"weir/internal/fleet/cost"
	"weir/internal/fleet/peers/peerspb"
)

// MostEntries is the most entries of an update. A gateway that serves so many requests in the time
// between two updates does not exist.
const MostEntries = 1 << 18

// ago is the time from then until now; 0 is a time that never was.
func ago(then, now int64) uint64 {
	if then == 0 {
		return 0
	}
	return uint64(max(now-then, 1))
}

// then is the time so long before now; 0 if it never was.
func then(ago uint64, now int64) int64 {
	if ago == 0 {
		return 0
	}
	return now - int64(ago)
}

func progress(p *cost.Progress, now int64) *peerspb.Progress {
	return &peerspb.Progress{Generated: p.Generated, SteppedAgoNs: ago(p.Stepped, now)}
}

// entry is an entry of this gateway for its peers; nil if it does not concern them.
func entry(e *cost.Entry, now int64) *peerspb.Entry {
	m := &peerspb.Entry{Request: e.Request, AgoNs: uint64(max(now-e.At, 0)), Progress: progress(&e.Progress, now)}
	switch e.Kind {
	case cost.Booked:
		w := &e.Work
		m.What = &peerspb.Entry_Booked{Booked: &peerspb.Booked{PromptTokens: int64(w.Length), FreshTokens: int64(w.New), OutputTokens: w.Output, Unseen: w.Unseen, Part: uint32(w.Part)}}
	case cost.Began:
		m.What = &peerspb.Entry_Began{Began: &peerspb.Began{CachedTokens: int64(e.Cached + 1), PrefillAgoNs: ago(e.Start, now)}}
	case cost.Ended:
		m.What = &peerspb.Entry_Ended{Ended: &peerspb.Ended{Tokens: int64(e.Tokens)}}
	default:
		return nil
	}
	return m
}

// entries are those of a peer's update for a rank, which was made at a time of this gateway's clock,
// and what it has there in all. Entries of a kind that is not known here are left out.
func entries(r *peerspb.Rank, made int64) []cost.Entry {
	all := make([]cost.Entry, 0, len(r.Entries)+1)
	for _, m := range r.Entries {
		e := cost.Entry{Request: m.Request, At: made - int64(m.AgoNs), Progress: seen(m.Progress, made)}
		switch what := m.What.(type) {
		case *peerspb.Entry_Booked:
			b := what.Booked
			e.Kind, e.Work = cost.Booked, cost.Work{Length: int(b.PromptTokens), New: int(b.FreshTokens), Output: b.OutputTokens, Unseen: b.Unseen, Part: cost.Part(b.Part)}
		case *peerspb.Entry_Began:
			e.Kind, e.Cached, e.Start = cost.Began, int(what.Began.CachedTokens)-1, then(what.Began.PrefillAgoNs, made)
		case *peerspb.Entry_Ended:
			e.Kind, e.Tokens = cost.Ended, int(what.Ended.Tokens)
		default:
			continue
		}
		all = append(all, e)
	}
	return append(all, cost.Entry{Kind: cost.Told, At: made, Progress: seen(r.Progress, made), Open: int(r.Open)})
}

func seen(p *peerspb.Progress, made int64) cost.Progress {
	return cost.Progress{Generated: p.GetGenerated(), Stepped: then(p.GetSteppedAgoNs(), made)}
}

// checkEntries returns why the entries of a rank cannot be believed.
func checkEntries(r *peerspb.Rank) error {
	impossible := errors.New("an entry of " + r.Engine + " is not possible")
	count := func(n int64) bool { return n >= 0 && n <= mostCount }
	if !count(r.Open) || !count(r.Progress.GetGenerated()) || r.Progress.GetSteppedAgoNs() > math.MaxInt64/2 {
		return impossible
	}
	for _, m := range r.Entries {
		if m.AgoNs > mostDrained || !count(m.Progress.GetGenerated()) || m.Progress.GetSteppedAgoNs() > math.MaxInt64/2 {
			return impossible
		}
		b, o := m.GetBooked(), m.GetBooked().GetOutputTokens()
		if !count(b.GetPromptTokens()) || !count(b.GetFreshTokens()) || !(o >= 0 && o <= mostCount) || b.GetPart() > uint32(cost.DecodePart) ||
			!count(m.GetBegan().GetCachedTokens()) || m.GetBegan().GetPrefillAgoNs() > math.MaxInt64/2 || !count(m.GetEnded().GetTokens()) {
			return impossible
		}
	}
	if c := r.Learned; c != nil {
		for _, x := range []float64{c.Step, c.Token, c.Pair, c.Decode, c.Decoder} {
			if !(x > 0) || math.IsInf(x, 1) {
				return errors.New("what is learned of " + r.Engine + " is not possible")
			}
		}
	}
	return nil
}

// mostDrift is by how much the clocks of two gateways may drift apart, as a share of time.
const mostDrift = 1e-4

// clock relates a peer's clock to this gateway's, by its updates that came soonest.
type clock struct {
	ahead int64 // of the peer's clock, less the time that an update takes at least
	made  int64 // by this gateway's clock: when the latest update was made; 0: the peer does not say
}

// hear takes an update of a time of the peer's clock, at time now.
func (c *clock) hear(now, made int64) {
	ahead := now - made
	if c.made != 0 {
		ahead = min(ahead, c.ahead+int64(mostDrift*float64(max(now-c.made, 0))))
	}
	c.ahead, c.made = ahead, made+ahead
}
