package gcpace

import (
	"math"
	"os"
	"strconv"
	"strings"
)

// groupMemory returns the memory limit of the process's control group.
func groupMemory() int64 {
	own, _ := os.ReadFile("/proc/self/cgroup") // on other systems there is none
	limit := int64(math.MaxInt64)
	for _, path := range memoryFiles(string(own)) {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 { // "max" is none
			limit = min(limit, n)
		}
	}
	return limit
}

// memoryFiles returns the files that may contain a group's memory limit, by /proc/self/cgroup. In
// a container its own group is the root.
func memoryFiles(own string) (paths []string) {
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[1] == "":
			paths = append(paths, "/sys/fs/cgroup"+parts[2]+"/memory.max", "/sys/fs/cgroup/memory.max")
		case parts[1] == "memory":
			paths = append(paths, "/sys/fs/cgroup/memory"+parts[2]+"/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
		}
	}
	return paths
}

// machineMemory returns the machine's memory.
func machineMemory() int64 {
	info, _ := os.ReadFile("/proc/meminfo") // on other systems there is none
	return totalMemory(string(info))
}

// totalMemory returns the machine's memory by /proc/meminfo.
func totalMemory(info string) int64 {
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			if kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64); err == nil && kb > 0 && kb < math.MaxInt64>>10 {
				return kb << 10
			}
		}
	}
	return math.MaxInt64
}
