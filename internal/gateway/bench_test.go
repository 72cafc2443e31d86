package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/observe/metrics"
	"weir/internal/observe/timeline"
	"weir/internal/trace"
	"weir/models"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// simModel is the built-in model folder, read once.
var simModel = sync.OnceValue(func() *model.Folder {
	m, err := model.Load(models.Sim())
	if err != nil {
		panic(err)
	}
	return m
})

// words are ids whose texts are distinct words with a space before them.
var words = sync.OnceValue(func() []uint32 {
	var ids []uint32
	m := simModel()
	for id := range uint32(m.VocabSize) {
		if t := m.Text(id); len(t) == 4 && t[0] == ' ' && bytes.Trim(t[1:], "abcdefghijklmnopqrstuvwxyz") == nil {
			ids = append(ids, id)
		}
	}
	return ids
})

func text(ids ...uint32) string { return simModel().Tokenizer.Decode(ids, true) }

// tokensOf gives ids whose texts are exactly the parts given.
func tokensOf(t testing.TB, parts ...string) []uint32 {
	t.Helper()
	m := simModel()
	var ids []uint32
	for _, part := range parts {
		found := false
		for id := range uint32(m.VocabSize) {
			if m.Tokenizer.Known(id) && !m.Tokenizer.Special(id) && string(m.Text(id)) == part {
				ids, found = append(ids, id), true
				break
			}
		}
		if !found {
			t.Fatalf("no token is %q", part)
		}
	}
	return ids
}

// bench is a gateway behind its HTTP server on a network in memory, in front
// of scripted engines, all in one bubble of virtual time.
type bench struct {
	t         testing.TB
	g         *Gateway
	metrics   *metrics.Metrics
	timeline  *timeline.Recorder
	file      string
	net       *memListener
	snapshot  atomic.Pointer[route.Snapshot]
	changed   chan struct{}
	stopped   bool
	stop      func()
	callers   []*caller
	sent      map[string]int // requests whose arrival the gateway must account for, by id
	nextID    int
	ranks     []*cost.Rank    // of all engines that were there
	protocols *http.Protocols // of the server
}

// way is how the streams of a bench go on after their first output.
type way string

const (
	wayKept   way = "net/http" // they stay there
	wayBare   way = "bare"     // they leave, and relayed ones have a goroutine each
	wayPolled way = "polled"   // they leave, and all are driven
)

var ways = []way{wayPolled, wayBare, wayKept}

// inBubble runs a test in virtual time against a gateway with the engines
// given, once each way. After it, whatever the test did, what must hold at rest is checked:
// one record per request, the accounting identity, nothing reserved, pending
// or running, and no goroutine left (the bubble would not end).
func inBubble(t *testing.T, opts Options, engines []any, test func(t *testing.T, b *bench)) {
	t.Helper()
	inWays(t, ways, opts, engines, test)
}

// inOneWay is inBubble for requests that reach no engine: refusals, and what weir answers
// by itself, are the same each way.
func inOneWay(t *testing.T, opts Options, engines []any, test func(t *testing.T, b *bench)) {
	t.Helper()
	inWays(t, ways[:1], opts, engines, test)
}

func inWays(t *testing.T, ways []way, opts Options, engines []any, test func(t *testing.T, b *bench)) {
	t.Helper()
	words()
	for _, way := range ways {
		t.Run(string(way), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, dir, opts, engines, way)
				defer b.end()
				test(t, b)
			})
		})
	}
}

// benchNumber names the timelines of a test that opens many benches.
var benchNumber atomic.Uint64

