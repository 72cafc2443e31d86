package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/disk"
	"weir/internal/lab/calibrate"
	"weir/internal/load"
	"weir/internal/load/experiment"
	"weir/internal/load/live"
	"weir/internal/load/report"
	"weir/internal/model"
	"weir/internal/model/tokenizer"
	"weir/internal/workload"
	"weir/internal/workload/content"
	"weir/models"
)

// benchProcess is the hidden command by which weir starts this binary anew as one of
// the processes of a scenario or a calibration: an engine, a control or the client.
const benchProcess = "bench-process"

type benchCommand struct {
	URL string `arg:"" optional:"" help:"Base URL of an OpenAI-compatible server or an SGLang server, for example http://127.0.0.1:8000."`

	targetFlags    `group:"The server:"`
	paceFlags      `group:"When requests are sent, and how many:"`
	contentFlags   `group:"What each request contains:"`
	severalFlags   `group:"Several runs:"`
	readingFlags   `group:"How answers are read:"`
	workerFlags    `group:"Several generators for one load:"`
	runOutputFlags `group:"Output:"`

	// Options of other commands now. They are parsed to name the new command.
	Scenario   string `hidden:"" env:"-" help:"Replaced by weir scenario NAME."`
	Streams    int    `hidden:"" env:"-" help:"Belonged to --scenario."`
	Experiment string `hidden:"" env:"-" help:"Replaced by weir experiment FILE."`
}

// targetFlags name the server and its model.
type targetFlags struct {
	API       string `default:"openai-chat" enum:"openai-chat,openai-completions,sglang-generate" help:"API to call: ${enum} (${default})."`
	Model     string `placeholder:"NAME" help:"Model to ask for. By default weir-sim if the server lists it, otherwise the first one listed."`
	Tokenizer string `placeholder:"DIR" help:"The model's Hugging Face folder. Prompts then have exactly --input-tokens tokens, chat template included. Without it lengths are approximate, except for model weir-sim, which is built in."`
	Admin     string `default:"auto" placeholder:"URL" help:"Admin listener of the weir gateway under load, whose timeline is joined to the requests. auto tries the port after the URL's; off joins nothing (${default})."`
}

// paceFlags decide when requests are sent and how many.
type paceFlags struct {
	Concurrency experiment.Values `placeholder:"N" help:"Closed loop: number of requests in flight. A list or range, such as 1,8,64 or 1..64x2, makes a sweep: one run after the other."`
	Rate        experiment.Values `placeholder:"R" help:"Open loop: requests per second, no matter how many are in flight. A list or range, such as 1,2,4,8 or 10..100+10, makes a sweep."`
	Arrival     string            `default:"poisson" enum:"poisson,constant,gamma" help:"Arrivals of the open loop: ${enum} (${default})."`
	CV          float64           `name:"cv" placeholder:"X" help:"With --arrival gamma: coefficient of variation of the gaps. 1 is a Poisson process; a higher value makes bursts."`
	Burstiness  float64           `placeholder:"K" help:"The same in the form of vLLM's bench: shape of the gamma distribution, 1/CV². A value below 1 makes bursts."`
	Requests    int               `placeholder:"N" help:"Total number of requests to send."`
	Duration    time.Duration     `placeholder:"D" help:"Time during which requests are started."`
	Workload    string            `placeholder:"SPEC" help:"Take arrivals and lengths from a workload, in place of --rate, --concurrency and the lengths: a trace FILE in the format of Mooncake, Azure or BurstGPT, KIND:FILE, or synthetic:SETTINGS, as weir engine --offline takes them (docs/offline.md). Synthetic workloads have ramps, steps, random lengths, shared prefixes and users who hold conversations."`
	TraceSpeed  float64           `default:"1" placeholder:"X" help:"Divide a trace's arrival times by X: 2 doubles its rate (${default})."`
	TraceBlock  int               `default:"512" placeholder:"N" help:"Tokens per hash id of a Mooncake trace (${default})."`
	Seed        uint64            `default:"1" help:"Seed of prompts and arrivals (${default})."`
	Timeout     time.Duration     `default:"10m" help:"Longest time that one request may take (${default})."`
}

