//go:build linux

package scenario

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/forward"
	"weir/internal/lab/ports"
)

//go:embed blame.txt
var blameCells string

// blameCell is a row of blame.txt: fleet and load, a fault, and the stage that must be named.
type blameCell struct {
	name             string
	batch, tokens    int
	blocker          int // tokens of the request before each batch; 0: there is none
	logprobs         bool
	fault            []string
	stamped, without string // the stage, by whether the engine stamps its own
}

// readBlame reads the cells.
func readBlame(text string) (all []blameCell, err error) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		parts := strings.Split(line, "|")
		if len(parts) != 5 {
			return nil, fmt.Errorf("%q has %d columns, want 5", line, len(parts))
		}
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		c := blameCell{name: parts[0], batch: 1, fault: strings.Fields(parts[2]), stamped: parts[3], without: parts[4]}
		for _, word := range strings.Fields(parts[1]) {
			key, value, _ := strings.Cut(word, "=")
			n, bad := strconv.Atoi(value)
			switch key {
			case "batch":
				c.batch = n
			case "tokens":
				c.tokens = n
			case "blocker":
				c.blocker = n
			case "logprobs":
				c.logprobs, bad = true, nil
			default:
				bad = errors.New("it is no setting of a load")
			}
			if bad != nil {
				return nil, fmt.Errorf("%s: %q: %w", c.name, word, bad)
			}
		}
		if c.batch < 1 || c.tokens < 1 || len(c.fault) < 2 || !slices.Contains(blameFaults, c.fault[0]) {
			return nil, fmt.Errorf("%s: load or fault is incomplete", c.name)
		}
		all = append(all, c)
	}
	return all, nil
}

// blameFaults are the words that a fault begins with.
var blameFaults = []string{"engine", "weir", "room", "hold", "stop", "client"}

// BlameKinds are the kinds of engines of blame.
func BlameKinds() []string { return []string{"openai", "sglang", "vllm"} }

// BlameFaults are the names of the cells.
func BlameFaults() (names []string) {
	cells, err := readBlame(blameCells)
	if err != nil {
		panic(err) // it is built in, and a test reads it
	}
	for _, c := range cells {
		names = append(names, c.name)
	}
	return names
}

// Blamed is a cell with or without its fault, at a kind of engine.
type Blamed struct {
	Cell     string  `json:"cell"`
	Kind     string  `json:"kind"`
	Streamed bool    `json:"streamed"`
	Faulty   bool    `json:"faulty"`
	Stage    string  `json:"stage"`
	Requests int     `json:"requests"`
	Named    int     `json:"named"` // by the stage
	Low      float64 `json:"low"`   // of the 95 % interval of the share
	High     float64 `json:"high"`
	Steal    float64 `json:"steal_share"` // of the machine's cores, by its host
	Example  string  `json:"example"`     // a sentence, of one that was not named if there is any

	problem error
}

// Void reports whether the machine was not the run's own.
func (b *Blamed) Void() bool { return b.Steal > 0.1 }

// Steps of the engine without a fault.
const (
	blamePrefill = 20 * time.Millisecond
	blameDecode  = 2 * time.Millisecond
)

// blame injects one fault at a time and asks the gateway's records who is to blame. The truth is the
// injector's. Without the fault the same load must not name the stage.
func blame(ctx context.Context, r *runner) *Report {
	report := r.report()
	cells, err := readBlame(blameCells)
	if err != nil {
		return report.failed("%v", err)
	}
	kinds := r.options.Kinds
	if len(kinds) == 0 {
		kinds = BlameKinds()
	}
	for i, c := range cells {
		if len(r.options.Faults) > 0 && !slices.Contains(r.options.Faults, c.name) {
			continue
		}
		for k, kind := range kinds {
			streams := []bool{true, false}
			if len(r.options.Kinds) == 0 { // one and a half of six for each fault: twelve in all
				if streams = []bool{(i+k)%2 == 0}; (i+k)%len(kinds) == 2 {
					continue
				}
			}
			for _, streamed := range streams {
				for _, faulty := range []bool{false, true} {
					b := r.blamed(ctx, c, kind, streamed, faulty)
					if ctx.Err() != nil {
						return report.failed("interrupted")
					}
					report.Blamed = append(report.Blamed, b)
					report.Verdicts = append(report.Verdicts, b.verdict())
					fmt.Fprintln(r.options.Progress, report.Verdicts[len(report.Verdicts)-1].Text)
				}
			}
		}
	}
	return report
}

