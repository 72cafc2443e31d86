// Package fields reads the fields that requests to a simulated engine have in common, on whatever
// wire they come, and refuses those that are not simulated.
package fields

import (
	"bytes"
	"maps"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// Unread holds the members of a request that its struct has no field for.
type Unread struct {
	Rest jsontext.Value `json:",embed"`
}

// Unsimulated are fields on which a real server acts and the simulated engine cannot, each with
// the value that asks for nothing. The engine refuses other values. A field that is neither here
// nor in a request's struct has no effect on the real server's answer either; testdata/fields.txt
// has the reason for each.
type Unsimulated map[string]string

// And returns the fields of both.
func (u Unsimulated) And(more Unsimulated) Unsimulated {
	all := maps.Clone(u)
	maps.Copy(all, more)
	return all
}

// Refuse returns an error for the first member that the engine does not simulate.
func (u Unsimulated) Refuse(members jsontext.Value) error {
	if len(members) == 0 {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewReader(members), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return AsInvalid("", err)
	}
	for dec.PeekKind() == '"' {
		token, err := dec.ReadToken()
		if err != nil {
			return AsInvalid("", err)
		}
		name := token.String()
		value, err := dec.ReadValue()
		if err != nil {
			return AsInvalid("", err)
		}
		neutral, known := u[name]
		if !known || value.Kind() == 'n' {
			continue
		}
		if value := strings.Join(strings.Fields(string(value)), ""); value != neutral {
			return NotSimulated(name)
		}
	}
	return nil
}

// Distribution are the fields that shape the distribution of a token. The simulated engine draws
// from none: they are checked, and an answer under them is one that the real server may give.
type Distribution struct {
	Temperature       *float64 `json:"temperature"`
	TopP              *float64 `json:"top_p"`
	TopK              *int     `json:"top_k"`
	MinP              *float64 `json:"min_p"`
	FrequencyPenalty  *float64 `json:"frequency_penalty"`
	PresencePenalty   *float64 `json:"presence_penalty"`
	RepetitionPenalty *float64 `json:"repetition_penalty"`
}

// A bound is the range of a field, and what a server says of a value out of it.
type bound struct {
	low, high float64
	open      bool // low is out of the range
	words     string
}

// bounds are those of the fields of a distribution, in the order in which a server checks them.
type bounds struct {
	temperature, topP, minP, frequency, presence, repetition bound
	topK                                                     string
}

var (
	VLLMBounds = bounds{
		temperature: bound{0, 2, false, "must be in [0, 2]"}, topP: bound{0, 1, true, "must be in (0, 1]"}, minP: bound{0, 1, false, "must be in [0, 1]"},
		frequency: bound{-2, 2, false, "must be in [-2, 2]"}, presence: bound{-2, 2, false, "must be in [-2, 2]"},
		repetition: bound{0, math.MaxFloat64, true, "must be greater than zero"}, topK: "must be 0 (disable), or at least 1",
	}
	SGLangBounds = bounds{
		temperature: bound{0, math.MaxFloat64, false, "must be a non-negative finite number"}, topP: bound{0, 1, true, "must be in (0, 1]"},
		minP: bound{0, 1, false, "must be in [0, 1]"}, frequency: bound{-2, 2, false, "must be in [-2, 2]"}, presence: bound{-2, 2, false, "must be in [-2, 2]"},
		repetition: bound{0, 2, true, "must be in (0, 2] (1.0 = no penalty)"}, topK: "must be -1 (disable) or at least 1",
	}
)

// Check refuses values out of a server's bounds, in its words.
func (d *Distribution) Check(b *bounds) error {
	for _, f := range []struct {
		name  string
		value *float64
		bound *bound
	}{
		{"temperature", d.Temperature, &b.temperature}, {"top_p", d.TopP, &b.topP}, {"min_p", d.MinP, &b.minP},
		{"frequency_penalty", d.FrequencyPenalty, &b.frequency}, {"presence_penalty", d.PresencePenalty, &b.presence},
		{"repetition_penalty", d.RepetitionPenalty, &b.repetition},
	} {
		v, words := f.value, f.bound.words
		if v == nil || *v >= f.bound.low && *v <= f.bound.high && !(f.bound.open && *v == f.bound.low) {
			continue
		}
		if f.bound == &VLLMBounds.temperature && *v < 0 {
			words = "must be non-negative"
		}
		return infer.Invalid(f.name, "%s %s, got %s.", f.name, words, pythonFloat(*v))
	}
	if k := ValueOr(d.TopK, -1); k < -1 || k == 0 && b == &SGLangBounds {
		return infer.Invalid("top_k", "top_k %s, got %d.", b.topK, k)
	}
	return nil
}

// pythonFloat spells a number as Python does.
func pythonFloat(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}