// contentFlags shape the requests.
type contentFlags struct {
	InputTokens  int               `default:"32" placeholder:"N" help:"Length of each prompt in tokens (${default}); exact with --tokenizer."`
	OutputTokens int               `default:"64" placeholder:"N" help:"max_tokens of each request (${default})."`
	Image        []string          `sep:"none" placeholder:"FILE|URL" help:"Send an image with each chat, before its text. A file is sent as a data URL. Repeatable."`
	NoStream     bool              `help:"Ask for whole responses instead of streams."`
	Field        map[string]string `mapsep:";" placeholder:"NAME=JSON" help:"Another field of each request, for example --field ignore_eos=true. With sglang-generate, sampling parameters are put where they belong. Repeatable."`
	Header       []string          `sep:"none" placeholder:"'NAME: VALUE'" help:"A header of each request, for example --header 'X-Session-Id: a'. Repeatable."`
}

// severalFlags belong to sweeps and searches.
type severalFlags struct {
	Repeats   int     `default:"1" placeholder:"N" help:"In a sweep: number of runs of each rate or concurrency, in a random order that the seed decides (${default})."`
	SLO       string  `name:"slo" placeholder:"OBJECTIVES" help:"Search for the highest rate that meets objectives, such as ttft_p99=500ms,tpot_p99=50ms,success=99%. --rate may give the rate to begin with, or the ends of a range."`
	Tolerance float64 `default:"5" placeholder:"PERCENT" help:"With --slo: stop when the rate is known to within this many percent (${default})."`
	Trials    int     `default:"30" placeholder:"N" help:"With --slo: largest number of runs of the search (${default})."`
}

// readingFlags decide how answers are read and checked.
type readingFlags struct {
	Verify      string   `default:"auto" enum:"auto,on,off" help:"Check the text word by word, which is possible for weir's simulated engines only. auto checks model weir-sim (${default})."`
	HangUpAfter int      `placeholder:"N" help:"Hang up after N tokens of each stream."`
	ReadRate    byteSize `placeholder:"BYTES" help:"Read each stream no faster than this many bytes per second, such as 4KiB."`
	DelayAcks   bool     `help:"Delay TCP acknowledgements, which saves this machine and the server work for each event. Use it only with servers that set TCP_NODELAY: others wait for acknowledgements, and the wait would be measured."`
	Calibrate   bool     `help:"First measure the error of the load generator itself at this load, against a reference engine whose times are known. The report contains the result, and the verdict depends on it."`
}

// workerFlags make this process one of several load generators.
type workerFlags struct {
	Worker  string `placeholder:"K/N" help:"Be worker K of N on one open loop, on this or on several machines. Each worker sends every N-th request of the same schedule. Needs --start-at and --record; weir report --merge makes one report of all workers."`
	StartAt string `placeholder:"TIME" help:"Time at which the schedule begins: RFC 3339, or seconds since 1970, as in $(($(date +%s)+10))."`
	Record  string `type:"path" placeholder:"FILE" help:"Write everything that was measured, for weir report --merge."`
}

// runOutputFlags control what is shown and written of a run.
type runOutputFlags struct {
	sweepOutputFlags
	JSONL    string `name:"jsonl" type:"path" placeholder:"FILE" help:"Write a JSON object for each request, with all its attempts if the gateway's timeline is joined; - prints them instead of the report."`
	Perfetto string `type:"path" placeholder:"FILE" help:"Write the stages of each request as a trace for ui.perfetto.dev; - prints it instead of the report."`
}

// sweepOutputFlags are those of one run and of several.
type sweepOutputFlags struct {
	Progress live.Mode `default:"auto" enum:"auto,lines,plain,off" help:"Show progress on standard error: lines that are redrawn in place on a terminal, or a plain line every 5 s (${enum}; ${default})."`
	CSV      string    `name:"csv" type:"path" placeholder:"FILE" help:"Write a table: a row for each request, or for each run of several; - prints it instead of the report."`
	JSON     string    `name:"json" type:"path" placeholder:"FILE" help:"Write the report as one JSON object; - prints it instead of the text."`
	HTML     string    `name:"html" type:"path" placeholder:"FILE" help:"Write the report as one page with plots, which opens without a network; - prints it instead of the report."`
}