// verdict judges a cell.
func (b *Blamed) verdict() Verdict {
	where := fmt.Sprintf("%s, %s, streamed %v", b.Cell, b.Kind, b.Streamed)
	switch {
	case b.problem != nil:
		return verdict(false, Failed, "%s: %v", where, b.problem)
	case b.Void():
		return figure(false, "%s: void, the host took %.0f %% of the cores", where, 100*b.Steal)
	case b.Faulty:
		return figure(float64(b.Named) >= 0.99*float64(b.Requests), "%s: %s named in %d of %d (95 %%: %.3f to %.3f): %s", where, b.Stage, b.Named, b.Requests, b.Low, b.High, b.Example)
	}
	if b.Kind == "openai" && !b.Streamed && b.Stage == "engine" {
		return figure(true, "%s without the fault: %s named in %d of %d, as it is the only stage", where, b.Stage, b.Named, b.Requests)
	}
	return figure(float64(b.Named) <= 0.01*float64(b.Requests), "%s without the fault: %s named in %d of %d", where, b.Stage, b.Named, b.Requests)
}

// blamed runs a cell.
func (r *runner) blamed(ctx context.Context, c blameCell, kind string, streamed, faulty bool) Blamed {
	b := Blamed{Cell: c.name, Kind: kind, Streamed: streamed, Faulty: faulty, Stage: c.stamped}
	if kind != "sglang" {
		b.Stage = c.without
	}
	bed := &blameBed{cell: c, kind: kind, streamed: streamed, faulty: faulty, binary: r.options.Binary, environment: r.environment}
	defer bed.stop()
	b.problem = func() error {
		if err := bed.start(ctx); err != nil {
			return err
		}
		before, began := bed.steal(ctx), time.Now()
		for b.Requests < r.options.Streams && ctx.Err() == nil {
			if err := bed.batch(ctx); err != nil {
				return err
			}
			b.Requests += c.batch
		}
		b.Steal = (bed.steal(ctx) - before) / time.Since(began).Seconds() / float64(runtime.NumCPU())
		return bed.judge(ctx, &b)
	}()
	return b
}

// blameBed is an engine, a network and a gateway.
type blameBed struct {
	cell             blameCell
	kind             string
	streamed, faulty bool
	binary           string
	environment      []string

	engine, gateway *lab.Process
	network         *forward.Forwarder
	url, admin      string
	sent            int
}

// is reports whether a fault of this kind is injected.
func (b *blameBed) is(fault string) bool { return b.faulty && b.cell.fault[0] == fault }

func (b *blameBed) stop() {
	if b.network != nil {
		b.network.Heal()
	}
	for _, p := range []*lab.Process{b.gateway, b.engine} {
		if p != nil {
			_ = p.Signal(syscall.SIGCONT) // it may have been stopped, or be gone
			p.Stop()
		}
	}
	if b.network != nil {
		b.network.Close()
	}
}

func (b *blameBed) start(ctx context.Context) (err error) {
	var addrs [4]string
	for i := range addrs {
		if addrs[i], err = ports.Free(); err != nil {
			return err
		}
	}
	at, api, admin := addrs[0], addrs[2], addrs[3]
	engine := []string{b.binary, "engine", "--wire", b.kind + "=" + at, "--admin-listen", addrs[1], "--cost", "constant", "--prefill-cost", blamePrefill.String(), "--decode-cost", blameDecode.String()}
	if b.kind == "sglang" {
		engine = append(engine, "--enable-metrics") // its stamps
	}
	if b.is("engine") {
		engine = append(engine, b.cell.fault[1:]...)
	}
	if b.engine, err = lab.Start(engine, b.environment); err != nil {
		return err
	}
	if err = b.engine.AwaitTCP(ctx, at); err != nil {
		return err
	}
	if b.network, err = forward.To(at); err != nil {
		return err
	}
	spec := b.kind + "=http://" + b.network.Addr + ",name=e"
	if b.is("room") {
		spec += ",max-running=" + b.cell.fault[1]
	}
	serve := []string{b.binary, "serve", "--listen", api, "--admin-listen", admin, "--log-level", "error", "--write-timeout", "1m", "--engine", spec}
	if !b.is("room") {
		serve = append(serve, "--queue", "off")
	}
	if b.is("weir") {
		serve = append(serve, b.cell.fault[1:]...)
	}
	b.url, b.admin = "http://"+api, "http://"+admin
	if b.gateway, err = lab.Start(serve, b.environment); err != nil {
		return err
	}
	return b.gateway.AwaitHTTP(ctx, b.admin+"/readyz")
}

// steal is how many seconds the host gave the machine's cores to others.
func (b *blameBed) steal(ctx context.Context) float64 {
	all, err := lab.Scrape(ctx, b.admin+"/metrics")
	if err != nil || all["weir_steal_seconds_total"] == nil {
		return 0
	}
	return lab.Sum(all["weir_steal_seconds_total"])
}

