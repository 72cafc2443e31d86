package main

import (
	"flag"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

// The tests run in two phases, which are those of package testing: first the ones
// that measure, or that keep all cores busy anyhow, each alone; then those that
// asked to be run beside others. These wait for processes of their own most of
// the time, so that more of them run at once than there are cores, as many as
// their loads allow.

// How much of the machine a test has while it runs.
const (
	light = 1 // it starts processes, and waits for them
	heavy = 3 // hundreds of streams, or work without a pause
)

// machine is what tests beside each other share; a core carries light ones.
var machine = struct {
	door  sync.Mutex // held by who waits next, so that light tests do not pass a heavy one
	units chan struct{}
}{units: make(chan struct{}, max(heavy, 3*runtime.GOMAXPROCS(0)))}

// beside lets the test run beside others, once there is room for its load. A test
// whose subtests ask for room asks for none itself: it would keep it from them.
func beside(t *testing.T, load int) {
	t.Helper()
	t.Parallel()
	asked := time.Now()
	machine.door.Lock()
	defer machine.door.Unlock()
	for range load {
		machine.units <- struct{}{}
	}
	began := time.Now()
	t.Cleanup(func() {
		t.Logf("took %.1f s, after %.1f s of waiting for room", time.Since(began).Seconds(), began.Sub(asked).Seconds())
		for range load {
			<-machine.units
		}
	})
}

// moreAtOnce lets beside decide how many tests run at once, unless the command
// line does.
func moreAtOnce() {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		if err := flag.Set("test.parallel", strconv.Itoa(8*cap(machine.units))); err != nil {
			panic(err)
		}
	}
}
