//go:build linux

// Command prompts measures what large prompts cost the gateway from the socket to the engine:
// so many clients at once, each with a chat of 160 KB that nobody has sent before, or of which
// 95 % were sent before.
//
//	go run ./bench/prompts                                  # over the plane, sglang and vllm: some 2 minutes
//	go run ./bench/prompts -wires weir -n 5                 # the plane alone, five repeats
//	go run ./bench/prompts -weir /tmp/before,/tmp/now       # two builds, taking turns
//
// The gateway and the simulated engine are processes of the built binary with its defaults, and
// this process is the clients. The figure is the gateway's CPU time by /proc, its collector
// included, for each request of the window: body, JSON, template, ids, hashes, choice,
// hand-over, and two tokens of an answer. The engine's and the clients' are not in it.
//
// The engine is so fast (-step) that the gateway always has prompts to work on. At 1 ms a step, as
// this command had it at first, an engine reads 120 prompts a second; the gateway then waits
// between prompts, its threads fall asleep, others push it out of the processor's caches, and a
// request costs up to a millisecond more.
//
// The text is Go's documentation and sources, half of each, as paragraphs in a random order:
// words recur as they do in text, and no 4 KB of it do, which is what weir caches.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/internal/lab"
	"weir/internal/lab/ports"
	"weir/internal/lab/proc"
	"weir/internal/workload/gotext"
)

func main() {
	if len(os.Args) > 2 && (os.Args[1] == floorCommand || os.Args[1] == sinkCommand) {
		fmt.Fprintln(os.Stderr, "prompts:", runFloor(os.Args[1], os.Args[2:]))
		os.Exit(1)
	}
	lab.Main("prompts", run)
}

