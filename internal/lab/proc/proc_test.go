//go:build linux

package proc

import "testing"

func TestReadStat(t *testing.T) {
	ticks, faults, err := readStat([]byte("12 (a ) b) S 1 12 12 0 -1 4194304 100 0 3 0 250 41 0 0 20 0 5 0 100 1000 200\n"))
	if err != nil || ticks != 291 || faults != 103 {
		t.Errorf("%d ticks, %d faults, %v", ticks, faults, err)
	}
	for _, wrong := range []string{"12 (short) S 1", "", "12 (a) S 1 12 12 0 -1 4194304 x 0 3 0 250 41 0"} {
		if _, _, err := readStat([]byte(wrong)); err == nil {
			t.Errorf("%q was taken", wrong)
		}
	}
}

func TestBusySeconds(t *testing.T) {
	got, err := busySeconds([]byte("cpu  100 20 30 5000 40 5 6 7 0 0\ncpu0 1 2 3\n"))
	if err != nil || got != 1.68 {
		t.Errorf("%v s, %v", got, err)
	}
	if _, err := busySeconds([]byte("intr 1")); err == nil {
		t.Error("no line of a CPU was taken")
	}
}

func TestField(t *testing.T) {
	if got := field([]byte("VmHWM:\t  9 kB\nVmRSS:\t  1234 kB\n"), "VmRSS:"); got != 1234 {
		t.Errorf("VmRSS %d", got)
	}
}
