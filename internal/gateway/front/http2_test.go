package front

import (
	"context"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// A client that sends without a pause does not keep a request from beginning, and each
// request begins that the client opens and waits for.
func TestIntakeIsBounded(t *testing.T) {
	var i intake
	always := func() int { return 1 }
	began := make(chan struct{})
	go func() {
		i.wait(t.Context(), always)
		close(began)
	}()
	read := 0
	for {
		i.asks(always)
		i.arrived(4<<10, nil)
		select {
		case <-began:
		default:
			read += 4 << 10
			runtime.Gosched()
			continue
		}
		break
	}
	t.Logf("began after %d KB", read>>10)
	i.asks(func() int { return 0 })
	i.wait(t.Context(), func() int { return 0 }) // net/http has taken in all that was there
	go i.arrived(0, io.EOF)
	i.wait(t.Context(), always) // nothing more will come
}

// A request begins all the same if net/http does not read again.
func TestIntakeHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i intake
		began := time.Now()
		i.wait(context.Background(), func() int { return 1 })
		if waited := time.Since(began); waited != intakeTime {
			t.Errorf("waited for %v", waited)
		}
	})
}

// Answered requests restore the allowance that resets consume.
func TestResetsAllowance(t *testing.T) {
	now := time.Unix(1000, 0)
	var a resets
	for i := range 10 * ResetBurst {
		if a.reset(now) {
			t.Fatalf("one too many after %d, each beside one that is answered", i)
		}
		a.answered()
	}
	for i := range ResetBurst {
		if a.reset(now) {
			t.Fatalf("one too many after %d at once", i)
		}
	}
	if !a.reset(now) {
		t.Errorf("%d at once are not too many", ResetBurst+1)
	}
	now = now.Add(time.Second)
	for i := range ResetRate - 1 { // the one too many is among them
		if a.reset(now) {
			t.Fatalf("one too many after %d a second later", i)
		}
	}
	if !a.reset(now) {
		t.Errorf("%d more a second later are not too many", ResetRate)
	}
}
