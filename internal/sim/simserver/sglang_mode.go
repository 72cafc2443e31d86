package simserver

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/kvpub"
	"weir/internal/sim/simserver/engine"
)

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
func (o *SGLangOptions) before(release ...int) bool {
	own, err := ParseSGLangVersion(o.Version)
	return err == nil && slices.Compare(own[:], release) < 0
}

// KVEventForm is how a release writes KV events: as arrays up to 0.5.20, as maps from
// 0.5.21 on.
func (o *SGLangOptions) KVEventForm() kvpub.Form {
	own, err := ParseSGLangVersion(cmp.Or(o.Version, SGLangVersion))
	if err == nil && slices.Compare(own[:], []int{0, 5, 21}) < 0 {
		return kvpub.SGLangArrays
	}
	return kvpub.SGLang
}

// aborted is how a release treats a prefill leg that is aborted while its prompt is computed.
// Up to 0.5.12 nobody looks. Then an abort between two chunks ends it, and from 0.5.20 on any.
func (o *SGLangOptions) aborted() sim.Aborted {
	switch {
	case o.before(0, 5, 13):
		return sim.AbortedFinished
	case o.before(0, 5, 20):
		return sim.AbortedLast
	}
	return sim.AbortedDropped
}

// pages is what a release does with the pages of an aborted decode leg, into which its prefill
// engine may write: from 0.5.21 on it keeps them until nobody does
// (SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE).
func (o *SGLangOptions) pages() sim.Pages {
	if o.before(0, 5, 21) {
		return sim.PagesOverwritten
	}
	return sim.PagesHeld
}

// tellsAborts reports whether an aborted decode leg's prefill engine is told of it.
func (o *SGLangOptions) tellsAborts() bool { return !o.before(0, 5, 13) }

// guided checks a request whose output must match something. Without a grammar backend the
// scheduler gives the request up, and up to 0.5.3 the engine ends with it.
func (o *SGLangOptions) guided() error {
	switch {
	case !o.SkipTokenizer && o.Grammar != "none":
		return nil
	case o.before(0, 5, 3) || o.Version == "0.5.3":
		return fmt.Errorf("the scheduler was given a guide and has no grammar backend: %w", engine.ErrDies)
	}
	return infer.Errorf(infer.CodeInvalid, "the output cannot be held to a json_schema, regex, ebnf or structural_tag: the server runs with --grammar-backend none")
}

// blind judges what of a request needs a tokenizer. From 0.5.14 on the front end
// refuses it; before, the scheduler does not survive it.
func (o *SGLangOptions) blind(minTokens int, stops []string) error {
	field := "min_new_tokens"
	switch {
	case !o.SkipTokenizer || minTokens == 0 && len(stops) == 0:
		return nil
	case o.before(0, 5, 14):
		return fmt.Errorf("the scheduler asked for its tokenizer, and has none: %w", engine.ErrDies)
	case len(stops) > 0:
		field = "stop"
	}
	return infer.Invalid(field, "%s needs the tokenizer, and this engine has none (--skip-tokenizer-init)", field)
}
