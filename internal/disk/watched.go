package disk

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Watched is a value made of files, which is made again when they change. Who asks for it looks at
// the files, at most once a second, so that it needs no goroutine.
type Watched[T any] struct {
	files []File
	most  int64
	parse func(contents [][]byte) (T, error)
	told  func(changed bool, err error)

	watch   Watch
	value   atomic.Pointer[T]
	checked atomic.Int64 // when the files were looked at last, in Unix nanoseconds

	mu        sync.Mutex // one reader of the files
	contents  [][]byte   // of which value was made
	complaint string     // why the files were not taken last, told once
}

// File is a file, and what an operator calls it, such as a flag.
type File struct{ What, Path string }

// NewWatched reads the files, each of at most so many bytes. From then on told gets what becomes
// of their changes: an error once, until another one or none follows.
func NewWatched[T any](files []File, most int64, parse func(contents [][]byte) (T, error), told func(changed bool, err error)) (*Watched[T], error) {
	w := &Watched[T]{files: files, most: most, parse: parse, told: told}
	if _, err := w.read(); err != nil {
		return nil, err
	}
	w.checked.Store(time.Now().UnixNano())
	return w, nil
}

// Get returns the value. One caller a second looks at the files; the others do not wait for it.
func (w *Watched[T]) Get(now time.Time) *T {
	last := w.checked.Load()
	since := now.UnixNano() - last // below 0 when the clock was set back
	if (since >= int64(time.Second) || since < 0) && w.checked.CompareAndSwap(last, now.UnixNano()) {
		if w.watch.Changed(now, w.paths()...) {
			_, _ = w.Reload() // which tells its error
		}
	}
	return w.value.Load()
}

// Value returns the value without a look at the files.
func (w *Watched[T]) Value() *T { return w.value.Load() }

// Reload takes the files' new contents if they are whole and belong together, and reports whether
// they are others. Otherwise the value stays: one file may have been replaced before another.
func (w *Watched[T]) Reload() (changed bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed, err = w.read()
	if err != nil && err.Error() != w.complaint || err == nil && changed {
		w.told(changed, err)
	}
	if w.complaint = ""; err != nil {
		w.complaint = err.Error()
	}
	return changed, err
}

func (w *Watched[T]) paths() (paths []string) {
	for _, f := range w.files {
		paths = append(paths, f.Path)
	}
	return paths
}

// read makes the value, if the contents of the files are others. w.mu is held, or w is new.
func (w *Watched[T]) read() (changed bool, err error) {
	w.watch.Took(w.paths()...)
	contents := make([][]byte, len(w.files))
	same := w.contents != nil
	for i, f := range w.files {
		if contents[i], err = Read(f.Path, w.most); err != nil {
			w.watch.Forget()
			return false, fmt.Errorf("%s: %w", f.What, err)
		}
		same = same && bytes.Equal(contents[i], w.contents[i])
	}
	if same {
		return false, nil
	}
	value, err := w.parse(contents)
	if err != nil {
		return false, err
	}
	w.contents = contents
	w.value.Store(&value)
	return true, nil
}
