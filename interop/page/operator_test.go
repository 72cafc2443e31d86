//go:build interop

package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	operator "weir/internal/observe/page"
	"weir/test/e2e/harness"
)

// tab is the operators' page of a gateway, open in a browser. It complains of exceptions,
// of what the policy forbids and of requests to anybody else.
type tab struct {
	*testing.T
	ctx    context.Context
	origin string
	clicks int // by click

	mu         sync.Mutex
	complaints []string
}

// openTab opens the page at an origin, wide and light.
func openTab(t *testing.T, ctx context.Context, origin string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &tab{T: t, ctx: ctx, origin: strings.TrimSuffix(origin, "/")}
	if err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			p.complain("exception: %s %v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
		case *runtime.EventConsoleAPICalled:
			p.complain("console: %s", e.Type)
		case *log.EventEntryAdded:
			if string(e.Entry.Source) != "network" { // that something is not there is an answer
				p.complain("log: %s: %s", e.Entry.Level, e.Entry.Text)
			}
		case *network.EventRequestWillBeSent:
			if !strings.HasPrefix(e.Request.URL, p.origin+"/") && !strings.HasPrefix(e.Request.URL, "data:") {
				p.complain("it asks for %s", e.Request.URL)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	_, netErr := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	_, logErr := chromedp.Call(ctx, log.Enable, cdp.Empty{})
	_, runErr := chromedp.Call(ctx, runtime.Enable, cdp.Empty{})
	if err := errors.Join(netErr, logErr, runErr); err != nil {
		t.Fatal(err)
	}
	p.look(1280, "light")
	p.show("")
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range p.complaints {
			t.Error(c)
		}
	})
	return p
}

func (p *tab) complain(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complaints = append(p.complaints, fmt.Sprintf(format, args...))
}

// look sets the width and the colours that the system has.
func (p *tab) look(width int64, scheme string) {
	p.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	if err := errors.Join(err, chromedp.Do(p.ctx, chromedp.EmulateViewport(width, 900))); err != nil {
		p.Fatal(err)
	}
}

// show opens the page at a hash, from the beginning.
func (p *tab) show(hash string) {
	p.Helper()
	// From one hash to another a browser loads nothing.
	if err := chromedp.Do(p.ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(p.origin+"/"+hash)); err != nil {
		p.Fatal(err)
	}
}

// js evaluates an expression that gives a T, or a promise of one.
func js[T any](p *tab, expression string) T {
	p.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

// until waits until an expression holds.
func (p *tab) until(what, expression string) {
	p.Helper()
	harness.Eventually(p.T, what, func() bool { return js[bool](p, "!!("+expression+")") })
}

// text waits until the page's text has a part.
func (p *tab) text(part string) {
	p.Helper()
	quoted, err := json.Marshal(part)
	if err != nil {
		p.Fatal(err)
	}
	defer func() {
		if p.Failed() {
			p.Logf("the page has: %s", js[string](p, "location.hash + ' ' + document.querySelector('main')?.innerText"))
		}
	}()
	p.until("on the page: "+part, "document.querySelector('main')?.innerText.includes("+string(quoted)+")")
}

// click clicks what a selector finds first, as a mouse does.
func (p *tab) click(selector string) {
	p.Helper()
	p.until("there: "+selector, fmt.Sprintf("document.querySelector(%q)", selector))
	if err := chromedp.Do(p.ctx, chromedp.Click(selector, chromedp.NodeVisible)); err != nil {
		p.Fatalf("click %s: %v", selector, err)
	}
	p.clicks++
}

// within wants what is on the page to have taken at most so many clicks since it was opened.
func (p *tab) within(most int) {
	p.Helper()
	if p.clicks == 0 || p.clicks > most {
		p.Errorf("%d clicks since the page was opened, want at most %d", p.clicks, most)
	}
}

// press presses keys.
func (p *tab) press(keys string) {
	p.Helper()
	if err := chromedp.Do(p.ctx, chromedp.KeyEvent(keys)); err != nil {
		p.Fatal(err)
	}
}

// filter goes to the view's filter by its key, and types. The browser's protocol types the
// key's letter whether or not the page has taken it, so the key comes from the page.
func (p *tab) filter(text string) {
	p.Helper()
	js[bool](p, "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true, cancelable: true}))")
	p.until("at the filter", "document.activeElement.matches('input[data-filter]')")
	p.press(text)
}

// picture writes a screenshot, where the environment names a folder for them.
func (p *tab) picture(name string) {
	p.Helper()
	dir := os.Getenv("WEIR_SCREENSHOTS")
	if dir == "" {
		return
	}
	b, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "operator-"+name+".png"), b, 0o600); err != nil {
		p.Fatal(err)
	}
}

