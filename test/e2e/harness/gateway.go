package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Goroutines returns how many the gateway has.
func (g *Gateway) Goroutines() int { return int(Metric(g.T, g.Admin, "go_goroutines")) }

// Has waits until the gateway has no more than these goroutines, and those that begin with the
// first stream of a kind and stay: pollers of the gateway's and of an engine adapter's, one for
// each core.
func (g *Gateway) Has(goroutines int) {
	g.T.Helper()
	allowed := goroutines + 2*Procs()
	Eventually(g.T, fmt.Sprintf("back to its %d goroutines (%d with pollers)", goroutines, allowed), func() bool { return g.Goroutines() <= allowed })
}

// Failure is a record of /admin/integrity.
type Failure struct {
	Number     int
	Time       time.Time
	Engine     string
	Wire       string
	Reason     string
	Detail     string
	Requests   int
	RequestIDs []string `json:"request_ids"`
	Evidence   struct {
		// For engines with one session for many requests.
		Frames []struct{ Sequence, Bytes int } `json:"last_frames"`
		Part   *struct {
			Before int `json:"received_before"`
			IDs    []int
			Total  int
		}
		// For a relay.
		Before, Found struct{ Text, Quoted string }
	}
}

// Failures reads what the gateway kept, the latest first.
func (g *Gateway) Failures() []Failure {
	g.T.Helper()
	var view struct {
		Keep     int
		Failures []Failure
	}
	if a := Get(g.T, g.Admin+"/admin/integrity"); json.Unmarshal(a.Body, &view) != nil || view.Keep == 0 {
		g.T.Fatalf("status %d: %s", a.Status, a.Body)
	}
	return view.Failures
}

// Settled waits until nothing of the requests is left.
func Settled(t *testing.T, g *Gateway, goroutines int, engines ...*Sim) {
	t.Helper()
	g.Balanced()
	for _, s := range engines {
		Eventually(t, "free", func() bool { st := EngineState(t, s.Admin); return st.Running == 0 && st.Waiting == 0 })
	}
	g.Has(goroutines)
}

// Gateway is a running gateway.
type Gateway struct {
	*Process
	URL, Admin string
	Timeline   string // the file of its records
}

// Unhurried is a --submit-timeout for tests of hundreds of streams: a busy machine may
// take longer to hand all of them over than the default is.
const Unhurried = "5m"

// StartGateway runs up or serve on free ports with a timeline file, and waits
// until it is ready.
func StartGateway(t testing.TB, args ...string) *Gateway {
	t.Helper()
	return StartGatewayWith(t, nil, args...)
}

// StartGatewayWith is StartGateway with more of an environment.
func StartGatewayWith(t testing.TB, env []string, args ...string) *Gateway {
	t.Helper()
	g := StartUnreadyWith(t, env, args...)
	Eventually(t, "ready", func() bool { return Get(t, g.Admin+"/readyz").Status == http.StatusOK })
	return g
}

// StartUnready is StartGateway that does not wait.
func StartUnready(t testing.TB, args ...string) *Gateway {
	t.Helper()
	return StartUnreadyWith(t, nil, args...)
}

// StartUnreadyWith is StartUnready with more of an environment.
func StartUnreadyWith(t testing.TB, env []string, args ...string) *Gateway {
	t.Helper()
	file := filepath.Join(t.TempDir(), "timeline.jsonl")
	args = append(append(args[:1:1], append(anyPort, "--timeline", file)...), args[1:]...)
	p := StartWith(t, nil, env, args...)
	return &Gateway{p, p.Line("gateway"), p.Line("admin"), file}
}

// Metric sums the samples of a metric whose labels contain all that is given.
func Metric(t testing.TB, admin, name string, labels ...string) float64 {
	t.Helper()
	sum := 0.0
	for line := range strings.Lines(string(Get(t, admin+"/metrics").Body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		matches := true
		for _, l := range labels {
			matches = matches && strings.Contains(rest, l)
		}
		if !matches {
			continue
		}
		fields := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			t.Fatalf("metric %s: %v", line, err)
		}
		sum += v
	}
	return sum
}

