package front

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTidy(t *testing.T) {
	for _, test := range []struct {
		name string
		rush func(leave func(n int))
		want []time.Duration // of the collections
	}{
		{"too few", func(leave func(int)) { leave(rush - 1) }, nil},
		{"a rush", func(leave func(int)) { leave(9000) }, []time.Duration{time.Second}},
		{"few, then more", func(leave func(int)) { leave(rush - 1); time.Sleep(time.Minute); leave(1) },
			[]time.Duration{time.Minute + time.Second}},
		{"not while they keep coming", func(leave func(int)) {
			for range 100 {
				leave(100)
				time.Sleep(rushQuiet / 3)
			}
		}, []time.Duration{35 * time.Second}},
		{"two rushes", func(leave func(int)) { leave(rush); time.Sleep(5 * time.Second); leave(rush) },
			[]time.Duration{time.Second, 6 * time.Second}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				collected := make(chan time.Duration, 100)
				td := newTidy()
				td.collect = func() { collected <- time.Since(began) }
				test.rush(func(n int) {
					for range n {
						td.leave()
					}
				})
				time.Sleep(time.Hour)
				td.stop()
				synctest.Wait()
				close(collected)
				var got []time.Duration
				for at := range collected {
					got = append(got, at)
				}
				if len(got) != len(test.want) {
					t.Fatalf("collected at %v, want %v", got, test.want)
				}
				for i, at := range got {
					if d := at - test.want[i]; d < -time.Second || d > time.Second {
						t.Errorf("collected at %v, want %v", got, test.want)
					}
				}
			})
		})
	}
}

func TestTidyStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		td := newTidy()
		td.collect = func() { t.Error("collected after the stop") }
		for range rush {
			td.leave()
		}
		td.stop()
		time.Sleep(time.Hour)
		for range rush {
			td.leave()
		}
		time.Sleep(time.Hour)
	})
}
