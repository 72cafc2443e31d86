package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"weir/internal/dialect/allow"
	"weir/internal/dialect/sglang"
	"weir/internal/fleet/admission"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/retry"
	"weir/internal/gateway"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/front"
	"weir/internal/gateway/record"
	"weir/internal/model/pool"
	"weir/internal/observe/logs"
	"weir/internal/observe/otlp"
	"weir/internal/observe/timeline"
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
	"weir/internal/trace"
)

// gatewayFlags are the gateway's flags, the same in up, serve and frontend.
type gatewayFlags struct {
	listenFlags   `group:"Where it listens:"`
	keyFlags      `group:"Who may ask:"`
	sharedFlags   `group:"Several gateways:"`
	allowFlags    `group:"What clients may ask:"`
	limitFlags    `group:"Limits:"`
	routeFlags    `group:"Choosing an engine:"`
	queueFlags    `group:"Waiting for room at an engine:"`
	continueFlags `group:"Continuing streams of engines that fail:"`
	waitFlags     `group:"How long it waits:"`
	tokenizeFlags `group:"Tokenizing:"`
	answerFlags   `group:"Answers:"`
	recordFlags   `group:"Records:"`
	watchFlags    `group:"Watching itself:"`
	loadFlags     `group:"Watching itself:"`
	stopFlags     `group:"Stopping:"`
	peerFlags     `group:"Several gateways:"`

	// settings are these flags and those of the command around them, as operators are shown them.
	settings settings `kong:"-"`
}

// listenFlags are where clients and operators reach the gateway.
type listenFlags struct {
	Listen         string   `default:"127.0.0.1:8000" placeholder:"ADDR" help:"Address of the API (${default})."`
	AdminListen    string   `default:"127.0.0.1:8001" placeholder:"ADDR" help:"Address of the operators' page and of the admin endpoints: /metrics, /healthz, /readyz, /engines, /requests (in flight), /records and /stages (of requests that have ended), /timeline/ID, /timeline (follows the records), /watch, /stalls and /profiles. Only operators should reach it. off serves none of them (${default})."`
	ReusePort      bool     `help:"Let another weir with this flag listen at the same addresses, so that a new one can take this one's place: start it, and end this one (Linux; docs/operating.md)."`
	AdminHost      []string `sep:";" placeholder:"NAME" help:"Another host name of the admin listener. It answers only to IP addresses, localhost, the name in --admin-listen and these names, so that a web page cannot read it through a name of its own. Repeatable."`
	AdminChanges   string   `default:"local" enum:"local,any,off" help:"Who may change engines and models over the admin listener (weir engines add, drain, ...): local (callers on this machine), any (every caller that can reach it) or off (${default}; docs/changing.md)."`
	PProf          bool     `name:"pprof" env:"WEIR_PPROF" help:"Serve Go's profiles on the admin listener, under /debug/pprof. Prompts can be read from them. Off by default."`
	TLSCert        string   `name:"tls-cert" type:"path" placeholder:"FILE" help:"Serve the API over TLS, with HTTP/2 and HTTP/1.1. FILE is the PEM certificate chain, and is read again when it changes."`
	TLSKey         string   `name:"tls-key" type:"path" placeholder:"FILE" help:"Private key of the certificate, as PEM."`
	H2C            bool     `name:"h2c" env:"WEIR_H2C" help:"Also serve HTTP/2 without TLS, to clients that begin with it. Streams cost less over HTTP/1.1."`
	TrustedProxies []string `placeholder:"CIDR,..." help:"Networks of trusted proxies. weir takes a client's address from their X-Forwarded-For header, or from the PROXY protocol with --proxy-protocol."`
	CORS           []string `name:"cors" sep:";" default:"off" placeholder:"ORIGIN,..." help:"Origins of web pages whose scripts may call the API from a browser: off (none), any, or a list such as https://chat.example,http://localhost:3000 (${default}; docs/clients.md). The admin listener is never included. Repeatable."`
	ProxyProtocol  bool     `help:"The trusted proxies begin each connection with the PROXY protocol, version 1 or 2."`
}