// axe gives what axe-core says is wrong with the page as it stands.
func (p *tab) axe(where string) {
	p.Helper()
	source, err := os.ReadFile("../../internal/observe/page/node_modules/axe-core/axe.min.js")
	if err != nil {
		p.Fatalf("%v: make interop-ready fetches it", err)
	}
	if err := chromedp.Do(p.ctx, chromedp.Evaluate[chromedp.Void](string(source))); err != nil {
		p.Fatal(err)
	}
	for _, found := range js[[]string](p, `axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ': ' + n.failureSummary + ' ' + n.html)))`) {
		p.Errorf("%s: %s", where, found)
	}
}

// fits wants the page to be no wider than its window, and its text to be seen.
func (p *tab) fits(where string) {
	p.Helper()
	seen := js[struct {
		Over       float64
		Widest     string
		Ink, Paper string
	}](p, `(() => {
		const wide = document.documentElement.clientWidth
		const over = document.documentElement.scrollWidth - wide
		const widest = over > 0 ? [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > wide + 1).map(e => e.tagName + '.' + e.className).slice(0, 5).join(' ') : ''
		const style = getComputedStyle(document.body)
		return {Over: over, Widest: widest, Ink: style.color, Paper: style.backgroundColor}
	})()`)
	if seen.Over > 0 {
		p.Errorf("%s: the page is %v pixels wider than its window: %s", where, seen.Over, seen.Widest)
	}
	if seen.Ink == seen.Paper {
		p.Errorf("%s: %s on %s", where, seen.Ink, seen.Paper)
	}
}

// evil is text that would run, if it were taken for markup.
const evil = `"><img src=x onerror="window.pwned=1"><script>window.pwned=1</script>`

// views are those of the page, with what stands on each when it is there.
var views = map[string]string{
	"#fleet": "engines up", "#live": "Time to first output", "#records": "are kept", "#flight": "in flight", "#time": "Output delay against requests in flight", "#stalls": "since weir was started", "#queue": "Tokenizing pool", "#settings": "--admin-listen",
}

