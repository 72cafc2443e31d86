package prepare

import (
	"cmp"

	"weir/internal/dialect/allow"
	"weir/internal/dialect/sglang"
	"weir/internal/fleet/admission"
	"weir/internal/model"
	"weir/internal/model/pool"
)

// Options configure which requests are admitted, and what is made of them.
type Options struct {
	// Models are the model folders at the start, by canonical name, and Caps the limits of
	// models. For a model that was added or changed since, the snapshot has both (route.Loaded),
	// so that a request sees a consistent state of its model.
	Models map[string]*model.Folder
	Caps   map[string]Cap
	// Callers returns the callers of requests; nil: tenancy.Anyone sends every
	// request.
	Callers Callers
	Limits  admission.Limits
	// Allow decides which parts of requests may pass to engines.
	Allow allow.Rules
	// PassUnknown passes over fields of bodies that no table has, instead of refusing them.
	PassUnknown bool
	// AllowAbort serves /abort_request, by which any caller that knows the rid of a
	// request can end it.
	AllowAbort bool
	// Generate are the settings of /generate.
	Generate sglang.Options
	Pool     pool.Options
	// Sessions are the headers that name a session; empty: the usual ones of clients.
	Sessions []string
	// PrefixCache bounds the memory for earlier prompts whose ids can be reused, in
	// bytes; 0 means 128 MiB, and a negative value keeps nothing.
	PrefixCache int64
}

// Defaults replaces the zero values that mean another one.
func (o *Options) Defaults() {
	if o.Callers == nil {
		o.Callers = anyone
	}
	o.PrefixCache = cmp.Or(o.PrefixCache, 128<<20)
}

// Cap limits the requests for a model; 0 is no limit. A request that asks for more is
// refused. A request that sets no limit gets this one.
type Cap struct {
	MaxTokens int  // of each answer
	N         int  // answers to a prompt
	byKey     bool // MaxTokens is a limit of the caller's key
}
