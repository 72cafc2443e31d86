package sim

import (
	"fmt"
	"slices"
	"time"

	"weir/internal/workload/content"
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
	// MeanTokens is the expected length of an output that no limit ends, including its end
	// id. Default 200; negative: outputs end only at a limit.
	MeanTokens int
	// PriorityScheduling makes the waiting queue order requests by Params.Priority, the
	// highest first; requests of equal priority keep their order. A request that finds the
	// queue full ends the last one of the lowest priority, if that is lower than its own.
	// Without PriorityScheduling a request with a priority is refused.
	PriorityScheduling bool
	// PreemptionThreshold, with PriorityScheduling, lets a waiting request replace running
	// ones whose priority is lower by more than this. nil is 10; negative: never.
	PreemptionThreshold *int
	// ChunkedPrefill bounds the prompt tokens of one step, and so the largest
	// chunk of a prompt. Default: the step's budget alone does.
	ChunkedPrefill int
	// StreamInterval is how many ids of a request are sent at a time. The first id is sent
	// at once, then every StreamInterval-th id brings all since the last one, and the end
	// brings the rest. Default 1.
	StreamInterval int
	// Speculation is the mean number of ids that a decoding request gets in one
	// step, from 1 to 8, as if drafts were verified. It changes no id. Default 1.
	Speculation float64
	// KVTokens is the size of the KV cache of each DP rank in tokens, rounded down to whole
	// pages. 0 is unlimited: every request fits, nothing is kept when a request ends, and
	// therefore no prompt is ever found in the cache.
	KVTokens int
	// PageSize is the number of tokens of a KV block. Default 16.
	PageSize int
	// KVEvents makes the core record the changes of pages in its KV caches, for
	// Core.KVEvents. For that it keeps the ids of requests.
	KVEvents bool
	// Conservativeness controls how much room admission leaves for what running requests
	// may still generate: it scales the reserved share, which is 0.7 at first. A smaller
	// value admits more requests and makes retraction more likely. Default 1.
	Conservativeness float64
	// DPSize is the number of data-parallel ranks. Each has its own waiting queue, running
	// batch and KV cache, and MaxRunning, MaxQueued, StepTokens and KVTokens apply to each
	// of them. They step together, and a step takes as long as its slowest rank. Default 1.
	DPSize int
	// LoRAs are the adapters a request may name.
	LoRAs []string
	// Transfer is how KV comes from a prefill engine.
	Transfer Transfer
	// Retraction selects how a decode leg continues that was sent back to the queue.
	// Default RetractRecompute.
	Retraction Retraction
	// Cost computes how long a step takes. Default PerBatch{} with its published
	// coefficients.
	Cost CostModel
	// MaxLag is how far the engine may fall behind its schedule before it gives
	// the lost time up instead of catching up. Default 100 ms.
	MaxLag time.Duration
	// Words generates the engine's text. Required.
	Words *content.Words
}

// WithDefaults fills in the zero fields and checks the others.
func (o Options) WithDefaults() (Options, error) {
	setDefault(&o.Name, "sim")
	setDefault(&o.Model, "weir-sim")
	setDefault(&o.MaxRunning, 256)
	setDefault(&o.StepTokens, max(8192, o.MaxRunning))
	setDefault(&o.ContextLength, 128<<10)
	setDefault(&o.MeanTokens, 200)
	setDefault(&o.PreemptionThreshold, new(10))
	setDefault(&o.ChunkedPrefill, o.StepTokens)
	setDefault(&o.StreamInterval, 1)
	setDefault(&o.Speculation, 1)
	setDefault(&o.PageSize, 16)
	setDefault(&o.Conservativeness, 1)
	setDefault(&o.DPSize, 1)
	setDefault(&o.MaxLag, 100*time.Millisecond)
	if o.Cost == nil {
		o.Cost = PerBatch{}
	}
	switch {
	case o.Words == nil:
		return o, fmt.Errorf("sim options: no words to say")
	case o.MaxRunning < 0, o.MaxQueued < 0, o.ContextLength < 2, o.ContextLength >= never, o.VocabSize < 0, o.MaxLag < 0:
		return o, fmt.Errorf("sim options: max_running, max_queued, vocab_size and max_lag must not be negative, context_length must be from 2 to %d", never-1)
	case o.StepTokens < o.MaxRunning:
		return o, fmt.Errorf("sim options: a step of %d tokens cannot hold %d running requests; raise step_tokens or lower max_running", o.StepTokens, o.MaxRunning)
	}
	return o, o.checkScheduling()
}

func (o *Options) checkScheduling() error {
	switch {
	case o.ChunkedPrefill < 0, o.StreamInterval < 0, o.KVTokens < 0, o.PageSize < 0, o.DPSize < 0:
		return fmt.Errorf("sim options: chunked_prefill, stream_interval, kv_tokens, page_size and dp_size must not be negative")
	case !(o.Speculation >= 1 && o.Speculation <= maxSpeculation):
		return fmt.Errorf("sim options: speculation is %v; it is a mean number of ids per step, from 1 to %d", o.Speculation, maxSpeculation)
	case o.PageSize > never/2:
		return fmt.Errorf("sim options: page_size is %d; it must be below %d", o.PageSize, never/2)
	case o.KVTokens > 0 && o.KVTokens/o.PageSize*o.PageSize < 2+o.drafts():
		return fmt.Errorf("sim options: a KV cache of kv_tokens %d in pages of page_size %d holds no request; raise kv_tokens", o.KVTokens, o.PageSize)
	case !(o.Conservativeness > 0):
		return fmt.Errorf("sim options: conservativeness is %v; it must be above 0", o.Conservativeness)
	case slices.Contains(o.LoRAs, ""):
		return fmt.Errorf("sim options: a LoRA adapter without a name")
	case int(o.Retraction) >= len(retractionNames):
		return fmt.Errorf("sim options: no retraction %d", o.Retraction)
	case o.Transfer.BytesPerToken < 0, !(o.Transfer.Bandwidth >= 0), o.Transfer.Latency < 0:
		return fmt.Errorf("sim options: the transfer's bytes_per_token, bandwidth and latency must not be negative")
	}
	return nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
