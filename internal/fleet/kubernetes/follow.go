package kubernetes

import (
	"errors"
	"math/rand/v2"
	"time"
)

// The follower's figures.
const (
	pageSize     = 500              // objects in an answer to a list
	leastBackoff = time.Second / 2  // after the first failure
	mostBackoff  = 30 * time.Second // after many
	watchTries   = 3                // failures in a row, after which the objects are listed anew
	settled      = 10 * time.Second // a watch that lasted so long was no failure
	// emptyFor is for how long lists must be empty, after one that was not, until that is
	// believed; emptyLook is the time between them.
	emptyFor  = 30 * time.Second
	emptyLook = 10 * time.Second
)

// verb is what a follower does next.
type verb int

const (
	list verb = iota
	watch
	wait
)

// step is what a follower does next.
type step struct {
	verb     verb
	limit    int           // of a list; 0: none
	token    string        // that continues a list
	version  string        // from which it watches
	duration time.Duration // that it waits
}

// follower keeps the objects of one kind up to date: it lists them page by page, watches
// from the list's version on, and lists anew where a watch has fallen behind. It is pure.
//
// After any failure the objects stay as they were last known. A list is used as a whole or not at
// all. An empty list after one with objects is believed only if lists stay empty for some time: a
// server that has just started, or was restored, may report nothing for a moment, and engines whose
// pods are really gone are noticed by the gateway itself. A watch that reports each object as
// deleted is believed at once.
type follower struct {
	next     step
	page     []Object
	version  string
	unpaged  bool // because the server has lost the rest of a list
	had      int  // objects of the latest list that was used
	empty    time.Time
	failures int
	began    time.Time // when the watch began
	heard    bool      // the watch has reported something
}

// errTooMany is the error of a list with more objects than are kept.
var errTooMany = errors.New("the list has more than 20000 objects: narrow them with selector=")

// maxObjects bounds the objects of a kind.
const maxObjects = 20000

// step returns what is to be done now.
func (f *follower) step() step {
	if f.next.verb == list {
		f.next.limit = pageSize
		if f.unpaged {
			f.next.limit = 0
		}
	}
	return f.next
}

// waited reports that the time of a wait is over.
func (f *follower) waited(now time.Time) {
	if f.version != "" {
		f.watch(now)
		return
	}
	f.page, f.next = nil, step{verb: list}
}

// listed takes an answer to a list. The result are all objects, where the list is complete
// and to be used.
func (f *follower) listed(now time.Time, objects []Object, token, version string) (all []Object, use bool, err error) {
	if len(f.page)+len(objects) > maxObjects {
		return nil, false, errTooMany
	}
	f.page = append(f.page, objects...)
	if token != "" {
		f.next = step{verb: list, token: token}
		return nil, false, nil
	}
	all, f.page, f.unpaged = f.page, nil, false
	if len(all) == 0 && f.had > 0 {
		if f.empty.IsZero() {
			f.empty = now
		}
		if now.Sub(f.empty) < emptyFor {
			f.next = step{verb: wait, duration: emptyLook}
			f.version = ""
			return nil, false, nil
		}
	}
	f.empty, f.had, f.version = time.Time{}, len(all), version
	f.watch(now)
	return all, true, nil
}

func (f *follower) watch(now time.Time) {
	f.next, f.began, f.heard = step{verb: watch, version: f.version}, now, false
}

// doubtful reports whether lists are empty that were not before.
func (f *follower) doubtful() bool { return !f.empty.IsZero() }

// watched takes an event of a watch: the version from which a later watch continues, and by
// how many the objects have become more.
func (f *follower) watched(version string, more int) {
	f.heard, f.failures = true, 0
	if version != "" {
		f.version = version
	}
	f.had = max(0, f.had+more)
}

// ended takes the end of a watch that was no failure, as each has one.
func (f *follower) ended(now time.Time) {
	if f.heard || now.Sub(f.began) >= settled {
		f.failures = 0
		f.watch(now)
		return
	}
	f.wait(0)
}

// failed takes the failure of a list or a watch. gone means that the server no longer has
// what was asked for, so that only a list helps; after is the wait that the server asked for.
func (f *follower) failed(gone bool, after time.Duration) {
	if f.next.verb == list {
		f.unpaged = gone && f.next.token != ""
		f.page, f.version = nil, ""
		f.wait(after)
		return
	}
	if gone {
		f.version = ""
	}
	if f.heard {
		f.failures = 0
		if gone {
			f.next = step{verb: list}
			return
		}
	}
	if f.failures >= watchTries {
		f.version = ""
	}
	f.wait(after)
}

// wait waits twice as long as the last time, give or take a half, so that gateways do not
// ask in step.
func (f *follower) wait(least time.Duration) {
	d := min(leastBackoff<<min(f.failures, 10), mostBackoff)
	f.failures++
	d = d/2 + rand.N(d)
	f.next = step{verb: wait, duration: max(d, min(least, 2*mostBackoff))}
}
