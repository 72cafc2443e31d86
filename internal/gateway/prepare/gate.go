package prepare

import (
	"weir/internal/dialect"
	"weir/internal/gateway/footprint"
	"weir/internal/infer"
	"weir/internal/trace"
)

// gate is stage 2, the refusals that cost nothing: unknown model, a field that no engine of the
// model carries, too much in flight. It reserves an estimate, which tokenize settles.
func (p *preparing) gate() error {
	if err := p.findModel(); err != nil {
		return err
	}
	p.in.Record.Known()
	p.Folder = p.preparer.Folder(p.to.Model)
	if err := p.preparer.CheckPath(p.to.Model, p.in.Endpoint, p.in.Path); err != nil {
		return err
	}
	if err := p.isolate(); err != nil {
		return err
	}
	p.to.Needs = p.preparer.Forms(p.to.Model, p.in.Endpoint)
	if err := p.refuseEarly(); err != nil {
		return err
	}
	estimate, err := p.gateForms()
	if err != nil {
		return err
	}
	p.Reservation, err = p.preparer.Gate.Enter(p.in.Caller, p.in.Record.Arrival, estimate)
	return err
}

// gateForms is the gate for each form in which engines of the model take the request. It gives
// an estimate of its tokens.
func (p *preparing) gateForms() (estimate int64, err error) {
	switch ids, bytes := p.to.Needs.HasIDs(), p.to.Needs.HasBytes(); {
	case asksTokenizer(p.in.Endpoint) && ids:
		return 0, p.tokenization.decode(p) // no engine generates any
	case ids && bytes:
		return p.gateBoth()
	case ids:
		estimate, err = p.gateIDs()
	default:
		estimate, err = p.gateBytes(&p.Footprint)
	}
	if err != nil {
		return 0, err
	}
	return estimate, p.checkAlone()
}

// gateBoth keeps the forms in which engines can be given the request. It is refused where that
// is none of the two.
func (p *preparing) gateBoth() (estimate int64, err error) {
	f := new(footprint.Footprint)
	estimate, forIDs := p.gateIDs()
	if forIDs != nil && !p.ofForm(forIDs) {
		return 0, forIDs
	}
	relayed, forBytes := p.gateBytes(f)
	switch {
	case forIDs != nil && forBytes != nil:
		return 0, carriedByNone(forIDs, forBytes)
	case forIDs != nil:
		estimate, p.Footprint.Bytes = relayed, f
		p.bind(forIDs)
	case forBytes != nil:
		p.to.Needs.Bytes = infer.AnotherForm
	default:
		p.Footprint.Bytes = f
	}
	return estimate, p.checkAlone()
}

// ofForm reports whether an error is about a form of the request: about what weir would
// have to understand of it to give an engine ids.
func (p *preparing) ofForm(err error) bool {
	switch infer.AsError(err).Code {
	case infer.CodeInvalid, infer.CodeUnsupported, infer.CodeContext:
		return p.to.Needs.HasBytes()
	}
	return false
}

// bind makes a request of two forms a relayed one, because its ids could not be made.
func (p *preparing) bind(err error) {
	p.to.NoIDs, p.to.Needs.IDs = infer.AsError(err), infer.AnotherForm
	p.Footprint = *p.Footprint.Bytes
	p.Request, p.Stops, p.Format, p.IDs, p.More, p.HasMedia, p.toContext = nil, nil, nil, nil, nil, false, false
}

// carriedByNone refuses a request that neither engines which take ids can be given nor those
// that are relayed.
func carriedByNone(forIDs, forBytes error) error {
	e, other := *infer.AsError(forIDs), infer.AsError(forBytes)
	if e.Message != other.Message {
		e.Message += "; nor can it be relayed: " + other.Message
	}
	return &e
}

// gateBytes is the gate for engines that receive the caller's own bytes. It stores the
// request's footprint in their books in f.
func (p *preparing) gateBytes(f *footprint.Footprint) (estimate int64, err error) {
	if err := p.preparer.opts.Allow.CheckRelayed(p.plain, p.in.Header); err != nil {
		return 0, err
	}
	if err := p.checkSalted(); err != nil {
		return 0, err
	}
	if err := p.capRelayed(); err != nil {
		return 0, err
	}
	if err := p.checkAsks(); err != nil {
		return 0, err
	}
	estimate = int64(len(p.Body) / 4)
	p.footprintOfBody(f)
	return estimate, p.checkPrompt("", int(estimate))
}

// gateIDs is the gate for engines that take ids.
func (p *preparing) gateIDs() (estimate int64, err error) {
	if err := p.decodeFields(); err != nil {
		return 0, err
	}
	if err := p.preparer.opts.Allow.CheckDecoded(p.plain, p.Request); err != nil {
		return 0, err
	}
	if err := p.checkCap(); err != nil {
		return 0, err
	}
	if err := p.checkSizes(); err != nil {
		return 0, err
	}
	if err := p.checkFields(); err != nil {
		return 0, err
	}
	return int64(len(p.Body)/4) + p.mediaEstimate() + int64(p.Request.MaxTokens)*int64(max(1, p.Request.N)*(1+len(p.Request.MorePrompts))), nil
}

// refuseEarly refuses a request that would wait for an engine in vain, before the work.
func (p *preparing) refuseEarly() (err error) {
	if p.in.Endpoint.Traits().Wants != dialect.Answer {
		return nil // no engine hears of it
	}
	if p.to.BeginBy, err = beginBy(p.in.Header, p.in.Record.Arrival, trace.Now); err != nil {
		return err
	}
	return p.preparer.room.Early(p.in.Caller, p.to.Model, p.to.BeginBy, int64(cap(p.Body)), !p.in.Dry)
}

// findModel finds, in the fleet of this moment, the model that the body names, or
// the only one.
func (p *preparing) findModel() error {
	p.to.Fleet = p.preparer.snapshot()
	if p.Head.Model == "" {
		name, err := onlyModel(p.to.Fleet, p.in.Caller)
		if err != nil {
			return err
		}
		p.Head.Model = name
	}
	model, err := LookUp(p.to.Fleet, p.Head.Model, p.in.Caller)
	if model != nil {
		p.to.Model, p.in.Record.Model = model, model.Name
	}
	return err
}
