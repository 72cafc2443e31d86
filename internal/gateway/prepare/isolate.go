package prepare

import (
	"strconv"

	"weir/internal/dialect"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/tenancy"
)

// ownSalt is the field by which callers divide what is kept of their own prompts. Where the
// model isolates callers, weir takes it from the request and hashes it into its own salt, so it
// can divide further and never join.
const ownSalt = "cache_salt"

// isolate gives a request for a model that isolates its callers its cache salt. The head that
// dialects and rules read has the caller's own salt no more; all bytes of the body stay.
func (p *preparing) isolate() error {
	if p.plain = p.Head; p.to.Model.Isolation == tenancy.Shared || p.in.Endpoint.Traits().Wants != dialect.Answer {
		return nil
	}
	own := ""
	for i, at := range p.Head.Fields {
		if at.Name != ownSalt {
			continue
		}
		if p.plain != p.Head {
			return infer.Invalid(ownSalt, "%s is given twice; give it once", ownSalt)
		}
		var err error
		if own, err = saltOf(p.Head.Body[at.Start:at.End]); err != nil {
			return err
		}
		p.plain = p.Head.Omit(i)
	}
	p.saltNeeded = !p.to.Model.Lenient || own != ""
	p.salt = p.to.Model.Isolation.Salt(p.in.Caller, p.to.Model.Name, own)
	return nil
}

// saltOf reads the caller's own salt.
func saltOf(raw []byte) (string, error) {
	switch kind := dialect.KindOf(raw); {
	case kind == 'n':
		return "", nil
	case kind != '"':
		return "", infer.Invalid(ownSalt, "%s must be a string, found %s", ownSalt, dialect.Found(raw))
	case len(raw) > 6*tenancy.MaxOwnSalt: // each byte may be an escape
		return "", tooLongSalt(len(raw))
	}
	s, err := dialect.StringOf(ownSalt, raw)
	switch {
	case err != nil:
		return "", err
	case s == "":
		return "", infer.Invalid(ownSalt, "%s is empty; leave it out", ownSalt)
	case len(s) > tenancy.MaxOwnSalt:
		return "", tooLongSalt(len(s))
	}
	return s, nil
}

func tooLongSalt(n int) error {
	return infer.Invalid(ownSalt, "%s has %s bytes; it may have at most %d", ownSalt, strconv.Itoa(n), tenancy.MaxOwnSalt)
}

// checkSalted refuses a request that some relayed engine of the model would compute in the
// cache of others.
func (p *preparing) checkSalted() error {
	if p.salt == "" {
		return nil
	}
	if e := p.to.Model.Unsalted(p.in.Path); e != nil {
		return p.CheckSalt(p.to.Model, e, p.in.Path)
	}
	return nil
}

// CheckSalt refuses an engine that would compute the request in the cache of others, because its
// API has no salt at the path.
func (q *Prepared) CheckSalt(m *route.Model, e *route.Engine, path string) error {
	if q.salt == "" || !q.saltNeeded || e.SaltAt(path) != nil {
		return nil
	}
	err := infer.Errorf(infer.CodeUnsupported, "%s cannot be served for model %s, which isolates the caches of callers (isolation=%s): its engine %s reads no cache salt there; use another API of the model, such as /v1/chat/completions",
		path, m.Name, m.Isolation, e.Name)
	err.Retryable = true // another may, where the engines have changed since
	return err
}

// division is the part of weir's own caches that the request uses: those of its salt.
func (q *Prepared) division() uint64 {
	if q.salt == "" {
		return 0
	}
	return uint64(kvindex.Root(0, q.salt))
}