// options are the command's.
type options struct {
	clients, requests, warm int
	bytes                   int
	seen                    float64       // the share of a prompt that was sent before, where one was
	step                    time.Duration // of an engine with 8,192 tokens of prompts in it
	profile                 string        // folder for profiles of the gateway; empty: none
	stderr                  io.Writer
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("prompts", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{stderr: stderr}
	var (
		repeats = flags.Int("n", 3, "repeats; the table shows medians with their range")
		wires   = flags.String("wires", "weir,sglang,vllm,floor", "wires between gateway and engine, comma-separated: weir is the plane, and floor a program instead of the gateway that only reads prompts, copies them and writes two bytes a token")
		weir    = flags.String("weir", "", "weir's binary, or several that take turns, comma-separated; built from ./cmd/weir unless given")
	)
	flags.IntVar(&o.clients, "clients", 20, "clients at once")
	flags.IntVar(&o.requests, "requests", 15, "requests of each client in a window")
	flags.IntVar(&o.warm, "warm", 30, "requests of each client before a window, in which the heap grows to its size and caches fill")
	flags.IntVar(&o.bytes, "bytes", 160<<10, "text of a prompt, in bytes")
	flags.Float64Var(&o.seen, "seen", 0.95, "share of a prompt that was sent before")
	flags.DurationVar(&o.step, "step", 100*time.Microsecond, "time that the engine takes for 8,192 tokens of prompts; at 1ms the gateway waits for it")
	flags.StringVar(&o.profile, "profile", "", "write a CPU profile of the gateway for each window to this folder (costs some CPU)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.clients < 1 || o.requests < 1 || o.warm < 1 || o.bytes < 1000 || o.seen <= 0 || o.seen >= 1 || *repeats < 1 {
		return errors.New("-clients, -requests, -warm and -n are at least 1, -bytes at least 1000, and -seen is between 0 and 1")
	}
	for wire := range strings.SplitSeq(*wires, ",") {
		if !slices.Contains([]string{"weir", "sglang", "vllm", floorWire}, wire) {
			return fmt.Errorf("-wires %q: the wires are weir, sglang, vllm and floor", wire)
		}
	}
	builds := strings.Split(*weir, ",")
	if *weir == "" {
		dir, err := os.MkdirTemp("", "prompts")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		builds = []string{filepath.Join(dir, "weir")}
		if err := lab.Build(ctx, builds[0], stderr); err != nil {
			return err
		}
	}
	text, err := gotext.ReadParagraphs()
	if err != nil {
		return err
	}
	all := map[cellName][]figures{}
	var order []cellName
	for i := range *repeats {
		for wire := range strings.SplitSeq(*wires, ",") {
			for _, seen := range []bool{false, true} {
				for _, build := range builds {
					name := cellName{build, wire, seen}
					f, err := o.measure(ctx, name, text)
					if err != nil {
						return err
					}
					fmt.Fprintf(stderr, "%d/%d %s: %s\n", i+1, *repeats, name, f)
					if all[name] == nil {
						order = append(order, name)
					}
					all[name] = append(all[name], f)
				}
			}
		}
	}
	fmt.Fprintf(stdout, "%s. %d clients at once, %d KB of text each, medians of %d windows (range).\n\n", proc.Machine(), o.clients, o.bytes>>10, *repeats)
	fmt.Fprintln(stdout, "| build | wire | text | tokens | gateway's CPU ms/request | requests/s | others' CPUs |\n|---|---|---|---:|---:|---:|---:|")
	for _, name := range order {
		printRow(stdout, name, all[name])
	}
	return nil
}

// cellName is what is measured.
type cellName struct {
	build, wire string
	seen        bool
}

func (c cellName) text() string {
	if c.seen {
		return "seen"
	}
	return "new"
}

func (c cellName) String() string {
	return fmt.Sprintf("%s %s %s", filepath.Base(c.build), c.wire, c.text())
}

// figures are those of a window.
type figures struct {
	cpu    float64 // of the gateway for each request, ms
	rate   float64 // requests a second
	tokens float64 // of a prompt
	others float64 // CPUs that neither gateway, engine nor clients used
}

func (f figures) String() string {
	return fmt.Sprintf("%.2f ms of CPU a request, %.0f tokens each, %.0f requests/s, others %.2f CPUs", f.cpu, f.tokens, f.rate, f.others)
}

func printRow(w io.Writer, name cellName, runs []figures) {
	in := func(format string, of func(figures) float64) string {
		var values []float64
		for _, f := range runs {
			values = append(values, of(f))
		}
		return fmt.Sprintf(format+" ("+format+" to "+format+")", lab.Median(slices.Clone(values)), slices.Min(values), slices.Max(values))
	}
	fmt.Fprintf(w, "| %s | %s | %s | %.0f | %s | %s | %s |\n", filepath.Base(name.build), name.wire, name.text(), runs[0].tokens,
		in("%.2f", func(f figures) float64 { return f.cpu }), in("%.0f", func(f figures) float64 { return f.rate }), in("%.2f", func(f figures) float64 { return f.others }))
}

// measure starts an engine and a gateway, and asks for the answers of one window.
func (o options) measure(ctx context.Context, name cellName, text gotext.Paragraphs) (f figures, err error) {
	free, err := ports.Adjacent(3)
	if err != nil {
		return f, err
	}
	engine, err := o.startEngine(ctx, name, free[0])
	if err != nil {
		return f, err
	}
	defer engine.Stop()
	gateway, err := o.startGateway(ctx, name, free)
	if err != nil {
		return f, err
	}
	defer gateway.Stop()
	var all []*client
	for i := range o.clients {
		c := &client{options: o, url: "http://" + free[1] + "/v1/chat/completions", rand: rand.New(rand.NewPCG(uint64(i), rand.Uint64())), text: text, seen: name.seen,
			http: &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}}
		defer c.http.CloseIdleConnections()
		all = append(all, c)
	}
	each := func(do func(c *client) error) error {
		var together sync.WaitGroup
		failed := make([]error, len(all))
		for i, c := range all {
			together.Go(func() { failed[i] = do(c) })
		}
		together.Wait()
		return errors.Join(failed...)
	}
	ask := func(c *client) error { return c.ask(ctx) }
	err = errors.Join(each(func(c *client) error { return c.prepare(o.warm) }), each(ask))
	if err != nil {
		return f, fmt.Errorf("%s: %w: %s", name, err, gateway.Problem())
	}
	if err := each(func(c *client) error { return c.prepare(o.requests) }); err != nil {
		return f, err
	}
	before, err := o.usage(gateway, engine)
	if err != nil {
		return f, err
	}
	profiled := make(chan error, 1)
	go func() { profiled <- o.writeProfile(ctx, name, free[2]) }()
	if err := each(ask); err != nil {
		return f, fmt.Errorf("%s: %w: %s", name, err, gateway.Problem())
	}
	after, err := o.usage(gateway, engine)
	if err != nil {
		return f, err
	}
	if err := <-profiled; err != nil {
		return f, err
	}
	requests, seconds := float64(o.clients*o.requests), after.at.Sub(before.at).Seconds()
	for _, c := range all {
		f.tokens += float64(c.tokens) / requests
	}
	f.cpu = (after.gateway - before.gateway) * 1000 / requests
	f.rate = requests / seconds
	f.others = max(0, (after.machine-before.machine)-(after.gateway-before.gateway)-(after.rest-before.rest)) / seconds
	return f, nil
}

// startEngine starts a simulated engine, or what reads what the floor writes.
func (o options) startEngine(ctx context.Context, name cellName, at string) (*lab.Process, error) {
	args := []string{name.build, "engine", "--wire", name.wire, "--listen", at,
		"--cost", "constant", "--prefill-cost", o.step.String(), "--decode-cost", "1ms"}
	if name.wire == floorWire {
		var err error
		if args, err = command(sinkCommand, at); err != nil {
			return nil, err
		}
	}
	engine, err := lab.Start(args, nil)
	if err != nil {
		return nil, err
	}
	if err := engine.AwaitTCP(ctx, at); err != nil {
		engine.Stop()
		return nil, err
	}
	return engine, nil
}

