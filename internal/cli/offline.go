package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"weir/internal/disk"
	"weir/internal/load"
	"weir/internal/load/live"
	"weir/internal/model"
	"weir/internal/sim"
	"weir/internal/sim/offline"
	"weir/internal/workload"
)

// offlineFlags are those of weir engine --offline.
type offlineFlags struct {
	Offline       string        `placeholder:"TRACE" help:"Replay a trace on virtual time, print the engine's figures and exit, instead of serving. TRACE is a FILE in the format of Mooncake, Azure or BurstGPT, KIND:FILE, - for standard input, or synthetic:SETTINGS."`
	Seed          uint64        `default:"1" placeholder:"N" help:"Seed of prompts, and of the arrivals and lengths of a synthetic workload (${default})."`
	TraceSpeed    float64       `default:"1" placeholder:"X" help:"Divide the trace's arrival times by X: 2 doubles its rate (${default})."`
	TraceRequests int           `default:"0" placeholder:"N" help:"Replay only the first N requests. 0 is all."`
	TraceDuration time.Duration `default:"0s" placeholder:"D" help:"Replay only the requests that arrive within this virtual time. 0 is all."`
	TraceBlock    int           `default:"512" placeholder:"N" help:"Tokens per hash id of a Mooncake trace (${default})."`
	JSON          string        `name:"json" type:"path" placeholder:"FILE" help:"Write the report as JSON; - prints it instead of the text."`
	JSONL         string        `name:"jsonl" type:"path" placeholder:"FILE" help:"Write a JSON line for each request: its stamps in nanoseconds and its numbers of tokens."`
}

// offlineOnly are the flags that need --offline, and coreFlags those of the engine's core,
// which are all the others that it takes.
var (
	offlineOnly = []string{"seed", "trace-speed", "trace-requests", "trace-duration", "trace-block", "json", "jsonl"}
	coreFlags   = []string{
		"max-running-requests", "max-queued-requests", "cost", "prefill-cost", "decode-cost", "context-length", "chunked-prefill-size",
		"max-total-tokens", "schedule-conservativeness", "page-size", "dp-size", "stream-interval", "speculation", "model", "offline",
	}
)

