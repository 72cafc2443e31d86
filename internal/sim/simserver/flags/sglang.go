// Package flags has the flags of the engines that are simulated, and what follows from them.
package flags

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/kvpub"
)

// SGLang are the flags of the server that speaks like SGLang, by SGLang's names.
type SGLang struct {
	// Incremental makes each event of /generate contain only new output instead of all
	// output so far (--incremental-streaming-output).
	Incremental bool
	// Metrics serves /metrics, and adds each stage's time to the answers of
	// /generate (--enable-metrics).
	Metrics bool
	// Patched adds the timeline's own stamps to the answers of /generate, as servers do
	// that were patched for it (--patched-stamps): infer.StampNames, in seconds since 1970.
	Patched bool
	// Version is the SGLang release that the server simulates; default SGLangVersion. It
	// determines what happens to a request for a feature that the server was started
	// without, and to aborted halves of requests.
	Version string
	// SkipTokenizer makes the server accept and return ids only
	// (--skip-tokenizer-init).
	SkipTokenizer bool
	// Grammar is the backend that makes outputs match schemas (--grammar-backend):
	// xgrammar, outlines, llguidance or none. Default xgrammar.
	Grammar string
	// Deterministic heeds seeds (--enable-deterministic-inference).
	Deterministic bool
	// CacheReport adds cached_tokens to the usage (--enable-cache-report).
	CacheReport bool
	// WeightVersion is the version of the weights that answers report (--weight-version).
	// Default "default".
	WeightVersion string
	// Args are reported by /server_info in addition to the engine's own values.
	Args map[string]any
}

// SGLangVersion is the release that the server simulates by default.
const SGLangVersion = "0.5.23"

// ParseSGLangVersion reads the release of SGLang that the server is to be, as
// "0.5.3.post1"; what follows its three numbers does not matter.
func ParseSGLangVersion(s string) (release [3]int, err error) {
	parts := strings.Split(s, ".")
	for i := range release {
		n := -1
		if i < len(parts) {
			n, err = strconv.Atoi(parts[i])
		}
		if err != nil || n < 0 {
			return release, fmt.Errorf("%q is not a release of SGLang, such as %s", s, SGLangVersion)
		}
		release[i] = n
	}
	return release, nil
}

// before reports whether the server simulates a release before the given one.
func (o *SGLang) before(release ...int) bool {
	own, err := ParseSGLangVersion(o.Version)
	return err == nil && slices.Compare(own[:], release) < 0
}

// KVEventForm is how a release writes KV events: as arrays up to 0.5.20, as maps from
// 0.5.21 on.
func (o *SGLang) KVEventForm() kvpub.Form {
	own, err := ParseSGLangVersion(cmp.Or(o.Version, SGLangVersion))
	if err == nil && slices.Compare(own[:], []int{0, 5, 21}) < 0 {
		return kvpub.SGLangArrays
	}
	return kvpub.SGLang
}

// Aborted is how a release treats a prefill leg that is aborted while its prompt is computed.
// Up to 0.5.12 nobody looks. Then an abort between two chunks ends it, and from 0.5.20 on any.
func (o *SGLang) Aborted() sim.Aborted {
	switch {
	case o.before(0, 5, 13):
		return sim.AbortedFinished
	case o.before(0, 5, 20):
		return sim.AbortedLast
	}
	return sim.AbortedDropped
}

// Pages is what a release does with the pages of an aborted decode leg, into which its prefill
// engine may write: from 0.5.21 on it keeps them until nobody does
// (SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE).
func (o *SGLang) Pages() sim.Pages {
	if o.before(0, 5, 21) {
		return sim.PagesOverwritten
	}
	return sim.PagesHeld
}

// TellsAborts reports whether an aborted decode leg's prefill engine is told of it.
func (o *SGLang) TellsAborts() bool { return !o.before(0, 5, 13) }

// Guided checks a request whose output must match something. Without a grammar backend the
// scheduler gives the request up, and up to 0.5.3 the engine ends with it.
func (o *SGLang) Guided() error {
	switch {
	case !o.SkipTokenizer && o.Grammar != "none":
		return nil
	case o.before(0, 5, 3) || o.Version == "0.5.3":
		return fmt.Errorf("the scheduler was given a guide and has no grammar backend: %w", ErrDies)
	}
	return infer.Errorf(infer.CodeInvalid, "the output cannot be held to a json_schema, regex, ebnf or structural_tag: the server runs with --grammar-backend none")
}

// Blind judges what of a request needs a tokenizer. From 0.5.14 on the front end
// refuses it; before, the scheduler does not survive it.
func (o *SGLang) Blind(minTokens int, stops []string) error {
	field := "min_new_tokens"
	switch {
	case !o.SkipTokenizer || minTokens == 0 && len(stops) == 0:
		return nil
	case o.before(0, 5, 14):
		return fmt.Errorf("the scheduler asked for its tokenizer, and has none: %w", ErrDies)
	case len(stops) > 0:
		field = "stop"
	}
	return infer.Invalid(field, "%s needs the tokenizer, and this engine has none (--skip-tokenizer-init)", field)
}

// ErrDies is in the chain of an error that ends the engine.
var ErrDies = errors.New("the engine ends")

// SetDefaults sets what is not given.
func (o *SGLang) SetDefaults() {
	o.Version = cmp.Or(o.Version, SGLangVersion)
	o.Grammar = cmp.Or(o.Grammar, "xgrammar")
	o.WeightVersion = cmp.Or(o.WeightVersion, "default")
}