// allowFlags control what part of a request may pass to engines.
type allowFlags struct {
	AllowField    []string `sep:";" placeholder:"NAME" help:"Let clients send a field or header that steers engines rather than answers, such as priority, cache_salt or kv_transfer_params. Otherwise such a field is refused, for every kind of engine (docs/apis.md has the list). Repeatable."`
	Media         []string `sep:";" default:"data" placeholder:"WORD" help:"Media that requests may refer to by URL: data allows none, so media must be sent in the request; a prefix such as https://images.example/public/ allows the URLs below it; any allows whatever the engine can fetch or open, including its own files (${default}). Repeatable."`
	RelayPath     []string `sep:";" placeholder:"PATH" help:"Another path to relay to engines of kind openai, such as /v1/images/generations. A path that ends with a slash includes all paths below it. The paths of vLLM and SGLang that clients use are relayed anyway. Repeatable."`
	UnknownFields string   `default:"refuse" enum:"refuse,warn" help:"What to do with a field that weir does not know: refuse answers 400 and names the nearest known field; warn leaves the field out and names it in the response header Weir-Ignored (${default}; docs/apis.md). A relay passes every field in any case."`
	AllowAbort    bool     `help:"Serve /abort_request, with which anyone who knows the rid of a request to /generate can end it."`
}

// limitFlags are how much there may be at once.
type limitFlags struct {
	MaxBody                 byteSize `default:"32MiB" placeholder:"BYTES" help:"Largest body of a request, such as 32MiB (${default})."`
	MaxBodyMemory           byteSize `default:"1GiB" placeholder:"BYTES" help:"Memory for all bodies together (${default}). A body that does not fit is refused, and the client is asked to try again. 0 is no limit."`
	MaxConnections          int      `default:"0" placeholder:"N" help:"Largest number of client connections. At the limit, idle connections give way to new ones. 0 is four fifths of the descriptors that the process may have (ulimit -n)."`
	MaxConnectionsPerClient int      `default:"0" placeholder:"N" help:"Largest number of connections from one client address (IPv6: /64). For clients behind a trusted proxy it limits their requests in flight. 0 is no limit."`
	MaxRequests             int      `default:"0" placeholder:"N" help:"Largest number of requests in flight. 0 is no limit."`
	MaxInflightTokens       int64    `default:"0" placeholder:"N" help:"Largest number of prompt and output tokens in flight. 0 is no limit."`
	UploadRate              byteSize `default:"4KiB" placeholder:"BYTES" help:"Lowest average rate of a body, in bytes per second, once --body-timeout has passed (${default})."`
}

// routeFlags are which engine a request goes to, and to which one next.
type routeFlags struct {
	Policy        string   `default:"cost" placeholder:"NAME" help:"How weir chooses an engine for a request: cost, session, least-load, power-of-two, round-robin or random (${default}). --model NAME,policy=NAME sets it for one model (docs/routing.md)."`
	IndexMemory   byteSize `default:"256MiB" placeholder:"BYTES" help:"Memory for the index of what the engines' KV caches hold (${default})."`
	SessionHeader []string `sep:";" placeholder:"NAME" help:"A request header that names the caller's session for --policy session, instead of the headers that clients send by themselves (docs/routing.md). Repeatable."`
	RetryShare    float64  `default:"0.2" placeholder:"SHARE" help:"Share of a model's requests that may be retried at another engine after a failure (${default}; docs/retries.md). 0 allows only the retries of --retry-floor."`
	RetryFloor    float64  `default:"10" placeholder:"N" help:"Retries per second that are allowed in addition, for models with few requests (${default}). If both are 0, nothing is retried."`

	GenerationProbes string        `default:"on" enum:"on,off" help:"Whether weir may ask an engine that fails or is silent for one token, to see whether it works again (${default}). With off, a relayed engine that hangs is avoided but never taken out, and only clients' requests show that it works (docs/probes.md)."`
	OwnLateness      time.Duration `default:"90ms" help:"How late weir itself must be within 100 ms for that time to count against no engine's health (${default})."`

	ResolveInterval time.Duration `default:"10s" help:"Time between two look-ups of the host names of engines with resolve=each (${default}, at least 1s)."`

	Isolation string `enum:"auto,off,tenant,key" default:"auto" placeholder:"WHOSE" help:"Which requests for a model share the prefix caches of its engines: all (off), those of one tenant (tenant) or those of one key (key). auto, the default, is off without --keys; with --keys it is tenant at each engine that reads a cache salt, and the others are used with a warning, where tenant and key give them no requests. A shared cache can reveal, by the time to the first token, what others have asked. A caller's own cache_salt divides further, except with off. --model NAME,isolation=WHOSE sets it for one model (docs/isolation.md)."`
	// policies are those of single models, which have no flags of their own.
	policies   map[string]string            `kong:"-"`
	isolations map[string]tenancy.Isolation `kong:"-"`
	// aliases are those of models that have no folder here.
	aliases map[string][]string `kong:"-"`
}

