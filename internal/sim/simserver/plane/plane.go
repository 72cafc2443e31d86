// Package plane serves the weir plane of a simulated engine.
package plane

import (
	"context"
	"math"
	"net"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // its codec
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/conns"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/guard"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/trace"
	"weir/internal/workload/content"
)

// The plane's limits: a prompt of some millions of ids fits a message, and a
// burst of prompts fits the window.
const (
	maxMessage = 64 << 20
	window     = 64 << 20
)

// Server serves the batched plane of an engine. Its listeners share its sessions.
type Server struct {
	run      *engine.Engine
	vocab    *vocab.Vocab
	access   *guard.Access
	software string // the name and version that it reports
	limit    int    // of the ids held for a gateway that does not read its steps
	sessions sessions
}

// New makes a server of the plane that calls itself software. limit bounds the ids held for a
// gateway that does not read its steps; beyond it the gateway's session is broken.
func New(run *engine.Engine, v *vocab.Vocab, access *guard.Access, software string, limit int) *Server {
	return &Server{run: run, vocab: v, access: access, software: software, limit: limit, sessions: sessions{byID: map[uint64]*session{}}}
}

// service is the plane on one listener.
type service struct {
	planepb.UnimplementedPlaneServer
	server *Server
	l      *conns.Listener
	stop   <-chan struct{} // the server is shutting down
}

// Serve serves the plane on l until ctx ends; every call has returned then. It closes l.
func (p *Server) Serve(ctx context.Context, l net.Listener) error {
	options := keys(p.access)
	if p.access.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(p.access.TLS)))
	}
	srv := grpc.NewServer(append(options,
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.ReadBufferSize(128<<10), grpc.WriteBufferSize(128<<10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.ForceServerCodecV2(rawCodec{encoding.GetCodecV2("proto")}),
	)...)
	tracked := p.run.Listen(l)
	planepb.RegisterPlaneServer(srv, &service{server: p, l: tracked, stop: ctx.Done()})
	stopped := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(stopped)
		srv.Stop()
	})
	err := srv.Serve(tracked)
	if !unhook() {
		<-stopped
		return nil
	}
	srv.Stop()
	return err
}

// Describe implements the plane.
func (p *service) Describe(context.Context, *planepb.DescribeRequest) (*planepb.Facts, error) {
	o := p.server.run.Options()
	return &planepb.Facts{
		Protocol:      1,
		Instance:      p.server.run.Instance(),
		Software:      p.server.software,
		BootId:        trace.BootID(),
		Model:         o.Model,
		ContextLength: uint32(o.ContextLength),
		VocabSize:     uint32(o.VocabSize),
		MaxRunning:    uint32(o.MaxRunning * o.DPSize),
		EosIds:        o.EOS,
		Carries:       (planeCarries | p.server.vocab.MediaCarries()).Words(),
		KvTokens:      uint64(o.KVTokens * o.DPSize),
		StepTokens:    uint32(min(o.StepTokens, o.ChunkedPrefill)),
		Ranks:         uint32(o.DPSize),
		KvEvents:      p.kvEvents(),
		CacheSalt:     true,
		Submissions:   true,
	}, nil
}

// kvEvents is where each rank publishes what its KV cache holds.
func (p *service) kvEvents() (of []*planepb.KVEvents) {
	if p.server.run.KVEvents() == nil {
		return nil
	}
	for _, c := range p.server.run.KVEvents().Sources() {
		k := &planepb.KVEvents{Endpoint: c.Endpoint, Topic: c.Topic, BlockTokens: uint32(p.server.run.Options().PageSize)}
		if c.ReplayEndpoint != nil {
			k.ReplayEndpoint = *c.ReplayEndpoint
		}
		of = append(of, k)
	}
	return of
}

// Steps implements the plane: it opens a session and writes its results until
// the gateway leaves, the engine stops, or a fault breaks it.
func (p *service) Steps(req *planepb.StepsRequest, stream grpc.ServerStreamingServer[planepb.Step]) error {
	s, err := p.server.open(req.Session, p.callerConn(stream.Context()))
	if err != nil {
		return err
	}
	defer s.close()
	running, waiting := p.server.run.Busy()
	if err := stream.Send(&planepb.Step{SendTime: uint64(trace.Now()), Running: running, Waiting: waiting}); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-p.stop:
			return asStatus(engine.ErrStopped())
		case <-p.server.run.Done():
			return asStatus(engine.ErrStopped())
		case <-s.box.Wake():
		}
		if over, err := s.write(stream); over {
			return err
		}
	}
}