// batch sends requests at once, and injects the fault.
func (b *blameBed) batch(ctx context.Context) error {
	var all sync.WaitGroup
	failed := make(chan error, b.cell.batch+2)
	ask := func(id string, tokens int) {
		all.Go(func() {
			if err := b.ask(ctx, id, tokens); err != nil {
				failed <- fmt.Errorf("%s: %w", id, err)
			}
		})
	}
	if b.cell.blocker > 0 {
		ask("blocker", b.cell.blocker)
		if err := lab.Sleep(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
	if b.is("hold") {
		b.network.Hold(forward.ToClient)
	}
	for range b.cell.batch {
		b.sent++
		ask(fmt.Sprintf("judged-%d", b.sent), b.cell.tokens)
	}
	if err := b.inject(ctx); err != nil {
		failed <- err
	}
	all.Wait()
	close(failed)
	return <-failed
}

// inject is a fault that comes while a batch runs, and goes.
func (b *blameBed) inject(ctx context.Context) error {
	switch {
	case b.is("hold"):
		err := wait(ctx, b.cell.fault[1])
		b.network.Heal()
		return err
	case b.is("stop"):
		p := b.engine
		if b.cell.fault[1] == "weir" {
			p = b.gateway
		}
		if err := wait(ctx, b.cell.fault[2]); err != nil {
			return err
		}
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		return errors.Join(wait(ctx, b.cell.fault[3]), p.Signal(syscall.SIGCONT))
	}
	return nil
}

// wait waits for a duration in words.
func wait(ctx context.Context, words string) error {
	d, err := time.ParseDuration(words)
	if err != nil {
		return err
	}
	return lab.Sleep(ctx, d)
}

// ask asks for a completion on a connection of its own and reads the answer, late if clients are to
// be slow.
func (b *blameBed) ask(ctx context.Context, id string, tokens int) error {
	extra := ""
	if b.cell.logprobs {
		extra = `,"logprobs":5`
	}
	body := fmt.Sprintf(`{"model":"weir-sim","prompt":"Say it.","max_tokens":%d,"ignore_eos":true,"stream":%v%s}`, tokens, b.streamed, extra)
	dialer := &net.Dialer{}
	if b.is("client") {
		dialer.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) {
				// Small buffers at both ends, as far as they depend on the client. A larger one holds all of
				// the answer, and nobody would wait for the client.
				_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
				_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536)
			})
		}
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext, ReadBufferSize: 1 << 10}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", id)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if b.is("client") {
		if err := wait(ctx, b.cell.fault[1]); err != nil {
			return err
		}
	}
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d after %d bytes: %w", resp.StatusCode, n, err)
	}
	return nil
}

// judge reads whom the records blame.
func (b *blameBed) judge(ctx context.Context, of *Blamed) error {
	if err := lab.Sleep(ctx, 300*time.Millisecond); err != nil { // a record is written after its answer
		return err
	}
	var page struct {
		Records []struct {
			RequestID string `json:"request_id"`
			Reason    struct{ Stage, Sentence string }
		}
	}
	if err := lab.FetchJSON(ctx, b.admin+"/records?reason=1&limit=1000", &page); err != nil {
		return err
	}
	judged := 0
	for _, rec := range page.Records {
		if !strings.HasPrefix(rec.RequestID, "judged-") {
			continue
		}
		judged++
		if rec.Reason.Stage == of.Stage {
			of.Named++
		} else if of.Faulty {
			of.Example = rec.RequestID + ": " + rec.Reason.Stage + ": " + rec.Reason.Sentence
		}
		if of.Example == "" {
			of.Example = rec.Reason.Sentence
		}
	}
	if judged != of.Requests {
		return fmt.Errorf("%d of %d requests have a record", judged, of.Requests)
	}
	of.Low, of.High = wilson(of.Named, of.Requests)
	return nil
}

// wilson is the 95 % interval of a share.
func wilson(k, n int) (low, high float64) {
	const z = 1.96
	p, m := float64(k)/float64(n), float64(n)
	mid, half := (p+z*z/2/m)/(1+z*z/m), z/(1+z*z/m)*math.Sqrt(p*(1-p)/m+z*z/4/m/m)
	return max(0, mid-half), min(1, mid+half)
}

// blameTable writes the cells.
func blameTable(all []Blamed) (rows [][]string) {
	rows = append(rows, []string{"cell", "kind", "streamed", "fault", "stage", "named", "95 %"})
	for _, b := range all {
		rows = append(rows, []string{b.Cell, b.Kind, fmt.Sprint(b.Streamed), fmt.Sprint(b.Faulty), b.Stage, fmt.Sprintf("%d of %d", b.Named, b.Requests), fmt.Sprintf("%.3f to %.3f", b.Low, b.High)})
	}
	return rows
}
