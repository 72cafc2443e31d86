//go:build linux

package scenario

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/internal/lab"
	"weir/internal/load"
	"weir/internal/trace"
	"weir/internal/workload"
	"weir/internal/workload/content"
)

// The tenants scenario: two engines, ten times what they can do, a hundred tenants with a key
// each, one of whom sends nearly all.
const (
	tenantCount   = 100
	tenantLoad    = 10.0
	tenantGreedy  = 0.95 // of the requests
	tenantEngines = 2
	tenantStreams = 128 // that the engines run at once, together
	tenantMost    = 256
	// Engines and requests are those of bench/fairness, which has the same on virtual time.
	tenantCost   = "profile=llama-3.1-8b-h100"
	tenantTokens = 400_000 // of an engine's KV cache
	tenantWork   = "input=lognormal(1500,2000),output=lognormal(200,200)"
	// tenantQueue is --max-queue, for each request that the engines run at once: a full queue
	// takes them some 3 s.
	tenantQueue = 1
	// tenantLeast is the shortest load.
	tenantLeast = 2 * time.Second

	// The figures: each of the others gets at least tenantShare of what it asks for, which is
	// less than a hundredth of the engines, and TTFT p99 is at most tenantTimes what it is
	// without the greedy tenant.
	tenantShare = 0.85
	tenantTimes = 2.0
	// tenantLost is how much of the engines' time the machine may lose.
	tenantLost = 0.02
)

// The three runs: without the greedy tenant, with it, and with one key for all, so that
// requests take turns by arrival.
const (
	withoutGreedy = "without"
	withGreedy    = "by shares"
	oneKey        = "one key"
)

// Tenanted is one run of tenants. Its figures belong to the tenants that are not greedy, and to
// the requests that came after the first quarter of the load, in which an idle fleet fills.
type Tenanted struct {
	Run string `json:"run"`
	// NotMeasured is why there are no figures.
	NotMeasured string `json:"not_measured,omitempty"`

	Capacity float64 `json:"engines_can_do_per_second"`
	Offered  float64 `json:"offered_per_second"`
	Asked    int     `json:"asked"`
	Served   int     `json:"served"`
	// Least is the share of its demand that the worst served tenant got.
	Least  float64 `json:"least_served_share"`
	TTFT50 float64 `json:"ttft_p50_seconds"`
	TTFT99 float64 `json:"ttft_p99_seconds"`

	// Greedy and Refused are rates: the greedy tenant's requests that were served, and all
	// that were refused with 429.
	Greedy  float64 `json:"greedy_served_per_second"`
	Refused float64 `json:"refused_per_second"`
	// Failed were neither served nor refused, of all requests of all tenants.
	Failed     int     `json:"failed"`
	FirstError string  `json:"first_error,omitempty"`
	LostTokens int     `json:"lost_tokens"`
	Corrupt    int     `json:"repeated_or_wrong"` // requests
	Lost       float64 `json:"engine_lost_share"` // of their time, which the machine had not for the engines
}

// fair reports whether a run has both figures beside the run without the greedy tenant.
func (x *Tenanted) fair(without *Tenanted) (share, soon bool) {
	return x.Least >= tenantShare, x.Served > 0 && x.TTFT99 <= tenantTimes*without.TTFT99
}

// tenants offers a fleet ten times its capacity, of which one tenant sends nearly all. The
// control sends the same with one key for all: the others wait behind the greedy one.
func tenants(ctx context.Context, r *runner) *Report {
	report := &Report{Rows: []Row{}}
	words, err := simWords()
	if err != nil {
		return report.failed("the engines' words: %v", err)
	}
	callers, err := newTenantKeys(filepath.Join(r.dir, "keys.yaml"))
	if err != nil {
		return report.failed("the keys: %v", err)
	}
	each, err := r.replayed(ctx, fmt.Sprintf("synthetic:rate=%d,duration=2m,%s", r.options.Streams, tenantWork), r.tenantFlags())
	if err != nil {
		return report.failed("what the engines can do could not be found: %v", err)
	}
	capacity := each * tenantEngines
	fmt.Fprintf(r.options.Progress, "the engines can do %.1f requests/s, and are asked for %.4g times as much\n", capacity, tenantLoad)
	began, spent := time.Now(), spentByOthers()
	for _, run := range []string{withoutGreedy, withGreedy, oneKey} {
		fmt.Fprintf(r.options.Progress, "%-9s %d tenants ... ", run, tenantCount-one(run == withoutGreedy))
		x := Tenanted{Run: run, Capacity: capacity}
		err := r.tenanted(ctx, &x, callers, words)
		if r.interrupted(ctx) {
			return report
		}
		if err != nil {
			x.NotMeasured = r.unmeasured(err)
		} else {
			fmt.Fprintf(r.options.Progress, "%d of %d of the others' served, TTFT p99 %.3f s\n", x.Served, x.Asked, x.TTFT99)
		}
		report.Tenants = append(report.Tenants, x)
	}
	report.Others = max(spentByOthers()-spent, 0) / time.Since(began).Seconds()
	report.Verdicts = judgeTenants(report.Tenants)
	return report
}