// Help implements kong's extended help.
func (benchCommand) Help() string {
	return `Examples:
  weir bench http://127.0.0.1:8000 --concurrency 512 --requests 2048 --field ignore_eos=true
  weir bench http://127.0.0.1:8000 --rate 50 --duration 30s --output-tokens 128 --csv requests.csv --html report.html
  weir bench http://127.0.0.1:8000 --concurrency 1000 --requests 4000 --calibrate
  weir bench http://127.0.0.1:8000 --rate 50 --arrival gamma --cv 3 --requests 3000 --jsonl requests.jsonl
  weir bench http://127.0.0.1:8000 --model my-model --tokenizer ~/models/my-model --input-tokens 1000 --concurrency 8 --requests 64
  weir bench http://127.0.0.1:30000 --api sglang-generate --verify off --concurrency 8 --requests 64 --json -
  weir bench http://127.0.0.1:8000 --workload mooncake.jsonl --trace-speed 2 --duration 10m --field ignore_eos=true
  weir bench http://127.0.0.1:8000 --workload 'synthetic:rate=ramp(1,30,2m),input=lognormal(800,600),output=200,prefix=1000,groups=20,zipf=1'
  weir bench http://127.0.0.1:8000 --rate 1,2,4,8 --duration 30s --repeats 3 --html sweep.html --json sweep.json
  weir bench http://127.0.0.1:8000 --slo ttft_p99=500ms,tpot_p99=50ms,success=99% --rate 1..64 --requests 700
  weir bench http://gateway:8000 --rate 2000 --duration 1m --worker 1/4 --start-at 1795300000 --record 1.rec
  weir bench http://127.0.0.1:8000 --workload 'synthetic:concurrency=64,turns=uniform(2,8),think=3s,duration=10m,input=120,output=200'`
}

// sweepForms are the files of several runs.
var sweepForms = []string{"csv", "json", "html"}

// check refuses flags that do not go together.
func (c *benchCommand) check() error {
	switch {
	case c.Scenario != "":
		return wrongf("scenarios are a command of their own: run %s", c.asScenario())
	case c.Experiment != "":
		return wrongf("experiments are a command of their own: run %s", c.asExperiment())
	case c.URL == "":
		return wrongf("no server to load: give its url, such as http://127.0.0.1:8000")
	case c.Streams != 0:
		return wrongf("--streams belongs to weir scenario; for a server give --concurrency")
	}
	for name, given := range map[string]bool{"repeats": c.Repeats != 1, "tolerance": c.Tolerance != 5, "trials": c.Trials != 30} {
		switch {
		case !given:
		case name == "repeats" && !c.several():
			return wrongf("--repeats belongs to a sweep: give several rates or concurrencies, as in --rate 1,2,4,8")
		case name == "repeats" && c.SLO != "":
			return wrongf("--slo repeats a rate as often as needed: drop --repeats")
		case name != "repeats" && c.SLO == "":
			return wrongf("--%s belongs to a search: give --slo", name)
		}
	}
	return nil
}

// several reports whether more than one run is asked for.
func (c *benchCommand) several() bool {
	return c.SLO != "" || c.Rate.Several() || c.Concurrency.Several()
}

