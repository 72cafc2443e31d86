//go:build interop_engines

package real

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// ofProcess are the processes that a program has started, by a part of their titles.
func ofProcess(t *testing.T, p *harness.Process, title string) (pids []int) {
	t.Helper()
	for pid, name := range family(p) {
		if strings.Contains(name, title) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// standStill stops a scheduler while it does not hold the lock of the page to which all ranks write
// their loads: one that does stops the other ranks too.
func standStill(t *testing.T, pid int) {
	t.Helper()
	harness.Eventually(t, "a scheduler that holds no lock", func() bool {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		for {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(stat), ") T ") {
				break
			}
		}
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(locks), fmt.Sprintf(" %d ", pid)) {
			return true
		}
		_ = syscall.Kill(pid, syscall.SIGCONT)
		return false
	})
}

// rankStopped: while a scheduler of one rank stands still, all new requests are served by the other.
func (f *sgFleet) rankStopped(t *testing.T) {
	for _, i := range []int{3, 5} {
		w, g := f.ways[i], f.gateways[i]
		pids := ofProcess(t, f.behind[i], "sglang::scheduler_DP1")
		if len(pids) != 1 {
			t.Fatalf("%s: schedulers %v among %v", w.name, pids, family(f.behind[i]))
		}
		standStill(t, pids[0])
		ctx := harness.Context(t)
		var met sync.WaitGroup // what meets it before anybody could know: prompts of which no cache has one
		for n := range 8 {
			met.Go(func() {
				_, _ = w.ask(ctx, completionPath, sgCompletion.with(fields{"prompt": fmt.Sprint(n, i, " meets a rank")}), nil)
			})
		}
		harness.Eventually(t, w.name+": one rank is out", func() bool {
			v := engines[struct {
				Ranks []struct {
					Health struct{ State string }
				}
			}](g)
			return len(v) == 1 && len(v[0].Ranks) == 2 && v[0].Ranks[1].Health.State == "down"
		}, g.Process)
		var slowest time.Duration
		answered := 0
		for range 100 {
			began := time.Now()
			if a, err := w.ask(ctx, completionPath, sgCompletion.with(fields{"max_tokens": 4}), nil); err == nil && a.Done && a.OutputTokens > 0 {
				answered++
			}
			slowest = max(slowest, time.Since(began))
		}
		t.Logf("%s: %d of 100 requests answered beside a rank that stands still, the slowest in %v", w.name, answered, slowest.Round(10*time.Millisecond))
		if answered != 100 {
			t.Errorf("%s: %d of 100", w.name, answered)
		}
		_ = syscall.Kill(pids[0], syscall.SIGCONT)
		met.Wait()
		f.set("100 requests beside a rank that stands still", w.name, fmt.Sprintf("%d answered", answered))
		harness.Eventually(t, w.name+": both ranks are back", func() bool {
			v := engines[struct {
				Ranks []struct {
					Health struct{ State string }
				}
			}](g)
			return len(v) == 1 && len(v[0].Ranks) == 2 && v[0].Ranks[1].Health.State == "up"
		}, g.Process)
	}
}

// over has four streams on a way, of so many tokens, when something happens, and returns how they
// end, and the longest time between two events that one of them saw.
func over(t *testing.T, w way, tokens int, happens func()) (whole, failed, cut int, gap time.Duration) {
	t.Helper()
	end := four(harness.Context(t), w, sgLong.with(fields{"max_tokens": tokens}), begun, func(answer) {})
	happens()
	for _, a := range end() {
		gap = max(gap, a.gap)
		switch {
		case a.Done && !a.Failed:
			whole++
		case a.Failed:
			failed++
		default:
			cut++
		}
	}
	return whole, failed, cut, gap
}

// parts are the processes of SGLang under streams.
var parts = []string{"the server", "sglang::scheduler", "sglang::detokenizer"}

func partOf(t *testing.T, p *harness.Process, part string) []int {
	if part == parts[0] {
		return []int{p.Cmd.Process.Pid}
	}
	return ofProcess(t, p, part)
}

// stoodStill is how long a process is stopped: the truth that records are held against.
const stoodStill = 2 * time.Second

// stopped: streams over a process that stands still for a while are whole, and their records say how
// long nothing came, and that it was before weir.
func (f *sgFleet) stopped(t *testing.T) {
	for i, w := range f.ways[1:] {
		for _, part := range parts {
			pids := partOf(t, f.behind[i+1], part)
			if len(pids) == 0 {
				continue // without a tokenizer, or with weir in its place
			}
			whole, failed, cut, seen := over(t, w, 300, func() {
				for _, pid := range pids {
					_ = syscall.Kill(pid, syscall.SIGSTOP)
				}
				time.Sleep(stoodStill)
				for _, pid := range pids {
					_ = syscall.Kill(pid, syscall.SIGCONT)
				}
			})
			if whole != 4 {
				t.Errorf("%s, %s: %d of 4 streams are whole, %d failed, %d cut", w.name, part, whole, failed, cut)
			}
			// Not each process has a part in each stream: tokenizers of their own, or none.
			stands, saw := seen > stoodStill-100*time.Millisecond, "4 streams whole, and no gap"
			if stands {
				saw = "4 streams whole, with a gap before weir"
			}
			f.set(part+" stands still for 2 s", w.name, saw)
			for _, r := range f.gateways[i+1].Reasons("limit=4", 4) {
				gap := time.Duration(r.Gap * float64(time.Millisecond))
				if (gap > stoodStill-100*time.Millisecond) != stands || stands && !strings.Contains(r.Reason.Sentence, "of that was before weir") {
					t.Errorf("%s, %s stood still for %v, and its client saw a gap of %v: the record has one of %v, and: %s", w.name, part, stoodStill, seen, gap, r.Reason.Sentence)
				}
			}
		}
	}
}

// killed: streams over a process that is killed end with an error, and never as whole ones. weir
// finds that the engine is gone.
func (f *sgFleet) killed(t *testing.T) {
	for _, kill := range []struct {
		part  string
		ways  []int
		whole int  // of four streams
		stays bool // its server goes on without it, and answers health checks: weir keeps the last rank
	}{
		{parts[2], []int{1, 2, 6}, 0, false},
		{parts[2], []int{3}, 0, true}, // that of several tokenizer workers
		{parts[0], []int{4}, 0, false},
		{"sglang::scheduler_DP1", []int{5}, 0, false}, // the launcher ends
	} {
		var all sync.WaitGroup
		var begun sync.WaitGroup
		begun.Add(len(kill.ways))
		ready := make(chan struct{})
		for _, i := range kill.ways {
			all.Go(func() {
				began := time.Now()
				whole, failed, cut, _ := over(t, f.ways[i], 3000, func() { begun.Done(); <-ready; began = time.Now() })
				t.Logf("%s, %s killed: %d whole, %d failed, %d cut, after %v", f.ways[i].name, kill.part, whole, failed, cut, time.Since(began).Round(10*time.Millisecond))
				if whole != kill.whole || failed != 4-kill.whole {
					t.Errorf("%s, %s killed: %d of 4 streams ended with an error, %d whole, %d cut", f.ways[i].name, kill.part, failed, whole, cut)
				}
				f.set(kill.part+" is killed", f.ways[i].name, fmt.Sprintf("%d streams whole, %d end with an error", whole, failed))
			})
		}
		begun.Wait()
		for _, pid := range partOf(t, f.behind[kill.ways[0]], kill.part) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		close(ready)
		all.Wait()
		for _, i := range kill.ways {
			if !kill.stays {
				f.gateways[i].ready(false)
			}
		}
	}
}
