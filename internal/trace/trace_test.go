package trace

import (
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"weir/internal/infer"
)

// For any use of a ledger by a handler, the stages partition its time: none is negative, and
// together they are all of it.
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

// The time that the stages miss is the residual, with either sign.
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

// The points of a pair are the engines' own, and else what the prefill engine's answer says;
// what nobody tells stays open, as do the stages at it.
func TestPair(t *testing.T) {
	record := func(prefill, decode Leg) *Record {
		prefill.Role, prefill.Handed, decode.Role = "prefill", 1000, "decode"
		return &Record{FirstReceived: 1500, Finished: 2000, Attempts: []Attempt{{Legs: []Leg{{Role: "full"}}}, {Legs: []Leg{prefill, decode}}}}
	}
	for _, test := range []struct {
		name              string
		prefill, decode   Leg
		points            [NumPairPoints]int64
		stages            [NumPairStages]int64
		answered, handing int64
	}{
		{"SGLang", Leg{Answered: 1450, Fetched: 1450, Stamps: infer.Stamps{BootstrapEnd: 1100, QueueStart: 1100, QueueEnd: 1150, PrefillEnd: 1300}},
			Leg{Stamps: infer.Stamps{TransferEnd: 1400, WaitingToRunning: 1410}},
			[NumPairPoints]int64{100, 300, 400, 410, 500}, [NumPairStages]int64{100, 200, 100, 10, 590}, 450, 50},
		{"SGLang without stamps", Leg{Answered: 1450, Fetched: 1450}, Leg{}, [NumPairPoints]int64{-1, -1, 450, -1, 500}, [NumPairStages]int64{-1, -1, -1, -1, 500}, 450, 50},
		{"SGLang, answered late", Leg{Answered: 1600, Fetched: 1600}, Leg{}, [NumPairPoints]int64{-1, -1, 600, -1, 500}, [NumPairStages]int64{-1, -1, -1, -1, 500}, 600, -1},
		{"vLLM", Leg{Answered: 1300}, Leg{}, [NumPairPoints]int64{-1, 300, -1, -1, 500}, [NumPairStages]int64{-1, 300, -1, -1, 500}, 300, 200},
		{"vLLM by ids", Leg{Answered: 1300, Stamps: infer.Stamps{FirstToken: 1290}}, Leg{Stamps: infer.Stamps{WaitingToRunning: 1480}},
			[NumPairPoints]int64{-1, 290, -1, 480, 500}, [NumPairStages]int64{-1, 290, -1, -1, 520}, 300, 200},
		{"clocks that contradict each other", Leg{Answered: 1450, Fetched: 1450, Stamps: infer.Stamps{BootstrapEnd: 900, PrefillEnd: 1420}}, Leg{Stamps: infer.Stamps{TransferEnd: 1400, WaitingToRunning: 1410}},
			[NumPairPoints]int64{-1, 420, 400, 410, 500}, [NumPairStages]int64{-1, 520, -1, 10, 590}, 450, 50},
	} {
		p, ok := record(test.prefill, test.decode).Pair()
		var points [NumPairPoints]int64
		for at := range NumPairPoints {
			points[at] = p.Since(at)
		}
		if !ok || points != test.points || p.Stages() != test.stages || p.Prefill() != test.answered || p.Handover() != test.handing {
			t.Errorf("%s: %v %v %v, answered %d, handover %d", test.name, ok, points, p.Stages(), p.Prefill(), p.Handover())
		}
	}
	silent := record(Leg{}, Leg{})
	silent.FirstReceived = 0
	for name, r := range map[string]*Record{"nothing": {}, "no output": silent, "one engine": {FirstReceived: 5, Attempts: []Attempt{{Legs: []Leg{{Role: "full"}}}}}} {
		if p, ok := r.Pair(); ok {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// A pair was sent when its first half was.
func TestToServer(t *testing.T) {
	for want, legs := range map[int64][]Leg{0: nil, 3: {{ToServer: 9}, {ToServer: 3}}, 4: {{ToServer: 4}, {}}, 5: {{}, {ToServer: 5}}} {
		if got := (&Record{Attempts: []Attempt{{Legs: []Leg{{ToServer: 1}}}, {Legs: legs}}}).ToServer(); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
	if got := new(Record).ToServer(); got != 0 {
		t.Errorf("%d of none", got)
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