// queueFlags are how requests wait for engines that are full.
type queueFlags struct {
	Queue         string        `default:"on" enum:"on,off" help:"Whether requests wait in weir until an engine has room for them (on), or are passed to engines at once (off) (${default}; docs/queue.md)."`
	QueueTimeout  time.Duration `default:"0s" help:"Longest wait of a request for an engine with room. 0 takes --first-timeout. Callers may ask for a shorter wait."`
	MaxQueue      int           `default:"0" placeholder:"N" help:"Largest number of waiting requests of a model. Further requests are refused with 429. 0 is no limit."`
	Band          []string      `sep:";" placeholder:"NAME=WEIGHT" help:"Weight of a band of tenants: bands share the engines, the memory for bodies and the tokenizer by their weights. Repeatable. A band without this flag has a weight of 1 (docs/fairness.md)."`
	MaxQueueBytes byteSize      `default:"1GiB" placeholder:"BYTES" help:"Memory for everything that waits, bodies and token ids (${default}). 0 is no limit."`
}

// continueFlags are how streams go on when their engines fail.
type continueFlags struct {
	Continuation        string        `default:"on" enum:"on,off" help:"Whether a stream goes on at another engine after its own has failed (on), or ends with an error (off) (${default}; docs/continuation.md). Retries before the first output are not affected."`
	Continuations       int           `default:"32" placeholder:"N" help:"Number of streams of a model that may move to another engine at once, until each has its first output there (${default}). The others wait their turn."`
	ContinuationTimeout time.Duration `default:"30s" help:"Longest wait of such a stream for its turn and for an engine with room (${default})."`
	StallTimeout        time.Duration `default:"20s" help:"Longest time for which an engine may send nothing for a stream while it goes on with others (${default}). Then the stream goes on at another engine, if it can. 0 leaves it there until --idle-timeout (docs/continuation.md)."`
	ContinuationMemory  byteSize      `default:"1GiB" placeholder:"BYTES" help:"Memory for the token ids of streams, three bytes each, which a continuation needs (${default}). A stream that does not fit cannot be continued. 0 is no limit."`
}

// waitFlags are the longest waits for clients and engines.
type waitFlags struct {
	WaitForEngines  time.Duration `default:"5s" help:"Longest wait of a request for an engine of its model that is starting (${default}). If every engine of the model has been ready and none is now, the request is refused at once, except within a second after an engine has left."`
	ConnectTimeout  time.Duration `default:"5s" help:"Longest wait for a connection to an engine over HTTP, including TLS (${default})."`
	AckWarning      time.Duration `default:"1s" help:"Log a part of an engine's acknowledgement of a request that takes longer than this (${default}). 0 logs none."`
	SubmitTimeout   time.Duration `default:"10s" help:"Longest wait for an engine's acknowledgement of a request (${default})."`
	PrefillTimeout  time.Duration `default:"1m" help:"Longest wait for the answer of a prefill engine, if another engine decodes (${default})."`
	TransferTimeout time.Duration `default:"30s" help:"Longest wait for the first output of a decode engine after the prefill engine's answer (${default})."`
	FirstTimeout    time.Duration `default:"10m" help:"Longest wait for an engine's first output, or for the whole answer if it is not streamed (${default})."`
	IdleTimeout     time.Duration `default:"5m" help:"Longest wait for an engine's next output (${default}). A stream may last any time while output arrives."`
	BodyTimeout     time.Duration `default:"30s" help:"Longest wait for a request's head, and for the next bytes of a body (${default})."`
	UploadTimeout   time.Duration `default:"5m" help:"Longest wait for a whole body (${default})."`
	RequestTimeout  time.Duration `default:"0s" help:"Longest time of a whole request, from its first byte to the end of its answer. 0 is no limit."`
	WriteTimeout    time.Duration `default:"30s" help:"Longest wait for a client that does not read (${default})."`
}

// tokenizeFlags bound tokenizing.
type tokenizeFlags struct {
	TokenizeWorkers int           `default:"0" placeholder:"N" help:"Number of workers of the tokenizing pool. 0 uses all cores but one, which is left to I/O."`
	TokenizeTimeout time.Duration `default:"30s" help:"Longest wait for the tokenizing pool (${default}). A request that would wait longer is refused at once."`
	PrefixCache     byteSize      `default:"128MiB" placeholder:"BYTES" help:"Memory for the token ids of earlier prompts, which are reused for prompts that contain the same text (${default}). 0 keeps none."`
}

