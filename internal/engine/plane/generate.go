package plane

import (
	"context"
	"errors"
	"math"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"weir/internal/dialect/media"
	"weir/internal/engine"
	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Generate implements engine.Tokens. The sink is seated before the request
// leaves, because its first ids may arrive before the engine's reply.
//
// If ctx ends, or the connection breaks, before the reply, it is unknown whether the
// engine has the request. The request is then aborted, its slot stays occupied until
// the engine's final message about it (or the session's end), and no more output
// reaches the sink. If ids of the request have already arrived, they confirm it, and
// Generate succeeds without the reply.
func (e *Engine) Generate(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	leg.Engine, leg.DPRank = e.opts.Name, -1
	if err := ctx.Err(); err != nil {
		return nil, infer.AsError(err)
	}
	s := e.current.Load()
	if s == nil {
		return nil, mux.Unavailable(e.opts.Name, nil)
	}
	wire := wires.Get().(*planepb.SubmitRequest)
	bad := submitRequest(wire, req, s.facts.Carries)
	if bad == nil {
		bad = s.facts.Salts.Check(req)
	}
	if bad != nil {
		return nil, bad
	}
	g := &generation{aborts: s.out}
	if s.subs != nil && s.subs.isOpen() {
		g.InitSettled(req, attempt, sink)
	} else {
		g.Init(req, attempt, sink)
	}
	switch s.table.seat(g) {
	case tableClosed:
		return nil, mux.Unavailable(e.opts.Name, context.Cause(s.ctx))
	case tableFull:
		return nil, s.full()
	}
	wire.Session, wire.Slot = s.id, g.slot

	e.meters.Submitted.Add(1)
	leg.ToServer = trace.Now()
	if g.Settled() != nil {
		put, err := s.subs.put(g, wire)
		if err != nil {
			s.end(mux.LossConnection, err)
		}
		if put {
			wire.Reset()
			wires.Put(wire)
			return s.answered(ctx, g, leg)
		}
	}
	var header, trailer metadata.MD
	reply, err := s.client.Submit(ctx, wire, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil {
		// A status from the engine has a header or a trailer; one made by this end of
		// the connection has neither. (A connection that breaks between the two takes
		// the session with it.)
		return s.settle(g, judge(ctx, e.opts.Name, err, len(header)+len(trailer) > 0), leg)
	}
	if !g.Accept() {
		lost := mux.Unavailable(e.opts.Name, context.Cause(s.ctx))
		lost.NotRun = false // it has confirmed the request
		return nil, lost
	}
	e.meters.Accepted.Add(1)
	leg.Acked = trace.Now()
	leg.Stamps.ServerCreated = s.offset().ToGateway(reply.GetServerCreated())
	return g, nil
}

// settle ends a hand-over that got no good reply.
func (s *session) settle(g *generation, v verdict, leg *trace.Leg) (engine.Generation, error) {
	heard, kept := g.GiveUp(v.refused || v.occupied)
	switch {
	case kept:
		s.meters.Accepted.Add(1)
		leg.Acked = heard
		return g, nil
	case heard != 0:
		v.err.Code, v.err.Retryable = infer.CodeIntegrity, true
		v.err.Message = "what the engine sent does not add up; send the request again"
		v.err.Cause = errors.Join(&mux.Fault{
			Reason: FaultRefused, Detail: "ids arrived for a request that was then refused", Place: place(g.slot), RequestID: g.ID,
		}, v.err.Cause)
		g.Abort()
	case v.refused:
		v.err.NotRun = true
		s.table.release(g)
	case !v.occupied:
		g.Abort()
	}
	if v.forgotten {
		s.end(mux.LossForgotten, v.err.Cause)
	}
	return nil, v.err
}

// full returns the error for a request without a slot. If most slots are held by
// requests whose state is unknown, they will not become free by themselves, and a new
// session is the only remedy.
func (s *session) full() *infer.Error {
	if s.table.abandoned() > maxSlots/2 {
		s.end(mux.LossSlots, nil)
	}
	return &infer.Error{
		Code: infer.CodeOverloaded, Message: "too many requests at once on the engine; try again later",
		Engine: s.opts.Name, Retryable: true, NotRun: true,
	}
}

// wireCarries is what the wire has words for.
const wireCarries = infer.CarriesAll &^ (infer.CarriesPriority | infer.CarriesPromptLogprobs)

// wires are spare messages for requests. gRPC's calls keep theirs.
var wires = sync.Pool{New: func() any { return new(planepb.SubmitRequest) }}

// submitRequest fills in the wire's message for req; the caller sets the session and
// slot.
func submitRequest(wire *planepb.SubmitRequest, req *infer.Request, carries infer.Carries) *infer.Error {
	if req.MaxTokens <= 0 || int64(req.MaxTokens) > math.MaxUint32 {
		return infer.Invalid("max_tokens", "must be between 1 and %d", uint32(math.MaxUint32))
	}
	if err := req.Whole(); err != nil {
		return err
	}
	if err := req.Lacks(carries & wireCarries); err != nil {
		return err
	}
	if req.MinTokens < 0 || req.MinTokens > req.MaxTokens {
		return infer.Invalid("min_tokens", "must be between 0 and max_tokens")
	}
	parts, bad := mediaOf(req.Media)
	if bad != nil {
		return bad
	}
	*wire = planepb.SubmitRequest{
		Media:       parts,
		ToContext:   req.ToContext,
		RequestId:   req.ID,
		Prompt:      req.Prompt,
		MaxTokens:   uint32(req.MaxTokens),
		MinTokens:   uint32(req.MinTokens),
		IgnoreEos:   req.IgnoreEOS,
		StopIds:     req.StopIDs,
		Temperature: req.Sampling.Temperature,
		TopP:        req.Sampling.TopP,
		Seed:        req.Sampling.Seed,

		MinP:              req.Sampling.MinP,
		PresencePenalty:   req.Sampling.PresencePenalty,
		FrequencyPenalty:  req.Sampling.FrequencyPenalty,
		RepetitionPenalty: req.Sampling.RepetitionPenalty,
		Guide:             guideOf(req.Guide),
		CacheSalt:         req.CacheSalt,
	}
	for _, b := range req.Sampling.LogitBias {
		wire.LogitBias = append(wire.LogitBias, &planepb.LogitBias{Id: b.ID, Value: b.Value})
	}
	if k := req.Sampling.TopK; k != nil {
		if int64(*k) < math.MinInt32 || int64(*k) > math.MaxInt32 {
			return infer.Invalid("top_k", "must fit 32 bits")
		}
		narrow := int32(*k)
		wire.TopK = &narrow
	}
	if n := req.Logprobs; n != nil {
		if *n < 0 || *n > maxLogprobs {
			return infer.Invalid("logprobs", "must be between 0 and %d", maxLogprobs)
		}
		count := uint32(*n)
		wire.Logprobs = &count
	}
	return nil
}

// maxLogprobs bounds the alternatives of an id: what the columns of a step grow
// by, and their sum must not overflow.
const maxLogprobs = 1 << 16

// mediaOf returns media in the wire's words, in which data is bytes.
func mediaOf(all []infer.Media) (wire []*planepb.Media, bad *infer.Error) {
	for i := range all {
		m := &all[i]
		w := &planepb.Media{Kind: planepb.Media_Kind(m.Kind) + planepb.Media_KIND_IMAGE, Url: m.URL, MediaType: m.Type}
		if m.Data != nil {
			var err error
			if w.Data, err = media.Bytes(m); err != nil {
				return nil, infer.Invalid("messages", "part %d of media is not base64: %v", i, err)
			}
		}
		wire = append(wire, w)
	}
	return wire, nil
}

func guideOf(g *infer.Guide) *planepb.Guide {
	if g == nil {
		return nil
	}
	switch g.Kind {
	case infer.GuideRegex:
		return &planepb.Guide{Kind: &planepb.Guide_Regex{Regex: g.Text}}
	case infer.GuideGrammar:
		return &planepb.Guide{Kind: &planepb.Guide_Grammar{Grammar: g.Text}}
	case infer.GuideChoice:
		return &planepb.Guide{Kind: &planepb.Guide_Choice{Choice: &planepb.Choices{Text: g.Choices}}}
	case infer.GuideStructuralTag:
		return &planepb.Guide{Kind: &planepb.Guide_StructuralTag{StructuralTag: g.Text}}
	}
	return &planepb.Guide{Kind: &planepb.Guide_JsonSchema{JsonSchema: g.Text}}
}
