package sim

import "time"

// Batch is what one step computes.
type Batch struct {
	// Prefill is the number of prompt tokens, and Chunks that of the requests
	// they belong to.
	Prefill, Chunks int
	// Attended is the sum over the chunks of end² - start², where start and end are the
	// chunk's bounds in its prompt: the part of the quadratic cost that falls to this step.
	// The chunks of one prompt of t tokens sum to t². A prompt with c tokens found in the
	// cache begins at c and costs t² - c².
	Attended int64
	// Decode is the number of requests that get their next token, or tokens with
	// speculation.
	Decode int
	// Context is the number of tokens those requests have so far, prompt and
	// output: the KV that the decode part of the step attends to.
	Context int64
}

func (b *Batch) add(x Batch) {
	b.Prefill += x.Prefill
	b.Chunks += x.Chunks
	b.Attended += x.Attended
	b.Decode += x.Decode
	b.Context += x.Context
}

// CostModel computes how long a step takes. The result must depend only on the batch, and
// any goroutine may call it.
type CostModel interface {
	StepTime(b Batch) time.Duration
}

// Constant takes Prefill for the prompt part of a step, whatever its size, and
// Decode for the decode part.
type Constant struct {
	Prefill, Decode time.Duration
}

// StepTime implements CostModel.
func (c Constant) StepTime(b Batch) time.Duration {
	var d time.Duration
	if b.Prefill > 0 {
		d += c.Prefill
	}
	if b.Decode > 0 {
		d += c.Decode
	}
	return d
}

// PerBatch is quadratic in the prompt and linear in the decode batch: prefill = Square t² +
// Linear t + PrefillBase, decode = DecodeBase + Each n, and Base in every step. A mixed
// step costs the sum. The zero value has the engine's default coefficients: prefill ms =
// 4.21e-7 t² + 0.0152 t + 16.5, a rounded form of what NVIDIA publishes with Dynamo's
// mocker (see Profiles), and decode ms = 6.0 + 0.35 n, which is weir's own.
type PerBatch struct {
	// Milliseconds, per step.
	Base float64
	// Milliseconds, per token², per token, and per step with prefill.
	Square, Linear, PrefillBase float64
	// Milliseconds, per step with decode and per request in it.
	DecodeBase, Each float64
}

// StepTime implements CostModel.
func (c PerBatch) StepTime(b Batch) time.Duration {
	if c == (PerBatch{}) {
		c = PerBatch{Square: 4.21e-7, Linear: 0.0152, PrefillBase: 16.5, DecodeBase: 6.0, Each: 0.35}
	}
	ms := c.Base
	if b.Prefill > 0 {
		ms += c.Square*float64(b.Attended) + c.Linear*float64(b.Prefill) + c.PrefillBase
	}
	if b.Decode > 0 {
		ms += c.DecodeBase + c.Each*float64(b.Decode)
	}
	return milliseconds(ms)
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
