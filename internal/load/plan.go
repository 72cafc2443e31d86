package load

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"weir/internal/workload"
	"weir/internal/workload/content"
)

// API names the operation that is called.
type API string

// The APIs.
const (
	Chat        API = "openai-chat"        // POST /v1/chat/completions; the default
	Completions API = "openai-completions" // POST /v1/completions
	Generate    API = "sglang-generate"    // POST /generate, SGLang's own
)

// Plan defines what to send. URL and either Requests or Duration are required.
type Plan struct {
	// URL is the server's base, with or without "/v1": "http://127.0.0.1:8000".
	URL string
	// API is the operation; empty means Chat.
	API API
	// Model is the name sent; empty asks GET /v1/models for the first one. Generate
	// sends none.
	Model string

	// Concurrency runs a closed loop of that many workers, each sending its next
	// request when its last one ended. It is 1 when Rate is zero too.
	Concurrency int
	// Rate runs an open loop of that many requests per second, however many are in flight.
	Rate float64
	// Arrival is the open loop's process; empty means Poisson.
	Arrival workload.Arrival
	// CV is the coefficient of variation of the gaps, of arrival gamma only.
	CV float64

	// Workload, if set, defines what is sent and when: a trace or a synthetic workload. It
	// replaces the two loops and the lengths. Its prompts consist of words, as many as it
	// has tokens, and share prefixes where the workload asks for it.
	Workload *workload.Workload

	// Worker and Workers make the run one of several that share an open loop. It sends
	// every Workers-th request of the schedule, beginning with number Worker, counted from
	// 1. StartAt, if set, is when the schedule begins.
	Worker, Workers int
	StartAt         time.Time

	// Requests bounds the number sent, by all workers together.
	Requests int
	// Duration bounds the time in which requests are begun; those in flight
	// then are waited for.
	Duration time.Duration
	// Timeout bounds one request from sending to its last byte; zero means 10
	// minutes.
	Timeout time.Duration

	// Images are sent with each prompt of Chat, before its text: URLs, or data URLs.
	Images []string
	// Prompt is sent to all; empty generates InputTokens words for each request.
	Prompt string
	// InputTokens is the length of generated prompts; zero means 32. Without Count
	// it is approximate: that many words of about one token.
	InputTokens int
	// Count, when set, makes the lengths exact: it gives the number of tokens that
	// the server will count in a prompt, with all that it puts around it.
	Count func(prompt string) (int, error)
	// OutputTokens is sent as max_tokens; zero leaves the length to the server.
	OutputTokens int
	// Seed determines prompts and arrivals.
	Seed uint64

	// NoStream asks for whole responses instead of streams.
	NoStream bool
	// NoUsage does not ask for usage on a stream, and does not require it.
	NoUsage bool
	// Header is added to every request. A Host in it is used.
	Header map[string]string
	// Body holds further fields of the request, such as ignore_eos. With
	// Generate the sampling parameters among them are sent as such.
	Body map[string]any
	// RequestID is the prefix of every request's X-Request-Id, which ends with the
	// request's index; empty sends none. Generate sends the id as rid too.
	RequestID string

	// Verify, if set, checks each text word by word. weir's simulated engines use only
	// words of this list, and each word checks the one before it. The text of other servers
	// has no such check, and their tokens are not words.
	Verify *content.Words

	// Halves, when set, has each request of Generate served by two engines of SGLang's
	// without a gateway.
	Halves *Halves

	// HangUpAfter closes the connection once that many tokens arrived.
	HangUpAfter int
	// StopReadingAfter stops reading after that many tokens, without closing the
	// connection, for StopReadingFor; then the rest is read. If StopReadingFor is zero, the
	// connection is held until the Timeout or the end of the run, and the request is
	// abandoned.
	StopReadingAfter int
	StopReadingFor   time.Duration
	// ReadRate bounds how fast a response is read, in bytes per second.
	ReadRate int
	// ReceiveBuffer sets the sockets' receive buffer in bytes, and keeps their segments
	// small, so that a slow reader blocks the server after some 50 KB instead of megabytes.
	// Zero leaves the system's default.
	ReceiveBuffer int

	// DelayAcks delays TCP's acknowledgements if the kernel stamps, which saves client and
	// server one packet for each read. A server that leaves Nagle's algorithm on (no
	// TCP_NODELAY) waits for acknowledgements, and this wait would be measured.
	DelayAcks bool

	// Calibration, if set, is the generator's own error, measured beforehand at this load.
	// It takes part in the verdict.
	Calibration *Calibration

	// OnSample, when set, is given each request's record as it ends, from the
	// request's own goroutine. The sample is reused after the call returns.
	OnSample func(*Sample)
	// Live, if set, is updated when a request begins and ends.
	Live *Live
	// KeepChunks records the receive time of every text event in the sample.
	KeepChunks bool
}