func (p *service) callerConn(ctx context.Context) *conns.Conn {
	if from, ok := peer.FromContext(ctx); ok {
		return p.l.Conn(from.Addr.String())
	}
	return nil
}

// planeCarries lists the fields that the plane accepts beyond those that all engines
// accept. Sampling parameters have no effect here, because nothing is sampled.
const planeCarries = infer.CarriesMinP | infer.CarriesPenalties | infer.CarriesRepetitionPenalty | infer.CarriesLogitBias | infer.CarriesJSONSchema |
	infer.CarriesLogprobs

// askOf reads the grammar or format that the output must match.
func (p *service) askOf(g *planepb.Guide) (ask content.Ask, err error) {
	switch kind := g.GetKind().(type) {
	case nil:
		return ask, nil
	case *planepb.Guide_JsonSchema:
		if !p.server.vocab.Speaks() {
			return ask, infer.Errorf(infer.CodeUnsupported, "the engine has nobody to write by a schema")
		}
		ask.Schema, err = fields.Schema("guide", jsontext.Value(kind.JsonSchema))
		ask.Mode = content.ModeJSON // whatever tools the prompt offers: it is all that may be generated
		return ask, err
	}
	return ask, infer.Invalid("guide", "the engine writes by a JSON schema only")
}

// way is how a request has come.
type way struct {
	created int64 // when
	batched bool  // by Submissions
}

// Submit implements the plane.
func (p *service) Submit(ctx context.Context, req *planepb.SubmitRequest) (*planepb.SubmitReply, error) {
	created := trace.Now()
	s, err := p.session(req)
	if err != nil {
		return nil, err
	}
	if _, err := p.submit(ctx, s, req, way{created: created}); err != nil {
		return nil, err
	}
	return &planepb.SubmitReply{ServerCreated: uint64(created)}, nil
}

// Submissions implements the plane. A request waits for the loop's next step, so each has a
// goroutine.
func (p *service) Submissions(stream grpc.ClientStreamingServer[planepb.SubmitBatch, planepb.SubmissionsReply]) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	for {
		batch, err := stream.Recv()
		if err != nil {
			return nil // the gateway closed its side, or is gone
		}
		came := way{created: trace.Now(), batched: true}
		for _, req := range batch.GetSubmit() {
			s, err := p.session(req)
			if err != nil {
				return err
			}
			running.Go(func() {
				if j, err := p.submit(ctx, s, req, came); err != nil {
					s.refuse(req.Slot, err)
				} else {
					s.answer(j)
				}
			})
		}
	}
}

// session is the one that a request names.
func (p *service) session(req *planepb.SubmitRequest) (*session, error) {
	if s := p.server.sessions.get(req.Session); s != nil {
		return s, nil
	}
	return nil, status.Errorf(codes.FailedPrecondition, "no session %x; open it with Steps first", req.Session)
}

// submit has the engine queue a request.
func (p *service) submit(ctx context.Context, s *session, req *planepb.SubmitRequest, came way) (*slotJob, error) {
	fault, faulty := p.server.run.Fault(req.RequestId, func() []byte { return p.server.vocab.PromptText(req.Prompt) })
	if faulty {
		if err := p.delay(ctx, fault); err != nil {
			p.server.run.Refused()
			return nil, err
		}
	}
	var prompt vocab.Expanded
	err := p.server.run.WantWhole()
	if err == nil {
		prompt, err = p.server.vocab.Expand(ctx, req.RequestId, req.Prompt, mediaOf(req.GetMedia()))
	}
	if err != nil {
		p.server.run.Refused()
		return nil, asStatus(err)
	}
	params := sim.Params{
		Prompt: prompt.IDs, MaxTokens: int(req.MaxTokens), MinTokens: int(req.MinTokens),
		IgnoreEOS: req.IgnoreEos, StopIDs: req.StopIds, Seed: uint64(req.GetSeed()), CacheSalt: req.GetCacheSalt(),
		Stall: faulty && fault.Kind == sim.Stall, StallAfter: fault.After,
	}
	if req.GetToContext() {
		params.MaxTokens = min(params.MaxTokens, max(1, p.server.run.Options().Room(len(prompt.IDs))))
	}
	var prepared sim.Request
	ask, err := p.askOf(req.GetGuide())
	if err == nil {
		_, err = p.server.vocab.Script(&params, ask)
	}
	if err == nil {
		prepared, err = p.server.run.Options().Prepare(params)
	}
	if err != nil {
		p.server.run.Refused()
		return nil, asStatus(err)
	}
	top := -1
	if req.Logprobs != nil {
		if top = int(min(*req.Logprobs, math.MaxInt32)); top > vocab.MaxAlternatives {
			p.server.run.Refused()
			return nil, asStatus(infer.Invalid("logprobs", "logprobs is %d; it must be from 0 to %d", top, vocab.MaxAlternatives))
		}
	}
	j, err := s.reserve(req.Slot, req.RequestId, req.GetSeed(), top, fault, faulty, came)
	if err != nil {
		p.server.run.Refused()
		return nil, err
	}
	if len(req.GetMedia()) > 0 {
		j.prompted = uint32(len(prompt.IDs))
	}
	// The gateway's deadline does not count from here on: the answer is certain
	// and near, and a request that was accepted must not be reported as lost.
	if err := p.server.run.Submit(context.WithoutCancel(ctx), &j.Job, came.created, prepared); err != nil {
		s.release(j)
		return nil, asStatus(err)
	}
	return j, nil
}

