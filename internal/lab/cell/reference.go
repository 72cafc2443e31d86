//go:build linux

package cell

import "time"

// Reference configures a reference engine, as JSON in its argument. Its times and stamps
// are of CLOCK_MONOTONIC, the clock of trace.Now.
type Reference struct {
	Listen string
	// Board is the file of its stamps, with room for those of this many requests of
	// this many tokens.
	Board            string
	Requests, Tokens int
	// TTFT is from the arrival of a whole request to its first token, ITL from each
	// token to the next.
	TTFT, ITL time.Duration
}

// Truth holds a reference engine's stamps: the arrival of each request in its kernel, and
// the write of each token.
type Truth struct{ board *Board }

// OpenTruth maps the engine's board, making it when it is not there.
func (x *Reference) OpenTruth() (Truth, error) {
	b, err := OpenBoard(x.Board, x.Requests, x.Tokens+1)
	return Truth{b}, err
}

// Close unmaps it.
func (t Truth) Close() { t.board.Close() }

// Taken counts the requests taken in so far.
func (t Truth) Taken() int { return int(t.board.Taken().Load()) }

// Took notes the arrival of a request, counted by the caller.
func (t Truth) Took(request int, at int64, taken int) {
	if request < len(t.board.stamps)/t.board.tokens {
		t.board.Stamp(request, 0, at)
	}
	t.board.Taken().Store(int64(taken))
}

// Wrote notes when a token was about to be written.
func (t Truth) Wrote(request, token int, at int64) {
	if request < len(t.board.stamps)/t.board.tokens && token+1 < t.board.tokens {
		t.board.Stamp(request, token+1, at)
	}
}

// Arrival returns when a request was in the engine's kernel.
func (t Truth) Arrival(request int) (int64, bool) { return t.board.SentAt(request, 0) }

// Token returns when a token was written.
func (t Truth) Token(request, token int) (int64, bool) { return t.board.SentAt(request, token+1) }
