package cli

import (
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/admit"
	"weir/internal/allow"
	"weir/internal/balance"
	"weir/internal/gateway"
	"weir/internal/generate"
	"weir/internal/pool"
	"weir/internal/retry"
	"weir/internal/trace"
)

// gatewayFlags are the gateway's flags, the same in up and serve.
type gatewayFlags struct {
	Listen      string   `default:"127.0.0.1:8000" placeholder:"ADDR" help:"Address of the API (${default})."`
	AdminListen string   `default:"127.0.0.1:8001" placeholder:"ADDR" help:"Address of /metrics, /healthz, /readyz, /engines, /timeline/ID and /timeline (which follows the records), for operators only (${default}); off serves none of them."`
	AdminHost   []string `sep:";" placeholder:"NAME" help:"A further name by which that address is reached. It answers to IP addresses, localhost and the name in --admin-listen, so that no web page can read it by a name of its own. Repeatable."`
	PProf       bool     `name:"pprof" env:"WEIR_PPROF" help:"Serve Go's profiles there too, under /debug/pprof: whoever reads them can read prompts. Off unless given."`
	TLSCert     string   `name:"tls-cert" type:"path" placeholder:"FILE" help:"Serve the API over TLS, with HTTP/2 and HTTP/1.1: the PEM certificate chain, read again when it changes."`
	TLSKey      string   `name:"tls-key" type:"path" placeholder:"FILE" help:"Its private key, as PEM."`
	H2C         bool     `name:"h2c" env:"WEIR_H2C" help:"Serve HTTP/2 without TLS as well, to clients that begin with it. HTTP/1.1 carries streams at less cost."`
	Timeline    string   `placeholder:"FILE" type:"path" help:"Append one JSON line per request: where its time went. SIGHUP opens the file anew."`

	TimelineMaxSize int64         `placeholder:"BYTES" help:"Put the timeline aside as FILE.1 before it is longer than this; 0 is no limit."`
	TimelineMaxAge  time.Duration `placeholder:"DURATION" help:"Put it aside when it has been written to for this long; 0 is no limit."`
	TimelineKeep    int           `default:"5" placeholder:"N" help:"Timelines put aside that are kept, FILE.1 the latest (${default})."`

	AllowField []string `sep:";" placeholder:"NAME" help:"Let clients send a field or header that steers engines and not answers, as priority, cache_salt or kv_transfer_params: it is refused otherwise, to every kind of engine (docs/apis.md has the list). Repeatable."`
	Media      []string `sep:";" default:"data" placeholder:"WORD" help:"What requests may refer to instead of sending it: data, nothing; the beginning of URLs, as https://images.example/public/, what is below it; any, whatever the engine can fetch or open, files of its own included (${default}). Repeatable."`
	RelayPath  []string `sep:";" placeholder:"PATH" help:"Relay another path to engines of kind openai, as /v1/images/generations, or all below one that ends with a slash, beside those of vLLM and SGLang that clients use. Repeatable."`
	AllowAbort bool     `help:"Serve /abort_request, by which whoever knows the rid of a request to /generate ends it."`

	MaxBody                 int64    `default:"33554432" placeholder:"BYTES" help:"Limit of a request's body (${default})."`
	MaxBodyMemory           int64    `default:"1073741824" placeholder:"BYTES" help:"Limit of the bytes of all bodies held at once (${default}); what does not fit is refused with a hint to try again; 0 is no limit."`
	MaxConnections          int      `default:"0" placeholder:"N" help:"Clients' connections at once; 0 is four fifths of the descriptors that the process may have (ulimit -n). At the limit those that do nothing give way to new ones."`
	MaxConnectionsPerClient int      `default:"0" placeholder:"N" help:"The same of one client address (IPv6: /64), and its requests in flight where it comes through a trusted proxy; 0 is no limit."`
	TrustedProxies          []string `placeholder:"CIDR,..." help:"Networks of proxies whose word on a client's address is taken: X-Forwarded-For, or with --proxy-protocol that protocol."`
	ProxyProtocol           bool     `help:"The trusted proxies begin each connection with the PROXY protocol, version 1 or 2."`
	MaxRequests             int      `default:"0" placeholder:"N" help:"Requests in flight at once; 0 is no limit."`
	MaxInflightTokens       int64    `default:"0" placeholder:"N" help:"Prompt and output tokens in flight at once; 0 is no limit."`
	TokenizeWorkers         int      `default:"0" placeholder:"N" help:"Workers of the tokenizing pool; 0 leaves one core to I/O."`
	Policy                  string   `default:"cost" placeholder:"NAME" help:"How an engine is chosen for a request: cost, session, least-load, power-of-two, round-robin or random (${default}); for one model by --model NAME,policy=NAME (docs/routing.md)."`
	IndexMemory             int64    `default:"268435456" placeholder:"BYTES" help:"Memory for what the engines' KV caches are believed to hold (${default})."`
	SessionHeader           []string `sep:";" placeholder:"NAME" help:"A request header that names its caller's session, in place of those that clients send by themselves, for --policy session (docs/routing.md). Repeatable."`

	RetryShare float64 `default:"0.2" placeholder:"SHARE" help:"Requests of a model that may go to another engine after one has failed, as a share of all (${default}); 0 is none by it (docs/retries.md)."`
	RetryFloor float64 `default:"10" placeholder:"N" help:"Such requests a second that there may be besides, for models with few requests (${default}); with both 0 nothing is repeated."`

	Queue         string        `default:"off" enum:"on,off" help:"Whether requests wait here until an engine has room for them (on), or are given to engines all at once (off, unless given) (docs/queue.md)."`
	QueueTimeout  time.Duration `default:"0s" help:"Time that a request waits for an engine that has room; 0 is as --first-timeout. Callers may say less."`
	MaxQueue      int           `default:"0" placeholder:"N" help:"Requests of a model that wait at once; 0 is no limit. One more is refused with 429."`
	MaxQueueBytes int64         `default:"1073741824" placeholder:"BYTES" help:"Limit of the bytes of all that waits, bodies and ids (${default}); 0 is no limit."`

	PrefixCache int64 `default:"134217728" placeholder:"BYTES" help:"Memory for the ids of parts of earlier prompts, which are reused where a prompt has them again (${default}); 0 keeps none."`

	WaitForEngines  time.Duration `default:"5s" help:"Wait of a request for an engine of its model that starts (${default}). Where all of them have been ready and none is, it is refused at once; one that has left within the last second is waited for until that is over."`
	ConnectTimeout  time.Duration `default:"5s" help:"Wait for the connection to an engine that is reached over HTTP, TLS included (${default})."`
	SubmitTimeout   time.Duration `default:"10s" help:"Wait for an engine's acknowledgement (${default})."`
	FirstTimeout    time.Duration `default:"10m" help:"Wait for an engine's first output, or the whole answer where it is not streamed (${default})."`
	IdleTimeout     time.Duration `default:"5m" help:"Wait for an engine's next output; a stream that goes on has no limit (${default})."`
	BodyTimeout     time.Duration `default:"30s" help:"Wait for a request's head, and for a body's next bytes (${default})."`
	UploadTimeout   time.Duration `default:"5m" help:"Wait for a whole body (${default})."`
	UploadRate      int64         `default:"4096" placeholder:"BYTES" help:"Least bytes a second of a body, on the whole, once --body-timeout is over (${default})."`
	RequestTimeout  time.Duration `default:"0s" help:"Time of a whole request, from its first byte to its answer's end; 0 is no limit."`
	TokenizeTimeout time.Duration `default:"30s" help:"Wait for the tokenizing pool; a request that would wait longer is refused at once (${default})."`
	WriteTimeout    time.Duration `default:"30s" help:"Wait for a client that does not read (${default})."`
	FlushInterval   time.Duration `default:"0s" help:"Least time between two writes of a stream; 0 writes output as it comes. A first token is never held."`
	Incremental     bool          `name:"incremental-streaming-output" help:"An event of a stream of /generate holds what is new, not all of the answer so far, unless its caller says otherwise (docs/generate.md)."`
	Reasoning       string        `name:"reasoning-field" default:"reasoning_content" enum:"reasoning_content,reasoning,both" help:"Where chat completions tell reasoning: reasoning_content, as DeepSeek and SGLang do, reasoning, as vLLM and OpenRouter do, or both."`
	ShutdownDelay   time.Duration `default:"0s" help:"Time after SIGTERM or Ctrl-C in which /readyz says 503 and requests are still taken, so that a load balancer can turn away first; a second signal ends it."`
	DrainTimeout    time.Duration `default:"30s" help:"Time that requests in flight get after Ctrl-C (${default})."`

	// policies are those of single models, which are no flags of their own.
	policies map[string]string `kong:"-"`

	LogLevel        slog.Level               `default:"info" placeholder:"LEVEL" help:"debug, info, warn or error (${default})."`
	DebugStageDelay map[string]time.Duration `placeholder:"STAGE=DURATION" mapsep:";" help:"Delay a stage once per request, to prove that dashboards built on the stages point where they should."`
}

