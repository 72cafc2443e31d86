// Package auto is the adapter for an engine whose kind was not given. It detects what
// answers at the address and then delegates to the adapter of that kind.
//
// The kinds are detected as follows:
//
//   - A server is SGLang if its model list says so ("owned_by") or if it has SGLang's
//     /server_info. Its kind is sglang if the folder of a model that it serves is known;
//     otherwise it is relayed. Only with the folder's tokenizer and template can weir
//     exchange token ids, check their counts, read the engine's stamps and parse tool calls.
//     Its kind is also sglang if it was started without a tokenizer, because no other
//     adapter can serve it then.
//   - A server is vLLM if its model list says so. Its kind is vllm if the folder of a model
//     that it serves is known, its release supports every field by ids, and it generates
//     text; otherwise it is relayed. The kind vllm-core cannot be detected: engine cores
//     dial in, at an address that the operator chooses.
//   - Every other HTTP server with a model list is relayed (openai).
//   - A server that does not speak HTTP/1.1 and answers a Describe is an engine on weir's
//     plane.
//
// It decides when the engine first answers, and again whenever the current adapter reports
// that the engine is gone or describes itself differently. If the kind has changed, a new
// adapter takes over, and all requests of the previous one have ended. A page that does not
// answer changes no kind: a hung rank of SGLang's keeps /server_info from answering.
package auto

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/engine/sglangserver"
	"weir/internal/engine/upstream"
	"weir/internal/engine/vllmserver"
	"weir/internal/infer"
)

// The kinds that are found.
const (
	OpenAI = "openai"
	SGLang = "sglang"
	VLLM   = "vllm"
	Plane  = "weir"
)

// Options configure one engine. All but Model and Access are needed.
type Options struct {
	Name   string
	URL    *url.URL // as of an HTTP engine
	Model  string   // the name given by the operator
	Access *access.Access
	// PassKey states that the engine judges the callers' own keys, which only a relay forwards: a
	// vLLM is relayed then, whatever is known of it.
	PassKey bool
	// ReadTimeout bounds the reading of a page of the engine's; 0 means 5 s.
	ReadTimeout time.Duration
	// Folder reports whether a model's folder is known, under its name or an alias.
	Folder func(model string) bool
	// Describe asks an engine on the plane for its facts.
	Describe func(ctx context.Context, addr string) (engine.Facts, error)
	// New makes the adapter of a kind. It may be called more than once.
	New func(kind string) engine.Adapter
	// Panicked is called for panics while an engine is detected; it may be nil.
	Panicked func(*infer.Panic)
	// Found is called with each decision that differs from the one before.
	Found func(Finding)
}

// Finding is what was found, and decided.
type Finding struct {
	Kind     string
	Software string // as it calls itself
	// Note states what another way of starting things would give; empty: nothing.
	Note string
}

// Engine finds out. It implements engine.Stand.
type Engine struct {
	opts   Options
	client *upstream.Client
}

var _ engine.Stand = (*Engine)(nil)

// New makes the adapter; it connects when Run is called.
func New(o Options) *Engine {
	return &Engine{opts: o, client: upstream.New(upstream.Options{URL: o.URL, Access: o.Access, ReadTimeout: o.ReadTimeout, Panicked: o.Panicked})}
}

// Stands implements engine.Stand.
func (e *Engine) Stands() {}

// Run implements engine.Adapter.
func (e *Engine) Run(ctx context.Context, report func(engine.State)) {
	defer e.client.CloseIdle()
	const soon, late = 100 * time.Millisecond, 2 * time.Second
	var said Finding
	why, wait := "", soon
	for ctx.Err() == nil {
		found, err := e.find(ctx, nil)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if err.Error() != why {
				why = err.Error()
				report(engine.State{Err: err})
			}
			sleep(ctx, wait)
			wait = min(2*wait, late)
			continue
		}
		why, wait = "", soon
		e.stand(ctx, found, func(f Finding) {
			if f != said {
				said = f
				e.opts.Found(f)
			}
		}, report)
	}
}