// answerFlags are the form of answers.
type answerFlags struct {
	FlushInterval time.Duration `default:"0s" help:"Shortest time between two writes of a stream. 0 writes output as it arrives. The first token is never held back."`
	Incremental   bool          `name:"incremental-streaming-output" help:"Events of a stream of /generate contain only new output instead of the whole answer so far, unless the request asks otherwise (docs/generate.md)."`
	Reasoning     string        `name:"reasoning-field" default:"reasoning_content" enum:"reasoning_content,reasoning,both" help:"Field that contains the reasoning in chat completions: reasoning_content (DeepSeek, SGLang), reasoning (vLLM, OpenRouter) or both."`
}

// recordFlags control what is recorded about requests.
type recordFlags struct {
	Timeline        string        `placeholder:"FILE" help:"Append one JSON line per request, which shows where its time went. SIGHUP opens the file again. off also keeps no records in memory, so that /records, /stages and /timeline are empty (docs/timeline.md); write ./off for a file of that name."`
	TimelineSample  float64       `default:"1" placeholder:"SHARE" help:"Share of the requests that are written to the timeline, above 0 and up to 1 (${default}). Failed requests are always written."`
	TimelineMaxSize byteSize      `placeholder:"BYTES" help:"Rename the timeline to FILE.1 before it grows beyond this size, such as 100MiB. 0 is no limit."`
	TimelineMaxAge  time.Duration `placeholder:"DURATION" help:"Rename the timeline to FILE.1 after this time. 0 is no limit."`
	TimelineKeep    int           `default:"5" placeholder:"N" help:"Number of renamed timelines to keep; FILE.1 is the latest (${default})."`
	UsageLog        string        `placeholder:"FILE" help:"Append one JSON line per request with its key's name, tenant, model and tokens (docs/keys.md). SIGHUP opens the file again."`
	UsageLogMaxSize byteSize      `placeholder:"BYTES" help:"Rename the usage log to FILE.1 before it grows beyond this size, such as 100MiB. 0 is no limit."`
	UsageLogKeep    int           `default:"5" placeholder:"N" help:"Number of renamed usage logs to keep; FILE.1 is the latest (${default})."`
	RelayUsage      string        `default:"auto" enum:"auto,off" placeholder:"WHEN" help:"auto asks relayed engines for the usage of streamed chats and completions (stream_options.include_usage) if there is --keys or --usage-log, and leaves it out of the answer if the caller has not asked for it. off: such a stream is counted by its events (${default})."`
	OTLP            string        `name:"otlp" placeholder:"URL" help:"Send spans of requests to an OpenTelemetry collector over gRPC: http://HOST:4317, or https:// (docs/timeline.md). Spans join the caller's trace (traceparent)."`
	OTLPHeaders     string        `name:"otlp-headers" env:"WEIR_OTLP_HEADERS,OTEL_EXPORTER_OTLP_HEADERS" placeholder:"NAME=VALUE,..." help:"Headers of each call to the collector, such as its key. Percent-encode special characters. Set it in the environment or the file to keep it out of the process list."`
	OTLPShare       float64       `name:"otlp-share" default:"1" placeholder:"SHARE" help:"Share of the requests that get spans, from 0 to 1, if the caller does not decide (${default})."`
	logFlags
	AccessLog       float64                  `default:"0" placeholder:"SHARE" help:"Share of the requests that get a log line when they end: 1 is each, 0.01 is one in a hundred, 0 is none (${default}). Above 0, all failed requests are logged too. A line contains no prompt, answer or key."`
	DebugStageDelay map[string]time.Duration `placeholder:"STAGE=DURATION" mapsep:";" help:"Delay a stage once per request, to prove that dashboards built on the stages point at the right one."`
	DebugHoldCore   bool                     `help:"Let the delays of --debug-stage-delay compute instead of sleep, so that they keep their core, to prove that a stall is noticed and named (docs/watching.md)."`
}

// stopFlags control the end of requests when the process stops.
type stopFlags struct {
	ShutdownDelay time.Duration `default:"0s" help:"Time after SIGTERM or Ctrl-C during which /readyz answers 503 but requests are still accepted, so that a load balancer can stop sending requests first. A second signal ends it."`
	// EngineDrainTimeout applies to an engine, not to the process.
	EngineDrainTimeout time.Duration `default:"5m" help:"Time in which requests may finish at an engine that is removed; then they are cut. If an engine is only drained, the log reports a drain that takes longer (${default}). --timeout of weir engines overrides it."`
	DrainTimeout       time.Duration `default:"30s" help:"Time that requests in flight are given to finish after SIGTERM or Ctrl-C (${default})."`
}