// startGateway starts a gateway, or the floor. free are the addresses of the engine, the gateway
// and its admin listener.
func (o options) startGateway(ctx context.Context, name cellName, free []string) (*lab.Process, error) {
	at, ready := free[0], "http://"+free[2]+"/readyz"
	if name.wire != "weir" {
		at = "http://" + at
	}
	args := []string{name.build, "serve", "--listen", free[1], "--admin-listen", free[2], "--engine", name.wire + "=" + at, "--log-level", "warn"}
	if o.profile != "" {
		args = append(args, "--pprof")
	}
	if name.wire == floorWire {
		var err error
		if args, err = command(floorCommand, free[1], free[0]); err != nil {
			return nil, err
		}
		ready = "http://" + free[1]
	}
	gateway, err := lab.Start(args, nil)
	if err != nil {
		return nil, err
	}
	if err := gateway.AwaitHTTP(ctx, ready); err != nil {
		gateway.Stop()
		return nil, err
	}
	return gateway, nil
}

// writeProfile writes a CPU profile of the gateway over two seconds.
func (o options) writeProfile(ctx context.Context, name cellName, admin string) error {
	if o.profile == "" || name.wire == floorWire {
		return nil
	}
	return lab.SaveProfile(ctx, "http://"+admin+"/debug/pprof/profile?seconds=2", filepath.Join(o.profile, strings.ReplaceAll(name.String(), " ", "-")+".pprof"))
}

// usage is what has been used so far, in seconds of CPU.
type usage struct {
	at                     time.Time
	gateway, rest, machine float64
}

func (o options) usage(gateway, engine *lab.Process) (u usage, err error) {
	u.at = time.Now()
	of, err := proc.Of(gateway.PIDs())
	if err != nil {
		return u, err
	}
	rest, err := proc.Of(append(engine.PIDs(), os.Getpid()))
	if err != nil {
		return u, err
	}
	u.gateway, u.rest = of.CPU, rest.CPU
	u.machine, err = proc.MachineCPU()
	return u, err
}

// client asks for one answer after the other. Where its prompts have been seen, they begin with
// a text of its own.
type client struct {
	options
	http   *http.Client
	url    string
	rand   *rand.Rand
	text   gotext.Paragraphs
	seen   bool
	began  string
	bodies [][]byte // of the next requests
	tokens int      // of its prompts
}

// prepare makes the bodies of the next requests, so that the clients take no CPU and no caches
// from the gateway for it.
func (c *client) prepare(requests int) error {
	c.bodies, c.tokens = nil, 0
	for range requests {
		body, err := c.body()
		if err != nil {
			return err
		}
		c.bodies = append(c.bodies, body)
	}
	return nil
}

func (c *client) ask(ctx context.Context) error {
	for _, body := range c.bodies {
		if err := c.post(ctx, body); err != nil {
			return err
		}
	}
	return nil
}

// body is the next chat.
func (c *client) body() ([]byte, error) {
	known := int(float64(c.bytes) * c.options.seen)
	if c.began == "" || !c.seen {
		c.began = c.text.Draw(c.rand, known)
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(map[string]any{"model": "weir-sim", "stream": true, "stream_options": map[string]any{"include_usage": true}, "max_tokens": 2, "ignore_eos": true,
		"messages": []message{{"system", "You are a helpful assistant."}, {"user", c.began}, {"assistant", "I have read it."}, {"user", c.text.Draw(c.rand, c.bytes-known)}}})
	return b.Bytes(), err
}

// post sends a chat and checks that its answer is whole.
func (c *client) post(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	tokens, ok := readAnswer(answer)
	if resp.StatusCode != http.StatusOK || !ok {
		return fmt.Errorf("the answer is %s %.300s", resp.Status, answer)
	}
	c.tokens += tokens
	return nil
}

// readAnswer returns the prompt's tokens that a stream's usage counts. ok is false if the stream
// is not whole or has not two tokens.
func readAnswer(stream []byte) (prompt int, ok bool) {
	if !bytes.HasSuffix(stream, []byte("data: [DONE]\n\n")) {
		return 0, false
	}
	for line := range bytes.SplitSeq(stream, []byte("\n\n")) {
		var event struct {
			Usage *struct {
				Prompt int `json:"prompt_tokens"`
				Output int `json:"completion_tokens"`
			} `json:"usage"`
		}
		data, is := bytes.CutPrefix(line, []byte("data: "))
		if is && json.Unmarshal(data, &event) == nil && event.Usage != nil {
			return event.Usage.Prompt, event.Usage.Prompt > 0 && event.Usage.Output == 2
		}
	}
	return 0, false
}
