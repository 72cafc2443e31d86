//go:build !linux

package engine

import (
	"time"

	"weir/internal/trace"
)

// alarm rings when a moment of trace's clock has come.
type alarm struct {
	c     chan struct{} // capacity 1
	timer *time.Timer
}

func newAlarm(bool) *alarm {
	a := &alarm{c: make(chan struct{}, 1)}
	a.timer = time.AfterFunc(time.Hour, func() {
		select {
		case a.c <- struct{}{}:
		default:
		}
	})
	return a
}

func (a *alarm) set(at int64) { a.timer.Reset(time.Duration(at - trace.Now())) }

func (a *alarm) close() { a.timer.Stop() }
