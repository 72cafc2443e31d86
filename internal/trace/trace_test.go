package trace

import (
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"weir/internal/infer"
)

// Whatever a handler does with its ledger, the stages partition its time: none
// is negative, and together they are all of it.
func TestLedgerPartitions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stage := rapid.Map(rapid.IntRange(0, int(NumStages)-1), func(i int) Stage { return Stage(i) })
		now := rapid.Int64Range(-1_000_000, 1_000_000).Draw(t, "start")
		start := now
		first := stage.Draw(t, "first")
		var l Ledger
		l.Start(first, now)
		current := first
		var want [NumStages]int64
		for range rapid.IntRange(0, 40).Draw(t, "moves") {
			from := now
			now += rapid.Int64Range(0, 1000).Draw(t, "passed")
			next := stage.Draw(t, "next")
			if rapid.Bool().Draw(t, "split") {
				// Also moments that the stage at hand does not hold.
				at := from + rapid.Int64Range(-500, 1500).Draw(t, "at")
				l.Split(at, next, now)
				at = min(max(at, from), now)
				want[current] += at - from
				want[next] += now - at
			} else {
				l.Enter(next, now)
				want[current] += now - from
			}
			if current = next; l.Current() != current {
				t.Fatalf("in %v, want %v", l.Current(), current)
			}
		}
		l.Enter(Finish, now)
		var sum int64
		for s, ns := range l.Spent {
			if ns < 0 {
				t.Fatalf("%v took %d", Stage(s), ns)
			}
			if ns != want[s] {
				t.Fatalf("%v took %d, want %d", Stage(s), ns, want[s])
			}
			sum += ns
		}
		r := Record{Arrival: start, Finished: now, Ledger: l}
		if sum != r.Total() || r.Residual() != 0 {
			t.Fatalf("the stages add up to %d of %d, residual %d", sum, r.Total(), r.Residual())
		}
	})
}

// What the stages miss is the residual, whatever its sign.
func TestResidual(t *testing.T) {
	r := Record{Arrival: 100, Finished: 200}
	r.Ledger.Start(Read, 110) // ten late
	r.Ledger.Enter(Finish, 150)
	r.Ledger.Enter(Finish, 180) // and twenty early
	if r.Total() != 100 || r.Residual() != 30 || r.Ledger.Spent[Read] != 40 || r.Ledger.Spent[Finish] != 30 {
		t.Errorf("total %d, residual %d, spent %v", r.Total(), r.Residual(), r.Ledger.Spent)
	}
}

func TestStageNames(t *testing.T) {
	seen := map[string]bool{}
	for s := range NumStages {
		name := s.String()
		if name == "" || seen[name] {
			t.Errorf("stage %d is named %q", s, name)
		}
		seen[name] = true
		if back, err := ParseStage(name); err != nil || back != s {
			t.Errorf("ParseStage(%q) = %v, %v", name, back, err)
		}
	}
	for _, name := range []string{"", "Read", "flush ", "stage"} {
		if s, err := ParseStage(name); err == nil {
			t.Errorf("ParseStage(%q) = %v", name, s)
		}
	}
}

// The leg of a record is that of its last attempt.
func TestLeg(t *testing.T) {
	var r Record
	if r.Leg() != nil {
		t.Error("a record without attempts has a leg")
	}
	r.Attempts = append(r.Attempts, Attempt{})
	if r.Leg() != nil {
		t.Error("an attempt without legs has one")
	}
	r.Attempts = append(r.Attempts, Attempt{Legs: []Leg{{Engine: "a"}, {Engine: "b"}}})
	if l := r.Leg(); l == nil || l.Engine != "b" {
		t.Errorf("leg %+v", l)
	}
	r.Leg().Outcome = "finished"
	if r.Attempts[1].Legs[1].Outcome != "finished" {
		t.Error("the leg is a copy")
	}
}

// The parts of an acknowledgement are all of its time, none is negative, and what nobody
// told is no part of it.
func TestAck(t *testing.T) {
	created := func(at int64) infer.Stamps { return infer.Stamps{ServerCreated: at} }
	for _, test := range []struct {
		name string
		leg  Leg
		want Ack
		ok   bool
	}{
		{"not sent", Leg{Handed: 10}, Ack{}, false},
		{"a relay", Leg{Handed: 10, ToServer: 15, Acked: 90}, Ack{5, -1, -1, -1, -1}, true},
		{"a wire without stamps", Leg{Handed: 10, ToServer: 15, Acked: 45, Known: 47}, Ack{5, 30, -1, -1, 2}, true},
		{"one with them", Leg{Handed: 10, ToServer: 15, Acked: 45, Known: 47, Stamps: created(35)}, Ack{5, 30, 20, 10, 2}, true},
		{"of a clock that is off", Leg{Handed: 10, ToServer: 15, Acked: 45, Known: 47, Stamps: created(99)}, Ack{5, 30, 30, 0, 2}, true},
		{"heard before it was known to be written", Leg{Handed: 10, ToServer: 15, Acked: 14, Known: 16, Stamps: created(12)}, Ack{5, 0, 0, 0, 2}, true},
	} {
		if got, ok := test.leg.Ack(); got != test.want || ok != test.ok {
			t.Errorf("%s: %+v %v, want %+v", test.name, got, ok, test.want)
		}
	}
}

// Now is CLOCK_MONOTONIC, so that processes of one boot agree.
func TestNowIsTheSystemsClock(t *testing.T) {
	for range 100 {
		var before, after unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &before); err != nil {
			t.Skip(err)
		}
		now := Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &after); err != nil {
			t.Fatal(err)
		}
		// The anchor was read within a bracket of some microseconds.
		const slack = int64(time.Millisecond)
		if now < before.Nano()-slack || now > after.Nano()+slack {
			t.Fatalf("Now is %d, the clock went from %d to %d", now, before.Nano(), after.Nano())
		}
	}
	if d := time.Since(Wall(Now())).Abs(); d > time.Second {
		t.Errorf("the wall time of now is %v off", d)
	}
	if a, b := BootID(), BootID(); a != b {
		t.Errorf("boot ids %q and %q", a, b)
	}
}

func TestEnterAllocatesNothing(t *testing.T) {
	var l Ledger
	l.Start(Read, Now())
	if n := testing.AllocsPerRun(100, func() { l.Enter(Engine, Now()); l.Split(Now(), Receive, Now()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Each stream keeps the choice of its engine to its end.
func TestChoiceIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(Choice{}); n > 64 {
		t.Errorf("a choice takes %d bytes", n)
	}
}