// TestOperatorsPage looks at the page of a gateway as an operator does: sees the engines,
// follows the slowest request to its reason, filters, by mouse and by keyboard, on a wide
// screen and on a phone's.
func TestOperatorsPage(t *testing.T) {
	harness.Beside(t, harness.Light)
	// Each request waits three seconds for the tokenizing pool.
	g := harness.StartGateway(t, "up", "--debug-stage-delay", "pool_wait=3s")
	var tasks sync.WaitGroup
	for i := range 3 {
		tasks.Go(func() {
			harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"Say it.","stream":true,"max_tokens":20}`, "X-Request-Id", fmt.Sprintf("slow-%d", i))
		})
	}
	harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"x"}`, evil), "X-Request-Id", "strange")
	tasks.Wait()
	g.Balanced()
	p := openTab(t, browser(t), g.Admin)

	// The engines, and the filter by keyboard.
	p.until("both engines", "document.querySelectorAll('article.engine').length == 2")
	p.filter("sim-2")
	p.until("one engine", "document.querySelectorAll('article.engine').length == 1 && document.querySelector('article.engine').dataset.engine == 'sim-2'")
	if hash := js[string](p, "location.hash"); hash != "#fleet?q=sim-2" {
		t.Errorf("the address says %q", hash)
	}
	p.press(kb.Escape)
	p.until("both again", "document.querySelectorAll('article.engine').length == 2")

	// From there the slowest request and its reason are one click away.
	p.click(".slowest a")
	p.text("was tokenize wait")
	p.text("The decision")
	if hash := js[string](p, "location.hash"); !strings.HasPrefix(hash, "#request/slow-") {
		t.Errorf("the address says %q", hash)
	}
	p.axe("a request")
	p.picture("request")
	// Somebody who is sent the address sees the same.
	p.show("#request/slow-1")
	p.text("was tokenize wait")

	// The records: filtered, by mouse and by keys.
	p.click(`nav a[href="#records"]`)
	p.text("4 match")
	p.filter("slow-2")
	p.until("one row", "document.querySelectorAll('.grid .rows .row').length == 1")
	p.press(kb.Escape + kb.Escape)
	p.until("all rows", "document.querySelectorAll('.grid .rows .row').length == 4")
	if err := chromedp.Do(p.ctx, chromedp.Evaluate[chromedp.Void](`document.querySelector('[name=outcome]').value = 'rejected'; document.querySelector('[name=outcome]').dispatchEvent(new Event('change'))`)); err != nil {
		t.Fatal(err)
	}
	p.until("the refused one", "document.querySelectorAll('.grid .rows .row').length == 1 && document.querySelector('.grid').innerText.includes('strange')")
	js[bool](p, "document.querySelector('.grid').focus(), true")
	p.press(kb.ArrowDown + kb.Enter) // the arrow down, Enter
	p.text("rejected")
	p.until("its address", "location.hash == '#request/strange'")
	p.text("onerror") // its model, as text

	for _, as := range []struct {
		width  int64
		scheme string
	}{{1280, "light"}, {390, "dark"}} {
		p.look(as.width, as.scheme)
		for hash, has := range views {
			p.show(hash)
			p.text(has)
			where := fmt.Sprintf("%s at %d, %s", hash, as.width, as.scheme)
			p.fits(where)
			p.axe(where)
			p.picture(fmt.Sprintf("%s-%d-%s", hash[1:], as.width, as.scheme))
		}
		p.show("#request/slow-0")
		p.text("The decision")
		p.fits(fmt.Sprintf("a request at %d, %s", as.width, as.scheme))
		p.axe(fmt.Sprintf("a request at %d, %s", as.width, as.scheme))
		p.picture(fmt.Sprintf("request-%d-%s", as.width, as.scheme))
	}
	// The switch wins over what the system has.
	paper := "getComputedStyle(document.body).backgroundColor"
	dark := js[string](p, paper)
	p.click("header button:not([hidden])")
	if light := js[string](p, paper); light == dark {
		t.Errorf("light and dark are %s", light)
	}

	// A gateway that has gone is said to have gone, and the page goes on asking.
	g.Kill()
	p.until("gone", "document.querySelector('.alive').textContent.includes('does not answer')")
	if js[bool](p, "window.pwned !== undefined") {
		t.Error("something was taken for markup")
	}
}