// logFlags are the form of the log.
type logFlags struct {
	LogLevel  logLevel `default:"info" placeholder:"LEVEL" help:"Lowest level that is logged: debug, info, warn or error (${default})."`
	LogFormat string   `default:"text" enum:"text,json" help:"Format of the log: text (key=value) or json (${default}). A line that repeats is written 20 times a minute, with the number of lines left out."`
}

// logLevel is a slog.Level whose error lists the levels.
type logLevel slog.Level

// UnmarshalText implements [encoding.TextUnmarshaler].
func (l *logLevel) UnmarshalText(text []byte) error {
	if (*slog.Level)(l).UnmarshalText(text) != nil {
		return fmt.Errorf("%q is not a level; want debug, info, warn or error", text)
	}
	return nil
}

// String implements fmt.Stringer.
func (l logLevel) String() string { return slog.Level(l).String() }

// logger logs to w.
func (f *logFlags) logger(w io.Writer) *slog.Logger {
	return logs.New(w, logs.Format(f.LogFormat), slog.Level(f.LogLevel))
}

// access returns the log of requests.
func (f *recordFlags) access(w io.Writer) record.AccessLog {
	if f.AccessLog == 0 {
		return record.AccessLog{}
	}
	return record.AccessLog{Log: slog.New(logs.Plain(w, logs.Format(f.LogFormat), slog.LevelInfo)), Share: f.AccessLog}
}

// certificate returns what --tls-cert and --tls-key name, nil without them.
func (f *listenFlags) certificate(log *slog.Logger) (*front.Certificate, error) {
	if f.TLSCert == "" {
		return nil, nil
	}
	return front.LoadCertificate(f.TLSCert, f.TLSKey, log)
}

// adminHosts are the names by which the admin listener is reached.
func (f *listenFlags) adminHosts() names { return hostNames(f.AdminHost, f.AdminListen) }

// hostNames adds that of an address to others.
func hostNames(hosts []string, addr string) names {
	if name, _, err := net.SplitHostPort(addr); err == nil && name != "" {
		hosts = append(slices.Clip(hosts), name)
	}
	return hosts
}

// words returns what flags hold that may be repeated, and each have several words with
// commas between.
func words(values []string) (all []string) {
	for _, v := range values {
		all = append(all, strings.Split(v, ",")...)
	}
	return all
}

// options turns the flags into the gateway's options. The error has one for each group of
// flags that cannot be meant.
func (f *gatewayFlags) options() (o gateway.Options, err error) {
	var all []error
	for _, set := range [...]func(*gateway.Options) error{
		f.listenFlags.set, f.setKeys, f.allowFlags.set, f.limitFlags.set, f.routeFlags.set, f.queueFlags.set, f.continueFlags.set,
		f.waitFlags.set, f.tokenizeFlags.set, f.answerFlags.set, f.recordFlags.set, f.watchFlags.set, f.loadFlags.set, f.stopFlags.set, f.setPeers, f.setSharedLimits,
	} {
		all = append(all, set(&o))
	}
	return o, errors.Join(all...)
}

// amount is a flag's value, as far as its sign matters.
type amount struct {
	flag  string
	value int64
}

// needPositive refuses values that are not positive.
func needPositive(all ...amount) error {
	for _, a := range all {
		if a.value <= 0 {
			return wrongf("%s must be positive", a.flag)
		}
	}
	return nil
}

// notNegative refuses values that are negative.
func notNegative(all ...amount) error {
	for _, a := range all {
		if a.value < 0 {
			return wrongf("%s must not be negative", a.flag)
		}
	}
	return nil
}

func (f *listenFlags) set(o *gateway.Options) (err error) {
	switch {
	case f.Listen == "":
		return wrongf("--listen is empty: give HOST:PORT, such as 127.0.0.1:8000")
	case f.AdminListen == "":
		return wrongf("--admin-listen is empty: give HOST:PORT, such as 127.0.0.1:8001, or off to have none")
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return wrongf("--tls-cert and --tls-key belong together: give both or neither")
	case f.H2C && f.TLSCert != "":
		return wrongf("--h2c is HTTP/2 without TLS, and --tls-cert serves HTTP/2 already: drop --h2c")
	}
	if o.Front.Proxies, err = admission.ParseProxies(f.TrustedProxies); err != nil {
		return wrongf("--trusted-proxies: %w", err)
	}
	if o.Front.CORS, err = front.ParseOrigins(words(f.CORS)); err != nil {
		return wrongf("--cors: %w", err)
	}
	if f.ProxyProtocol && len(o.Front.Proxies) == 0 {
		return wrongf("--proxy-protocol is accepted from trusted proxies only: name them with --trusted-proxies CIDR,...")
	}
	return nil
}