// stand stands for the adapter of what was found, until something of another kind is there. It says
// what it has found.
func (e *Engine) stand(ctx context.Context, found Finding, says func(Finding), report func(engine.State)) {
	says(found)
	adapter := e.opts.New(found.Kind)
	running, stop := context.WithCancel(ctx)
	changed, ended := make(chan struct{}, 1), make(chan struct{})
	var mu sync.Mutex // of what follows, and of the reports
	var latest *engine.State
	tell := func(s engine.State) { // under mu
		s.Via, s.Kind = adapter, found.Kind
		s.Note = strings.Join(slices.DeleteFunc([]string{found.Note, s.Note}, func(n string) bool { return n == "" }), "; ")
		if len(s.Facts.Models) > 0 && found.Kind == OpenAI && found.Software != "" {
			s.Facts.Software = found.Software // with its version
		}
		report(s)
	}
	go func() {
		defer close(ended)
		defer func() {
			if p := infer.Caught(recover(), e.opts.Panicked); p != nil {
				report(engine.State{Err: p})
			}
		}()
		adapter.Run(running, func(s engine.State) {
			mu.Lock()
			defer mu.Unlock()
			first := latest == nil
			latest = &s
			tell(s)
			if first && s.Ready {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	defer func() {
		stop()
		<-ended
	}()
	for {
		select {
		case <-changed:
		case <-ended: // by a panic: another one may do better
			sleep(ctx, 2*time.Second)
			return
		case <-ctx.Done():
			return
		}
		// The adapter itself waits for an engine that is gone; what comes back is
		// looked at before it is believed.
		for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
			var was *Finding
			if mu.Lock(); latest.Ready {
				was = new(found)
			}
			mu.Unlock()
			now, err := e.find(ctx, was)
			if ctx.Err() != nil || err == nil && now.Kind != found.Kind {
				return
			}
			if err != nil {
				sleep(ctx, wait)
				continue
			}
			if now != found {
				says(now)
				mu.Lock()
				found = now
				tell(*latest)
				mu.Unlock()
			}
			break
		}
	}
}

// find looks at what answers. was is what the engine was found to be, if it has not been gone
// since: what cannot be read now holds on.
func (e *Engine) find(ctx context.Context, was *Finding) (_ Finding, failed error) {
	defer func() {
		if p := infer.Caught(recover(), e.opts.Panicked); p != nil {
			failed = p
		}
	}()
	facts, cards, err := e.client.Models(ctx)
	var refused *upstream.StatusError
	switch {
	case err == nil:
		return e.judge(ctx, facts.Models, cards, was), nil
	case was != nil:
		return Finding{}, err
	case upstream.Nameless(err):
		// No model list; perhaps its name was given.
		if f := e.judge(ctx, nil, nil, nil); f.Kind == SGLang || e.opts.Model != "" {
			return f, nil
		}
		return Finding{}, err
	case errors.As(err, &refused) || ctx.Err() != nil || errors.Is(err, syscall.ECONNREFUSED) || timedOut(err):
		return Finding{}, err
	}
	// Something is there, and it is no HTTP/1.1.
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	about, failed := e.opts.Describe(asking, e.opts.URL.Host)
	if failed != nil {
		// That it speaks something else is no fault of an answer's.
		return Finding{}, fmt.Errorf("%s is neither an HTTP server with a model list (%v) nor an engine on weir's plane (%w)", e.opts.URL.Host, err, failed)
	}
	return Finding{Kind: Plane, Software: about.Software}, nil
}

func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// judge determines the kind of an HTTP server from its model list or, if that does not
// show it, from endpoints that only one kind of engine has.
func (e *Engine) judge(ctx context.Context, models []string, cards []upstream.Card, was *Finding) Finding {
	owner := upstream.Owner(cards)
	switch owner {
	case vllmserver.Owner:
		return e.judgeVLLM(ctx, models, was)
	case "sglang", "":
	default:
		return Finding{Kind: OpenAI, Software: owner}
	}
	mode, err := sglangserver.Read(ctx, e.client)
	if err != nil {
		mode = &sglangserver.Mode{}
	}
	if was != nil && strings.HasPrefix(was.Software, "SGLang") && !mode.Known() && (owner != "" || err != nil && !sglangserver.Absent(err)) {
		return *was
	}
	if !mode.Known() && owner == "" {
		return Finding{Kind: OpenAI}
	}
	f := Finding{Kind: SGLang, Software: software("SGLang", mode.Version)}
	name, known := e.folder(models)
	if known || mode.Known() && *mode.SkipTokenizer { // without either the fleet says what is missing
		return f
	}
	f.Kind = OpenAI
	f.Note = fmt.Sprintf("is SGLang and relayed, for want of its model's folder; with --model %s=DIR ids are exchanged with it (kind sglang)", name)
	return f
}

// folder reports whether the folder of a model that the engine serves is known, and the
// name that it would be given for.
func (e *Engine) folder(models []string) (name string, known bool) {
	if e.opts.Model != "" {
		models = []string{e.opts.Model}
	}
	if len(models) == 0 {
		return "NAME", false
	}
	return models[0], slices.ContainsFunc(models, e.opts.Folder)
}

// judgeVLLM decides about a server of vLLM's.
func (e *Engine) judgeVLLM(ctx context.Context, models []string, was *Finding) Finding {
	version, err := vllmserver.Version(ctx, e.client)
	if was != nil && strings.HasPrefix(was.Software, "vLLM") && (err != nil || version == "") {
		return *was
	}
	f := Finding{Kind: OpenAI, Software: software("vLLM", version)}
	name, known := e.folder(models)
	switch {
	case e.opts.PassKey:
		if known {
			f.Note = "is vLLM and relayed, as pass-key=true wants"
		}
		return f
	case err != nil: // it is asked again
		return f
	case !known:
		f.Note = fmt.Sprintf("is vLLM and relayed, for want of its model's folder; with --model %s=DIR ids are exchanged with it (kind vllm)", name)
		return f
	case vllmserver.ParseRelease(version).Before(vllmserver.WithIDs):
		f.Note = fmt.Sprintf("is vLLM %s and relayed; from %v on ids are exchanged with it (kind vllm)", version, vllmserver.WithIDs)
		return f
	}
	serves, err := vllmserver.Serves(ctx, e.client, vllmserver.CompletionsPath)
	if err == nil && serves || err != nil && was != nil && was.Kind == VLLM {
		f.Kind = VLLM
	}
	return f
}

func software(name, version string) string { return strings.TrimSpace(name + " " + version) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
