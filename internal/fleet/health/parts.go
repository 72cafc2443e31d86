package health

import "time"

// backlog is the predicted work of a rank that explains its silence, in milliseconds.
type backlog struct {
	booked    float64 // what was left at the latest progress
	added     float64 // what was handed over since
	unknown   bool    // some of it cannot be predicted
	ahead     float64 // see Rank.Ahead; 0: not reported
	abandoned float64 // work of requests that were given up, which may be done all the same
	epoch     int     // counts the calls of settle
}

// add adds the work of a request, negative if unknown.
func (b *backlog) add(work float64) {
	b.added += max(work, 0)
	b.unknown = b.unknown || work < 0
}

// settle sets the work that is left. All that was handed over so far is part of it.
func (b *backlog) settle(left float64) {
	b.epoch++
	b.booked, b.added, b.abandoned, b.unknown = left, 0, 0, false
}

// total is the work that explains a silence, in nanoseconds.
func (b *backlog) total() int64 { return int64((b.booked + b.added) * 1e6) }

// next is the work that precedes the next progress of some request, in nanoseconds. waits
// reports whether any request waits for it.
func (b *backlog) next(waits bool) int64 {
	if b.ahead > 0 && waits {
		return min(b.total(), int64((b.ahead+b.abandoned)*1e6))
	}
	return b.total()
}

// failures counts requests that failed in a row.
type failures struct{ cuts, faults int }

// probing is the state of a rank's probes.
type probing struct {
	// cleared is when a probe was answered last although nothing else came.
	cleared  int64
	answered bool  // a probe was answered since the rank became soft
	sent     int64 // when the probe was sent that is waited for
	until    int64 // until when it is waited for
	next     int64 // when the next one may be sent
}

// sampling is the state of the samples of a rank whose probes are answered and whose requests
// show nothing all the same.
type sampling struct {
	began int64 // when the first sample was sent without any progress since; 0: none was
	next  int64 // when the next one may be sent
	sent  int64 // when the sample was sent that is waited for
	until int64 // until when it is waited for; 0: none is
	mute  bool  // the rank is down, and answers its probes and no sample
}

// ejection is the state of a rank that is down, or was lately.
type ejection struct {
	refused  bool // nobody accepts its connections
	revived  bool // it has shown progress
	count    int  // of ejections, less one for each calm time since
	until    int64
	calmFrom int64
}

// begin takes the rank down. Only a new failure counts, and holds the rank for longer than the
// one before.
func (e *ejection) begin(at int64, isNew bool, limits *Limits) {
	hold := 2 * limits.Retry
	if isNew {
		e.count++
		hold = limits.Hold
		for i := 1; i < e.count && hold < limits.LongestHold; i++ {
			hold *= 2
		}
	}
	e.until, e.revived = at+int64(min(hold, limits.LongestHold)), false
}

// tick forgets an ejection after each calm time.
func (e *ejection) tick(at int64, limits *Limits) {
	if e.count > 0 && at-e.calmFrom >= int64(limits.Calm) {
		e.count--
		e.calmFrom = at
	}
}

// comeback is the return of a rank that was down: it gets one request, and more as time passes
// after its first progress.
type comeback struct {
	under    bool
	slowFrom int64 // of its first progress; 0: there was none
	life     int   // counts returns
	newer    int   // unfinished requests handed over in this life
	trials   int   // returns without any progress since
	trialAt  int64 // when the next one may be
	vouched  int   // trials that followed an answered sample
}

// begin brings the rank back for one request.
func (c *comeback) begin(at int64, limits *Limits) {
	c.trialAt = at + int64(limits.longer(c.trials))
	c.trials++
	c.under, c.slowFrom, c.newer = true, 0, 0
	c.life++
}

// tick ends the return some time after the first progress.
func (c *comeback) tick(at int64, limits *Limits) {
	if c.under && c.slowFrom > 0 && at-c.slowFrom >= int64(limits.SlowStart) {
		c.under = false
	}
}

// room is how many more requests the rank takes freely; negative when there is no limit.
func (c *comeback) room(seen int64) int {
	switch {
	case !c.under:
		return -1
	case c.slowFrom == 0:
		return max(1-c.newer, 0)
	}
	return max(2<<((seen-c.slowFrom)/int64(time.Second))-c.newer, 0)
}