func (f *allowFlags) set(o *gateway.Options) (err error) {
	if o.Prepare.Allow.Fields, err = allow.ParseFields(words(f.AllowField)); err != nil {
		return wrongf("--allow-field: %w", err)
	}
	if o.Prepare.Allow.Media, err = allow.ParseMedia(words(f.Media)); err != nil {
		return wrongf("--media: %w", err)
	}
	if o.Prepare.Allow.Paths, err = allow.RelayPaths(words(f.RelayPath)); err != nil {
		return wrongf("--relay-path: %w", err)
	}
	o.Prepare.AllowAbort, o.Prepare.PassUnknown = f.AllowAbort, f.UnknownFields == "warn"
	return nil
}

func (f *limitFlags) set(o *gateway.Options) error {
	if err := needPositive(amount{"--max-body", int64(f.MaxBody)}, amount{"--upload-rate", int64(f.UploadRate)}); err != nil {
		return err
	}
	if err := notNegative(
		amount{"--max-body-memory", int64(f.MaxBodyMemory)}, amount{"--max-connections", int64(f.MaxConnections)},
		amount{"--max-connections-per-client", int64(f.MaxConnectionsPerClient)},
		amount{"--max-requests", int64(f.MaxRequests)}, amount{"--max-inflight-tokens", f.MaxInflightTokens},
	); err != nil {
		return err
	}
	o.Front.MaxBody, o.Front.MaxBodyMemory, o.Front.UploadRate = int64(f.MaxBody), orNone(int64(f.MaxBodyMemory)), int64(f.UploadRate)
	o.Prepare.Limits = admission.Limits{Requests: f.MaxRequests, Tokens: f.MaxInflightTokens}
	o.Front.Conns = admission.ConnLimits{Total: f.MaxConnections, PerClient: f.MaxConnectionsPerClient}
	if o.Front.Conns.Total == 0 {
		o.Front.Conns.Total = connectionLimit()
	}
	return nil
}

