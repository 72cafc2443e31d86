// Package cost says what a request costs on an engine rank, in milliseconds of
// delay: its own, and that of the requests that it delays there. Whatever chooses,
// queues, refuses or judges does so by this one number, which has no weights to
// tune.
//
// An engine computes in steps. A step takes
//
//	Step·[it prefills] + Token·n + Pair·n(L - n/2) + Decode·[it decodes] + Decoder·k
//
// where n tokens of prompts are prefilled in it, of which L - n were there before,
// and k requests decode. These five coefficients are learned for each rank by Fit,
// from intervals between events that the gateway sees: a request was handed over,
// its first token came, it ended. Where the wire tells when prefill began, the
// interval begins there; nothing else depends on an engine's own stamps.
//
// A Rank keeps the books: what was handed to it and has not shown itself as done.
// An estimate reads them without a lock. Booking, the first token and the end take
// the rank's own lock for a moment.
//
// The package has no clock and no goroutine. Times are nanoseconds on any one clock.
package cost
