package plane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/sock"
)

// Engine is one engine reached over the weir plane. It implements
// engine.Tokens and engine.Adapter.
type Engine struct {
	opts    Options
	bootID  string
	meters  meters
	current atomic.Pointer[session] // nil while there is none
	// computed is what the latest fence said.
	computed atomic.Uint64
}

var (
	_ engine.Tokens   = (*Engine)(nil)
	_ engine.Adapter  = (*Engine)(nil)
	_ engine.Counting = (*Engine)(nil)
)

// New makes an Engine. Until Run has a session, Generate fails.
func New(o Options) *Engine {
	return &Engine{opts: o.withDefaults(), bootID: trace.BootID()}
}

// Run implements engine.Adapter. It may be called once. report is called from
// Run's own goroutine, which is also the reader: it must not block.
func (e *Engine) Run(ctx context.Context, report func(engine.State)) {
	r := reporter{report: report}
	b := retry{min: e.opts.BackoffMin, max: e.opts.BackoffMax}
	for {
		began := time.Now()
		e.serve(ctx, &r)
		wait := time.NewTimer(b.wait(time.Since(began)))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
	}
}

// serve connects and runs one session to its end.
func (e *Engine) serve(ctx context.Context, r *reporter) {
	s, err := e.connect(ctx)
	if err != nil {
		if ctx.Err() == nil {
			e.meters.connectFailures.Add(1)
		}
		r.down(fmt.Errorf("plane: connect to %s at %s: %w", e.opts.Name, e.opts.Addr, err))
		return
	}
	e.meters.Sessions.Add(1)
	e.current.Store(s)
	r.up(s.facts)
	end := s.run()
	// No new request comes in, the router looks elsewhere, and only then do
	// those that ended here look for another engine.
	e.current.Store(nil)
	e.meters.Lost[end.Why].Add(1)
	e.meters.running.Store(0)
	e.meters.waiting.Store(0)
	r.down(fmt.Errorf("plane: %s at %s: %w", e.opts.Name, e.opts.Addr, end))
	s.close(end)
}

// The windows let a step of any usual size arrive without a round trip. For
// gRPC's connection they are set because that switches off its estimation of the
// bandwidth, whose pings would wake us for nothing.
const (
	streamWindow = 16 << 20
	connWindow   = 64 << 20
	readBuffer   = 256 << 10 // of the steps
	writeBuffer  = 64 << 10  // of prompts
)

var errOnce = errors.New("the session's connection is gone")

// dial makes a connection. Its reads do not trouble Go's scheduler.
func (e *Engine) dial(ctx context.Context) (net.Conn, error) {
	conn, err := e.opts.Dial(ctx, e.opts.Addr)
	if err != nil {
		return nil, err
	}
	return sock.Reads(conn), nil
}

// secure is how connections are made over TLS, nil where they are not.
func (e *Engine) secure() *tls.Config {
	config := e.opts.Access.TLS()
	if config == nil {
		return nil
	}
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(e.opts.Addr)
	}
	return config
}

// dialSteps makes a connection for the steps, over TLS where the engine wants that.
func (e *Engine) dialSteps(ctx context.Context) (net.Conn, error) {
	conn, err := e.dial(ctx)
	config := e.secure()
	if err != nil || config == nil {
		return conn, err
	}
	over := tls.Client(conn, config)
	if err := over.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return over, nil
}

// bearer shows the engine its key in each call.
type bearer struct{ *access.Access }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if key := b.Authorization(); key != "" {
		return map[string]string{"authorization": key}, nil
	}
	return nil, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials: what is spoken
// within one network is the operator's to decide.
func (bearer) RequireTransportSecurity() bool { return false }

// client prepares the connection of all calls but Steps; it is made by the first
// call on it, and heard counts its reads. There is one per session, and it dials
// once: gRPC would make a new one by itself when the engine asks for that, and a
// request would go to an engine that does not know its session. Only Run
// reconnects.
func (e *Engine) client(heard *atomic.Uint64) (*grpc.ClientConn, error) {
	return e.clientOver(func(ctx context.Context) (net.Conn, error) {
		conn, err := e.dial(ctx)
		if err != nil {
			return nil, err
		}
		return &counted{Conn: conn, heard: heard}, nil
	})
}