// tenantFlags are those of an engine.
func (r *runner) tenantFlags() []string {
	return []string{"--cost", tenantCost, "--max-total-tokens", strconv.Itoa(tenantTokens), "--max-running-requests", strconv.Itoa(r.tenantRunning())}
}

// tenantRunning is how many requests an engine runs at once.
func (r *runner) tenantRunning() int { return max(1, r.options.Streams/tenantEngines) }

// tenantLasts is how long each of the three loads lasts. The rest of the run is for starting
// processes, and for what waits at a load's end.
func tenantLasts(o *Options) time.Duration { return o.Duration / 4 }

// checkTenants checks the options of tenants.
func (o *Options) checkTenants() error {
	if o.Streams > tenantMost {
		return Invalid{"--streams", fmt.Errorf("%d engines' requests at once are more than this machine can ask ten times of; give at most %d", o.Streams, tenantMost)}
	}
	if tenantLasts(o) < tenantLeast {
		return Invalid{"--duration", fmt.Errorf("%v is too short for three loads; give at least %v", o.Duration, 4*tenantLeast)}
	}
	return nil
}

// tenantKeys are the keys of the tenants, the greedy one's first, and the file with their
// hashes.
type tenantKeys struct {
	file string
	keys []string
}

// newTenantKeys writes a keys file.
func newTenantKeys(file string) (*tenantKeys, error) {
	all := &tenantKeys{file: file}
	text := "keys:\n"
	for i := range tenantCount {
		key := "weir_" + rand.Text()
		all.keys = append(all.keys, key)
		text += fmt.Sprintf("  key-%d: {hash: \"sha256:%x\", tenant: tenant-%d}\n", i, sha256.Sum256([]byte(key)), i)
	}
	return all, os.WriteFile(file, []byte(text), 0o600)
}

// tenanted carries out one run: each tenant's requests come at its own rate, with its key, and
// all that have come are waited for.
func (r *runner) tenanted(ctx context.Context, x *Tenanted, callers *tenantKeys, words *content.Words) error {
	b, err := r.startBed(ctx, bedding{
		name: strings.ReplaceAll(x.Run, " ", "-"), gateway: lab.Plane, engines: tenantEngines, engine: r.tenantFlags(),
		options: ",max-running=" + strconv.Itoa(r.tenantRunning()),
		serve:   []string{"--queue", "on", "--max-queue", strconv.Itoa(tenantQueue * r.options.Streams), "--keys", callers.file},
	})
	defer b.stop()
	if err != nil {
		return err
	}
	lasts := tenantLasts(&r.options)
	starts := time.Now().Add(500 * time.Millisecond)
	from := trace.Stamp(starts) + int64(lasts/4)
	seen := &tenantsSeen{from: from, to: trace.Stamp(starts) + int64(lasts)}
	lost, err := b.lost(ctx)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	errs, reports := make([]error, tenantCount), make([]*load.Report, tenantCount)
	for i := range tenantCount {
		if i == 0 && x.Run == withoutGreedy {
			continue
		}
		rate := x.Capacity * tenantLoad * tenantGreedy
		if i > 0 {
			rate = x.Capacity * tenantLoad * (1 - tenantGreedy) / (tenantCount - 1)
		}
		x.Offered += rate
		key := callers.keys[i]
		if x.Run == oneKey {
			key = callers.keys[0]
		}
		seed := uint64(i + 1)
		w, err := workload.NewSynthetic(fmt.Sprintf("rate=%.5f,duration=%v,%s", rate, lasts, tenantWork), workload.Options{Seed: seed, Texts: true})
		if err != nil {
			return err
		}
		all.Go(func() {
			reports[i], errs[i] = load.Run(running, load.Plan{
				URL: b.url, Model: "weir-sim", Workload: w, Seed: seed, StartAt: starts, Body: map[string]any{"ignore_eos": true}, Verify: words,
				Header:   map[string]string{"Authorization": "Bearer " + key},
				OnSample: func(s *load.Sample) { seen.take(i, s) },
			})
			if errs[i] != nil {
				stop() // the others' figures would say nothing
			}
		})
	}
	all.Wait()
	if err := cmp.Or(ctx.Err(), errors.Join(errs...)); err != nil {
		return err
	}
	for _, report := range reports {
		if report != nil {
			x.LostTokens, x.Corrupt = x.LostTokens+report.Lost, x.Corrupt+report.Corrupt
		}
	}
	seen.figures(x)
	after, err := b.lost(ctx)
	x.Lost = (after - lost) / (tenantEngines * lasts.Seconds())
	return err
}

// tenantsSeen are the requests of a run. Those count that were to come within a span.
type tenantsSeen struct {
	from, to int64

	mu             sync.Mutex
	asked, served  [tenantCount]int
	ttft           []float64 // of the others
	refused, wrong int
	first          string
}

