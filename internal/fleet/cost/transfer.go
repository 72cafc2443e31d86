package cost

import (
	"math"
	"sync"
	"sync/atomic"
)

// Transfer learns the time to transfer the KV cache of a prompt from the rank that computed
// it to the rank that decodes, for one model: a fixed time and a time for each token. The
// zero value is transferFixed and transferToken.
type Transfer struct {
	fixed, token atomic.Uint64 // beyond the prior, as bits of float64

	mu sync.Mutex
	// Sums of what was seen, the latest counting most: of 1, n, n², ms and n·ms beyond the
	// prior.
	one, n, nn, ms, nms float64
}

const (
	// The prior is that of 128 KB for a token over 10 GB/s, and of two round trips.
	transferFixed = 5.0   // ms
	transferToken = 0.013 // ms
	// The prior counts as priorTransfers transfers, of no tokens and of transferTokens.
	priorTransfers = 2
	transferTokens = 2048
	// transferMemory is how much a transfer counts after the next one.
	transferMemory = 1 - 1.0/64
	// transferMost bounds the observed time, as a multiple of the expected time: a
	// transfer that waited for something else reveals little about the path.
	transferMost = 4
)

// Expect is what a transfer takes, in milliseconds: fixed, and for each token.
func (t *Transfer) Expect() (fixed, token float64) {
	return transferFixed + math.Float64frombits(t.fixed.Load()), transferToken + math.Float64frombits(t.token.Load())
}

// Add notes that so many tokens took so many milliseconds.
func (t *Transfer) Add(tokens int, ms float64) {
	if tokens < 0 || !(ms >= 0) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fixed, token := t.Expect()
	n := float64(tokens)
	off := min(ms, transferMost*(fixed+token*n)) - transferFixed - transferToken*n
	for _, sum := range []*float64{&t.one, &t.n, &t.nn, &t.ms, &t.nms} {
		*sum *= transferMemory
	}
	t.one, t.n, t.nn = t.one+1, t.n+n, t.nn+n*n
	t.ms, t.nms = t.ms+off, t.nms+n*off
	one, sum, squares := t.one+2*priorTransfers, t.n+priorTransfers*transferTokens, t.nn+priorTransfers*transferTokens*transferTokens
	det := one*squares - sum*sum // positive: the prior has two lengths
	a, b := (squares*t.ms-sum*t.nms)/det, (one*t.nms-sum*t.ms)/det
	// Neither is less than nothing. Where one would be, the other is what fits without it.
	if a < -transferFixed {
		a, b = -transferFixed, (t.nms+transferFixed*sum)/squares
	}
	if b < -transferToken {
		a, b = max((t.ms+transferToken*sum)/one, -transferFixed), -transferToken
	}
	t.fixed.Store(math.Float64bits(a))
	t.token.Store(math.Float64bits(max(b, -transferToken)))
}
