package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Throttle logs trouble that comes again and again: when it begins, and once a minute
// while it lasts.
type Throttle struct {
	log *slog.Logger

	mu     sync.Mutex
	logged time.Time
	count  int // since then
}

// NewThrottle makes the throttle of one kind of trouble.
func NewThrottle(log *slog.Logger) *Throttle { return &Throttle{log: log} }

// Error logs an error.
func (t *Throttle) Error(what string, err error) { t.Log(slog.LevelError, what, err) }

// Log logs a problem with the details of its latest occurrence.
func (t *Throttle) Log(level slog.Level, what string, err error, more ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count++
	if now := time.Now(); now.Sub(t.logged) >= time.Minute {
		t.log.Log(context.Background(), level, what, append([]any{"error", err, "times", t.count}, more...)...)
		t.logged, t.count = now, 0
	}
}

// Throttles are throttles of one kind of trouble, one for each value of an attribute.
type Throttles struct{ by sync.Map }

// Of returns the throttle for a value of the attribute key.
func (t *Throttles) Of(log *slog.Logger, key, value string) *Throttle {
	one, ok := t.by.Load(value)
	if !ok {
		one, _ = t.by.LoadOrStore(value, NewThrottle(log.With(key, value)))
	}
	return one.(*Throttle)
}
