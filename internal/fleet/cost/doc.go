// Package cost estimates the cost of a request on an engine rank, in milliseconds of
// delay: the request's own delay and the delay that it adds to the other requests
// there. Routing, queueing, admission and health all use this one number, which has no
// weights to tune.
//
// An engine computes in steps. A step takes
//
//	Step·[it prefills] + Token·n + Pair·n(L - n/2) + Decode·[it decodes] + Decoder·k
//
// where n is the number of prompt tokens that the step prefills, after L - n that were
// there before, and k is the number of requests that decode. Fit learns these five
// coefficients for each rank from intervals between events that the gateway sees: a
// request was handed over, its first token arrived, it ended. If the wire reports when
// prefill began, the interval begins there. Nothing else depends on an engine's own
// stamps.
//
// A Rank keeps the books of the work that was handed to it and is not known to be done.
// An estimate reads the books without a lock. A booking, its first token and its end
// take the rank's lock briefly.
//
// The package has no clock and no goroutine. Times are nanoseconds on any one clock.
package cost
