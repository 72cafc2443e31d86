package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"weir/internal/infer"
)

// Additions are what an engine's own front end adds to requests according to the
// folder of its model. weir adds the same if it replaces that front end.
type Additions struct {
	// EndIDs are the ids that end an answer, the tokenizer's own first.
	EndIDs   []uint32
	Defaults Defaults
	// Prompts returns the ids of chats. It is nil if the model has no chat template.
	Prompts Prompts
}

// Prompts returns the ids of a chat. messages is a JSON array; tools is another one, or
// empty.
type Prompts func(messages, tools []byte) ([]uint32, error)

// Defaults are sampling parameters of a model's generation_config.json, by its names,
// for requests that do not set them. An engine's own front end adds them; its core
// does not know them. A nil field leaves the engine's own default.
type Defaults struct {
	Temperature       *float64 `json:"temperature"`
	TopP              *float64 `json:"top_p"`
	TopK              *int     `json:"top_k"`
	MinP              *float64 `json:"min_p"`
	RepetitionPenalty *float64 `json:"repetition_penalty"`
}

// Check returns an error for values with which an engine would refuse every request.
func (d *Defaults) Check() error {
	err := errors.Join(Within("temperature", d.Temperature, 0, 2), Within("top_p", d.TopP, math.SmallestNonzeroFloat64, 1),
		Within("min_p", d.MinP, 0, 1), Within("repetition_penalty", d.RepetitionPenalty, math.SmallestNonzeroFloat64, math.MaxFloat32))
	if d.TopK != nil && (*d.TopK < -1 || *d.TopK > math.MaxInt32) {
		err = errors.Join(err, fmt.Errorf("top_k is %d; want -1 or more", *d.TopK))
	}
	return err
}

// Without returns the defaults without those of the given names.
func (d Defaults) Without(names []string) Defaults {
	for _, name := range names {
		switch name {
		case "temperature":
			d.Temperature = nil
		case "top_p":
			d.TopP = nil
		case "top_k":
			d.TopK = nil
		case "min_p":
			d.MinP = nil
		case "repetition_penalty":
			d.RepetitionPenalty = nil
		}
	}
	return d
}

// Fill returns a request's parameters, with defaults for those that it does not set.
func (d *Defaults) Fill(s infer.Sampling) infer.Sampling {
	s.Temperature = cmp.Or(s.Temperature, d.Temperature)
	s.TopP = cmp.Or(s.TopP, d.TopP)
	s.TopK = cmp.Or(s.TopK, d.TopK)
	s.MinP = cmp.Or(s.MinP, d.MinP)
	s.RepetitionPenalty = cmp.Or(s.RepetitionPenalty, d.RepetitionPenalty)
	return s
}

// Within returns an error for a value that is out of bounds or not a number.
func Within(name string, v *float64, least, most float64) error {
	if v != nil && !(*v >= least && *v <= most) {
		return fmt.Errorf("%s is %v; want %v to %v", name, *v, least, most)
	}
	return nil
}

// CheckBiases returns an error unless biases are in the order of their ids, each once, below
// vocab, and from -100 to 100. A vocab of 0 is not known.
func CheckBiases(biases []infer.Bias, vocab int) *infer.Error {
	for i := range biases {
		b := &biases[i]
		if err := Within("the bias", &b.Value, -100, 100); err != nil {
			return infer.Invalid("logit_bias", "%v", err)
		}
		if vocab > 0 && int64(b.ID) >= int64(vocab) || i > 0 && b.ID <= biases[i-1].ID {
			return infer.Invalid("logit_bias", "id %d: want each id once, below %d", b.ID, vocab)
		}
	}
	return nil
}