// logger logs to w.
func (f *gatewayFlags) logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: f.LogLevel}))
}

// certificate gives what --tls-cert and --tls-key name, nil without them.
func (f *gatewayFlags) certificate(log *slog.Logger) (*gateway.Certificate, error) {
	if f.TLSCert == "" {
		return nil, nil
	}
	return gateway.LoadCertificate(f.TLSCert, f.TLSKey, log)
}

// adminHosts are the names by which the admin listener is reached.
func (f *gatewayFlags) adminHosts() []string {
	hosts := f.AdminHost
	if name, _, err := net.SplitHostPort(f.AdminListen); err == nil && name != "" {
		hosts = append(slices.Clip(hosts), name)
	}
	return hosts
}

// words gives what flags hold that may be repeated, and each have several words with
// commas between.
func words(values []string) (all []string) {
	for _, v := range values {
		all = append(all, strings.Split(v, ",")...)
	}
	return all
}

// rules are what may pass to engines.
func (f *gatewayFlags) rules() (r allow.Rules, err error) {
	if r.Fields, err = allow.ParseFields(words(f.AllowField)); err != nil {
		return r, wrongf("--allow-field: %w", err)
	}
	if r.Media, err = allow.ParseMedia(words(f.Media)); err != nil {
		return r, wrongf("--media: %w", err)
	}
	if r.Paths, err = allow.RelayPaths(words(f.RelayPath)); err != nil {
		return r, wrongf("--relay-path: %w", err)
	}
	return r, nil
}

