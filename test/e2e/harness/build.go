package harness

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	_ "weir/internal/cli" // go test takes no result from its cache that an older program gave
)

// Binary is the built program that the tests run.
var Binary string

// Root is the module's folder.
var Root string

// Main builds the program, runs a package's tests, and exits. Under the race
// detector the program is built with it, too.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main for a TestMain that has more to do: it returns the exit code.
func Run(m *testing.M) (code int) {
	flag.Parse()
	if err := errors.Join(build(), moreAtOnce()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build builds bin/e2e/weir, or weir-race. Packages of tests run side by side:
// the first one builds, and the others find the program up to date.
func build() error {
	var err error
	if Root, err = moduleRoot(); err != nil {
		return err
	}
	dir := filepath.Join(Root, "bin", "e2e")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	Binary = filepath.Join(dir, "weir")
	args := []string{"build", "-ldflags=-s -w"} // linking debug information takes as long as the rest
	if RaceEnabled {
		Binary += "-race"
		args = append(args, "-race")
	}
	if strings.Contains(os.Getenv("GOFLAGS"), "-overlay") { // a mutation's, compiled once for this program and for the test
		Binary += "-mutated"
		args = slices.DeleteFunc(args, func(a string) bool { return a == "-trimpath" })
	}
	cmd := exec.Command("go", append(args, "-o", Binary, "./cmd/weir")...)
	cmd.Dir = Root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./cmd/weir: %w\n%s", err, out)
	}
	return nil
}

// moduleRoot returns the folder of go.mod above the tests' own.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the tests' folder")
		}
		dir = filepath.Dir(dir)
	}
}

// lockFile opens a file and waits until no other process, and nobody else in
// this one, has it locked. Closing the file unlocks it, and so does the process's
// end.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return f, nil
}

// moreAtOnce lets Beside decide how many tests run at once, unless the command
// line does.
func moreAtOnce() error {
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if asked {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(8*units))
}
