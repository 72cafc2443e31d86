//go:build linux

// Command liveoffline checks whether the predictions of `weir fleet` hold live. The
// workload consists of users who hold conversations. It goes through simulated engines
// offline, and in real time through as many `weir engine` behind `weir serve`, with
// `weir bench` as the client. The command prints both. It fails if a policy's median time
// to the first token, or its cached share of prompt tokens, is off by more than -within.
//
//	go run ./bench/liveoffline
//	go run ./bench/liveoffline -seeds 1 -duration 60s -policies cost
//	go run ./bench/liveoffline -policies cost+queue,round-robin -beside
//
// A name with +queue is that policy behind the queue. A policy without it gives engines
// each request at once. With -beside the command also prints the ratio of the first policy's
// times to the first token to the last one's, live and offline.
//
// Each pair of runs has a seed of its own. From the first difference on, the two closed
// loops of a pair part. The command therefore compares the means over the seeds.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"weir/internal/lab"
)

func main() { lab.Main("liveoffline", run) }

// fleet has the engines and the workload.
type fleet struct {
	weir     string
	engines  int
	sessions string // settings of the workload, without those of arrivals
	users    int
	duration time.Duration
	engine   []string // flags that `weir engine` and `weir fleet` share
}

func (f *fleet) workload() string {
	return fmt.Sprintf("synthetic:concurrency=%d,duration=%v,%s", f.users, f.duration, f.sessions)
}

// figures are the compared figures.
type figures struct {
	TTFT     float64 `json:"ttft_p50_ms"`
	TTFT99   float64 `json:"ttft_p99_ms"`
	Cached   float64 `json:"cached_share"`
	TPOT     float64 `json:"tpot_p50_ms"`
	Requests int     `json:"requests"`
	Prompt   float64 `json:"prompt_tokens_a_request"`
}