// options turns the flags into the gateway's options.
func (f *gatewayFlags) options() (gateway.Options, error) {
	if f.Listen == "" {
		return gateway.Options{}, wrongf("--listen is empty: give HOST:PORT, such as 127.0.0.1:8000")
	}
	if f.AdminListen == "" {
		return gateway.Options{}, wrongf("--admin-listen is empty: give HOST:PORT, such as 127.0.0.1:8001, or off to have none")
	}
	for _, positive := range []struct {
		flag  string
		value int64
	}{
		{"--max-body", f.MaxBody}, {"--wait-for-engines", int64(f.WaitForEngines)}, {"--connect-timeout", int64(f.ConnectTimeout)}, {"--submit-timeout", int64(f.SubmitTimeout)},
		{"--first-timeout", int64(f.FirstTimeout)}, {"--idle-timeout", int64(f.IdleTimeout)}, {"--body-timeout", int64(f.BodyTimeout)}, {"--upload-timeout", int64(f.UploadTimeout)}, {"--upload-rate", f.UploadRate}, {"--tokenize-timeout", int64(f.TokenizeTimeout)}, {"--write-timeout", int64(f.WriteTimeout)},
	} {
		if positive.value <= 0 {
			return gateway.Options{}, wrongf("%s must be positive", positive.flag)
		}
	}
	if f.MaxBodyMemory < 0 || f.RequestTimeout < 0 || f.ShutdownDelay < 0 || f.MaxConnections < 0 || f.MaxConnectionsPerClient < 0 {
		return gateway.Options{}, wrongf("--max-body-memory, --request-timeout, --shutdown-delay, --max-connections and --max-connections-per-client must not be negative")
	}
	proxies, err := admit.ParseProxies(f.TrustedProxies)
	if err != nil {
		return gateway.Options{}, wrongf("--trusted-proxies: %w", err)
	}
	if f.ProxyProtocol && len(proxies) == 0 {
		return gateway.Options{}, wrongf("--proxy-protocol says who a client is, which only a trusted proxy may: name them with --trusted-proxies CIDR,...")
	}
	if f.MaxRequests < 0 || f.MaxInflightTokens < 0 || f.TokenizeWorkers < 0 || f.PrefixCache < 0 || f.DrainTimeout < 0 || f.FlushInterval < 0 {
		return gateway.Options{}, wrongf("--max-requests, --max-inflight-tokens, --tokenize-workers, --prefix-cache, --drain-timeout and --flush-interval must not be negative")
	}
	switch {
	case f.TimelineMaxSize < 0 || f.TimelineMaxAge < 0:
		return gateway.Options{}, wrongf("--timeline-max-size and --timeline-max-age must not be negative")
	case f.TimelineKeep < 1:
		return gateway.Options{}, wrongf("--timeline-keep must be at least 1")
	case f.Timeline == "" && (f.TimelineMaxSize > 0 || f.TimelineMaxAge > 0):
		return gateway.Options{}, wrongf("--timeline-max-size and --timeline-max-age say when a file is put aside; add --timeline FILE")
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		return gateway.Options{}, wrongf("--tls-cert and --tls-key belong together: give both or neither")
	}
	if f.H2C && f.TLSCert != "" {
		return gateway.Options{}, wrongf("--h2c is HTTP/2 without TLS, and --tls-cert serves HTTP/2 already: drop --h2c")
	}
	if _, err := balance.New(f.Policy); err != nil {
		return gateway.Options{}, wrongf("--policy: %w", err)
	}
	if f.RetryShare < 0 || f.RetryShare > 1 || math.IsNaN(f.RetryShare) || f.RetryFloor < 0 || math.IsNaN(f.RetryFloor) || math.IsInf(f.RetryFloor, 0) {
		return gateway.Options{}, wrongf("--retry-share must be 0 to 1, and --retry-floor not negative")
	}
	if f.QueueTimeout < 0 || f.MaxQueue < 0 || f.MaxQueueBytes < 0 {
		return gateway.Options{}, wrongf("--queue-timeout, --max-queue and --max-queue-bytes must not be negative")
	}
	if f.IndexMemory < 1<<20 {
		return gateway.Options{}, wrongf("--index-memory must be at least 1048576")
	}
	rules, err := f.rules()
	if err != nil {
		return gateway.Options{}, err
	}
	o := gateway.Options{
		Allow:         rules,
		AllowAbort:    f.AllowAbort,
		Limits:        admit.Limits{Requests: f.MaxRequests, Tokens: f.MaxInflightTokens},
		Pool:          pool.Options{Workers: f.TokenizeWorkers, MaxWait: f.TokenizeTimeout},
		PrefixCache:   f.PrefixCache,
		Sessions:      words(f.SessionHeader),
		Queue:         gateway.Queueing{Off: f.Queue == "off", Requests: f.MaxQueue, Bytes: f.MaxQueueBytes, Timeout: f.QueueTimeout},
		MaxBody:       f.MaxBody,
		EngineTimeout: f.WaitForEngines,
		SubmitTimeout: f.SubmitTimeout,
		FirstTimeout:  f.FirstTimeout,
		IdleTimeout:   f.IdleTimeout,
		BodyTimeout:   f.BodyTimeout,
		UploadTimeout: f.UploadTimeout, UploadRate: f.UploadRate,
		RequestTimeout: f.RequestTimeout,
		MaxBodyMemory:  f.MaxBodyMemory,
		Conns:          admit.ConnLimits{Total: f.MaxConnections, PerClient: f.MaxConnectionsPerClient},
		Proxies:        proxies,
		WriteTimeout:   f.WriteTimeout,
		FlushInterval:  f.FlushInterval,
		Generate:       generate.Options{Incremental: f.Incremental},
	}
	if o.Reasoning = []string{f.Reasoning}; f.Reasoning == "both" {
		o.Reasoning = []string{"reasoning_content", "reasoning"}
	}
	if o.Conns.Total == 0 {
		o.Conns.Total = connectionLimit()
	}
	if f.MaxBodyMemory == 0 {
		o.MaxBodyMemory = -1
	}
	if f.MaxQueueBytes == 0 {
		o.Queue.Bytes = -1
	}
	if f.PrefixCache == 0 {
		o.PrefixCache = -1
	}
	if len(f.DebugStageDelay) > 0 {
		o.StageDelay = map[trace.Stage]time.Duration{}
	}
	for name, d := range f.DebugStageDelay {
		stage, err := trace.ParseStage(name)
		if err != nil {
			return gateway.Options{}, wrongf("--debug-stage-delay: %w", err)
		}
		if stage == trace.Engine {
			return gateway.Options{}, wrongf("--debug-stage-delay: the engine's time is the engine's own; delay the engine")
		}
		o.StageDelay[stage] = d
	}
	return o, nil
}

// connectionLimit is how many connections clients may have unless it is given: what is
// left of the process's descriptors is for engines and files. Go has raised the soft
// limit to the hard one by now.
func connectionLimit() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > math.MaxInt32 {
		return 0
	}
	return int(limit.Cur) / 5 * 4
}

// retries bound what of each model's requests may be repeated.
func (f *gatewayFlags) retries() retry.Limits {
	limit := func(v float64) float64 {
		if v == 0 {
			return -1 // and not the default
		}
		return v
	}
	return retry.Limits{Share: limit(f.RetryShare), Floor: limit(f.RetryFloor)}
}