// offlineHelp is the part of weir engine's help that is about --offline and cost
// models.
func offlineHelp() string {
	var b strings.Builder
	b.WriteString(`
  weir engine --offline trace.jsonl --cost profile=llama-3.1-8b-h100
  weir engine --offline azure.csv --trace-speed 2 --cost table=measured.csv --json report.json
  weir engine --offline 'synthetic:rate=7,duration=1h,input=lognormal(2000,2500),output=exponential(200)'

Settings of a synthetic workload, separated by commas:
  rate=R | ramp(FROM,TO,TIME) | steps(R:TIME,...)   requests per second, with
  arrival=poisson | constant | gamma(CV)            the distribution of their gaps; or
  concurrency=N, think=TIME                         a closed loop of N users
  duration=TIME, requests=N                         end of the workload
  input=LENGTHS, output=LENGTHS                     tokens: N, uniform(MIN,MAX),
                                                    lognormal(MEAN,SD), exponential(MEAN)
  prefix=LENGTHS, groups=N, zipf=S                  shared prefixes of groups of prompts; or
  texts=FILE                                        prompts and lengths of conversations in ShareGPT's format

Cost profiles, with published figures of real engines (--cost profile=NAME):
`)
	for _, p := range sim.Profiles() {
		fmt.Fprintf(&b, "  %-24s %s; KV %d tokens\n", p.Name, p.What, p.KVTokens)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// cost makes the cost model that the flags ask for.
func (f *simFlags) cost() (sim.CostModel, error) {
	kind, value, given := strings.Cut(f.Cost, "=")
	switch {
	case f.Cost == "per-batch":
		return sim.PerBatch{}, nil
	case f.Cost == "constant":
		return sim.Constant{Prefill: f.PrefillCost, Decode: f.DecodeCost}, nil
	case kind == "table" && given:
		data, err := disk.ReadOnce(value, disk.MaxTable)
		if err != nil {
			return nil, fmt.Errorf("--cost: %w", err)
		}
		table, err := sim.ReadTable(bytes.NewReader(data), value)
		if err != nil {
			return nil, fmt.Errorf("--cost: %w", err)
		}
		return table, nil
	case kind == "profile" && given:
		var names []string
		for _, p := range sim.Profiles() {
			if p.Name == value {
				return p.Cost, nil
			}
			names = append(names, p.Name)
		}
		return nil, wrongf("--cost: there is no profile %q; the profiles are %s", value, strings.Join(names, ", "))
	}
	return nil, wrongf("--cost %s: must be per-batch, constant, table=FILE or profile=NAME", f.Cost)
}

// checkOffline refuses flags that do not go together.
func (c *engineCommand) checkOffline(k *kong.Context) error {
	for _, p := range k.Path {
		if p.Flag == nil || !slices.Contains(k.Selected().Flags, p.Flag) {
			continue
		}
		switch name := p.Flag.Name; {
		case slices.Contains(offlineOnly, name):
			if c.Offline == "" {
				return wrongf("--%s belongs to --offline TRACE", name)
			}
		case c.Offline != "" && !slices.Contains(coreFlags, name):
			return wrongf("--offline serves nothing and takes its requests from the trace: drop --%s", name)
		}
	}
	if c.TraceSpeed <= 0 || c.TraceRequests < 0 || c.TraceDuration < 0 || c.TraceBlock <= 0 {
		return wrongf("--trace-speed and --trace-block must be positive, --trace-requests and --trace-duration not negative")
	}
	return nil
}

// replay carries out --offline.
func (c *engineCommand) replay(ctx context.Context, s *streams, engine sim.Options, m *servedModel) error {
	if err := speakModel(&engine, m); err != nil {
		return err
	}
	var files openFiles
	defer files.close()
	work, err := c.openWorkload(s, m, &files)
	if err != nil {
		return err
	}
	o := offline.Options{Engine: engine, Workload: work}
	progress := newProgressLine(s.err)
	if progress != nil {
		o.OnProgress = progress.show
	}
	var records *output
	if c.JSONL != "" {
		if records, err = create(c.JSONL); err != nil {
			return err
		}
		o.OnRequest = func(r *offline.Record) error { return r.WriteJSONL(records) }
	}
	start := time.Now()
	report, err := offline.Run(ctx, o)
	progress.clear()
	if records != nil {
		err = errors.Join(err, records.close())
	}
	if err != nil {
		return err
	}
	report.RealSeconds = time.Since(start).Seconds()
	report.Workload, report.Cost, report.Seed = fmt.Sprintf("%s (%s)", c.Offline, work.Kind), c.Cost, c.Seed
	if work.Kind == workload.SyntheticKind {
		report.Workload = c.Offline
	}
	if c.Cost == "constant" {
		report.Cost = fmt.Sprintf("constant, prefill %v, decode %v", c.PrefillCost, c.DecodeCost)
	}
	return c.print(report, s.out)
}

// openFiles are files that are read until the replay ends.
type openFiles []*os.File

func (o *openFiles) open(name string) (io.Reader, error) {
	f, err := disk.OpenOnce(name)
	if err != nil {
		return nil, err
	}
	*o = append(*o, f)
	return f, nil
}

func (o *openFiles) close() {
	for _, f := range *o {
		f.Close()
	}
}

// openWorkload opens what --offline names.
func (c *engineCommand) openWorkload(s *streams, m *servedModel, files *openFiles) (*workload.Workload, error) {
	o := workload.Options{
		Seed: c.Seed, Block: c.TraceBlock, Speed: c.TraceSpeed, Requests: c.TraceRequests, For: c.TraceDuration,
		Open: files.open, Encode: plain(m.folder),
	}
	kind, rest := workload.SplitSpec(c.Offline)
	if kind == workload.SyntheticKind {
		w, err := workload.NewSynthetic(rest, o)
		if err != nil {
			return nil, wrongf("--offline: %w", err)
		}
		return w, nil
	}
	in, name := s.in, "standard input"
	if rest != "-" {
		var err error
		if in, err = files.open(rest); err != nil {
			return nil, fmt.Errorf("--offline: %w", err)
		}
		name = rest
	}
	w, err := workload.NewTrace(in, name, kind, o)
	if err != nil {
		return nil, fmt.Errorf("--offline: %w", err)
	}
	return w, nil
}

// print writes the report where the flags say.
func (c *engineCommand) print(report *offline.Report, out io.Writer) error {
	if c.JSON == "-" {
		return load.WriteJSON(out, report)
	}
	if err := report.Text(out); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if c.JSON == "" {
		return nil
	}
	f, err := create(c.JSON)
	if err != nil {
		return err
	}
	return errors.Join(load.WriteJSON(f, report), f.close())
}

// output is a file that is written through a buffer; a full disk is an error,
// not a short file.
type output struct {
	*bufio.Writer
	file *os.File
}

func create(path string) (*output, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &output{bufio.NewWriter(f), f}, nil
}

// close writes the rest; if both fail, the first error is the cause.
func (o *output) close() error {
	err := o.Flush()
	if closed := o.file.Close(); err == nil {
		err = closed
	}
	return err
}

// progressLine shows how far a replay is on one line of a terminal.
type progressLine struct {
	w           io.Writer
	start, next time.Time
	shown       bool
}

// progressEvery is often enough to see it move.
const progressEvery = 200 * time.Millisecond

// newProgressLine returns nil where w is not a terminal.
func newProgressLine(w io.Writer) *progressLine {
	if _, ok := live.Terminal(w); !ok {
		return nil
	}
	now := time.Now()
	return &progressLine{w: w, start: now, next: now.Add(progressEvery)}
}

func (l *progressLine) show(p offline.Progress) {
	now := time.Now()
	if now.Before(l.next) {
		return
	}
	l.next, l.shown = now.Add(progressEvery), true
	fmt.Fprintf(l.w, "\r\x1b[K%v virtual, %d requests, %d running, %d waiting, %d tokens out, %.0f times as fast",
		p.Virtual.Round(time.Second), p.Taken, p.Running, p.Waiting, p.Generated, p.Virtual.Seconds()/now.Sub(l.start).Seconds())
}

func (l *progressLine) clear() {
	if l != nil && l.shown {
		fmt.Fprint(l.w, "\r\x1b[K")
	}
}

// plain encodes texts as they are.
func plain(m *model.Folder) func(text string) ([]uint32, error) {
	return func(text string) ([]uint32, error) { return m.Encode(text, false) }
}