const (
	defaultTimeout     = 10 * time.Minute
	defaultInputTokens = 32
)

// target is a plan's URL taken apart.
type target struct {
	tls    bool
	addr   string // host:port to dial
	host   string // Host header
	server string // name for TLS
	path   string // of the operation, with the base's prefix
	models string // path of the model list
}

// reserved are the body fields that the plan itself sets.
var reserved = []string{"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "text", "rid", "sampling_params"}

// normalize checks the plan, fills in its defaults and takes its URL apart.
func (p *Plan) normalize() (*target, error) {
	if p.API == "" {
		p.API = Chat
	}
	if p.Timeout == 0 {
		p.Timeout = defaultTimeout
	}
	if p.InputTokens == 0 {
		p.InputTokens = defaultInputTokens
	}
	if p.Workload != nil && p.Workload.Closed != nil {
		p.Concurrency = p.Workload.Closed.Users
	}
	if p.Rate == 0 && p.Concurrency == 0 && p.Workload == nil {
		p.Concurrency = 1
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	return p.target()
}

// A schedule of a smaller rate has times that no duration holds. A closed loop starts a
// worker for each request in flight, and a prompt is made whole, before a signal is looked at.
const (
	leastRate       = 1e-6
	mostRate        = 1e9
	mostConcurrency = 1 << 20
	mostInputTokens = 1 << 24
)

// check refuses what cannot be carried out.
func (p *Plan) check() error {
	if p.API != Chat && p.API != Completions && p.API != Generate {
		return fmt.Errorf("api %q: must be %q, %q or %q", p.API, Chat, Completions, Generate)
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"concurrency", p.Concurrency}, {"requests", p.Requests}, {"input-tokens", p.InputTokens},
		{"output-tokens", p.OutputTokens}, {"hang-up-after", p.HangUpAfter},
		{"stop-reading-after", p.StopReadingAfter}, {"read-rate", p.ReadRate},
		{"receive-buffer", p.ReceiveBuffer}, {"duration", int(p.Duration)}, {"timeout", int(p.Timeout)},
		{"stop-reading-for", int(p.StopReadingFor)},
	} {
		if f.value < 0 {
			return fmt.Errorf("%s: must not be negative", f.name)
		}
	}
	if p.Rate < 0 || math.IsNaN(p.Rate) || math.IsInf(p.Rate, 0) {
		return fmt.Errorf("rate %v: must be a positive number of requests per second", p.Rate)
	}
	if p.Rate > 0 && (p.Rate < leastRate || p.Rate > mostRate) {
		return fmt.Errorf("rate %v: must be between %v and %v requests per second", p.Rate, leastRate, mostRate)
	}
	if p.Concurrency > mostConcurrency {
		return fmt.Errorf("concurrency %d: must be at most %d", p.Concurrency, mostConcurrency)
	}
	if p.InputTokens > mostInputTokens {
		return fmt.Errorf("input-tokens %d: must be at most %d", p.InputTokens, mostInputTokens)
	}
	if err := p.checkLoop(); err != nil {
		return err
	}
	if p.API != Chat && (len(p.Images) > 0 || p.sessions()) {
		return fmt.Errorf("images and turns need api %q, which has conversations", Chat)
	}
	if p.Halves != nil && p.API != Generate {
		return fmt.Errorf("halves: they need api %q", Generate)
	}
	if p.Rate > 0 && p.Concurrency > 0 {
		return fmt.Errorf("rate and concurrency exclude each other: an open loop does not limit the requests in flight")
	}
	if p.Workload != nil && (p.Rate > 0 || p.Prompt != "") {
		return fmt.Errorf("workload has its own arrivals and prompts; drop rate and prompt")
	}
	if p.Workers > 0 || p.Worker > 0 {
		switch {
		case p.Worker < 1 || p.Worker > p.Workers:
			return fmt.Errorf("worker %d of %d: must be from 1 to the number of workers", p.Worker, p.Workers)
		case p.Concurrency > 0:
			return fmt.Errorf("worker: a closed loop has no schedule to share; give each worker a part of the concurrency instead")
		}
	}
	if p.Requests == 0 && p.Duration == 0 && p.Workload == nil {
		return fmt.Errorf("requests or duration: give at least one")
	}
	if p.NoStream && (p.HangUpAfter > 0 || p.StopReadingAfter > 0) {
		return fmt.Errorf("hang-up-after and stop-reading-after count a stream's tokens: they need streaming")
	}
	if _, ok := p.Body["stop"]; ok && p.Verify != nil {
		return fmt.Errorf("body field \"stop\": a text cut at a stop string cannot be verified to its end")
	}
	for _, name := range reserved {
		if _, ok := p.Body[name]; ok {
			return fmt.Errorf("body field %q: the plan sets it itself", name)
		}
	}
	for name, value := range p.Header {
		if strings.ContainsAny(name, " :\r\n\t") || name == "" || strings.ContainsAny(value, "\r\n") {
			return fmt.Errorf("header %q: not a header", name)
		}
	}
	return nil
}

// sessions reports whether requests contain the earlier turns of their session.
func (p *Plan) sessions() bool {
	return p.Workload != nil && p.Workload.Sessions != nil
}

// checkLoop refuses an open loop that has no schedule.
func (p *Plan) checkLoop() error {
	if p.CV != 0 && p.Arrival != workload.Gamma {
		return fmt.Errorf("cv: only arrival %q has one", workload.Gamma)
	}
	if p.Rate == 0 {
		return nil
	}
	_, err := workload.NewSchedule(p.loop(), p.Seed)
	return err
}

// loop is the open loop's schedule.
func (p *Plan) loop() workload.Loop {
	return workload.Loop{Arrival: p.Arrival, Rate: workload.ConstantRate(p.Rate), CV: p.CV}
}

// target takes the URL apart.
func (p *Plan) target() (*target, error) { return p.targetAt(p.URL) }

func (p *Plan) targetAt(base string) (*target, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		meant := ""
		if base != "" && !strings.Contains(base, "://") {
			meant = "; did you mean http://" + base + "?"
		}
		return nil, fmt.Errorf("url %q: must be http://HOST[:PORT] or https://HOST[:PORT]%s", base, meant)
	}
	if u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("url %q: must be a base without user, query and fragment", base)
	}
	t := &target{tls: u.Scheme == "https", host: u.Host, server: u.Hostname()}
	port := u.Port()
	if port == "" {
		port = "80"
		if t.tls {
			port = "443"
		}
	}
	t.addr = joinHostPort(u.Hostname(), port)
	prefix := strings.TrimSuffix(strings.TrimRight(u.EscapedPath(), "/"), "/v1")
	t.models = prefix + "/v1/models"
	t.path = prefix + "/v1/chat/completions"
	switch p.API {
	case Completions:
		t.path = prefix + "/v1/completions"
	case Generate:
		t.path = prefix + "/generate"
	}
	for name, value := range p.Header {
		if strings.EqualFold(name, "host") {
			t.host = value
		}
	}
	return t, nil
}

func joinHostPort(host, port string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]:" + port
	}
	return host + ":" + port
}

// marshal returns a value's JSON. It cannot fail for the plan's own fields.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("load: marshal %T: %v", v, err))
	}
	return b
}
