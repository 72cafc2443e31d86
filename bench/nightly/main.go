//go:build linux

// Command nightly runs the steps that are too slow for every change, keeps their
// figures, and fails if a figure is worse than its baseline. docs/tests.md describes
// the use; package internal/lab/nightly compares the figures.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"weir/internal/disk"
	"weir/internal/lab/nightly"
	"weir/internal/lab/proc"
)

// Exit statuses.
const (
	fine        = 0
	worse       = 1
	wrongUsage  = 2
	interrupted = 130 // as a shell has it after Ctrl-C
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	steps, err := parseSteps(rows)
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly: bench/nightly/steps.txt:", err)
		os.Exit(wrongUsage)
	}
	os.Exit(run(ctx, steps, os.Args[1:], os.Stdout, os.Stderr))
}

// asked has the choices of the command line.
type asked struct {
	only, baseline, keep, from           string
	list, dryRun, accept, allowedMissing bool
}

func parse(args []string, stderr io.Writer) (a asked, err error) {
	flags := flag.NewFlagSet("nightly", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, `usage: go run ./bench/nightly [flags], in the module's root

  go run ./bench/nightly --list
  go run ./bench/nightly --only bench,backlog
  go run ./bench/nightly --from bin/nightly/RUN.json --accept

`)
		flags.PrintDefaults()
	}
	flags.StringVar(&a.only, "only", "", "run these steps, `NAME,...`; all unless given")
	flags.BoolVar(&a.list, "list", false, "say what the steps are, why, and how long they take, and run nothing")
	flags.BoolVar(&a.dryRun, "dry-run", false, "print the commands that would be run, and run nothing")
	flags.BoolVar(&a.accept, "accept", false, "make what was measured the baseline, but for steps that did not pass")
	flags.StringVar(&a.from, "from", "", "run nothing: take the results that an earlier run kept in this `file`")
	flags.BoolVar(&a.allowedMissing, "allow-missing", false, "do not fail for steps that cannot run here")
	flags.StringVar(&a.baseline, "baseline", "docs/bench/nightly.json", "the accepted figures, a `file`")
	flags.StringVar(&a.keep, "keep", "bin/nightly", "the `folder` for the results and the output of each run")
	if err := flags.Parse(args); err != nil {
		return a, err
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "nightly: %q is not a flag; --only %s runs a step\n", flags.Arg(0), flags.Arg(0))
		return a, errors.New("usage")
	}
	return a, nil
}

func run(ctx context.Context, all []nightly.Step, args []string, stdout, stderr io.Writer) int {
	a, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return fine
	case err != nil:
		return wrongUsage
	}
	chosen, err := nightly.Select(all, a.only)
	if err != nil {
		fmt.Fprintln(stderr, "nightly: --only:", err)
		return wrongUsage
	}
	switch {
	case a.list:
		err = nightly.List(stdout, chosen, missing)
	case a.dryRun:
		err = dryRun(stdout, chosen)
	default:
		var status int
		if status, err = a.measure(ctx, all, chosen, stdout, stderr); err == nil {
			return status
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "nightly:", err)
		return worse
	}
	return fine
}

func dryRun(w io.Writer, chosen []nightly.Step) error {
	total := time.Duration(0)
	for _, s := range chosen {
		what := s.Command
		if lack := missing(s); lack != "" {
			what = "cannot run here: " + lack
		} else {
			total += s.Typical
		}
		if _, err := fmt.Fprintf(w, "%-16s %s\n", s.Name, what); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "about %v\n", total)
	return err
}

