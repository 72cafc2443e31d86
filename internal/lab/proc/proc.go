//go:build linux

// Package proc reads from /proc what processes and the machine have used: CPU
// seconds (user + system), resident bytes, system calls that write, page faults.
// Linux only.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Usage is what processes have used so far.
type Usage struct {
	CPU      float64 // seconds, user + system
	Resident int64   // bytes
	Writes   int64   // system calls that write
	Faults   int64   // first touches of pages, in memory or from disk
}

// clockTicks is USER_HZ, which is 100 on every Linux that Go supports.
const clockTicks = 100

// Of sums the usage of processes.
func Of(pids []int) (Usage, error) {
	var sum Usage
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/", pid)
		stat, err := os.ReadFile(dir + "stat")
		if err != nil {
			return sum, fmt.Errorf("the process ended: %w", err)
		}
		ticks, faults, err := readStat(stat)
		if err != nil {
			return sum, err
		}
		if cpu, ok := clock(pid); ok {
			sum.CPU += cpu
		} else {
			sum.CPU += float64(ticks) / clockTicks
		}
		sum.Faults += faults
		status, err := os.ReadFile(dir + "status")
		if err != nil {
			return sum, err
		}
		sum.Resident += field(status, "VmRSS:") << 10
		if io, err := os.ReadFile(dir + "io"); err == nil {
			sum.Writes += field(io, "syscw:")
		}
	}
	return sum, nil
}

// clock reads a process's CPU clock, in seconds. It counts nanoseconds, where stat has ticks
// of 10 ms, a twentieth of what a gateway uses in a window of a second.
func clock(pid int) (seconds float64, ok bool) {
	const scheduler = 2 // CPUCLOCK_SCHED, which is user + system
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduler), &at); err != nil {
		return 0, false
	}
	return float64(at.Nano()) / 1e9, true
}

// readStat reads utime + stime, and minflt + majflt. The process's name may hold
// anything, so the fields count from the last parenthesis.
func readStat(stat []byte) (ticks, faults int64, err error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var n [4]int64
	for i, at := range [...]int{11, 12, 7, 9} {
		if at < len(fields) {
			n[i], err = strconv.ParseInt(fields[at], 10, 64)
		}
		if at >= len(fields) || err != nil {
			return 0, 0, fmt.Errorf("stat: %q", stat)
		}
	}
	return n[0] + n[1], n[2] + n[3], nil
}

// field reads the number of a named line, 0 when it is not there.
func field(b []byte, name string) int64 {
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}

// Machine describes the machine and the system.
func Machine() string {
	model := "unknown CPU"
	info, _ := os.ReadFile("/proc/cpuinfo") // without it the model stays unknown
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%d CPUs, %s, Linux %s, %s", runtime.NumCPU(), model, strings.TrimSpace(string(release)), runtime.Version())
}

// MachineCPU returns the CPU seconds that the machine spent on anything.
func MachineCPU() (float64, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return busySeconds(stat)
}

// busySeconds sums the first line of /proc/stat, except idle and waiting time.
func busySeconds(stat []byte) (float64, error) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat: %q", line)
	}
	sum := int64(0)
	for i, f := range fields[1:9] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %q", line)
		}
		if i != 3 && i != 4 {
			sum += n
		}
	}
	return float64(sum) / clockTicks, nil
}

// Children returns the processes whose parent is pid.
func Children(pid int) []int {
	var pids []int
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}
