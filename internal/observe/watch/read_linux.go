package watch

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the CPU time that the process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// system reads the kernel's counters of the process's threads, its group and the machine.
// It is used by one goroutine at a time.
type system struct {
	throttle string // the group's file; empty where there is none
	waited   map[string]time.Duration
	before   map[string]time.Duration
	delay    time.Duration // the total of RunDelay
	buf      []byte
}

func newSystem() *system {
	s := &system{waited: map[string]time.Duration{}, before: map[string]time.Duration{}, buf: make([]byte, 8<<10)}
	for _, path := range groupFiles() {
		if _, ok := s.throttledBy(path); ok {
			s.throttle = path
			break
		}
	}
	return s
}

// groupFiles returns the files that may contain the CPU limit of the process's group.
func groupFiles() (paths []string) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "":
			paths = append(paths, "/sys/fs/cgroup"+parts[2]+"/cpu.stat", "/sys/fs/cgroup/cpu.stat")
		case strings.HasPrefix(parts[1], "cpu"): // cpu, or cpu,cpuacct
			paths = append(paths, "/sys/fs/cgroup/cpu"+parts[2]+"/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat")
		}
	}
	return paths
}

// file reads a small file into the buffer; nil if it cannot be read.
func (s *system) file(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, s.buf)
	if err != nil || n <= 0 {
		return nil
	}
	return s.buf[:n]
}

// read adds the system's counters to a sample.
func (s *system) read(to *Sample) {
	to.RunDelay = s.runDelay()
	to.Steal = s.steal()
	if s.throttle != "" {
		to.Throttled, _ = s.throttledBy(s.throttle)
	}
}

// runDelay adds up how long the thread of the process waited for a core that waited longest
// since the last call.
func (s *system) runDelay() time.Duration {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return s.delay
	}
	names, _ := dir.Readdirnames(-1) // what could be read is there
	dir.Close()
	clear(s.waited)
	longest := time.Duration(0)
	for _, name := range names {
		fields := bytes.Fields(s.file("/proc/self/task/" + name + "/schedstat"))
		if len(fields) < 2 {
			continue
		}
		ns, _ := strconv.ParseInt(string(fields[1]), 10, 64)
		s.waited[name] = time.Duration(ns)
		longest = max(longest, time.Duration(ns)-s.before[name])
	}
	s.before, s.waited = s.waited, s.before
	s.delay += longest
	return s.delay
}

// steal is how long the host gave this machine's cores to others.
func (s *system) steal() time.Duration {
	line, _, _ := bytes.Cut(s.file("/proc/stat"), []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0
	}
	ticks, _ := strconv.ParseInt(string(fields[8]), 10, 64)
	return time.Duration(ticks) * (time.Second / 100) // USER_HZ, which Linux has at 100 everywhere
}

func (s *system) throttledBy(path string) (time.Duration, bool) {
	for line := range bytes.Lines(s.file(path)) {
		fields := bytes.Fields(line)
		if len(fields) != 2 {
			continue
		}
		n, _ := strconv.ParseInt(string(fields[1]), 10, 64)
		switch string(fields[0]) {
		case "throttled_usec":
			return time.Duration(n) * time.Microsecond, true
		case "throttled_time":
			return time.Duration(n), true
		}
	}
	return 0, false
}

// descriptors returns how many the process has open, as far as that is cheap to know, and how
// many it may have.
func descriptors() (open, limit int64) {
	var at unix.Stat_t
	if unix.Stat("/proc/self/fd", &at) == nil {
		open = at.Size // since Linux 6.2; 0 before
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
		limit = int64(min(l.Cur, 1<<62))
	}
	return open, limit
}