// measure carries the steps out, or takes the results of an earlier run, and compares
// them with the baseline. An error means that nothing was judged.
func (a *asked) measure(ctx context.Context, all, chosen []nightly.Step, stdout, stderr io.Writer) (status int, err error) {
	// The baseline is read first, so that a broken one is reported before hours of work.
	base, err := readBaseline(a.baseline)
	if err != nil {
		return 0, err
	}
	record, stopped := &nightly.Record{}, false
	if a.from != "" {
		if record, err = readRecord(a.from); err != nil {
			return 0, err
		}
	} else if record, stopped, err = a.carryOut(ctx, chosen, stderr); err != nil {
		return 0, err
	}
	found := nightly.Compare(base, record, nightly.Names(all))
	fails, err := nightly.Report(stdout, record, found, a.allowedMissing)
	if err != nil {
		return 0, err
	}
	switch {
	case stopped:
		fmt.Fprintln(stdout, "interrupted: steps after the last one above were not run")
		return interrupted, nil
	case a.accept:
		return a.acceptInto(base, record, stdout)
	case fails:
		return worse, nil
	}
	return fine, nil
}

// acceptInto writes the new baseline. It accepts figures that got worse, but no step
// that did not pass.
func (a *asked) acceptInto(base, record *nightly.Record, stdout io.Writer) (int, error) {
	accepted, refused := base.Accept(record)
	if err := write(a.baseline, base); err != nil {
		return 0, err
	}
	if len(accepted) > 0 {
		fmt.Fprintf(stdout, "%s has this run's figures of %s now; read them before you commit it\n", a.baseline, strings.Join(accepted, ", "))
	}
	for _, why := range refused {
		fmt.Fprintln(stdout, "not accepted:", why)
	}
	if len(refused) > 0 {
		return worse, nil
	}
	return fine, nil
}

// carryOut runs the steps and keeps their figures. stopped reports whether ctx ended
// before the steps did.
func (a *asked) carryOut(ctx context.Context, chosen []nightly.Step, stderr io.Writer) (record *nightly.Record, stopped bool, err error) {
	folder := filepath.Join(a.keep, time.Now().UTC().Format("2006-01-02T15-04-05.000"))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, false, err
	}
	commit, err := commit(ctx)
	if err != nil {
		return nil, false, err
	}
	record, err = nightly.Run(ctx, nightly.Options{
		Steps: chosen, About: nightly.About{Commit: commit, Machine: proc.Machine()},
		Missing: missing, Progress: stderr,
		Execute: (&shell{folder: folder, grace: 20 * time.Second}).execute,
		Keep:    func(r *nightly.Record) error { return write(folder+".json", r) },
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		stopped, err = true, nil
	}
	fmt.Fprintf(stderr, "kept in %s.json, the steps' output in %s\n", folder, folder)
	return record, stopped, err
}

// readBaseline reads the baseline. A file that is not there is an empty baseline.
func readBaseline(name string) (*nightly.Record, error) {
	r, err := readRecord(name)
	if errors.Is(err, fs.ErrNotExist) {
		return new(nightly.Record), nil
	}
	return r, err
}

func readRecord(name string) (*nightly.Record, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	r, err := nightly.Read(text)
	if err != nil {
		return nil, fmt.Errorf("%s is not what a run wrote: %w; take it from git again", name, err)
	}
	return r, nil
}

// write replaces a file at once, so that an interruption leaves the old file or the
// new one.
func write(name string, r *nightly.Record) error {
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		return err
	}
	return disk.Replace(name, text.Bytes())
}

// missing returns the program that a step lacks on this machine. The make targets
// install programs from Debian's packages where they may.
func missing(s nightly.Step) string {
	_, apt := exec.LookPath("apt-get")
	if apt == nil && os.Getuid() == 0 {
		return ""
	}
	for _, name := range s.Needs {
		if _, err := exec.LookPath(name); err != nil {
			return "there is no " + name + "; install it, or pass --allow-missing"
		}
	}
	return ""
}

// commit names the commit that is measured, with a mark if files differ from it.
func commit(ctx context.Context) (string, error) {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse: %w; run this in the root of a clone", err)
	}
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no").Output()
	if err != nil {
		return "", fmt.Errorf("git status: %w", err)
	}
	name := strings.TrimSpace(string(head))
	if len(changed) > 0 {
		name += " and changes"
	}
	return name, nil
}
