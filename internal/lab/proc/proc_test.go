//go:build linux

package proc

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// The CPU clock of another process is as fine as its work is small, and no less than what
// stat counts.
func TestClock(t *testing.T) {
	cmd := exec.Command("cat") // waits for its input
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = cmd.Wait() }()
	deadline := time.Now().Add(time.Minute)
	for {
		used, err := Of([]int{cmd.Process.Pid})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", used, err)
		}
		if used.CPU > 0 && used.CPU*clockTicks != float64(int64(used.CPU*clockTicks)) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	before, ok := clock(os.Getpid())
	for began := time.Now(); time.Since(began) < time.Millisecond; { // something to do
	}
	if after, still := clock(os.Getpid()); !ok || !still || after <= before {
		t.Errorf("%v to %v s", before, after)
	}
	if _, ok := clock(1 << 22); ok {
		t.Error("a process that is not there has a clock")
	}
}

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
