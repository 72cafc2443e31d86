package sim

import "time"

// Profile is a cost model with published figures of another project.
type Profile struct {
	// Name is how a command line calls it.
	Name string
	Cost CostModel
	// KVTokens is the size of the KV cache that belongs to it, in tokens.
	KVTokens int
	// What names what was measured, Source where the figures are published.
	What, Source string
}

// The figures come from two projects. BLIS (Apache-2.0) fits vLLM's step time, in
// microseconds, as beta0 + beta1 × prompt tokens not found in the cache + beta2 × decoding
// requests; its total_kv_blocks are blocks of vLLM's default size, 16 tokens. Dynamo
// (Apache-2.0) has one polynomial in the step's prompt tokens and one in the used share of
// the KV cache, and by default 16384 blocks of 64 tokens.
const (
	blis       = "BLIS, github.com/inference-sim/inference-sim, defaults.yaml at 1a6eb353, beta_coeffs"
	dynamo     = "NVIDIA Dynamo, github.com/ai-dynamo/dynamo, the mocker's polynomial performance model"
	vllmPage   = 16
	dynamoPage = 64
)

// Profiles lists the named cost models, in no order that matters. The figures
// are their publishers' and as good as their fits: none was measured here.
func Profiles() []Profile {
	return []Profile{
		{"dynamo-mocker", dynamoMocker{}, dynamoBlocks * dynamoPage, "the default engine of Dynamo's mocker", dynamo},
		{"llama-3.1-8b-a100", fit(16441.531547147923, 47.837412108198656, 18.20560632171683), 29205 * vllmPage, "Llama 3.1 8B Instruct, one A100 80 GB, vLLM 0.8.4", blis},
		{"llama-3.1-8b-h100", fit(5752.705191348184, 17.25086436834028, 5.999143920128404), 29205 * vllmPage, "Llama 3.1 8B Instruct, one H100, vLLM 0.8.4", blis},
		{"llama-3.1-8b-h100-tp2", fit(6910.420479880494, 17.67057489844186, 2.8377471109943855), 132139 * vllmPage, "Llama 3.1 8B Instruct, two H100, vLLM 0.8.4", blis},
		{"phi-4-h100", fit(4406.28708175561, 47.40944867621954, 23.356685272854975), 14645 * vllmPage, "Phi-4 14B, one H100, vLLM 0.8.4", blis},
		{"llama-3.3-70b-h100-tp4", fit(12601.271149123822, 76.42284100369776, 66.84396200500741), 128273 * vllmPage, "Llama 3.3 70B Instruct, four H100, vLLM 0.8.4", blis},
		{"gpt-oss-120b-h100-tp2", fit(2118.606133364004, 41.928675845255086, 23.080130740244385), 558277 * vllmPage, "gpt-oss-120b, two H100, vLLM 0.10.1.1", blis},
	}
}

// fit makes a cost model of BLIS's coefficients, in microseconds.
func fit(step, prefill, decode float64) PerBatch {
	return PerBatch{Base: step / 1e3, Linear: prefill / 1e3, Each: decode / 1e3}
}

const dynamoBlocks = 16384

// dynamoMocker is the cost model of Dynamo's mocker. A mixed step takes the sum
// of both parts.
type dynamoMocker struct{}

// StepTime implements CostModel.
func (dynamoMocker) StepTime(b Batch) time.Duration {
	var ms float64
	if b.Prefill > 0 {
		t := float64(b.Prefill)
		ms += 4.209989e-07*t*t + 1.518344e-02*t + 1.650142e+01
	}
	if b.Decode > 0 {
		used := min(1, float64(b.Context)/(dynamoBlocks*dynamoPage))
		ms += max(1, -25.74*used*used+54.01*used+5.74)
	}
	return milliseconds(ms)
}
