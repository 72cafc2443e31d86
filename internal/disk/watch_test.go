package disk

import (
	"fmt"
	"testing"
	"time"
)

// A file counts as changed once, when its writer is done: whatever the times at which it writes, as
// long as it does not pause for longer than Still.
func TestWatch(t *testing.T) {
	const half, long = 300 * time.Millisecond, 2 * time.Second
	type write struct {
		at      time.Duration
		version Version
	}
	began := time.Unix(1000, 0)
	ns := func(d time.Duration) int64 { return began.Add(d).UnixNano() }
	written := func(at time.Duration, size int64, inode uint64) write {
		return write{at, Version{Size: size, modified: ns(at), changed: ns(at), inode: inode}}
	}
	moved := func(at, before time.Duration, inode uint64) write {
		return write{at, Version{Size: 9, modified: ns(at - before), changed: ns(at), inode: inode}}
	}
	for _, test := range []struct {
		what   string
		writes []write
		from   time.Duration // of when it may be taken, and until when it must be
		until  time.Duration
	}{
		{"in its place", []write{written(time.Second, 9, 1)}, 4 * time.Second, 4*time.Second + 2*Look},
		{"in halves", []write{written(time.Second, 4, 1), written(time.Second+half, 9, 1)}, 4*time.Second + half, 4*time.Second + half + 2*Look},
		{"in halves that are far apart", []write{written(time.Second, 4, 1), written(time.Second+long, 9, 1)}, 4*time.Second + long, 4*time.Second + long + 2*Look},
		{"emptied, then written", []write{written(time.Second, 0, 1), written(time.Second+long, 9, 1)}, 4*time.Second + long, 4*time.Second + long + 2*Look},
		{"removed, then written in halves", []write{{time.Second, Version{}}, written(2*time.Second, 4, 2), written(2*time.Second+long, 9, 2)}, 5*time.Second + long, 5*time.Second + long + 2*Look},
		{"renamed", []write{moved(time.Second, tick, 2)}, time.Second + 1, time.Second + 2*Look},
		{"renamed, of an earlier day", []write{moved(time.Second, 24*time.Hour, 2)}, time.Second, time.Second + Look},
		{"renamed within a tick", []write{moved(time.Second, 0, 2)}, 4 * time.Second, 4*time.Second + 2*Look},
		{"renamed again and again", []write{moved(time.Second, tick, 2), moved(time.Second+Look, tick, 3), moved(time.Second+2*Look, tick, 4)}, time.Second + 2*Look, time.Second + 4*Look},
		{"removed", []write{{time.Second, Version{}}}, 4 * time.Second, 4*time.Second + 2*Look},
		{"of the future", []write{{time.Second, Version{Size: 9, modified: ns(time.Hour), changed: ns(time.Second), inode: 1}}}, 4 * time.Second, 4*time.Second + 2*Look},
	} {
		now := Version{Size: 5, modified: ns(-time.Hour), changed: ns(-time.Hour), inode: 1}
		w := &Watch{of: func(string) (Version, error) { return now, nil }}
		w.Took("f")
		var changes []time.Duration
		for at := time.Duration(0); at < 20*time.Second; at += Look {
			for _, write := range test.writes {
				if write.at <= at && write.at > at-Look {
					now = write.version
				}
			}
			if w.Changed(began.Add(at), "f") {
				changes = append(changes, at)
			}
		}
		if len(changes) != 1 || changes[0] < test.from || changes[0] > test.until {
			t.Errorf("%s: changed at %v, want once from %v to %v", test.what, changes, test.from, test.until)
		}
	}
}

// Files that are read together are whole together, and another set of files is another reading.
func TestWatchOfSeveral(t *testing.T) {
	versions := map[string]Version{"a": {Size: 1, inode: 1}, "b": {Size: 1, inode: 2}}
	w := &Watch{of: func(path string) (Version, error) {
		if v, ok := versions[path]; ok {
			return v, nil
		}
		return Version{}, fmt.Errorf("there is none")
	}}
	now := time.Unix(1000, 0)
	w.Took("a", "b")
	versions["a"] = Version{Size: 2, inode: 1, modified: now.UnixNano()}
	versions["b"] = Version{Size: 2, inode: 2}
	if w.Changed(now, "a", "b") {
		t.Error("changed while a is being written")
	}
	if now = now.Add(Still); !w.Changed(now, "a", "b") || w.Changed(now, "a", "b") {
		t.Error("not changed once when both are whole")
	}
	now = now.Add(Still)
	if w.Changed(now, "a", "b", "c"); !w.Changed(now.Add(Still), "a", "b", "c") {
		t.Error("a file that is new in the set is no change")
	}
	if w.Changed(now.Add(2*Still), "a") {
		t.Error("a file that is no longer in the set is a change")
	}
}
