//go:build interop

// Package page opens the reports of weir bench --html and weir fleet --html in Chromium, as the person
// who is sent one does: from a file, wide and narrow, light and dark. It opens the page of a gateway as
// an operator does.
//
//	go test -tags interop ./interop/page/
//
// WEIR_CHROMIUM names the browser; chromium, or one like it, is looked for in
// PATH. A browser that is not installed fails the test. WEIR_SCREENSHOTS names a
// folder that pictures of the pages are written to.
package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"weir/test/e2e/harness"
)

// patience is for a hang of the browser.
const patience = 15 * time.Minute

func TestMain(m *testing.M) { harness.Main(m) }

// browser starts Chromium without a window.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := os.Getenv("WEIR_CHROMIUM")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path == "" {
			path, _ = exec.LookPath(name)
		}
	}
	if path == "" {
		t.Fatal("no Chromium: apt-get install chromium, or name one with WEIR_CHROMIUM")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// seen is what a page has, as the browser sees it.
type seen struct {
	Title string
	// Plots has for each plot its title, the points of its lines, its circles, and
	// whether it is drawn at a size that can be read.
	Plots []struct {
		Title   string
		Cut     []string // texts that reach out of the figure, or over another one of it
		Lines   []int
		Circles int
		Bars    int
		Width   float64
		Height  float64
	}
	Runs     int      // that can be opened
	Scrolled []string // what is wider than its frame
	Overflow float64
	Ink      string // colours of text and page
	Paper    string
}

const look = `(() => {
	document.querySelectorAll('details').forEach((d, i) => d.open = i == 0)
	const cut = f => {
		const frame = f.getBoundingClientRect(), texts = [...f.querySelectorAll('svg text, p, figcaption')]
		const boxes = texts.map(t => t.getBoundingClientRect())
		const over = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2
		return texts.filter((t, i) => boxes[i].left < frame.left || boxes[i].right > frame.right || boxes[i].bottom > frame.bottom
			|| boxes.some((b, k) => k > i && over(boxes[i], b))).map(t => t.textContent)
	}
	const style = getComputedStyle(document.body)
	return {
		Title: document.title,
		Plots: [...document.querySelectorAll('figure')].filter(f => f.checkVisibility()).map(f => { const box = f.querySelector('svg').getBoundingClientRect(); return {
			Title: f.querySelector('figcaption').textContent,
			Cut: cut(f),
			Lines: [...f.querySelectorAll('polyline')].map(l => l.points.numberOfItems),
			Circles: f.querySelectorAll('circle').length,
			Bars: f.querySelectorAll('rect').length,
			Width: box.width, Height: box.height,
		}}),
		Runs: document.querySelectorAll('details').length,
		Scrolled: [...document.querySelectorAll('.wide, .plot, table, figure')].filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map(e => e.className + ' ' + e.textContent.slice(0, 40)),
		Overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
		Ink: style.color, Paper: style.backgroundColor,
	}
})()`

// visit opens a file at a width, and fails the test where the page says or asks
// for anything.
func visit(t *testing.T, ctx context.Context, file string, width int64, scheme string) (page seen) {
	t.Helper()
	ctx, cancel := chromedp.NewContext(ctx)
	defer cancel()
	address := (&url.URL{Scheme: "file", Path: file}).String()
	var mu sync.Mutex
	var complaints []string
	complain := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		complaints = append(complaints, fmt.Sprintf(format, args...))
	}
	if err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			complain("exception: %s", e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			complain("console: %s", e.Type)
		case *log.EventEntryAdded:
			complain("log: %s: %s", e.Entry.Level, e.Entry.Text)
		case *network.EventRequestWillBeSent:
			if e.Request.URL != address {
				complain("it asks for %s", e.Request.URL)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	_, netErr := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	_, logErr := chromedp.Call(ctx, log.Enable, cdp.Empty{})
	_, runErr := chromedp.Call(ctx, runtime.Enable, cdp.Empty{})
	_, mediaErr := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	if err := errors.Join(netErr, logErr, runErr, mediaErr, chromedp.Do(ctx, chromedp.EmulateViewport(width, 900), chromedp.Navigate(address))); err != nil {
		t.Fatal(err)
	}
	page, err := chromedp.Run(ctx, chromedp.Evaluate[seen](look))
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	for _, c := range complaints {
		t.Errorf("%s at %d, %s: %s", filepath.Base(file), width, scheme, c)
	}
	mu.Unlock()
	if dir := os.Getenv("WEIR_SCREENSHOTS"); dir != "" {
		picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("%s-%d-%s.png", strings.TrimSuffix(filepath.Base(file), ".html"), width, scheme)
		if err := os.WriteFile(filepath.Join(dir, name), picture, 0o600); err != nil {
			t.Error(err)
		}
	}
	return page
}

// everywhere visits a page at each width in each scheme, and gives what it looks
// like wide and light.
func everywhere(t *testing.T, ctx context.Context, file string) (page seen) {
	t.Helper()
	papers := map[string]bool{}
	for _, width := range []int64{390, 1280} {
		for _, scheme := range []string{"dark", "light"} {
			page = visit(t, ctx, file, width, scheme)
			papers[page.Paper] = true
			if page.Overflow > 0 {
				t.Errorf("%d wide, the page is %v pixels wider", width, page.Overflow)
			}
			if len(page.Scrolled) > 0 {
				t.Errorf("%d wide, this is cut: %q", width, page.Scrolled)
			}
			if page.Ink == page.Paper {
				t.Errorf("%s on %s", page.Ink, page.Paper)
			}
			for _, p := range page.Plots {
				if p.Width < 200 || p.Height < 20 {
					t.Errorf("%d wide, plot %q is %v by %v", width, p.Title, p.Width, p.Height)
				}
				if len(p.Cut) > 0 {
					t.Errorf("%d wide, plot %q has %q cut or over one another", width, p.Title, p.Cut)
				}
			}
		}
	}
	if len(papers) != 2 {
		t.Errorf("light and dark are %v", papers)
	}
	return page
}

// bench runs weir bench to its end.
func bench(t *testing.T, args ...string) {
	t.Helper()
	run(t, append([]string{"bench"}, args...)...)
}

// run runs weir, which must exit with 0.
func run(t *testing.T, args ...string) {
	t.Helper()
	if stdout, stderr, code := harness.Finish(t, "", args...); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
}

// experiment runs one and gives its page and its JSON.
func experiment(t *testing.T, text string) (page string, object []byte) {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(file("e.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "experiment", file("e.yaml"), "--html", file("experiment.html"), "--json", file("e.json"))
	object, err := os.ReadFile(file("e.json"))
	if err != nil {
		t.Fatal(err)
	}
	return file("experiment.html"), object
}

// TestSweepPage looks at the page of an experiment with two rates and two of the gateway's
// policies: a curve for each series with a point for each load, what came of the choices for
// each series, and every run with its own plots. One experiment shows all of it, because
// each run of one starts a fleet and warms it up.
func TestSweepPage(t *testing.T) {
	harness.Beside(t, harness.Light)
	page, object := experiment(t, `
name: policies
load: {rate: [20, 40], requests: 40, output-tokens: 8, field: {ignore_eos: true}}
fleet:
  engines: 2
  engine: {cost: constant, prefill-cost: 5ms, decode-cost: 5ms, max-total-tokens: 100000}
  gateway: {policy: [cost, round-robin], queue: ["on"]}
`)
	var sweep struct {
		Points []struct {
			Unstable bool
			Figures  map[string]struct{ Mean *float64 }
		}
		Runs []struct{}
	}
	if err := json.Unmarshal(object, &sweep); err != nil {
		t.Fatal(err)
	}
	p := everywhere(t, browser(t), page)
	if len(sweep.Points) != 4 || len(sweep.Runs) != 4 || p.Runs != 4 {
		t.Fatalf("%d points, %d runs, %d in the page", len(sweep.Points), len(sweep.Runs), p.Runs)
	}
	drawn := func(title string) (circles, lines, onLines int) {
		for _, plot := range p.Plots {
			if plot.Title == title {
				circles, lines = circles+plot.Circles, lines+len(plot.Lines)
				for _, n := range plot.Lines {
					onLines += n
				}
			}
		}
		return circles, lines, onLines
	}
	// On a slow machine rates may be unstable, and have no latencies.
	for title, name := range map[string]string{"ttft p50, ms": "ttft_p50_ms", "ttft p99, ms": "ttft_p99_ms",
		"tpot p50, ms": "tpot_p50_ms", "tokens/s": "tokens_per_second", "complete requests/s": "requests_per_second"} {
		want := 0
		for _, point := range sweep.Points {
			if point.Figures[name].Mean != nil {
				want++
			}
		}
		if circles, _, onLines := drawn(title); circles != want || onLines != want || name == "tokens_per_second" && want != 4 {
			t.Errorf("%s: %d points, %d on lines, want %d", title, circles, onLines, want)
		}
	}
	for _, title := range []string{"requests of the engine with most, over the mean", "prompt tokens found in caches, %", "predicted regret, mean, ms"} {
		if circles, lines, _ := drawn(title); circles != 4 || lines != 2 {
			t.Errorf("%s: %d points on %d lines, want 4 on 2", title, circles, lines)
		}
	}
}

// TestRunPage looks at the page of one run through a gateway.
func TestRunPage(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up")
	page := filepath.Join(t.TempDir(), "run.html")
	bench(t, g.URL, "--admin", g.Admin, "--rate", "40", "--requests", "200", "--output-tokens", "12", "--html", page)
	p := everywhere(t, browser(t), page)
	want := []struct {
		title       string
		lines, rows int
	}{
		{"share of requests by ttft", 1, 0}, {"share of requests by tpot", 1, 0}, {"share of requests by e2e", 1, 0},
		{"ttft by percentile, ms", 1, 0}, {"tpot by percentile, ms", 1, 0}, {"e2e by percentile, ms", 1, 0},
		{"requests begun a second", 1, 0}, {"requests complete a second", 1, 0}, {"requests in flight", 1, 0},
		{"stages of ttft", 0, 4}, {"stages of e2e", 0, 4}, {"stages of single requests, by their ttft", 0, 5},
	}
	if len(p.Plots) != len(want) {
		t.Fatalf("%+v", p.Plots)
	}
	for i, w := range want {
		got := p.Plots[i]
		if got.Title != w.title || len(got.Lines) != w.lines || got.Bars < w.rows {
			t.Errorf("%+v, want %+v", got, w)
		}
		for _, n := range got.Lines {
			if n < 20 {
				t.Errorf("%s: a line of %d points", w.title, n)
			}
		}
	}
	// Each of the 200 requests has its step in the distribution, beside the line's start.
	if n := p.Plots[2].Lines[0]; n != 201 {
		t.Errorf("the distribution of 200 requests has %d points", n)
	}
}

// TestReportPages looks at the pages of weir report: of a gateway's timeline, and of two runs that
// are compared.
func TestReportPages(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	g := harness.StartGateway(t, "up", "--timeline", file("timeline.jsonl"))
	for _, name := range []string{"a.json", "b.json"} {
		bench(t, g.URL, "--rate", "40", "--requests", "120", "--output-tokens", "12", "--json", file(name))
	}
	for page, of := range map[string][]string{"timeline.html": {file("timeline.jsonl")}, "compared.html": {file("a.json"), file("b.json")}} {
		if stdout, stderr, code := harness.Finish(t, "", append(append([]string{"report"}, of...), "--html", file(page))...); code != 0 {
			t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
		}
		p := everywhere(t, browser(t), file(page))
		if page != "timeline.html" {
			continue
		}
		titles := []string{"stages of ttft", "stages of e2e", "stages of single requests, by their ttft", "output delay by requests in flight, ms", "output delay by streams whose output waits, ms"}
		if len(p.Plots) != len(titles) {
			t.Fatalf("%+v", p.Plots)
		}
		for i, title := range titles {
			if got := p.Plots[i]; got.Title != title || i >= 3 && got.Circles < 200 {
				t.Errorf("%+v, want %s", got, title)
			}
		}
	}
}

// TestFleetPage looks at the page of weir fleet: figures against the number of engines,
// and of the first cell the distributions, the reuse and the loads.
func TestFleetPage(t *testing.T) {
	harness.Beside(t, harness.Light)
	page := filepath.Join(t.TempDir(), "fleet.html")
	stdout, stderr, code := harness.Finish(t, "", "fleet", "synthetic:rate=6,turns=3,think=1s,duration=60s,input=400,output=40,prefix=2000,groups=4",
		"--engines", "2,3", "--policy", "cost,round-robin", "--slo", "ttft_p99<500ms", "--html", page)
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	p := everywhere(t, browser(t), page)
	type plot struct {
		title                string
		lines, circles, bars int
	}
	want := []plot{
		{"ttft p50, ms", 3, 6, 0}, {"ttft p99, ms", 3, 6, 0}, {"tpot p99, ms", 3, 6, 0}, {"goodput, requests/s", 3, 6, 0}, {"captured reuse", 3, 6, 0},
		{"share of requests by ttft", 3, 0, 0}, {"ttft by percentile, ms", 3, 0, 0}, {"share of requests by tpot", 3, 0, 0}, {"share of requests by e2e", 3, 0, 0},
		{"what became of the tokens of prompts", 0, 0, 9}, {"load under oracle", 2, 0, 0}, {"load under cost", 2, 0, 0}, {"load under round-robin", 2, 0, 0},
	}
	if p.Runs != 2 || len(p.Plots) != len(want) {
		t.Fatalf("%d cells; %+v", p.Runs, p.Plots)
	}
	for i, w := range want {
		got := p.Plots[i]
		if (plot{got.Title, len(got.Lines), got.Circles, got.Bars}) != w {
			t.Errorf("%+v, want %+v", got, w)
		}
	}
}
