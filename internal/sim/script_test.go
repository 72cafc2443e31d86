package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output in testdata")

// TestScripts runs testdata/*.txt. A script is blocks of commands, a line of
// dashes, and what they print; -rewrite replaces the printed part for review.
//
//	engine max_running=2 step_tokens=64 prefill=10ms decode=5ms   a fresh engine
//	submit a prompt=30 max=3 [min=N] [stall=N]                    at the current time
//	abort a
//	run for=40ms                                                  advance, print each step
//	counts
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s differs; it now prints\n%s", file, got)
			}
		})
	}
}

// runScript gives the script with its output replaced by what it prints now.
func runScript(t *testing.T, text string) string {
	var out strings.Builder
	s := &script{t: t, names: map[Ref]string{}, refs: map[string]Ref{}}
	skipping := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "----":
			fmt.Fprintf(&out, "----\n%s", s.out.String())
			s.out.Reset()
			skipping = true
		case skipping && line != "":
		case line == "" || strings.HasPrefix(line, "#"):
			skipping = false
			fmt.Fprintln(&out, line)
		default:
			fmt.Fprintln(&out, line)
			s.command(line)
		}
	}
	return out.String()
}

type script struct {
	t     *testing.T
	core  *Core
	now   int64
	names map[Ref]string
	refs  map[string]Ref
	out   strings.Builder
}

func (s *script) command(line string) {
	words := strings.Fields(line)
	args := map[string]string{}
	name := ""
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			args[k] = v
		} else {
			name = w
		}
	}
	num := func(k string) int {
		n, err := strconv.Atoi(args[k])
		if err != nil && args[k] != "" {
			s.t.Fatalf("%q: %v", line, err)
		}
		return n
	}
	dur := func(k string) time.Duration {
		d, err := time.ParseDuration(args[k])
		if err != nil && args[k] != "" {
			s.t.Fatalf("%q: %v", line, err)
		}
		return d
	}
	switch words[0] {
	case "engine":
		s.now = 0
		s.core = testCore(s.t, Options{
			MaxRunning: num("max_running"), MaxQueued: num("max_queued"), StepTokens: num("step_tokens"),
			Cost: Constant{Prefill: dur("prefill"), Decode: dur("decode")},
		})
	case "submit":
		_, stall := args["stall"]
		r := prepare(s.t, s.core, Params{Prompt: make([]uint32, num("prompt")), MaxTokens: num("max"), MinTokens: num("min"), Stall: stall, StallAfter: num("stall")})
		ref, err := s.core.Submit(s.now, s.now, r)
		if err != nil {
			fmt.Fprintf(&s.out, "%v %s refused: %v\n", time.Duration(s.now), name, err)
			return
		}
		s.names[ref], s.refs[name] = name, ref
	case "abort":
		s.core.Abort(s.now, s.refs[name])
	case "run":
		s.run(s.now + int64(dur("for")))
	case "counts":
		fmt.Fprintf(&s.out, "%+v\n", s.core.Counts())
	default:
		s.t.Fatalf("no command %q", line)
	}
}

func (s *script) run(until int64) {
	for {
		due, ok := s.core.Due()
		if !ok || due > until {
			break
		}
		for step := s.core.Advance(due); step != nil; step = s.core.Advance(due) {
			s.print(step)
		}
	}
	s.now = until
}

func (s *script) print(step *Step) {
	b := step.Batch
	fmt.Fprintf(&s.out, "%v prefill %d in %d, decode %d; then %d running, %d waiting:", time.Duration(step.End), b.Prefill, b.Chunks, b.Decode, step.Running, step.Waiting)
	var ids []string
	for i, ref := range step.Ref {
		ids = append(ids, fmt.Sprintf(" %s%d", s.names[ref], step.Total[i]))
	}
	sort.Strings(ids)
	fmt.Fprintln(&s.out, strings.Join(ids, ""))
	for _, f := range step.First {
		st := f.Stamps
		fmt.Fprintf(&s.out, "  %s first: queue %v-%v prefill %v-%v\n", s.names[f.Ref], time.Duration(st.QueueStart), time.Duration(st.QueueEnd), time.Duration(st.PrefillStart), time.Duration(st.PrefillEnd))
	}
	for _, d := range step.Done {
		fmt.Fprintf(&s.out, "  %s done: %s after %d\n", s.names[d.Ref], d.Reason, d.Completion)
	}
}