// Run implements the command. It exits 1 when any stream was not complete.
func (c *benchCommand) Run(s *streams) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.several() {
		return c.runSweep(s)
	}
	ctx, _, stop := s.interrupt()
	defer stop()
	plan, err := unlessStopped(ctx, 1, func() (load.Plan, error) { return c.plan(ctx, s) })
	if err != nil {
		return err
	}
	if c.Workload != "" {
		var trace openFiles
		defer func() { trace.close() }()
		if plan.Workload, err = c.workload(&trace); err != nil {
			return err
		}
	}
	files, err := c.open()
	if err != nil {
		return err
	}
	if c.Calibrate {
		plan.Calibration, err = c.calibrate(ctx, &plan)
	}
	failed := false
	if err == nil {
		failed, err = c.load(ctx, plan, files, s)
	}
	if err := errors.Join(err, files.close()); err != nil {
		return err
	}
	if failed {
		return exitStatus(1)
	}
	return nil
}

// plan makes the plan that the flags ask for. If the server does not answer a question, s
// shows what the plan lacks.
func (c *benchCommand) plan(ctx context.Context, s *streams) (load.Plan, error) {
	plan := load.Plan{
		URL: c.URL, API: load.API(c.API), Model: c.Model, Concurrency: int(c.Concurrency.One()), Rate: c.Rate.One(), Arrival: workload.Arrival(c.Arrival), CV: c.CV,
		Requests: c.Requests, Duration: c.Duration, Timeout: c.Timeout, InputTokens: c.InputTokens, OutputTokens: c.OutputTokens,
		Seed: c.Seed, NoStream: c.NoStream, HangUpAfter: c.HangUpAfter, ReadRate: int(c.ReadRate), DelayAcks: c.DelayAcks,
		Body: map[string]any{}, RequestID: fmt.Sprintf("bench-%08x", rand.Uint32()),
	}
	open, closed := len(c.Rate.List) > 0 || c.Rate.Several(), len(c.Concurrency.List) > 0 || c.Concurrency.Several()
	switch {
	case open && closed:
		return plan, wrongf("--rate is an open loop and --concurrency a closed loop: give one of them")
	case !c.Concurrency.Whole():
		return plan, wrongf("--concurrency: want whole numbers")
	case c.Workload != "" && (open || closed):
		return plan, wrongf("--workload says when requests are sent: drop --rate and --concurrency")
	case c.Workload != "" && c.SLO != "":
		return plan, wrongf("--workload says when requests are sent, and --slo searches for a rate: drop one of them")
	case c.TraceSpeed <= 0 || c.TraceBlock <= 0:
		return plan, wrongf("--trace-speed and --trace-block must be positive")
	case c.Requests == 0 && c.Duration == 0 && c.Workload == "":
		return plan, wrongf("no end of the run: say how much to send, with --requests N or --duration D")
	case c.Calibrate && (c.Workload != "" || c.several()):
		return plan, wrongf("--calibrate measures at a single load: give one --rate or --concurrency")
	case c.CV < 0 || c.Burstiness < 0:
		return plan, wrongf("--cv and --burstiness must be positive")
	case c.CV != 0 && c.Burstiness != 0:
		return plan, wrongf("--cv and --burstiness set the same value; give one of them")
	case (c.CV != 0 || c.Burstiness != 0) != (plan.Arrival == workload.Gamma):
		return plan, wrongf("--arrival gamma and --cv (or --burstiness) belong together: give both or neither")
	case plan.Arrival != workload.Poisson && !open && c.SLO == "":
		return plan, wrongf("--arrival %s needs --rate: a closed loop has no arrivals of its own", c.Arrival)
	}
	if err := c.worker(&plan); err != nil {
		return plan, err
	}
	if c.Burstiness != 0 {
		plan.CV = 1 / math.Sqrt(c.Burstiness)
	}
	for _, image := range c.Image {
		url, err := imageURL(image)
		if err != nil {
			return plan, wrongf("--image: %w", err)
		}
		plan.Images = append(plan.Images, url)
	}
	var err error
	if plan.Header, err = headers(c.Header); err != nil {
		return plan, err
	}
	for name, text := range c.Field {
		var v jsontext.Value // as it is: a number may be larger than a float64 holds
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			return plan, wrongf("--field %s=%s: the value must be JSON (strings in quotes): %w", name, text, err)
		}
		plan.Body[name] = v
	}
	if plan.Model == "" {
		if err := c.findModel(ctx, &plan, s); err != nil {
			return plan, err
		}
	}
	return plan, c.folder(&plan)
}