// TestOperatorsPageOfMany serves the page beside answers that are made up: ten thousand
// records, and names that would run if they were markup.
func TestOperatorsPageOfMany(t *testing.T) {
	harness.Beside(t, harness.Light)
	rows := make([]map[string]any, 10_000)
	for i := range rows {
		rows[i] = map[string]any{"request_id": fmt.Sprintf("r-%05d", i), "wall_time": "2026-01-02T03:04:05Z", "age_seconds": i, "endpoint": "/v1/completions", "model": evil, "stream": true,
			"outcome": "failed", "code": evil, "error": evil, "status": 500, "engine": evil, "attempts": 2, "prompt_tokens": 1000, "completion_tokens": i, "cached_tokens": 0, "ttft_ms": 1.5, "total_ms": 1e5 - float64(i), "slowest_stage": evil, "slowest_stage_ms": 1}
	}
	rows[0]["request_id"] = evil
	rows[0]["reason"] = map[string]any{"stage": evil, "ms": 1e3, "sentence": evil, "stages": []any{map[string]any{"stage": evil, "start_ms": 0, "ms": 1e3}}}
	record := map[string]any{"request_id": evil, "wall_time": evil, "endpoint": evil, "client": evil, "model": evil, "stream": true, "outcome": evil, "code": evil, "error": evil, "status": 500,
		"arrival_time": 1e9, "first_flushed_time": 2e9, "finish_time": 3e9, "ttft": 1e9, "stages": map[string]any{evil: 1e9}, "residual": 0, "stalls": []any{map[string]any{"start_time": 1.5e9, "duration": 1e8, "why": evil}}, "stalled": 1e8,
		"attempts": []any{map[string]any{"repeated": true, "legs": []any{map[string]any{"role": evil, "engine": evil, "engine_request_id": evil, "outcome": evil, "handed_time": 1.1e9, "to_server_time": 1.2e9}},
			"choice": map[string]any{"why": evil, "engine": evil, "engines": 2, "prompt_tokens": 3, "best": []any{map[string]any{"engine": evil}}}}}}
	flight := make([]map[string]any, 1000)
	for i := range flight {
		flight[i] = map[string]any{"request_id": evil, "model": evil, "engine": evil, "prefill_engine": evil, "client": evil, "stage": evil, "stage_seconds": 1, "age_seconds": 5000 - i}
	}
	delays := make([]map[string]any, 2000)
	for i := range delays {
		delays[i] = map[string]any{"request_id": evil, "live": i % 512, "pending": i % 7, "delay_ms": float64(i) / 10}
	}
	band := func(from, to float64) map[string]any {
		return map[string]any{"metric": "ttft", "from_percentile": from, "to_percentile": to, "requests": 10, "mean_ms": to, "sentence": evil,
			"stages": []any{map[string]any{"stage": "prefill", "mean_ms": 3, "share": 0.3}, map[string]any{"stage": evil, "mean_ms": to - 3, "share": 0.7}}}
	}
	// Thousands of models.
	waits := map[string]any{evil: map[string]any{"waiting": 1, "refused": map[string]int{evil: 1}}}
	served := []string{evil}
	for i := range 5000 {
		name := fmt.Sprintf("tenant-%04d/%s", i, evil)
		waits[name], served = map[string]any{"waiting": i % 3, "refused": map[string]int{}}, append(served, name)
	}
	tenants := make([]map[string]any, 50) // as many as weir answers with
	for i := range tenants {
		tenants[i] = map[string]any{"band": evil, "tenant": fmt.Sprint(i, evil), "waiting": i}
	}
	engine := map[string]any{"name": evil, "kind": evil, "role": evil, "ready": false, "error": evil, "note": evil, "models": served, "software": evil,
		"health": map[string]any{"state": evil, "for_seconds": 1, "why": evil, "takes": evil}, "ranks": []any{map[string]any{"rank": 0, "health": map[string]any{"state": evil, "for_seconds": 1, "why": evil}}}}
	histogram := map[string]any{"counts": []int{0}, "count": 0, "sum": 0}
	var asked atomic.Int64
	mux := http.NewServeMux()
	for _, pattern := range operator.Patterns {
		mux.HandleFunc(pattern, operator.Serve)
	}
	for path, view := range map[string]any{
		"/engines": []any{engine},
		"/live": map[string]any{"version": evil, "wall_time": "", "uptime_seconds": 5, "received": 1, "ended": map[string]int{evil: 1}, "bounds_seconds": []float64{1}, "ttft": histogram, "total": histogram, "output_delay": histogram,
			"queue": waits, "tenants": tenants},
		"/config": map[string]any{"version": evil, "command": evil, "flags": []any{map[string]any{"name": evil, "group": evil, "value": evil, "help": evil}}}, "/timeline/{id}": record,
		"/admin/pending": map[string]any{"generation": 1, "reading": map[string]any{"at": "2026-01-02T03:04:05Z", "result": "failed", "error": evil}, "restart": []any{map[string]any{"name": evil, "in_force": evil, "wanted": evil}},
			"engines": []any{map[string]any{"name": evil, "state": evil, "in_flight": 1, "error": evil}}, "names": []string{evil}, "keys": []any{map[string]any{"flag": evil, "since": "2026-01-02T03:04:05Z", "error": evil}}},
		"/peers":       map[string]any{"peers": []any{map[string]any{"address": evil, "instance": evil, "state": evil, "error": evil}, map[string]any{"address": evil, "state": "self"}}},
		"/admin/fleet": map[string]any{"discovery": []any{map[string]any{"source": evil, "engines": 1, "complete": true, "error": evil, "for_seconds": 1, "notes": []string{evil}}}},
		"/stalls":      map[string]any{"threshold_ms": 250, "total": 1, "stalls": []any{map[string]any{"start": "2026-01-02T03:04:05Z", "ms": 400, "held_by": evil, "why": evil, "operations": []any{map[string]any{"operation": evil, "ms": 399, "request_ids": []string{evil}}}}}},
		"/profiles":    map[string]any{"on": true, "profiles": []any{map[string]any{"name": evil, "kind": evil, "trigger": evil, "time": "2026-01-02T03:04:05Z", "bytes": 1}}},
		"/requests":    map[string]any{"total": 50_000, "matched": 50_000, "stages": []any{map[string]any{"stage": evil, "requests": 50_000}}, "requests": flight},
		"/stages":      map[string]any{"requests": 2000, "bands": []any{band(0, 50), band(49, 51), band(99, 100)}, "delays": delays},
	} {
		body, err := json.Marshal(view)
		if err != nil {
			t.Fatal(err)
		}
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			_, _ = w.Write(body)
		})
	}
	list := func(n int) []byte {
		body, err := json.Marshal(map[string]any{"window_seconds": 900, "ended": 10_000, "kept": 10_000, "passed_over": 0, "matched": 10_000, "records": rows[:min(n, len(rows))]})
		if err != nil {
			t.Error(err)
		}
		return body
	}
	whole := list(10_000)
	mux.HandleFunc("GET /records", func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body := whole
		if limit, err := strconv.Atoi(r.FormValue("limit")); err == nil && limit < 10_000 {
			body = list(limit)
		}
		_, _ = w.Write(body)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	p := openTab(t, browser(t), server.URL)
	// A busy machine adds to any of some tries.
	usable, bound := time.Hour, time.Second
	if testing.Short() { // beside all other tests of make interop
		bound = 5 * time.Second
	}
	for range 10 {
		began := time.Now()
		p.show("#records?limit=10000")
		p.until("rows", "document.querySelectorAll('.grid .rows .row').length > 10")
		took := time.Since(began).Round(time.Millisecond)
		t.Logf("usable with 10,000 records after %v", took)
		if usable = min(usable, took); usable <= bound {
			break
		}
	}
	p.until("all rows", "document.querySelector('.grid').getAttribute('aria-rowcount') == 10001")
	if usable > bound {
		t.Errorf("usable with 10,000 records after %v, want %v", usable, bound)
	}
	if n := js[int](p, "document.querySelectorAll('.grid .rows .row').length"); n > 200 {
		t.Errorf("%d rows exist", n)
	}
	p.text("onerror")
	// If there are thousands of models, the page shows those that wait, and the number of the
	// others.
	p.show("#queue")
	p.text("4,801 more")
	if n := js[int](p, "document.querySelectorAll('[aria-label=\"The queue, by model\"] tbody tr').length"); n != 200 {
		t.Errorf("%d models are shown", n)
	}
	if n := js[int](p, "document.querySelectorAll('[aria-label=\"Whose turn it is, by tenant\"] tbody tr').length"); n != len(tenants) {
		t.Errorf("%d tenants are shown", n)
	}
	p.show("#fleet")
	p.text("4,993 more")
	p.show("#records?limit=10000")
	p.until("all rows", "document.querySelector('.grid')?.getAttribute('aria-rowcount') == 10001")
	// To the last row by keyboard, and back.
	js[bool](p, "document.querySelector('.grid').focus(), true")
	p.press(kb.End)
	p.until("the last row", "document.querySelector('.grid .row[aria-selected=true]')?.innerText.includes('r-09999')")
	p.press(kb.ArrowUp)
	p.until("the one before", "document.querySelector('.grid .row[aria-selected=true]')?.innerText.includes('r-09998')")
	if gaps := js[int](p, `[...document.querySelectorAll('.grid .rows .row')].map(r => r.getBoundingClientRect().top).sort((a, b) => a - b).filter((y, i, all) => i > 0 && Math.abs(y - all[i-1] - 32) > 1).length`); gaps > 0 {
		t.Errorf("%d gaps between the rows", gaps)
	}
	// While nobody sees the page it asks nothing, and then again.
	hidden := func(v bool) {
		js[bool](p, fmt.Sprintf("Object.defineProperty(document, 'hidden', {configurable: true, value: %t}), document.dispatchEvent(new Event('visibilitychange'))", v))
	}
	hidden(true)
	p.until("it says so", "document.querySelector('.alive').textContent.includes('not asking')")
	pause := "new Promise(r => setTimeout(() => r(true), 2500))" // what was on its way is there
	js[bool](p, pause)
	before := asked.Load()
	js[bool](p, pause)
	if n := asked.Load() - before; n > 0 {
		t.Errorf("asked %d times while hidden", n)
	}
	hidden(false)
	harness.Eventually(t, "asking again", func() bool { return asked.Load() > before })
	// Nothing of it runs, whatever the view and the width.
	for _, width := range []int64{1280, 390} {
		p.look(width, "dark")
		for _, hash := range append(slices.Collect(maps.Keys(views)), "#request/"+url.PathEscape(evil), "#"+url.PathEscape(evil), "#records?engine="+url.QueryEscape(evil)) {
			before := asked.Load()
			p.show(hash)
			harness.Eventually(t, "asked", func() bool { return asked.Load() > before+1 })
			p.until("shown", "document.querySelector('main').innerText.length > 20 && document.querySelector('.alive').textContent.includes('live')")
			p.fits(fmt.Sprintf("%.20s at %d", hash, width))
			if js[bool](p, "window.pwned !== undefined || document.querySelectorAll('body img, body script').length > 0") {
				t.Errorf("%s: something was taken for markup", hash)
			}
		}
	}
}

