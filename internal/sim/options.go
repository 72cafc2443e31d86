package sim

import (
	"fmt"
	"time"

	"weir/internal/content"
)

// Options describe an engine. The zero value of every field but Words works.
type Options struct {
	// Name is the engine's own name, for logs. Default "sim".
	Name string
	// Model is the name the model is served by. Default "weir-sim".
	Model string
	// MaxRunning bounds the requests in the running batch. Default 256.
	MaxRunning int
	// MaxQueued bounds the waiting queue; a request beyond it is refused. 0 is
	// no bound.
	MaxQueued int
	// StepTokens is the token budget of one step: each decoding request takes
	// one, prefill chunks share the rest. Default 8192, at least MaxRunning.
	StepTokens int
	// ContextLength bounds prompt and output together, in ids. Default 131072.
	ContextLength int
	// VocabSize is the number of ids; a prompt may hold none beyond. Default:
	// not checked.
	VocabSize int
	// EOS are the ids that end an output. Without any, outputs end at their
	// limit only.
	EOS []uint32
	// MeanTokens is the expected length of an output that nothing else ends,
	// its end id included. Default 200; negative: outputs never end by
	// themselves.
	MeanTokens int
	// Cost says how long a step takes. Default PerBatch{} with its published
	// coefficients.
	Cost CostModel
	// MaxLag is how far the engine may fall behind its schedule before it gives
	// the lost time up instead of catching up. Default 100 ms.
	MaxLag time.Duration
	// Words is what the engine says. Required.
	Words *content.Words
}

// WithDefaults fills what was left zero and checks the rest.
func (o Options) WithDefaults() (Options, error) {
	setDefault(&o.Name, "sim")
	setDefault(&o.Model, "weir-sim")
	setDefault(&o.MaxRunning, 256)
	setDefault(&o.StepTokens, max(8192, o.MaxRunning))
	setDefault(&o.ContextLength, 128<<10)
	setDefault(&o.MeanTokens, 200)
	setDefault(&o.MaxLag, 100*time.Millisecond)
	if o.Cost == nil {
		o.Cost = PerBatch{}
	}
	switch {
	case o.Words == nil:
		return o, fmt.Errorf("sim options: no words to say")
	case o.MaxRunning < 0, o.MaxQueued < 0, o.ContextLength < 2, o.VocabSize < 0, o.MaxLag < 0:
		return o, fmt.Errorf("sim options: max_running, max_queued, vocab_size and max_lag must not be negative, context_length must be at least 2")
	case o.StepTokens < o.MaxRunning:
		return o, fmt.Errorf("sim options: a step of %d tokens cannot hold %d running requests; raise step_tokens or lower max_running", o.StepTokens, o.MaxRunning)
	}
	return o, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