// Balanced checks the accounting identity at rest: everything received has
// ended.
func (g *Gateway) Balanced() map[string]int {
	g.T.Helper()
	Eventually(g.T, "at rest", func() bool { return Metric(g.T, g.Admin, "weir_requests_in_flight") == 0 })
	ended := map[string]int{}
	sum := 0
	for _, outcome := range []string{"finished", "cancelled", "rejected", "failed"} {
		ended[outcome] = int(Metric(g.T, g.Admin, "weir_requests_total", `outcome="`+outcome+`"`))
		sum += ended[outcome]
	}
	ended["received"] = int(Metric(g.T, g.Admin, "weir_requests_received_total"))
	if ended["received"] != sum {
		g.T.Errorf("received %d, ended %d: %v", ended["received"], sum, ended)
	}
	return ended
}

// Records reads the timeline file after the gateway has ended.
func (g *Gateway) Records() []Record {
	g.T.Helper()
	f, err := os.Open(g.Timeline)
	if err != nil {
		g.T.Fatal(err)
	}
	defer f.Close()
	var all []Record
	dec := json.NewDecoder(f)
	for {
		var r Record
		err := dec.Decode(&r)
		if err == io.EOF {
			return all
		}
		if err != nil {
			g.T.Fatal(err)
		}
		all = append(all, r)
	}
}

// Reasoned is what /records says of a request and why it took as long as it did.
type Reasoned struct {
	ID      string  `json:"request_id"`
	Slowest string  `json:"slowest_stage"` // of weir's own
	Gap     float64 `json:"longest_gap_ms"`
	Reason  struct {
		Stage, Sentence string
		MS              float64
		Stages          []struct {
			Stage string
			MS    float64
		}
	}
}

// Reasons waits until a query of /records finds at least n requests.
func (g *Gateway) Reasons(query string, n int) []Reasoned {
	g.T.Helper()
	var view struct{ Records []Reasoned }
	Eventually(g.T, "records: "+query, func() bool {
		page := Get(g.T, g.Admin+"/records?reason=1&"+query)
		if err := json.Unmarshal(page.Body, &view); err != nil {
			g.T.Fatalf("%v: %.200q", err, page.Body)
		}
		return len(view.Records) >= n
	}, g.Process)
	return view.Records
}

// Engines returns the admin URLs of up's simulated engines.
func (g *Gateway) Engines() []string {
	var urls []string
	for l := range strings.Lines(g.Output()) {
		if _, rest, ok := strings.Cut(l, "state "); ok && strings.HasPrefix(l, "engine") {
			urls = append(urls, strings.TrimSuffix(strings.TrimSpace(rest), "/admin/state"))
		}
	}
	return urls
}

// Whole wants an answer of n sentences.
func (g *Gateway) Whole(c *Cores, n int) { g.T.Helper(); g.Sentences(c.IDs, n) }

// Sentences wants an answer of n sentences from an engine that repeats these ids.
func (g *Gateway) Sentences(ids []uint32, n int) {
	g.T.Helper()
	if err := g.Says(Context(g.T), ids, n); err != nil {
		g.T.Error(err)
	}
}

// Begun returns an answer whose first line was read.
func (g *Gateway) Begun() *http.Response {
	g.T.Helper()
	resp, err := http.Post(g.URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"weir-sim","prompt":"Say it.","stream":true,"max_tokens":99}`))
	if err != nil {
		g.T.Fatal(err)
	}
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		g.T.Fatal(err)
	}
	return resp
}

// WantModels wants a list of models, each with its parent if it has one.
func (g *Gateway) WantModels(want string) {
	g.T.Helper()
	var list struct{ Data []struct{ ID, Parent string } }
	if err := json.Unmarshal(Get(g.T, g.URL+"/v1/models").Body, &list); err != nil {
		g.T.Fatal(err)
	}
	var names []string
	for _, m := range list.Data {
		name := m.ID
		if m.Parent != "" {
			name += "(" + m.Parent + ")"
		}
		names = append(names, name)
	}
	if got := strings.Join(names, " "); got != want {
		g.T.Errorf("models %q, want %q", got, want)
	}
}

// Record is a line of the timeline.
type Record struct {
	RequestID string `json:"request_id"`
	Client    string
	Outcome   string
	Code      string
	Status    int
	Residual  int64
	Stages    map[string]int64
	Total     int64 `json:"total_latency"`
	TTFT      int64 `json:"ttft"`
	Attempts  []struct {
		Legs       []map[string]any
		Repeated   bool
		MayHaveRun bool `json:"may_have_run"`
		Choice     json.RawMessage
	}
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	Stalled          int64
	Stalls           []struct {
		Start    int64 `json:"start_time"`
		Duration int64
		Why      string
	}
}

var anyPort = []string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}