// TestCausesOnThePage puts in what makes requests slow, one each, and has an operator who
// opens the page find the slow request of the last minute and what it was slow for: with at
// most three clicks.
func TestCausesOnThePage(t *testing.T) {
	chat := func(t *testing.T, g *harness.Gateway, id, content string) {
		t.Helper()
		harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":4,"messages":[{"role":"user","content":%q}]}`, content), "X-Request-Id", id))
	}
	// found opens the page, clicks the slowest request, and wants a reason.
	found := func(t *testing.T, g *harness.Gateway, picture, id string, says ...string) *tab {
		t.Helper()
		g.Balanced()
		p := openTab(t, browser(t), g.Admin)
		p.click(".slowest a")
		if hash := js[string](p, "location.hash"); hash != "#request/"+id {
			t.Errorf("the slowest is %s, want %s", hash, id)
		}
		for _, part := range says {
			p.text(part)
		}
		p.axe("the reason")
		p.fits("the reason")
		p.picture("cause-" + picture)
		p.within(3)
		return p
	}
	t.Run("stall", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		// On a busy machine other processes may hold the cores for longer than the request does: then
		// the stall is theirs, and nothing is kept of it.
		var g *harness.Gateway
		for ours, until := false, time.Now().Add(harness.Patience); !ours; time.Sleep(time.Second) {
			if time.Now().After(until) {
				t.Fatalf("each stall of %v was held by others", harness.Patience)
			}
			g = harness.StartGatewayWith(t, []string{"GOMAXPROCS=1"}, "up", "--profiles-dir", filepath.Join(t.TempDir(), "profiles"), "--debug-stage-delay", "tokenize=400ms", "--debug-hold-core")
			chat(t, g, "held-the-core", "hi")
			harness.Eventually(t, "a stall", func() bool {
				return strings.Contains(string(harness.Get(t, g.Admin+"/stalls").Body), "held-the-core")
			}, g.Process)
			if ours = strings.Contains(string(harness.Get(t, g.Admin+"/stalls").Body), `"held_by": "tokenize"`); !ours {
				g.Interrupt()
			}
		}
		p := found(t, g, "stall", "held-the-core", "was tokenize: its text became ids", "weir itself stood still", "Stalls that it lived through")
		p.click(`a[href="#stalls"]:not(nav a)`)
		p.text("held-the-core")
		p.text("-stall.trace") // and what was kept of it
		p.text("-stall.pprof")
		p.within(3)
		p.picture("cause-stall-list")
	})
	t.Run("slow engine", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		fast := harness.StartSim(t, harness.FastSim...)
		slow := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "900ms", "--decode-cost", "2ms")
		g := harness.StartGateway(t, "serve", "--engine", slow.Spec("plane")+",name=tardy", "--engine", fast.Spec("plane")+",name=quick", "--policy", "round-robin")
		chat(t, g, "a", "one")
		chat(t, g, "b", "two")
		id := "a"
		if a := harness.Get(t, g.Admin+"/records?engine=tardy&id=b"); strings.Contains(string(a.Body), `"matched": 1`) {
			id = "b"
		}
		found(t, g, "engine", id, "was prefill: engine tardy computed the prompt", "whole request on tardy")
	})
	t.Run("long template", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		folder := "weir-sim=" + harness.SlowTemplate(t)
		s := harness.StartSim(t, append([]string{"--model", folder}, harness.FastSim...)...)
		g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"), "--model", folder)
		chat(t, g, "plain", "hi")
		chat(t, g, "templated", "SLOW it is")
		found(t, g, "template", "templated", "was template: the model's chat template was rendered")
	})
	t.Run("full pool", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		s := harness.StartSim(t, harness.FastSim...)
		g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"), "--tokenize-workers", "1", "--debug-stage-delay", "tokenize=1s")
		p := openTab(t, browser(t), g.Admin)
		p.show("#flight")
		var tasks sync.WaitGroup
		for i := range 6 {
			tasks.Go(func() { chat(t, g, fmt.Sprintf("pool-%d", i), fmt.Sprintf("number %d", i)) })
		}
		p.until("who waits for the pool", "document.querySelector('.grid')?.innerText.includes('pool_wait') && document.querySelector('.chips')?.innerText.includes('pool_wait')")
		p.picture("cause-pool-flight")
		tasks.Wait()
		g.Balanced()
		p.click(`nav a[href="#fleet"]`)
		p.until("the slowest", "document.querySelectorAll('.slowest a').length == 5")
		p.click(".slowest a")
		p.text("was tokenize wait: it waited for the tokenizing pool, which was full")
		p.within(3)
		p.picture("cause-pool")
	})
	t.Run("slow client", func(t *testing.T) {
		harness.Beside(t, harness.Light)
		s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "200us")
		g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"))
		id := strings.Repeat("x", 120) + "-client" // a long id makes large events
		conn := harness.DialNarrow(t, g)
		harness.PostRaw(t, conn, `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":4000,"messages":[{"role":"user","content":"go on"}]}`, "X-Request-Id", id, "Connection", "close")
		p := openTab(t, browser(t), g.Admin)
		p.show("#flight")
		p.until("who waits for its client", "document.querySelector('.grid .row:not(.head)')?.innerText.includes('flush')")
		p.picture("cause-client-flight")
		time.Sleep(2 * time.Second) // it is how long it does not read
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(conn); err != nil || !strings.Contains(string(b), "data: [DONE]") {
			t.Fatalf("%v after %d bytes", err, len(b))
		}
		found(t, g, "client", id, "was flush: its client did not take what weir wrote")
	})
}