func (s *tenantsSeen) take(tenant int, x *load.Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := x.Outcome == load.Errored && x.Status == statusRefused
	if x.Outcome != load.Complete && !refused {
		if s.wrong++; s.first == "" {
			s.first = fmt.Sprintf("%s: %.200s", cmp.Or(string(x.Kind), x.Outcome.String()), x.Detail)
		}
	}
	if x.Intended < s.from || x.Intended >= s.to {
		return
	}
	s.asked[tenant]++
	s.refused += one(refused)
	if x.Outcome == load.Complete {
		s.served[tenant]++
		if tenant > 0 {
			s.ttft = append(s.ttft, float64(x.FirstToken-x.Intended)/1e9)
		}
	}
}

func (s *tenantsSeen) figures(x *Tenanted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.Least = math.Inf(1)
	for i := 1; i < tenantCount; i++ {
		x.Asked, x.Served = x.Asked+s.asked[i], x.Served+s.served[i]
		if s.asked[i] > 0 {
			x.Least = min(x.Least, float64(s.served[i])/float64(s.asked[i]))
		}
	}
	if x.Asked == 0 {
		x.Least = 0
	}
	slices.Sort(s.ttft)
	x.TTFT50, x.TTFT99 = percentile(s.ttft, 0.5), percentile(s.ttft, 0.99)
	seconds := float64(s.to-s.from) / 1e9
	x.Greedy, x.Refused = float64(s.served[0])/seconds, float64(s.refused)/seconds
	x.Failed, x.FirstError = s.wrong, s.first
}

// judgeTenants judges the three runs.
func judgeTenants(rows []Tenanted) (verdicts []Verdict) {
	must := fmt.Sprintf("the control, one key for all, gives a tenant less than %.0f %% of its share, and takes more than %.4g times as long", 100*tenantShare, tenantTimes)
	of := map[string]*Tenanted{}
	var lost, corrupt, failed int
	var first string
	for i := range rows {
		x := &rows[i]
		if x.NotMeasured != "" {
			verdicts = append(verdicts, verdict(false, Failed, "%s was not measured: %s", x.Run, x.NotMeasured))
			continue
		}
		of[x.Run] = x
		lost, corrupt, failed, first = lost+x.LostTokens, corrupt+x.Corrupt, failed+x.Failed, cmp.Or(first, x.FirstError)
	}
	without, with, control := of[withoutGreedy], of[withGreedy], of[oneKey]
	if without == nil || with == nil || control == nil {
		return append(verdicts, verdict(false, Failed, "%s: it was not run beside the others", must))
	}
	times := func(x *Tenanted) float64 { return x.TTFT99 / max(without.TTFT99, 0.001) }
	share, soon := with.fair(without)
	// A run without the greedy tenant that the machine has held up flatters the others.
	soon = soon && without.Lost <= tenantLost
	verdicts = append(verdicts,
		verdict(lost == 0 && corrupt == 0, Failed, "weir loses no token: %d lost, %d answers with repeated or wrong ones", lost, corrupt),
		verdict(failed == 0, Failed, "requests are served or refused with 429, and end in no other way: %s did", example(failed, first)),
		figure(without.Asked > 0 && without.Served == without.Asked, "without the greedy tenant all requests are served: %d of %d", without.Served, without.Asked),
		figure(share, "each of the other %d tenants gets at least %.0f %% of its share: the least is %.1f %%, and %d of %d requests are served", tenantCount-1, 100*tenantShare, 100*with.Least, with.Served, with.Asked),
		figure(soon, "their TTFT p99 is at most %.4g times what it is without the greedy one: %.2f times, %.3f s and %.3f s", tenantTimes, times(with), with.TTFT99, without.TTFT99))
	if lost := max(with.Lost, without.Lost); !soon && lost > tenantLost {
		verdicts[len(verdicts)-1].Text += fmt.Sprintf("; the machine had no time for the engines for %.0f %% of theirs", 100*lost)
	}
	share, soon = control.fair(without)
	v := verdict(!share && !soon, Failed, "%s: %.1f %%, %.1f times", must, 100*control.Least, times(control))
	if v.Outcome == Failed {
		v.Text += "; it kept up, so this run shows nothing: give it more --duration"
	}
	return append(verdicts, v)
}

// tenantsTable is the rows for a person.
func tenantsTable(rows []Tenanted) (table [][]string) {
	table = [][]string{
		{"run", "offered", "engines", "the others'", "", "least", "TTFT", "", "greedy's", "refused", "failed", "lost", "engines'"},
		{"", "/s", "can do", "asked", "served", "share %", "p50 s", "p99 s", "served /s", "/s", "", "", "lost %"},
	}
	for _, x := range rows {
		if x.NotMeasured != "" {
			continue // its verdict says why
		}
		table = append(table, []string{x.Run, fmt.Sprintf("%.1f", x.Offered), fmt.Sprintf("%.1f", x.Capacity), fmt.Sprint(x.Asked), fmt.Sprint(x.Served), fmt.Sprintf("%.1f", 100*x.Least),
			fmt.Sprintf("%.3f", x.TTFT50), fmt.Sprintf("%.3f", x.TTFT99), fmt.Sprintf("%.1f", x.Greedy), fmt.Sprintf("%.1f", x.Refused), fmt.Sprint(x.Failed), fmt.Sprint(x.LostTokens), fmt.Sprintf("%.1f", 100*x.Lost)})
	}
	return table
}
