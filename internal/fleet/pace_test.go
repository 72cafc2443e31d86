package fleet

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/route"
)

// Among many engines, reports that come one by one share snapshots, in their order. The first one
// after a quiet time has one of its own at once, and so has each among few engines. The end of Run
// publishes the reports that wait.
func TestReportsShareSnapshots(t *testing.T) {
	for _, c := range []struct{ engines, most int }{{200, 23}, {50, 201}} {
		synctest.Test(t, func(t *testing.T) {
			var members []Member
			for i := range c.engines {
				members = append(members, relayMember(fmt.Sprintf("e%03d", i), "x"))
			}
			came := 0
			f, err := New(Options{Members: members, Ready: func(*route.Engine) { came++ }})
			if err != nil {
				t.Fatal(err)
			}
			end := started(f)
			say := func(i int, s engine.State) { members[i].Adapter.(*relay).states <- s }
			time.Sleep(mostApart) // since the first snapshot
			snapshots, last := 0, f.Snapshot()
			for i := range 200 {
				say(i%c.engines, ready("x"))
				time.Sleep(time.Millisecond)
				synctest.Wait()
				if s := f.Snapshot(); s != last {
					snapshots, last = snapshots+1, s
				}
				if i == 0 && !f.Snapshot().Engines[0].Ready {
					t.Error("the first report waits")
				}
			}
			time.Sleep(mostApart)
			synctest.Wait()
			for _, e := range f.Snapshot().Engines {
				if !e.Ready {
					t.Errorf("%s is not ready", e.Name)
				}
			}
			if snapshots > c.most || c.most > 200 && snapshots < 200 {
				t.Errorf("%d engines: %d snapshots of 200 reports, want at most %d", c.engines, snapshots, c.most)
			}
			if came != c.engines {
				t.Errorf("%d engines were reported to have come", came)
			}
			say(3, engine.State{Err: errors.New("gone")})
			synctest.Wait()
			if f.Snapshot().Engines[3].Ready {
				t.Error("a report after a quiet time waits")
			}
			say(4, engine.State{Err: errors.New("gone")}) // waits for its snapshot
			end()
		})
	}
}