func newBench(t testing.TB, dir string, opts Options, engines []any, way way) *bench {
	b := &bench{t: t, metrics: metrics.New(), net: newMemListener(), sent: map[string]int{}}
	b.file = filepath.Join(dir, fmt.Sprintf("timeline-%d.jsonl", benchNumber.Add(1)))
	recorder, err := timeline.New(timeline.Options{File: b.file, Keep: 16})
	if err != nil {
		t.Fatal(err)
	}
	b.timeline = recorder
	for _, e := range engines {
		switch e := e.(type) {
		case *tokenEngine:
			e.calls = nil
		case *relayEngine:
			e.forwards, e.polled = nil, way == wayPolled
		}
	}
	b.publish(engines...)
	opts.Snapshot = b.snapshot.Load
	if opts.Prepare.Models == nil {
		opts.Prepare.Models = map[string]*model.Folder{models.SimName: simModel()}
	}
	opts.Metrics, opts.Record.Timeline = b.metrics, recorder
	if opts.Prepare.Pool.Workers == 0 { // so that a job holds the pool
		opts.Prepare.Pool.Workers, opts.Prepare.Pool.Lane = 1, -1
	}
	b.g = New(opts)
	b.g.front.Hangups = memHangups{}
	b.g.driver.Polls = memPolls{}
	server := b.g.Server()
	b.protocols = server.Protocols
	listeners := []net.Listener{b.g.front.PlainListener(b.net)}
	if way != wayKept {
		listeners = append(listeners, b.g.front.Returned())
	}
	var served sync.WaitGroup
	for _, l := range listeners {
		served.Go(func() { _ = server.Serve(l) }) // ends by Close
	}
	b.stop = func() {
		server.Close()
		served.Wait()
	}
	synctest.Wait()
	return b
}

// publish puts a new fleet in place.
func (b *bench) publish(engines ...any) {
	changed := make(chan struct{})
	fleet := fleetOf(changed, engines...)
	for _, e := range fleet.Engines {
		b.ranks = append(b.ranks, e.Ranks[0].Books.Rank)
	}
	b.snapshot.Store(fleet)
	if b.changed != nil {
		close(b.changed)
	}
	b.changed = changed
}

// fleetOf is a fleet in which token engines serve the built-in model, and relays the
// model "relayed".
func fleetOf(changed chan struct{}, engines ...any) *route.Snapshot {
	const carries = infer.CarriesLogprobs | infer.CarriesLogitBias | infer.CarriesUsual
	tokens := &route.Model{Name: models.SimName, ByIDs: route.Side{Kind: "weir"}, Policy: new(balance.RoundRobin), Prefill: new(balance.RoundRobin), Lengths: new(cost.Lengths), Ratio: new(cost.Ratio), Transfer: new(cost.Transfer)}
	relayed := &route.Model{Name: "relayed", Relayed: route.Side{Kind: "openai"}, Policy: new(balance.RoundRobin), Prefill: new(balance.RoundRobin), Lengths: new(cost.Lengths), Ratio: new(cost.Ratio), Transfer: new(cost.Transfer)}
	snap := &route.Snapshot{Changed: changed, Index: kvindex.New(1 << 20), Models: map[string]*route.Model{models.SimName: tokens, "relayed": relayed}}
	ranks := cost.NewModel(cost.Typical)
	open := func(e *route.Engine, most int) *route.Rank {
		r := route.Whole(e.Name)
		r.There, r.Books = true, route.NewBooks(ranks, snap.Index, new(route.Shares), &e.Facts, trace.Now())
		r.Books.Limit(most, &e.Facts)
		e.Ranks = []*route.Rank{r}
		return r
	}
	for _, e := range engines {
		switch e := e.(type) {
		case *tokenEngine:
			r := &route.Engine{Name: e.name, Kind: "weir", Tokens: e, Ready: true, Role: e.role, Meets: e.meets, Facts: engine.Facts{Carries: carries}}
			if e.facts != nil {
				r.Facts = *e.facts
			}
			tokens.ByIDs.Carries |= r.Carries()
			tokens.Way, tokens.Whole = max(tokens.Way, e.meets.Way), tokens.Whole || r.Alone()
			tokens.Add(route.Target{Engine: r, Rank: open(r, e.most), Model: models.SimName})
			snap.Engines = append(snap.Engines, r)
		case *relayEngine:
			r := &route.Engine{Name: e.name, Kind: "openai", Relay: e, Ready: true, Role: e.role, Meets: e.meets, Facts: engine.Facts{Lacks: e.lacks}}
			of := relayed
			if e.beside {
				of = tokens
				of.Relayed.Kind = "openai"
			}
			of.Relayed.Carries |= r.Carries()
			of.Way, of.Whole = max(of.Way, e.meets.Way), of.Whole || r.Alone()
			upstream := e.model
			if upstream == "" {
				upstream = of.Name
			}
			of.Add(route.Target{Engine: r, Rank: open(r, e.most), Model: upstream})
			snap.Engines = append(snap.Engines, r)
		}
	}
	for _, m := range snap.Models {
		if len(m.Targets) == 0 {
			m.ByIDs.Carries, m.Relayed.Carries = infer.CarriesAnything, infer.CarriesAnything
		}
	}
	return snap
}