// imageURL returns what --image names as the URL that is sent.
func imageURL(image string) (string, error) {
	for _, scheme := range []string{"http://", "https://", "data:"} {
		if strings.HasPrefix(image, scheme) {
			return image, nil
		}
	}
	data, err := disk.Read(image, disk.MaxImage)
	if err != nil {
		return "", err
	}
	kind := http.DetectContentType(data)
	if !strings.HasPrefix(kind, "image/") {
		return "", fmt.Errorf("%s looks like %s, not like an image; give it as a data URL", image, kind)
	}
	return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(data), nil
}

// maxLate is how long after its schedule's beginning a worker may still start; its slip
// then shows what it missed. An earlier time is a mistake.
const maxLate = time.Minute

// worker reads --worker and what belongs to it.
func (c *benchCommand) worker(plan *load.Plan) error {
	if c.StartAt != "" {
		at, err := time.Parse(time.RFC3339Nano, c.StartAt)
		if seconds, number := strconv.ParseInt(c.StartAt, 10, 64); number == nil {
			at, err = time.Unix(seconds, 0), nil
		}
		switch {
		case err != nil:
			return wrongf("--start-at %s: want a time such as 2026-11-22T08:00:00Z, or seconds since 1970", c.StartAt)
		case time.Since(at) > maxLate:
			return wrongf("--start-at %s was %v ago", c.StartAt, time.Since(at).Round(time.Second))
		case len(c.Concurrency.List) > 0:
			return wrongf("--start-at belongs to an open loop: drop --concurrency")
		}
		plan.StartAt = at
	}
	if c.Worker == "" {
		return nil
	}
	k, n, ok := strings.Cut(c.Worker, "/")
	var errK, errN error
	plan.Worker, errK = strconv.Atoi(k)
	plan.Workers, errN = strconv.Atoi(n)
	switch {
	case !ok || errK != nil || errN != nil || plan.Worker < 1 || plan.Worker > plan.Workers:
		return wrongf("--worker %s: want K/N, as in 1/4 to 4/4", c.Worker)
	case len(c.Concurrency.List) > 0 || len(c.Rate.List) == 0 && c.Workload == "":
		return wrongf("--worker shares an open loop: give --rate or a --workload with times; for a closed loop, give each worker its part of --concurrency")
	case c.several():
		return wrongf("--worker belongs to a single run: give one --rate, and no --slo")
	case c.StartAt == "":
		return wrongf("--worker needs --start-at, the same for all workers, so that they share one schedule")
	case c.Record == "":
		return wrongf("--worker needs --record FILE: its own report covers only a part of the load")
	}
	return nil
}

// workload opens what --workload names. A trace is read once to its end before
// anything is sent, so that a line that is wrong costs no run.
func (c *benchCommand) workload(files *openFiles) (*workload.Workload, error) {
	o := workload.Options{Seed: c.Seed, Block: c.TraceBlock, Speed: c.TraceSpeed, Requests: c.Requests, For: c.Duration, Open: files.open, Texts: true, Sessions: true}
	kind, rest := workload.SplitSpec(c.Workload)
	if kind == workload.SyntheticKind {
		w, err := workload.NewSynthetic(rest, o)
		if err != nil {
			return nil, wrongf("--workload: %w", err)
		}
		if !w.Texts {
			return w, nil
		}
		if c.Tokenizer != "" { // says how long answers are; otherwise their words do
			m, err := model.Load(disk.Folder(c.Tokenizer))
			if err != nil {
				return nil, fmt.Errorf("--tokenizer %s: %w", c.Tokenizer, err)
			}
			o.Encode = plain(m)
		}
		return readThrough(func() (*workload.Workload, error) { return workload.NewSynthetic(rest, o) })
	}
	return readThrough(func() (*workload.Workload, error) {
		in, err := files.open(rest)
		if err != nil {
			return nil, err
		}
		return workload.NewTrace(in, rest, kind, o)
	})
}

