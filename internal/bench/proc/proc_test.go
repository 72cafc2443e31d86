//go:build linux

package proc

import "testing"

func TestCPUTicks(t *testing.T) {
	got, err := cpuTicks([]byte("12 (a ) b) S 1 12 12 0 -1 4194304 100 0 0 0 250 41 0 0 20 0 5 0 100 1000 200\n"))
	if err != nil || got != 291 {
		t.Errorf("%d ticks, %v", got, err)
	}
	if _, err := cpuTicks([]byte("12 (short) S 1")); err == nil {
		t.Error("a short line was taken")
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
