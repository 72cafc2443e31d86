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
		do   func(d *deferred)
		at   time.Duration // when the engine is told; -1: never
	}{
		{"output first", func(d *deferred) { d.Released(); time.Sleep(time.Second); d.Abort(); d.Abort(); d.Released() }, time.Second},
		{"output later", func(d *deferred) { d.Abort(); time.Sleep(2 * time.Second); d.Released(); d.Released(); d.Abort() }, 2 * time.Second},
		{"no output", func(d *deferred) { d.Abort(); time.Sleep(time.Second); d.Abort() }, 30 * time.Second},
		{"ended first", func(d *deferred) { d.End(); d.Abort(); d.Released() }, -1},
		{"ended while it waits", func(d *deferred) { d.Abort(); time.Sleep(time.Second); d.End(); d.Released() }, -1},
		{"nothing to wait for", func(d *deferred) { d.Deferral = nil; d.Released(); d.End(); d.Abort() }, 0},
		{"not asked for", func(d *deferred) { d.Released(); d.End() }, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, told := time.Now(), []time.Duration{}
				c.do(&deferred{new(Deferral), func() { told = append(told, time.Since(began)) }})
				time.Sleep(time.Hour)
				if synctest.Wait(); len(told) > 1 || (len(told) == 1) != (c.at >= 0) || len(told) == 1 && told[0] != c.at {
					t.Errorf("the engine is told at %v, want %v", told, c.at)
				}
			})
		})
	}
}

// Who asks for what holds an abort back is told when nothing does any more.
func TestDeferralHeld(t *testing.T) {
	for name, free := range map[string]func(*Deferral){"released": (*Deferral).Released, "ended": (*Deferral).End} {
		d := new(Deferral)
		if d.Held() != nil {
			t.Errorf("%s: held before it was asked for", name)
		}
		told := false
		d.Abort(func() { told = true })
		held := d.Held()
		if held == nil || held != d.Held() {
			t.Fatalf("%s: not held", name)
		}
		select {
		case <-held:
			t.Errorf("%s: held no more", name)
		default:
		}
		free(d)
		select {
		case <-held:
		default:
			t.Errorf("%s: still held", name)
		}
		if d.Held() != nil || told != (name == "released") {
			t.Errorf("%s: told %v", name, told)
		}
	}
}

// deferred is one with what is held back.
type deferred struct {
	*Deferral
	abort func()
}

func (d *deferred) Abort() { d.Deferral.Abort(d.abort) }

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