// readThrough reads a workload to its end, and opens it again.
func readThrough(open func() (*workload.Workload, error)) (*workload.Workload, error) {
	w, err := open()
	var r workload.Request
	for err == nil {
		err = w.Next(&r)
	}
	if errors.Is(err, io.EOF) {
		w, err = open()
	}
	if err != nil {
		return nil, fmt.Errorf("--workload: %w", err)
	}
	return w, nil
}

// load carries out the plan and writes its report. It reports whether requests failed.
func (c *benchCommand) load(ctx context.Context, plan load.Plan, files *outputFiles[oneRun], s *streams) (failed bool, err error) {
	var record *load.Record
	if c.Record != "" {
		record = &load.Record{}
		plan.OnSample = record.Add
	}
	r, rows, err := c.watched(s, "", plan, func(plan load.Plan) (*report.Report, []report.Row, error) {
		return measure(ctx, plan, c.admin(), c.Admin == "auto", c.wantsRows())
	})
	if err != nil {
		return false, err
	}
	return r.Failed(), files.write(oneRun{r, rows, record}, r.Text, s.out)
}

// watched carries out a run and shows its progress; which names the run where
// there are several.
func (f *sweepOutputFlags) watched(s *streams, which string, plan load.Plan, run func(load.Plan) (*report.Report, []report.Row, error)) (*report.Report, []report.Row, error) {
	figures := &load.Live{}
	plan.Live = figures
	load := fmt.Sprintf("closed loop of %d", max(1, plan.Concurrency))
	switch {
	case plan.Workload != nil:
		load = fmt.Sprintf("workload %s", plan.Workload.Kind)
	case plan.Rate > 0:
		load = fmt.Sprintf("open loop %.4g/s %s", plan.Rate, cmp.Or(plan.Arrival, workload.Poisson))
	}
	title := fmt.Sprintf("%s%s %s, %s", which, plan.API, plan.URL, load)
	screen := live.Show(s.err, f.Progress, live.Target{Title: title, Requests: plan.Requests, For: plan.Duration}, figures)
	defer screen.Close()
	return run(plan)
}

// measure carries out a plan. admin is the admin listener of the loaded gateway, or empty;
// guessed means that there may be none, or that it may belong to another gateway. The rows
// are kept if they are wanted or contain a finding.
func measure(ctx context.Context, plan load.Plan, admin string, guessed, keep bool) (*report.Report, []report.Row, error) {
	var book report.Book
	var follower *report.Follower
	joined := report.Joined{From: admin}
	if admin != "" {
		var err error
		if follower, err = book.Follow(context.WithoutCancel(ctx), admin); err != nil {
			if !guessed {
				return nil, nil, fmt.Errorf("--admin %s: %w", admin, err)
			}
			joined.From = ""
		}
	}
	if follower != nil || keep {
		also := plan.OnSample
		plan.OnSample = func(s *load.Sample) {
			book.Add(s)
			if also != nil {
				also(s)
			}
		}
	}
	measured, err := load.Run(ctx, plan)
	if follower != nil {
		var problem error
		if joined.Missing, problem = follower.Close(); problem != nil {
			joined.Problem = problem.Error()
		}
	}
	if err != nil {
		return nil, nil, err
	}
	rows := book.Rows()
	if follower != nil {
		for i := range rows {
			if rows[i].Gateway != nil {
				joined.Requests++
			}
		}
		// The listener at the next port need not belong to the loaded gateway.
		if joined.Requests == 0 && guessed {
			joined = report.Joined{}
		}
	}
	if clock := book.Clock(); joined.From != "" || clock.Server.Add != 0 {
		joined.Clock = &clock
	}
	return report.New(measured, rows, joined), rows, nil
}

// calibrationTokens bounds the length of a calibration's answers.
const calibrationTokens = 100