// clientOver is client over the connection that dial makes.
func (e *Engine) clientOver(dial func(context.Context) (net.Conn, error)) (*grpc.ClientConn, error) {
	var dialed atomic.Bool
	once := func(ctx context.Context, _ string) (net.Conn, error) {
		if dialed.Swap(true) {
			return nil, errOnce
		}
		return dial(ctx)
	}
	transport := insecure.NewCredentials()
	if config := e.secure(); config != nil {
		transport = credentials.NewTLS(config)
	}
	return grpc.NewClient("passthrough:///"+e.opts.Addr,
		grpc.WithTransportCredentials(transport),
		grpc.WithPerRPCCredentials(bearer{e.opts.Access}),
		grpc.WithContextDialer(once),
		grpc.WithNoProxy(),
		grpc.WithUserAgent("weir"),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithWriteBufferSize(writeBuffer),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: e.opts.ConnectTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(e.opts.MaxSubmit), grpc.ForceCodecV2(newCodec())),
	)
}

// counted counts the reads that gave something.
type counted struct {
	net.Conn
	heard *atomic.Uint64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Add(1)
	}
	return n, err
}

const protocolVersion = 1

// Describe asks an engine for its facts over a connection of its own, without a
// session.
func Describe(ctx context.Context, addr string, a *access.Access) (engine.Facts, error) {
	e := New(Options{Name: addr, Addr: addr, Access: a})
	conn, err := e.client(new(atomic.Uint64))
	if err != nil {
		return engine.Facts{}, err
	}
	defer conn.Close()
	facts, err := planepb.NewPlaneClient(conn).Describe(ctx, &planepb.DescribeRequest{})
	if err != nil {
		return engine.Facts{}, fmt.Errorf("describe: %w", advised(err, a))
	}
	return e.factsOf(facts), nil
}

// advised adds advice to the error of an engine that refuses weir's credentials.
func advised(err error, a *access.Access) error {
	if code := status.Code(err); code == codes.Unauthenticated || code == codes.PermissionDenied {
		return fmt.Errorf("%w: %s", err, a.Advice())
	}
	return err
}

func (e *Engine) factsOf(f *planepb.Facts) engine.Facts {
	return engine.Facts{
		Models:        []string{f.GetModel()},
		ContextLength: int(f.GetContextLength()),
		MaxRunning:    int(f.GetMaxRunning()),
		KVTokens:      count(f.GetKvTokens()),
		StepTokens:    count(uint64(f.GetStepTokens())),
		SideBySide:    sideBySide(f.GetRanks()),
		Software:      f.GetSoftware(),
		Instance:      f.GetInstance(),
		Carries:       infer.ParseCarries(f.GetCarries())&wireCarries | infer.CarriesUsual,
		Salts:         salts(f.GetCacheSalt()),
		KVEvents:      e.kvEvents(f.GetKvEvents()),
	}
}

// salts reports whether an engine acts on the cache salts of requests.
func salts(carried bool) engine.Salts {
	if carried {
		return engine.Salts{Carried: true}
	}
	return engine.Salts{Why: "does not say cache_salt in its Facts: it is older than that field of the plane; start a newer one"}
}

// kvEvents returns the address at which an engine with one rank publishes its KV events.
// For an engine with several ranks it is the first rank's, for messages to the operator.
func (e *Engine) kvEvents(of []*planepb.KVEvents) engine.KVEvents {
	if len(of) == 0 || of[0].GetEndpoint() == "" {
		return engine.KVEvents{}
	}
	first := of[0]
	host, _, _ := net.SplitHostPort(e.opts.Addr)
	if host == "" {
		host = "127.0.0.1"
	}
	return engine.KVEvents{
		Endpoint: first.GetEndpoint(), Replay: first.GetReplayEndpoint(), Topic: first.GetTopic(),
		BlockTokens: count(uint64(first.GetBlockTokens())), Host: host,
	}
}

// mostRanks bounds the data-parallel ranks of an engine that are believed.
const mostRanks = 1024

func sideBySide(ranks uint32) int {
	if ranks > mostRanks {
		return 0
	}
	return int(ranks)
}

// count is a number of tokens. A number that no engine has is not believed.
func count(n uint64) int {
	if n > math.MaxInt32 {
		return 0
	}
	return int(n)
}

// reporter reports changes of state, and nothing when there is none.
type reporter struct {
	report func(engine.State)
	ready  bool
	last   string
}

func (r *reporter) up(f engine.Facts) {
	r.ready, r.last = true, ""
	r.report(engine.State{Ready: true, Facts: f})
}

func (r *reporter) down(err error) {
	if !r.ready && r.last == err.Error() {
		return
	}
	r.ready, r.last = false, err.Error()
	r.report(engine.State{Err: err})
}
