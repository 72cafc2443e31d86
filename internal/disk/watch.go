package disk

import (
	"maps"
	"sync"
	"time"
)

const (
	// Look is a good interval between two looks at watched files.
	Look = 250 * time.Millisecond
	// Still is how long a file that was written in its place must not have changed before it is
	// whole. A writer that pauses for longer is not recognized.
	Still = 3 * time.Second
)

// Watch tells when files have changed and can be read. A file that is being written is not whole:
// cut at the end of a line it may even be valid. So a file counts as changed when it has been
// still for a while. A file that was written aside and then put in its place is whole at once.
//
// A notification by the kernel would be earlier, but it does not survive the symbolic links by
// which mounted secrets are replaced, does not exist on network file systems, and says nothing
// about the writer being done.
//
// The zero Watch has not read any file.
type Watch struct {
	mu    sync.Mutex
	taken map[string]Version
	moved map[string]sight
	of    func(path string) (Version, error) // nil: VersionOf
}

// sight is a version that a file was seen to have, and since when.
type sight struct {
	version Version
	since   time.Time
}

// Took notes that files are about to be read as they are now.
func (w *Watch) Took(paths ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take(w.versions(paths))
}

func (w *Watch) take(now map[string]Version) {
	if w.taken == nil {
		w.taken = map[string]Version{}
	}
	maps.Copy(w.taken, now)
	w.moved = nil
}

// Forget has all files count as changed, as those that could not be read.
func (w *Watch) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken, w.moved = nil, nil
}

// Changed reports whether any of the files is another one than was read, and all of those are
// whole. If so, they are noted, because they are read then.
func (w *Watch) Changed(now time.Time, paths ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	versions, changed, whole := w.versions(paths), false, true
	moved := map[string]sight{}
	for path, v := range versions {
		was, known := w.taken[path]
		if known && was == v {
			continue
		}
		changed = true
		s, seen := w.moved[path]
		if !seen || s.version != v {
			s = sight{v, now}
		}
		moved[path] = s
		whole = whole && s.whole(now, was)
	}
	w.moved = moved
	if changed && whole {
		w.take(versions)
		return true
	}
	return false
}

// whole reports whether nobody writes the file any more. Its time of change is behind that of its
// last write if it was moved since.
func (s sight) whole(now time.Time, was Version) bool {
	seen := now.Sub(s.since)
	switch v := s.version; {
	case seen >= Still, seen < 0: // the clock was set back
		return true
	case v == Version{}:
		return false
	case now.Sub(time.Unix(0, v.modified)) >= Still:
		return true
	default:
		return seen > 0 && v.changed > v.modified && (v.inode != was.inode || v.device != was.device)
	}
}

func (w *Watch) versions(paths []string) map[string]Version {
	of := w.of
	if of == nil {
		of = VersionOf
	}
	now := map[string]Version{}
	for _, path := range paths {
		now[path], _ = of(path) // a file that cannot be looked at counts as missing
	}
	return now
}