// end takes everything down and checks what must hold at rest.
func (b *bench) end() {
	b.halt()
	t := b.t
	t.Helper()
	records := b.records()
	byID := map[string]int{}
	for _, r := range records {
		byID[r.ID]++
	}
	for id, n := range b.sent {
		if byID[id] != n {
			t.Errorf("request %s has %d records, want %d", id, byID[id], n)
		}
		delete(byID, id)
	}
	for id, n := range byID {
		t.Errorf("%d records of request %s, which nobody sent", n, id)
	}
	if requests, tokens := b.g.preparer.Gate.Load(); requests != 0 || tokens != 0 {
		t.Errorf("at rest the gate holds %d requests and %d tokens", requests, tokens)
	}
	if n := b.g.Pending(); n != 0 {
		t.Errorf("at rest %d mailboxes have output pending", n)
	}
	for i, r := range b.ranks {
		if left := r.Books(trace.Now()); r.InFlight() != 0 || r.Pending() != 0 || left.Decoders != 0 || left.Held != 0 {
			t.Errorf("at rest the books of engine %d have %d requests in flight, %d tokens to prefill, %d decoders, %d tokens held",
				i, r.InFlight(), r.Pending(), left.Decoders, left.Held)
		}
	}
	b.checkIdentity(records)
}

// checkIdentity compares metrics and timeline with each other.
func (b *bench) checkIdentity(records []*timed) {
	t := b.t
	t.Helper()
	outcomes := map[string]float64{}
	for _, r := range records {
		outcomes[r.Outcome+" "+r.Code]++
		if r.Residual != 0 {
			t.Errorf("request %s: a residual of %d ns in virtual time", r.ID, r.Residual)
		}
		for stage, ns := range r.Stages {
			if ns < 0 {
				t.Errorf("request %s: stage %s took %d ns", r.ID, stage, ns)
			}
		}
	}
	received, inFlight := b.sum("weir_requests_received_total"), b.sum("weir_requests_in_flight")
	if received != float64(len(records)) || inFlight != 0 {
		t.Errorf("metrics: %v received, %v in flight; %d records", received, inFlight, len(records))
	}
	var ended float64
	for _, m := range b.metric("weir_requests_total") {
		ended += m.value
		if key := m.labels["outcome"] + " " + m.labels["code"]; outcomes[key] != m.value {
			t.Errorf("metrics: %v ended as %q; %v records", m.value, key, outcomes[key])
		}
	}
	if ended != received {
		t.Errorf("metrics: %v received, %v ended", received, ended)
	}
}

// halt ends clients, server, gateway and timeline, in that order.
func (b *bench) halt() {
	if b.stopped {
		return
	}
	b.stopped = true
	for _, c := range b.callers {
		c.conn.Close()
	}
	synctest.Wait()
	if n := b.g.Live(); n != 0 {
		b.t.Errorf("%d requests are live after their clients have gone", n)
	}
	if left := b.g.recorder.Streams(); len(left) != 0 {
		b.t.Errorf("%d requests are shown after their ends", len(left))
	}
	b.stop()
	b.g.Close()
	if err := b.timeline.Close(); err != nil {
		b.t.Error(err)
	}
}

// sample is one series of a metric.
type sample struct {
	labels map[string]string
	value  float64
}

// metric gives the series of a counter or gauge.
func (b *bench) metric(name string) []sample {
	b.t.Helper()
	families, err := b.metrics.Registry().(prometheus.Gatherer).Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	var out []sample
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			s := sample{labels: map[string]string{}, value: m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()}
			for _, l := range m.GetLabel() {
				s.labels[l.GetName()] = l.GetValue()
			}
			out = append(out, s)
		}
	}
	return out
}

