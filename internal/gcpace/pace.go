// Package gcpace sets GOGC so that the garbage collector runs every few seconds while somebody
// waits for tokens, whatever the process allocates.
//
// The collector takes a process's cores for some milliseconds, and a token that is due then
// waits. If this happens once a second, p99 of the delay shows it. A fixed GOGC makes
// collections rare where little is allocated and frequent where much is, although both heaps
// may be small beside the machine. A Pace gives the heap as much room as the process
// allocates in a few seconds: a process that allocates little stays small, and a flood of
// requests gets a larger heap. While nobody waits, the heap is never larger than at Go's own
// pace.
//
// It has half of that room while what is live grows by much of what is allocated, as when
// thousands of streams begin that stay. Go's collector does not move objects. The objects of a
// stream would lie between those that its request needed for a moment, whose room would stay with
// the process as holes: 1.5 to 2.5 KB for each of 9,000 idle streams.
//
// Pace is pure. Keep applies it to this process.
package gcpace

import (
	"math"
	"time"
)

// The times that a Pace puts between collections, where its bounds allow it.
const (
	Serving = 5 * time.Second // while somebody waits for tokens
	Resting = time.Second
)

// The bounds of the room that a heap gets above what is live.
const (
	leastHeap    = 4 << 20 // Go's own at GOGC=100; a smaller one gets GOGC as a percentage of it
	leastRoom    = 4 << 20
	leastPercent = 25
	// plainPercent is Go's own pace.
	plainPercent = 100
	// mostPercent bounds what the heap can grow to if what is live grows a lot between a
	// collection and the look at it.
	mostPercent = 2000
	mostRoom    = 256 << 20
)

// growing is the part of what is allocated between two collections that makes a heap a growing
// one, if it is still live at the second. A stream keeps a fifth to a third of what its request
// allocates, and a request whose answer has ended keeps nothing.
const growing = 1. / 8

// remembers is the time after which the rate of allocation is mostly what it has been since.
const remembers = 2 * time.Second

// Look is what the runtime reports at a moment.
type Look struct {
	At        time.Duration // since any fixed moment
	Allocated int64         // bytes, since the same moment
	Cycles    int64         // collections since the process began
	Live      int64         // bytes of the heap that the last collection has left
	Roots     int64         // bytes of stacks and globals, of which GOGC is a percentage too
	Serving   bool          // somebody waits for tokens
}

// Pace decides GOGC by the rate at which a process allocates.
type Pace struct {
	most      int64 // room while it serves, unless Go's own pace gives more
	last      Look
	collected Look    // the first one after the last collection
	grows     bool    // what is live does, by that collection and the one before
	rate      float64 // bytes a second
}

// New makes the pace of a process that began at a look and whose memory is bounded by these
// limits. Beyond Go's own pace its heap gets at most a sixteenth of the smallest.
func New(began Look, limits ...int64) *Pace {
	p := &Pace{most: mostRoom, last: began, collected: began}
	for _, l := range limits {
		p.most = min(p.most, l/16)
	}
	return p
}

// Percent returns the GOGC until the next look. There should be one after each collection, and
// one each second while GOGC is above Go's own pace: with what the heap has room for, a
// collection may be far away when a flood is over.
func (p *Pace) Percent(l Look) int {
	p.observe(l)
	base := max(l.Live+l.Roots, leastHeap)
	apart, most := Resting, base
	if l.Serving {
		apart = Serving
	}
	switch {
	case p.grows:
		most = base / 2
	case l.Serving:
		most = max(min(p.most, base/100*mostPercent), base)
	}
	least := min(max(leastRoom, base/100*leastPercent), most)
	room := min(max(int64(p.rate*apart.Seconds()), least), most)
	return int(min(max(math.Ceil(float64(room)*100/float64(base)), leastPercent), mostPercent))
}

// observe counts what was allocated since the last look.
func (p *Pace) observe(l Look) {
	took, bytes := (l.At - p.last.At).Seconds(), l.Allocated-p.last.Allocated
	if took <= 0 {
		return // the next look counts these bytes
	}
	p.last = l
	if since := &p.collected; l.Cycles != since.Cycles {
		p.grows = since.Cycles > 0 && float64(l.Live-since.Live) > growing*float64(l.Allocated-since.Allocated)
		p.collected = l
	}
	p.rate += (float64(max(bytes, 0))/took - p.rate) * (1 - math.Exp(-took/remembers.Seconds()))
}
