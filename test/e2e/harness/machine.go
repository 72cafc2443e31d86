package harness

import (
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// How much of the machine a test needs while it runs.
const (
	Light = 1 // it starts processes, and waits for them
	Heavy = 4 // hundreds of streams, or work without a pause
)

// units is what tests beside each other share: a core carries eight light ones.
var units = max(Heavy, 8*runtime.GOMAXPROCS(0))

// With WEIR_TEST_PROCS the processes that tests start have this GOMAXPROCS, more than the
// machine has cores: things that exist once for each core, or for every few, are then as many
// as on a large machine.
var procs = func() []string {
	if n := os.Getenv("WEIR_TEST_PROCS"); n != "" {
		return []string{"GOMAXPROCS=" + n}
	}
	return nil
}()

// Procs returns the GOMAXPROCS of the processes that tests start.
func Procs() int {
	if n, err := strconv.Atoi(os.Getenv("WEIR_TEST_PROCS")); err == nil {
		return n
	}
	return runtime.GOMAXPROCS(0)
}

// Few returns one of a test's cases under -short, and otherwise all. It chooses by the test's
// name, so that the tests of a subject together have all cases: a rule that every wire keeps
// alike needs one end-to-end test, where scripts and conformance suites hold it for each wire.
func Few[T any](t testing.TB, cases []T) []T {
	if !testing.Short() {
		return cases
	}
	h := fnv.New32a()
	io.WriteString(h, t.Name())
	i := int(h.Sum32() % uint32(len(cases)))
	return cases[i : i+1]
}

// Alone is the load of a test that measures, or that needs every core.
var Alone = units

// Most tests wait for processes of their own most of the time, so that more of
// them run at once than there are cores, as many as their loads allow. The units
// are locked files in a folder that all processes of tests share: packages that
// run side by side, and a second go test beside the first one, divide the machine
// among them.
var machine = struct {
	sync.Mutex // held by the one who waits next, so that a heavy test is not passed by light ones
	dir        func() (string, error)
}{dir: sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("weir-e2e-%d", os.Getuid()))
	return dir, os.MkdirAll(dir, 0o700)
})}

// Beside lets the test run beside others, once there is room for its load. A test
// whose subtests ask for room asks for none itself: it would keep it from them.
func Beside(t *testing.T, load int) {
	t.Helper()
	t.Parallel()
	asked := time.Now()
	held, err := reserve(t, load)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	t.Cleanup(func() {
		t.Logf("took %.1f s, after %.1f s of waiting for room", time.Since(began).Seconds(), began.Sub(asked).Seconds())
		for _, f := range held {
			f.Close()
		}
	})
}

// reserve locks as many units as a load needs.
func reserve(t *testing.T, load int) (held []*os.File, err error) {
	machine.Lock()
	defer machine.Unlock()
	dir, err := machine.dir()
	if err != nil {
		return nil, err
	}
	door, err := lockFile(filepath.Join(dir, "door")) // as the mutex does, among processes
	if err != nil {
		return nil, err
	}
	defer door.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		for i := 0; i < units && len(held) < load; i++ {
			f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint("unit-", i)), os.O_RDWR|os.O_CREATE, 0o600)
			if err == nil {
				if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
					held = append(held, f)
					continue
				}
				f.Close()
			}
			if err != unix.EWOULDBLOCK && err != unix.EINTR {
				return held, err
			}
		}
		if len(held) == load {
			return held, nil
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			return held, t.Context().Err()
		}
	}
}
