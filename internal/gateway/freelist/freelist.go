// Package freelist keeps values that are used again.
package freelist

import "sync"

// List keeps values that are used again. It may be used by several goroutines at once.
type List[T any] struct {
	Make  func() T
	Empty func(T) // empties what is kept; nil: it stays as it is
	pool  sync.Pool
}

// Take returns a value that was given, or a new one.
func (l *List[T]) Take() T {
	if v, ok := l.pool.Get().(T); ok {
		return v
	}
	return l.Make()
}

// Give gives a value back, which nobody uses any more.
func (l *List[T]) Give(v T) {
	if l.Empty != nil {
		l.Empty(v)
	}
	l.pool.Put(v)
}