func (b *bench) sum(name string) (total float64) {
	b.t.Helper()
	for _, s := range b.metric(name) {
		total += s.value
	}
	return total
}

// timed is a line of the timeline.
type timed struct {
	ID         string           `json:"request_id"`
	Model      string           `json:"model"`
	Key        string           `json:"key"`
	Tenant     string           `json:"tenant"`
	Outcome    string           `json:"outcome"`
	Code       string           `json:"code"`
	Status     int              `json:"status"`
	Completion int              `json:"completion_tokens"`
	Prompt     int              `json:"prompt_tokens"`
	Cached     int              `json:"cached_tokens"`
	Writes     int              `json:"writes"`
	BytesOut   int              `json:"bytes_out"`
	Stages     map[string]int64 `json:"stages"`
	Residual   int64            `json:"residual"`
	Arrival    int64            `json:"arrival_time"`
	Finish     int64            `json:"finish_time"`
	First      int64            `json:"first_received_time"`
	TTFT       int64            `json:"ttft"`
	OwnDelay   *int64           `json:"output_delay"`
	Hop        *int64           `json:"output_hop"`
	Gap        struct {
		For    int64  `json:"duration"`
		Token  int    `json:"token"`
		Engine string `json:"engine"`
		Before int64  `json:"before_weir"`
		Weir   int64  `json:"in_weir"`
		Client int64  `json:"client"`
	} `json:"gap"`
	Attempts []struct {
		Legs []struct {
			Engine  string `json:"engine"`
			Outcome string `json:"outcome"`

			AckSend   int64 `json:"ack_send"`
			AckEngine int64 `json:"ack_engine"`
		} `json:"legs"`
		Repeated   bool `json:"repeated"`
		MayHaveRun bool `json:"may_have_run"`
		Turn       *struct {
			Tenant  string `json:"tenant"`
			Own     int    `json:"waiting_own"`
			Others  int    `json:"waiting_others"`
			Tenants int    `json:"waiting_tenants"`
			Charged int64  `json:"charged_ns"`
		} `json:"turn"`
		Choice struct {
			Cached    int `json:"cached_tokens"`
			Available int `json:"available_cached_tokens"`
		} `json:"choice"`
	} `json:"attempts"`
}

func (r *timed) total() time.Duration { return time.Duration(r.Finish - r.Arrival) }

// legs says how each attempt ended, as "engine outcome".
func (r *timed) legs() []string {
	var out []string
	for _, a := range r.Attempts {
		for _, l := range a.Legs {
			out = append(out, l.Engine+" "+l.Outcome)
		}
	}
	return out
}

// records reads the timeline.
func (b *bench) records() []*timed { return recordsAs[timed](b) }

// recordsAs reads the timeline into records of a type.
func recordsAs[T any](b *bench) []*T {
	b.t.Helper()
	if !b.stopped {
		time.Sleep(time.Second) // the recorder writes within that time
	}
	data, err := os.ReadFile(b.file)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []*T
	for line := range bytes.Lines(data) {
		r := new(T)
		if err := json.Unmarshal(line, r); err != nil {
			b.t.Fatalf("timeline: %v in %s", err, line)
		}
		out = append(out, r)
	}
	return out
}

// record gives the record of a client's request, which has ended.
func (b *bench) record(c *caller) *timed {
	b.t.Helper()
	records := b.records()
	i := slices.IndexFunc(records, func(r *timed) bool { return r.ID == c.id })
	if i < 0 {
		b.t.Fatalf("request %s has no record; those there are: %d", c.id, len(records))
	}
	return records[i]
}

// wantRecord checks how a request ended.
func (b *bench) wantRecord(c *caller, outcome, code string) *timed {
	b.t.Helper()
	r := b.record(c)
	if r.Outcome != outcome || r.Code != code {
		b.t.Errorf("ended as %s with code %q, want %s with %q", r.Outcome, r.Code, outcome, code)
	}
	return r
}

// within checks a span of virtual time.
func within(t testing.TB, what string, got, low, high time.Duration) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s took %v, want %v to %v", what, got, low, high)
	}
}

// wantParts checks that a message says what it must.
func wantParts(t testing.TB, message string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(message, p) {
			t.Errorf("message %q lacks %q", message, p)
		}
	}
}