// TestPendingOnThePage changes what a gateway's configuration file says, and has the page show
// what is not in force.
func TestPendingOnThePage(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	file := filepath.Join(t.TempDir(), "weir.yaml")
	write := func(body, more string) {
		t.Helper()
		harness.WriteFile(t, file+".new", "max-body: "+body+"\nengine:\n  - "+s.Spec("plane")+",name=a\n"+more)
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("1048576", "")
	g := harness.StartGateway(t, "serve", "--config", file)
	p := openTab(t, browser(t), g.Admin)
	p.show("#settings")
	p.text("Nothing: what is wanted is in force.")
	write("2097152", "  - http://127.0.0.1:1,name=gone\n")
	p.text("--max-body")
	p.text("2MiB")
	p.until("the engine that is not there", "document.querySelector('[aria-label^=Engines]')?.innerText.includes('gone')")
	write("2097152", "  - wier=127.0.0.1:1\n")
	p.text("is not in force: ")
	p.text("wier=127.0.0.1:1")
	for _, look := range []struct {
		width  int64
		scheme string
	}{{1280, "light"}, {390, "dark"}} {
		p.look(look.width, look.scheme)
		p.show("#settings")
		p.text("--max-body")
		p.axe("pending")
		p.fits("pending")
		p.picture(fmt.Sprintf("pending-%d", look.width))
	}
	write("1048576", "")
	p.text("Nothing: what is wanted is in force, read again at ")
}

// keepStall sends requests that hold the core until a stall is the gateway's own. On a busy machine
// the first may be others', of which nothing is kept.
func keepStall(t *testing.T, profiles string, ask func(), needs ...*harness.Process) {
	t.Helper()
	harness.Eventually(t, "a stall of the gateway's own", func() bool {
		ask()
		kept, err := filepath.Glob(filepath.Join(profiles, "*-stall.trace"))
		return err == nil && len(kept) > 0
	}, needs...)
}

// TestManyStalls has more stalls than one reads: the latest are shown, the rest when asked for,
// and the profiles below are found, on a phone too.
func TestManyStalls(t *testing.T) {
	harness.Beside(t, harness.Light)
	profiles := filepath.Join(t.TempDir(), "profiles")
	g := harness.StartGatewayWith(t, []string{"GOMAXPROCS=1"}, "up", "--profiles-dir", profiles, "--stall-threshold", "20ms", "--debug-stage-delay", "tokenize=60ms", "--debug-hold-core")
	total := func() int {
		var s struct{ Total int }
		if err := json.Unmarshal(harness.Get(t, g.Admin+"/stalls").Body, &s); err != nil {
			t.Fatal(err)
		}
		return s.Total
	}
	asked := 0
	ask := func() {
		harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","stream":true,"max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`, "X-Request-Id", fmt.Sprintf("stalled-by-a-name-of-some-length-%d", asked)))
		asked++
	}
	for total() < 25 {
		ask()
	}
	keepStall(t, profiles, ask, g.Process)
	p := openTab(t, browser(t), g.Admin)
	for _, look := range []struct {
		width  int64
		scheme string
	}{{1280, "light"}, {390, "dark"}} {
		p.look(look.width, look.scheme)
		p.show("#stalls")
		const rows = "document.querySelectorAll('[aria-label^=Stalls] tbody tr').length"
		p.until("the latest", rows+" === 20")
		p.until("the profiles", "document.querySelector('[aria-label=Profiles]') !== null")
		p.text("-stall.trace")
		p.axe("stalls")
		p.fits("stalls")
		if high := js[float64](p, "document.querySelector('[aria-label=Profiles]').getBoundingClientRect().top + scrollY"); high > 4500 {
			t.Errorf("%d wide: the profiles are %v below", look.width, high)
		}
		p.picture(fmt.Sprintf("stalls-%d", look.width))
		p.click("[aria-expanded=false]")
		p.until("all", rows+" > 20")
		p.click("[aria-expanded=true]")
		p.until("the latest again", rows+" === 20")
	}
}

// TestOtherSites opens a page of another origin, which asks the admin listener for things in
// every way that a page has. A browser says whose page it is, so that none is answered.
func TestOtherSites(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up")
	script := `<!doctype html><title>x</title><script>
		const to = "` + g.Admin + `", done = []
		const note = (way, came) => done.push(way + (came ? " came" : " failed"))
		for (const mode of ["cors", "no-cors"]) fetch(to + "/config", {mode}).then(r => note(mode, r.type !== "opaque"), () => note(mode, false))
		fetch(to + "/admin/why", {method: "POST", body: "{}", mode: "no-cors"}).then(() => note("post", false), () => note("post", false))
		const put = (tag, way, path, to_) => { const e = document.createElement(tag); e.onload = () => note(way, true); e.onerror = () => note(way, false); e[to_] = to + path; document.documentElement.append(e) }
		put("script", "script", "/page.js", "src")
		put("link", "style", "/page.css", "href")
		document.querySelector("link").rel = "stylesheet"
		window.done = done
	</script>`
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte(script))
	}))
	t.Cleanup(evil.Close)
	ctx, cancel := chromedp.NewContext(browser(t))
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx, chromedp.Navigate(evil.URL)); err != nil {
		t.Fatal(err)
	}
	p := &tab{T: t, ctx: ctx, origin: evil.URL}
	p.until("all tried", "window.done.length >= 5")
	for _, way := range js[[]string](p, "window.done") {
		if strings.HasSuffix(way, " came") {
			t.Error(way)
		}
	}
	// From there a link to the page may be followed.
	if err := chromedp.Do(ctx, chromedp.Evaluate[chromedp.Void](`location.href = "`+g.Admin+`/"`)); err != nil {
		t.Fatal(err)
	}
	p.until("the page", "document.querySelectorAll('article.engine').length == 2")
}
