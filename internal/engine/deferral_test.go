package engine

import (
	"testing"
	"testing/synctest"
	"time"
)

// The abort of a decode half goes out when nobody writes into its pages, or after the
// bound, and once.
func TestDeferral(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(d *Deferral)
		at   time.Duration // when the engine is told; -1: never
	}{
		{"output first", func(d *Deferral) { d.Released(); time.Sleep(time.Second); d.Abort(); d.Abort(); d.Released() }, time.Second},
		{"output later", func(d *Deferral) { d.Abort(); time.Sleep(2 * time.Second); d.Released(); d.Released(); d.Abort() }, 2 * time.Second},
		{"no output", func(d *Deferral) { d.Abort(); time.Sleep(time.Second); d.Abort() }, 30 * time.Second},
		{"ended first", func(d *Deferral) { d.End(); d.Abort(); d.Released() }, -1},
		{"ended while it waits", func(d *Deferral) { d.Abort(); time.Sleep(time.Second); d.End(); d.Released() }, -1},
		{"not asked for", func(d *Deferral) { d.Released(); d.End() }, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, told := time.Now(), []time.Duration{}
				d := NewDeferral(func() { told = append(told, time.Since(began)) })
				c.do(d)
				time.Sleep(time.Hour)
				if synctest.Wait(); len(told) > 1 || (len(told) == 1) != (c.at >= 0) || len(told) == 1 && told[0] != c.at {
					t.Errorf("the engine is told at %v, want %v", told, c.at)
				}
			})
		})
	}
}

// Released reaches a generation that defers, and leaves others alone.
func TestReleased(t *testing.T) {
	Released(whole{})
	h := half{released: new(int)}
	if Released(h); *h.released != 1 {
		t.Errorf("released %d times", *h.released)
	}
}

type whole struct{}

func (whole) Abort() {}

type half struct {
	whole
	released *int
}

func (h half) Released() { *h.released++ }
