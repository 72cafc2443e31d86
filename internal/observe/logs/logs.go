// Package logs makes the process's log: text or JSON, with repeats limited, so that a
// problem that occurs a thousand times a second is reported but does not fill a disk.
package logs

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// Format is how lines are written.
type Format string

// The formats.
const (
	Text Format = "text"
	JSON Format = "json"
)

// New makes a log of a format that leaves out lines below a level, and what comes more often
// than PerMinute.
func New(w io.Writer, f Format, level slog.Level) *slog.Logger {
	return slog.New(Limit(Plain(w, f, level)))
}

// Plain returns a handler without limits.
func Plain(w io.Writer, f Format, level slog.Level) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if f == JSON {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}

const (
	// PerMinute is how often a line is written in a minute: one of the same message, level
	// and engine. The next minute's first has left_out, how many were not.
	PerMinute = 20
	// maxLines bounds the number of distinct lines. Beyond it, lines of the same message and
	// level count together, whichever engine they name. Beyond twice as many, all lines of a
	// level do.
	maxLines = 1024
)

// Limiter is a slog.Handler that limits repeats. Debug lines are not limited.
type Limiter struct {
	to     slog.Handler
	lines  *lines
	engine string // of the attributes given before
}

// Limit makes one in front of a handler.
func Limit(to slog.Handler) *Limiter {
	return &Limiter{to: to, lines: &lines{by: map[line]*count{}}}
}

type line struct {
	level           slog.Level
	message, engine string
}

type count struct {
	since time.Time
	seen  int
}

// lines is the limiter's core: it takes the time as input.
type lines struct {
	mu    sync.Mutex
	by    map[line]*count
	swept time.Time
}

// leftOut is a line that was left out some times.
type leftOut struct {
	line
	n int
}

// pass reports whether a line is written, and how many repeats of it were suppressed
// before. over lists other lines with suppressed repeats whose minute is over.
func (l *lines) pass(of line, now time.Time) (ok bool, left int, over []leftOut) {
	l.mu.Lock()
	defer l.mu.Unlock()
	since := now.Sub(l.swept)
	if since >= time.Minute || len(l.by) >= maxLines && since >= time.Second {
		over = l.sweep(of, now)
		l.swept = now
	}
	c := l.by[of]
	if c == nil && len(l.by) >= maxLines {
		of.engine = ""
		c = l.by[of]
	}
	if c == nil && len(l.by) >= 2*maxLines {
		of.message = ""
		c = l.by[of]
	}
	if c == nil {
		c = &count{since: now}
		l.by[of] = c
	}
	if now.Sub(c.since) >= time.Minute {
		left = max(c.seen-PerMinute, 0)
		*c = count{since: now}
	}
	c.seen++
	return c.seen <= PerMinute, left, over
}

// sweep forgets lines whose minute is over, except one.
func (l *lines) sweep(but line, now time.Time) (over []leftOut) {
	for of, c := range l.by {
		if of == but || now.Sub(c.since) < time.Minute {
			continue
		}
		if c.seen > PerMinute {
			over = append(over, leftOut{of, c.seen - PerMinute})
		}
		delete(l.by, of)
	}
	return over
}

// Enabled implements slog.Handler.
func (l *Limiter) Enabled(ctx context.Context, level slog.Level) bool {
	return l.to.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (l *Limiter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return l.to.Handle(ctx, r)
	}
	of := line{r.Level, r.Message, l.engine}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "engine" {
			of.engine = a.Value.String()
			return false
		}
		return true
	})
	ok, left, over := l.lines.pass(of, r.Time)
	for _, o := range over {
		more := slog.NewRecord(r.Time, o.level, "lines were left out", 0)
		more.AddAttrs(slog.String("line", o.message), slog.String("engine", o.engine), slog.Int("left_out", o.n))
		if err := l.to.Handle(ctx, more); err != nil {
			return err
		}
	}
	if !ok {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", left))
	}
	return l.to.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l *Limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	of := *l
	of.to = l.to.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == "engine" {
			of.engine = a.Value.String()
		}
	}
	return &of
}

// WithGroup implements slog.Handler.
func (l *Limiter) WithGroup(name string) slog.Handler {
	of := *l
	of.to = l.to.WithGroup(name)
	return &of
}