// calibrate measures the generator at a plan's load.
func (c *benchCommand) calibrate(ctx context.Context, plan *load.Plan) (*load.Calibration, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o := calibrate.Options{Self: []string{self, benchProcess}, Rate: plan.Rate, Tokens: calibrationTokens, Seed: plan.Seed, DelayAcks: plan.DelayAcks}
	if plan.OutputTokens > 0 {
		o.Tokens = min(o.Tokens, plan.OutputTokens)
	}
	if o.Rate == 0 {
		o.Streams = max(1, plan.Concurrency)
	}
	return calibrate.Run(ctx, o)
}

// admin returns the base URL of the admin listener to follow, empty for none.
func (c *benchCommand) admin() string {
	switch c.Admin {
	case "off":
		return ""
	case "auto":
	default:
		return c.Admin
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" {
		return ""
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return ""
	}
	return "http://" + net.JoinHostPort(u.Hostname(), strconv.Itoa(port+1))
}

// findModel asks the server whether it serves the simulated engine's model, whose folder is
// built in. A server that does not list its models is loaded nevertheless if the API needs
// no name; otherwise the run fails with the reason.
func (c *benchCommand) findModel(ctx context.Context, plan *load.Plan, s *streams) error {
	names, err := load.Models(ctx, *plan)
	switch {
	case err == nil:
		if slices.Contains(names, models.SimName) {
			plan.Model = models.SimName
		}
		return nil
	case !errors.Is(err, load.ErrModels):
		return err
	}
	var lacks []string
	if c.Tokenizer == "" && c.Verify != "on" {
		lacks = append(lacks, "lengths of prompts are approximate")
	}
	if c.Verify == "auto" {
		lacks = append(lacks, "text is not verified")
	}
	if len(lacks) > 0 {
		sayLine(s.err, "weir: %v, so %s; if the server has %s, add --model %[3]s", err, strings.Join(lacks, " and "), models.SimName)
	}
	return nil
}

// folder adds to the plan what the model's folder provides: how prompts are counted, and
// the simulated engine's word list if the server's text follows it.
func (c *benchCommand) folder(plan *load.Plan) error {
	sim := plan.Model == models.SimName || c.Verify == "on"
	var counting *model.Folder
	if c.Tokenizer != "" {
		m, err := model.Load(disk.Folder(c.Tokenizer))
		if err != nil {
			return fmt.Errorf("--tokenizer %s: %w", c.Tokenizer, err)
		}
		counting = m
		sim = sim && c.Verify != "off"
	}
	if sim {
		m, err := builtInModel()
		if err != nil {
			return err
		}
		if counting == nil {
			counting = m.folder
		}
		if c.Verify != "off" {
			if plan.Verify, err = content.New(m.folder.VocabSize, m.folder.Tokenizer.OrdinaryBytes); err != nil {
				return err
			}
		}
	}
	if counting == nil {
		return nil
	}
	var err error
	plan.Count, err = counter(counting, plan.API)
	if err != nil {
		return fmt.Errorf("--tokenizer %s: %w", c.Tokenizer, err)
	}
	return nil
}

// counter counts a prompt as a server of the model does: of a chat with the
// template around it, otherwise with the special tokens that the tokenizer adds.
func counter(m *model.Folder, api load.API) (func(string) (int, error), error) {
	enc := m.Tokenizer.NewEncoder()
	var ids []uint32
	count := func(text string, o tokenizer.EncodeOptions) (n int, err error) {
		ids, err = enc.Encode(context.Background(), ids[:0], text, o)
		return len(ids), err
	}
	if api != load.Chat {
		return func(prompt string) (int, error) { return count(prompt, tokenizer.EncodeOptions{AddSpecial: true}) }, nil
	}
	if m.Templates == nil {
		return nil, errors.New("the folder has no chat template, so the length of a chat's prompt is not known; give --api openai-completions, or a folder with one")
	}
	return func(prompt string) (int, error) {
		message, err := json.Marshal([]map[string]string{{"role": "user", "content": prompt}})
		if err != nil {
			return 0, err
		}
		text, err := m.Render(message, nil, nil)
		if err != nil {
			return 0, err
		}
		return count(text, tokenizer.EncodeOptions{})
	}, nil
}