// orNone converts a flag for which 0 means none to an option whose default is not 0.
func orNone[T int64 | float64](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

func (f *routeFlags) set(o *gateway.Options) error {
	if _, err := balance.New(f.Policy); err != nil {
		return wrongf("--policy: %w", err)
	}
	if f.IndexMemory < 1<<20 {
		return wrongf("--index-memory must be at least 1MiB")
	}
	if f.RetryShare < 0 || f.RetryShare > 1 || math.IsNaN(f.RetryShare) || f.RetryFloor < 0 || math.IsNaN(f.RetryFloor) || math.IsInf(f.RetryFloor, 0) {
		return wrongf("--retry-share must be from 0 to 1, and --retry-floor must not be negative")
	}
	if err := needPositive(amount{"--own-lateness", int64(f.OwnLateness)}); err != nil {
		return err
	}
	if f.ResolveInterval < time.Second {
		return wrongf("--resolve-interval must be at least 1s")
	}
	o.Prepare.Sessions = words(f.SessionHeader)
	return nil
}

// retries bound what of each model's requests may be repeated.
func (f *routeFlags) retries() retry.Limits {
	return retry.Limits{Share: orNone(f.RetryShare), Floor: orNone(f.RetryFloor)}
}

func (f *queueFlags) set(o *gateway.Options) error {
	if err := notNegative(amount{"--queue-timeout", int64(f.QueueTimeout)}, amount{"--max-queue", int64(f.MaxQueue)}, amount{"--max-queue-bytes", int64(f.MaxQueueBytes)}); err != nil {
		return err
	}
	bands, err := fair.ParseBands(f.Band)
	if err != nil {
		return fmt.Errorf("--band: %w", err)
	}
	q := &o.Place.Queue
	q.Bands, q.Off, q.Requests, q.Bytes, q.Timeout = bands, f.Queue == "off", f.MaxQueue, orNone(int64(f.MaxQueueBytes)), f.QueueTimeout
	return nil
}

func (f *continueFlags) set(o *gateway.Options) error {
	if err := needPositive(amount{"--continuations", int64(f.Continuations)}, amount{"--continuation-timeout", int64(f.ContinuationTimeout)}); err != nil {
		return err
	}
	if err := notNegative(amount{"--continuation-memory", int64(f.ContinuationMemory)}, amount{"--stall-timeout", int64(f.StallTimeout)}); err != nil {
		return err
	}
	o.Attempt.Continue = attempt.Continuing{Off: f.Continuation == "off", AtOnce: f.Continuations, Timeout: f.ContinuationTimeout, Memory: orNone(int64(f.ContinuationMemory)), Stall: f.StallTimeout}
	return nil
}

func (f *waitFlags) set(o *gateway.Options) error {
	if err := needPositive(
		amount{"--wait-for-engines", int64(f.WaitForEngines)}, amount{"--connect-timeout", int64(f.ConnectTimeout)},
		amount{"--submit-timeout", int64(f.SubmitTimeout)}, amount{"--first-timeout", int64(f.FirstTimeout)},
		amount{"--prefill-timeout", int64(f.PrefillTimeout)}, amount{"--transfer-timeout", int64(f.TransferTimeout)},
		amount{"--idle-timeout", int64(f.IdleTimeout)}, amount{"--body-timeout", int64(f.BodyTimeout)},
		amount{"--upload-timeout", int64(f.UploadTimeout)}, amount{"--write-timeout", int64(f.WriteTimeout)},
	); err != nil {
		return err
	}
	if err := notNegative(amount{"--request-timeout", int64(f.RequestTimeout)}, amount{"--ack-warning", int64(f.AckWarning)}); err != nil {
		return err
	}
	o.Attempt.AckWarning = f.AckWarning
	o.Place.EngineTimeout, o.Attempt.SubmitTimeout, o.Attempt.FirstTimeout, o.Attempt.IdleTimeout = f.WaitForEngines, f.SubmitTimeout, f.FirstTimeout, f.IdleTimeout
	o.Attempt.PrefillTimeout, o.Attempt.TransferTimeout = f.PrefillTimeout, f.TransferTimeout
	o.Front.BodyTimeout, o.Front.UploadTimeout, o.Front.RequestTimeout, o.Front.WriteTimeout = f.BodyTimeout, f.UploadTimeout, f.RequestTimeout, f.WriteTimeout
	return nil
}

// mostTokenizeWorkers is the largest number of workers, each of which has a goroutine from the
// start. It is larger than the number of cores of any machine.
const mostTokenizeWorkers = 4096

func (f *tokenizeFlags) set(o *gateway.Options) error {
	if err := needPositive(amount{"--tokenize-timeout", int64(f.TokenizeTimeout)}); err != nil {
		return err
	}
	if err := notNegative(amount{"--tokenize-workers", int64(f.TokenizeWorkers)}, amount{"--prefix-cache", int64(f.PrefixCache)}); err != nil {
		return err
	}
	if f.TokenizeWorkers > mostTokenizeWorkers {
		return wrongf("--tokenize-workers %d: want at most %d; 0 uses all cores but one", f.TokenizeWorkers, mostTokenizeWorkers)
	}
	o.Prepare.Pool = pool.Options{Workers: f.TokenizeWorkers, MaxWait: f.TokenizeTimeout}
	o.Prepare.PrefixCache = orNone(int64(f.PrefixCache))
	return nil
}

func (f *answerFlags) set(o *gateway.Options) error {
	if err := notNegative(amount{"--flush-interval", int64(f.FlushInterval)}); err != nil {
		return err
	}
	o.Stream.FlushInterval, o.Prepare.Generate = f.FlushInterval, sglang.Options{Incremental: f.Incremental}
	if o.Attempt.Reasoning = []string{f.Reasoning}; f.Reasoning == "both" {
		o.Attempt.Reasoning = []string{"reasoning_content", "reasoning"}
	}
	return nil
}

// written reports whether records are written to a file.
func (f *recordFlags) written() bool { return f.Timeline != "" && f.Timeline != "off" }

// shelves define which of each minute's records stay in memory, some 10,000 in all.
var shelves = timeline.Shelves{Slowest: 50, Failed: 128, Refused: 64, Sample: 300}

// recorder opens the records; nil with --timeline off.
func (f *recordFlags) recorder(log *slog.Logger) (*timeline.Recorder, error) {
	if f.Timeline == "off" {
		return nil, nil
	}
	file := f.Timeline
	if file != "" {
		file = kong.ExpandPath(file)
	}
	return timeline.New(timeline.Options{File: file, Share: f.TimelineSample, Log: log, Shelves: shelves,
		Rotation: timeline.Rotation{Size: int64(f.TimelineMaxSize), Age: f.TimelineMaxAge, Keep: f.TimelineKeep}})
}

// usage opens the usage log; nil without one.
func (f *recordFlags) usage(log *slog.Logger) (*timeline.Recorder, error) {
	if f.UsageLog == "" {
		return nil, nil
	}
	return timeline.New(timeline.Options{File: kong.ExpandPath(f.UsageLog), Form: timeline.Usage, Keep: -1, Log: log,
		Rotation: timeline.Rotation{Size: int64(f.UsageLogMaxSize), Keep: f.UsageLogKeep}})
}

// exporter makes what sends spans; nil without --otlp.
func (f *recordFlags) exporter(log *slog.Logger) (*otlp.Exporter, error) {
	if f.OTLP == "" {
		return nil, nil
	}
	e, err := otlp.New(otlp.Options{URL: f.OTLP, Headers: f.OTLPHeaders, Version: version(), Log: log})
	switch {
	case errors.Is(err, otlp.ErrHeaders):
		return nil, wrongf("--otlp-headers: %w", err)
	case err != nil:
		return nil, wrongf("--otlp %w", err)
	}
	return e, nil
}

func (f *recordFlags) set(o *gateway.Options) error {
	switch {
	case f.TimelineMaxSize < 0 || f.TimelineMaxAge < 0:
		return wrongf("--timeline-max-size and --timeline-max-age must not be negative")
	case f.AccessLog < 0 || f.AccessLog > 1 || math.IsNaN(f.AccessLog):
		return wrongf("--access-log is the share of the requests that are logged: give a number from 0 to 1")
	case f.TimelineKeep < 1:
		return wrongf("--timeline-keep must be at least 1")
	case !(f.TimelineSample > 0 && f.TimelineSample <= 1):
		return wrongf("--timeline-sample must be above 0 and at most 1, which writes every request")
	case !f.written() && (f.TimelineMaxSize > 0 || f.TimelineMaxAge > 0):
		return wrongf("--timeline-max-size and --timeline-max-age decide when a timeline is renamed: add --timeline FILE")
	case f.UsageLogMaxSize < 0:
		return wrongf("--usage-log-max-size must not be negative")
	case f.UsageLogKeep < 1:
		return wrongf("--usage-log-keep must be at least 1")
	case f.UsageLog == "" && f.UsageLogMaxSize > 0:
		return wrongf("--usage-log-max-size decides when a usage log is renamed: add --usage-log FILE")
	case f.UsageLog != "" && f.written() && kong.ExpandPath(f.UsageLog) == kong.ExpandPath(f.Timeline):
		return wrongf("--usage-log and --timeline name the same file, %s: give each its own", f.UsageLog)
	case !(f.OTLPShare >= 0 && f.OTLPShare <= 1):
		return wrongf("--otlp-share must be from 0 to 1")
	case !f.written() && f.TimelineSample < 1:
		return wrongf("--timeline-sample is the share of requests in the timeline: add --timeline FILE")
	}
	o.Record.SpanShare = f.OTLPShare
	for name, d := range f.DebugStageDelay {
		stage, err := trace.ParseStage(name)
		if err != nil {
			return wrongf("--debug-stage-delay: %w", err)
		}
		if stage == trace.Engine {
			return wrongf("--debug-stage-delay: weir cannot delay the stage engine; delay the engine itself")
		}
		if o.Record.StageDelay == nil {
			o.Record.StageDelay = map[trace.Stage]time.Duration{}
		}
		o.Record.StageDelay[stage] = d
	}
	if o.Record.HoldCore = f.DebugHoldCore; o.Record.HoldCore && len(o.Record.StageDelay) == 0 {
		return wrongf("--debug-hold-core changes the delays of --debug-stage-delay: add --debug-stage-delay STAGE=DURATION")
	}
	return nil
}

func (f *watchFlags) set(*gateway.Options) error { return f.check() }

func (f *loadFlags) set(*gateway.Options) error {
	return notNegative(amount{"--watch-streams", f.WatchStreams}, amount{"--watch-output-delay", int64(f.WatchOutputDelay)}, amount{"--watch-queue-wait", int64(f.WatchQueueWait)})
}

func (f *stopFlags) set(*gateway.Options) error {
	if err := needPositive(amount{"--engine-drain-timeout", int64(f.EngineDrainTimeout)}); err != nil {
		return err
	}
	return notNegative(amount{"--shutdown-delay", int64(f.ShutdownDelay)}, amount{"--drain-timeout", int64(f.DrainTimeout)})
}

// connectionLimit is the default of the number of client connections: the rest of the
// process's descriptors is for engines and files. Go has already raised the soft limit to
// the hard one.
func connectionLimit() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > math.MaxInt32 {
		return 0
	}
	return int(limit.Cur) / 5 * 4
}