// pair is one workload, run offline and live.
type pair struct {
	Policy  string  `json:"policy"`
	Seed    uint64  `json:"seed"`
	Offline figures `json:"offline"`
	Live    figures `json:"live"`
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := fleet{}
	flags := flag.NewFlagSet("liveoffline", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&f.weir, "weir", "", "weir's binary; built from ./cmd/weir unless given")
	flags.IntVar(&f.engines, "engines", 4, "simulated engines")
	flags.IntVar(&f.users, "users", 64, "users, each with one session after another")
	flags.DurationVar(&f.duration, "duration", 2*time.Minute, "time in which requests are begun")
	flags.StringVar(&f.sessions, "sessions", "turns=8,think=2s,input=1800,output=16,prefix=2000,groups=8", "what the users say, as settings of a synthetic workload")
	var (
		cost     = flags.String("cost", "profile=llama-3.3-70b-h100-tp4", "cost model of the engines, as of weir engine; by the default's, the machine has a few requests a second to carry")
		kv       = flags.Int("kv", 400_000, "KV tokens of an engine")
		policies = flags.String("policies", "cost,round-robin", "policies, comma-separated, with +queue behind the queue")
		beside   = flags.Bool("beside", false, "print the first policy's times to the first token over the last one's")
		seeds    = flags.Int("seeds", 3, "seeds, each of which has a run offline and one live")
		within   = flags.Float64("within", 0.1, "by how much live may be off")
		out      = flags.String("json", "", "write every run's figures to this file")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	f.engine = []string{"--cost=" + *cost, "--max-total-tokens=" + strconv.Itoa(*kv), "--context-length=131072"}
	if f.weir == "" {
		dir, err := os.MkdirTemp("", "liveoffline")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		f.weir = filepath.Join(dir, "weir")
		if err := lab.Build(ctx, f.weir, stderr); err != nil {
			return err
		}
	}
	full, err := f.saturation(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "workload  %s\nfleet     %d x weir engine %s\n", f.workload(), f.engines, strings.Join(f.engine, " "))
	var pairs []pair
	for seed := range uint64(*seeds) {
		for policy := range strings.SplitSeq(*policies, ",") {
			p := pair{Policy: policy, Seed: seed + 1}
			if p.Offline, err = f.offline(ctx, &p); err != nil {
				return fmt.Errorf("%s offline: %w", policy, err)
			}
			if p.Live, err = f.live(ctx, &p); err != nil {
				return fmt.Errorf("%s live: %w", policy, err)
			}
			fmt.Fprintf(stderr, "%s, seed %d: offline %+v, live %+v\n", p.Policy, p.Seed, p.Offline, p.Live)
			pairs = append(pairs, p)
		}
	}
	if err := lab.WriteJSON(*out, pairs); err != nil {
		return err
	}
	var problems []error
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "policy\tutilisation\trequests\t\tprompt\t\ttpot p50 ms\t\tttft p50 ms\t\tlive/offline\tcached\t\tlive/offline\t")
	fmt.Fprintln(t, "\t\toffline\tlive\toffline\tlive\toffline\tlive\toffline\tlive\t\toffline\tlive\t\t")
	for policy := range strings.SplitSeq(*policies, ",") {
		off, live := means(pairs, policy)
		ttft, cached := live.TTFT/off.TTFT, live.Cached/off.Cached
		fmt.Fprintf(t, "%s\t%.2f\t%d\t%d\t%.0f\t%.0f\t%.1f\t%.1f\t%.0f\t%.0f\t%.3f\t%.3f\t%.3f\t%.3f\t\n", policy, float64(off.Requests)/f.duration.Seconds()/full,
			off.Requests, live.Requests, off.Prompt, live.Prompt, off.TPOT, live.TPOT, off.TTFT, live.TTFT, ttft, off.Cached, live.Cached, cached)
		for what, ratio := range map[string]float64{"median time to the first token": ttft, "cached share": cached} {
			if !(math.Abs(ratio-1) <= *within) {
				problems = append(problems, fmt.Errorf("%s: the %s is %.3f of what offline said", policy, what, ratio))
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if names := strings.Split(*policies, ","); *beside && len(names) > 1 {
		first, last := names[0], names[len(names)-1]
		off, live := means(pairs, first)
		lastOff, lastLive := means(pairs, last)
		fmt.Fprintf(stdout, "%s over %s: TTFT p50 %.3f live and %.3f offline, p99 %.3f live and %.3f offline\n", first, last,
			live.TTFT/lastLive.TTFT, off.TTFT/lastOff.TTFT, live.TTFT99/lastLive.TTFT99, off.TTFT99/lastOff.TTFT99)
	}
	return errors.Join(problems...)
}

// means returns the mean figures of a policy's runs.
func means(pairs []pair, policy string) (off, live figures) {
	n := 0
	for _, p := range pairs {
		if p.Policy == policy {
			n++
			off.add(p.Offline)
			live.add(p.Live)
		}
	}
	for _, f := range []*figures{&off, &live} {
		*f = figures{f.TTFT / float64(n), f.TTFT99 / float64(n), f.Cached / float64(n), f.TPOT / float64(n), f.Requests / n, f.Prompt / float64(n)}
	}
	return off, live
}

func (f *figures) add(o figures) {
	*f = figures{f.TTFT + o.TTFT, f.TTFT99 + o.TTFT99, f.Cached + o.Cached, f.TPOT + o.TPOT, f.Requests + o.Requests, f.Prompt + o.Prompt}
}

// cell is the part that is read of a cell of `weir fleet --json`.
type cell struct {
	Runs []struct {
		Speed    float64 `json:"speed"`
		Requests int     `json:"requests"`
		Prompt   float64 `json:"prompt_tokens"`
		Cached   float64 `json:"cache_hit_rate"`
		TTFT     struct {
			P50 float64 `json:"p50"`
			P99 float64 `json:"p99"`
		} `json:"ttft_ms"`
		TPOT struct {
			P50 float64 `json:"p50"`
		} `json:"tpot_ms"`
	} `json:"runs"`
}

func (f *fleet) offlineRun(ctx context.Context, workload, policy string, more ...string) (c cell, err error) {
	args := append([]string{"fleet", workload, "--engines=" + strconv.Itoa(f.engines), "--json=-"}, chosenBy(policy)...)
	args = append(args, more...)
	var study struct {
		Cells []cell `json:"cells"`
	}
	if err := f.command(ctx, &study, append(args, f.engine...)); err != nil {
		return c, err
	}
	if len(study.Cells) != 1 || len(study.Cells[0].Runs) != 1 {
		return c, errors.New("weir fleet wrote another number of runs than one")
	}
	return study.Cells[0], nil
}

// chosenBy returns the flags of a policy, which weir fleet and weir serve share.
func chosenBy(policy string) []string {
	name, queued := strings.CutSuffix(policy, "+queue")
	if queued {
		return []string{"--policy=" + name, "--queue=on"}
	}
	return []string{"--policy=" + name, "--queue=off"}
}

// saturation returns the requests a second at a utilisation of 1.
func (f *fleet) saturation(ctx context.Context) (float64, error) {
	const rate, span = 1, 600
	c, err := f.offlineRun(ctx, fmt.Sprintf("synthetic:rate=%d,duration=%ds,%s", rate, span, f.sessions), "round-robin", "--utilisation=1")
	if err != nil {
		return 0, fmt.Errorf("saturation: %w", err)
	}
	return float64(c.Runs[0].Requests) / span * c.Runs[0].Speed, nil
}

func (f *fleet) offline(ctx context.Context, p *pair) (g figures, err error) {
	c, err := f.offlineRun(ctx, f.workload(), p.Policy, "--seed="+strconv.FormatUint(p.Seed, 10))
	if err != nil {
		return g, err
	}
	r := c.Runs[0]
	return figures{r.TTFT.P50, r.TTFT.P99, r.Cached, r.TPOT.P50, r.Requests, r.Prompt / float64(r.Requests)}, nil
}

// live starts the engines and the gateway, and runs the client against them.
func (f *fleet) live(ctx context.Context, p *pair) (g figures, err error) {
	var processes []*lab.Process
	defer func() {
		for i := len(processes) - 1; i >= 0; i-- {
			processes[i].Stop()
		}
	}()
	start := func(line string, args ...string) (*lab.Process, string, error) {
		q, err := lab.Start(append([]string{f.weir}, args...), lab.Environment())
		if err != nil {
			return nil, "", err
		}
		processes = append(processes, q)
		addr, err := q.AwaitLine(ctx, line)
		return q, addr, err
	}
	serve := []string{"serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--log-level=error"}
	serve = append(serve, chosenBy(p.Policy)...)
	for i := range f.engines {
		_, addr, err := start("weir ", append([]string{"engine", "--wire=weir=127.0.0.1:0"}, f.engine...)...)
		if err != nil {
			return g, fmt.Errorf("engine: %w", err)
		}
		serve = append(serve, fmt.Sprintf("--engine=weir=%s,name=e%d", addr, i+1))
	}
	gateway, url, err := start("gateway ", serve...)
	if err != nil {
		return g, fmt.Errorf("gateway: %w", err)
	}
	admin, err := gateway.AwaitLine(ctx, "admin ")
	if err != nil {
		return g, fmt.Errorf("gateway: %w", err)
	}
	if err := f.ready(ctx, admin); err != nil {
		return g, err
	}
	var r struct {
		Requests int     `json:"requests"`
		Complete int     `json:"complete"`
		Prompt   float64 `json:"prompt_tokens"`
		TTFT     struct {
			P50 float64 `json:"p50"`
			P99 float64 `json:"p99"`
		} `json:"ttft_ms"`
		TPOT struct {
			P50 float64 `json:"p50"`
		} `json:"tpot_ms"`
	}
	if err := f.command(ctx, &r, []string{"bench", url, "--workload=" + f.workload(), "--field=ignore_eos=true", "--seed=" + strconv.FormatUint(p.Seed, 10), "--admin=off", "--json=-"}); err != nil {
		return g, err
	}
	if r.Complete != r.Requests {
		return g, fmt.Errorf("%d of %d requests are complete", r.Complete, r.Requests)
	}
	told, err := metric(ctx, admin, "weir_engine_reporting_prompt_tokens_total")
	if err != nil {
		return g, err
	}
	cached, err := metric(ctx, admin, "weir_engine_reported_cached_tokens_total")
	return figures{r.TTFT.P50, r.TTFT.P99, cached / told, r.TPOT.P50, r.Requests, r.Prompt / float64(r.Requests)}, err
}

// ready waits until the gateway has all engines.
func (f *fleet) ready(ctx context.Context, admin string) error {
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		n, err := metric(within, admin, "weir_engine_ready")
		if err != nil {
			return fmt.Errorf("the gateway has not all engines: %w", err)
		}
		if n == float64(f.engines) {
			return nil
		}
		<-poll.C
	}
}

// command runs weir and reads the JSON that it writes.
func (f *fleet) command(ctx context.Context, v any, args []string) error {
	var said bytes.Buffer
	c := exec.CommandContext(ctx, f.weir, args...)
	c.Env, c.Stderr = lab.Environment(), &said
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("weir %s: %w: %.500s", args[0], err, bytes.TrimSpace(said.Bytes()))
	}
	return json.Unmarshal(out, v)
}

// metric returns the sum of a gateway's metric over its labels.
func metric(ctx context.Context, admin, name string) (sum float64, err error) {
	families, err := lab.Scrape(ctx, admin+"/metrics")
	if err != nil {
		return 0, err
	}
	return lab.Sum(families[name]), nil
}