// mediaOf reads media off the wire.
func mediaOf(wire []*planepb.Media) (all []vocab.Medium) {
	for _, w := range wire {
		m := vocab.Medium{Kind: infer.NumMediaKinds, URL: w.GetUrl(), MediaType: w.GetMediaType(), Data: w.GetData()}
		if k := w.GetKind() - planepb.Media_KIND_IMAGE; k >= 0 && int(k) < int(infer.NumMediaKinds) {
			m.Kind = infer.MediaKind(k)
		}
		all = append(all, m)
	}
	return all
}

// delay applies the faults that take effect before the engine has a Submit.
func (p *service) delay(ctx context.Context, f sim.Fault) error {
	switch f.Kind {
	case sim.Unavailable:
		return status.Error(codes.Unavailable, "unavailable by fault")
	case sim.Fail:
		return status.Error(codes.Internal, "failed by fault")
	case sim.Throttle:
		return status.Error(codes.ResourceExhausted, "too many requests, by fault")
	case sim.Hang:
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-p.stop:
			return asStatus(engine.ErrStopped())
		}
	case sim.Slow:
		return p.wait(ctx, f.Delay)
	}
	return nil
}

func (p *service) wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-p.stop:
		return asStatus(engine.ErrStopped())
	}
}

// Control implements the plane.
func (p *service) Control(stream grpc.BidiStreamingServer[planepb.ControlRequest, planepb.ControlReply]) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			// The gateway closed its side, or is gone: both are a fine end.
			return nil
		}
		if s := p.server.sessions.get(req.Session); s != nil {
			for _, a := range req.Abort {
				if j := s.find(a.Slot, a.RequestId); j != nil {
					p.server.run.Abort(&j.Job)
				}
			}
		}
		if req.Ping != nil {
			reply := &planepb.ControlReply{GatewayTime: req.Ping.GatewayTime, EngineTime: uint64(trace.Now())}
			if err := stream.Send(reply); err != nil {
				return err
			}
		}
	}
}

// Fence implements the plane.
func (p *service) Fence(ctx context.Context, _ *planepb.FenceRequest) (*planepb.FenceReply, error) {
	computed, err := p.server.run.Fence(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return nil, asStatus(err)
	}
	return &planepb.FenceReply{Time: uint64(trace.Now()), Computed: computed}, nil
}

// asStatus returns an error the status that the protocol documents.
func asStatus(err error) error {
	e := infer.AsError(err)
	code := codes.Internal
	switch e.Code {
	case infer.CodeInvalid, infer.CodeContext:
		code = codes.InvalidArgument
	case infer.CodeOverloaded:
		code = codes.ResourceExhausted
	case infer.CodeUnavailable:
		code = codes.Unavailable
	case infer.CodeCancelled:
		code = codes.Canceled
	}
	return status.Error(code, e.Message)
}

// keys refuses calls of the plane that show no key.
func keys(a *guard.Access) []grpc.ServerOption {
	if len(a.Keys) == 0 {
		return nil
	}
	check := func(ctx context.Context) error {
		md, _ := metadata.FromIncomingContext(ctx)
		if field := md.Get("authorization"); len(field) != 1 || !guard.Takes(field[0], a.Keys...) {
			return status.Error(codes.Unauthenticated, "Unauthorized")
		}
		return nil
	}
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if err := check(ctx); err != nil {
				return nil, err
			}
			return h(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if err := check(s.Context()); err != nil {
				return err
			}
			return h(srv, s)
		}),
	}
}
