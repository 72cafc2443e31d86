package workload

import (
	"fmt"
	"math/bits"
	"time"
)

// Request is one request of a workload.
type Request struct {
	// At is its arrival, since the first request of the workload; it means
	// nothing in a closed loop.
	At time.Duration
	// Parts is the prompt, in order. It is valid until the source is asked for
	// the next request.
	Parts []Part
	// IDs is the prompt itself if a workload has texts; then there are no Parts.
	IDs []uint32
	// Text is the prompt's text, where it was asked for; Words is its length then,
	// if there are no ids to count.
	Text  string
	Words int
	// Output is the number of tokens it generates, always that many. It is zero
	// where a trace has a request that failed.
	Output int
	// Line is the request's line in the trace, 0 in a synthetic workload.
	Line int
}

// Part is a stretch of a prompt. The same key means the same ids: of two parts
// of different length the shorter one is the beginning of the longer.
type Part struct {
	Key    uint64
	Tokens int
}

// Input is the length of the prompt in tokens.
func (r *Request) Input() int {
	n := len(r.IDs) + r.Words
	for _, p := range r.Parts {
		n += p.Tokens
	}
	return n
}

// AppendPrompt appends the prompt's ids: those of its text, or generated ones below size,
// which must be positive.
func (r *Request) AppendPrompt(dst []uint32, size int) []uint32 {
	dst = append(dst, r.IDs...)
	for _, p := range r.Parts {
		x := p.Key
		for range p.Tokens {
			// splitmix64; a multiply-shift instead of a remainder, with a bias below
			// size/2^64.
			x += 0x9e3779b97f4a7c15
			z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
			z = (z ^ z>>27) * 0x94d049bb133111eb
			hi, _ := bits.Mul64(z^z>>31, uint64(size))
			dst = append(dst, uint32(hi))
		}
	}
	return dst
}

// The kinds of part. They keep the keys of a trace's block 7, the 7th group of a synthetic
// workload and the 7th request's own part distinct.
const (
	blockParts = 0x626c6f636b
	groupParts = 0x67726f7570
	ownParts   = 0x6f776e
)

// key returns the key of the n-th part of a kind. Seeds change the ids, but not which parts
// are shared.
func key(seed, kind, n uint64) uint64 {
	hi, lo := bits.Mul64(seed^kind^0x2d358dccaa6c78a5, 0x9e3779b97f4a7c15)
	x := hi ^ lo ^ n // one to one in n: different parts have different keys
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// Source returns the requests of a workload in the order of their arrival.
type Source interface {
	// Next sets r to the next request. The error is io.EOF after the last one,
	// and an *Error where the trace cannot be read.
	Next(r *Request) error
}

// Error states what is wrong with a trace, and where.
type Error struct {
	File  string
	Line  int    // from 1; 0 where it is not about a line
	Field string // empty where it is not about a field
	Err   error
}

// Error implements error.
func (e *Error) Error() string {
	s := e.File
	if e.Line > 0 {
		s = fmt.Sprintf("%s:%d", s, e.Line)
	}
	if e.Field != "" {
		s += ": " + e.Field
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Bounds for a trace. They keep a broken line from demanding a prompt that does not fit
// into memory.
const (
	maxTokens = 1 << 28
	maxLine   = 64 << 20 // bytes
	// maxTime keeps times of any unit apart from overflow.
	maxTime = 100 * 365 * 24 * time.Hour
)

// tokens checks a number of tokens.
func tokens(n int64) (int, error) {
	switch {
	case n < 0:
		return 0, fmt.Errorf("%d is negative", n)
	case n > maxTokens:
		return 0, fmt.Errorf("%d is more than %d tokens", n, maxTokens)
	}
	return int(n), nil
}

// arrivals turns a trace's times into offsets from its first one, and holds
// that they do not go back.
type arrivals struct {
	started     bool
	first, last time.Duration
}

func (a *arrivals) next(t time.Duration) (time.Duration, error) {
	if !a.started {
		a.started, a.first, a.last = true, t, t
	}
	if t < a.last {
		return 0, fmt.Errorf("it is %v before the request on the line before; sort the trace by time", a.last-t)
	}
	a.last = t
	return t - a.first, nil
}
