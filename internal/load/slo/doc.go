// Package slo says whether a load meets its service level objectives, and finds
// the highest rate that does. It is pure: it is told what was measured and says
// what to measure next, and knows neither servers nor clocks.
//
// # Objectives
//
// An [Objective] is a bound and the share of the requests that must keep it:
// "ttft_p99=500ms" is that 99 % of the requests have their first content within
// 500 ms. A request that failed keeps no bound. Every objective is therefore a
// share of requests, and how sure it is follows from the binomial distribution,
// whatever that of the latencies is.
//
// # Noise
//
// Requests that queue behind one another are late together. A [Tally] therefore
// counts in batches of neighbours, and takes the number of requests for as much
// smaller as the batches differ more than independent requests would. A rate is
// decided only when the whole 99 % interval of the share lies on one side of the
// objective; otherwise it is measured again and counted together, and where that
// does not decide it either, it is part of the answer's interval.
//
// # Search
//
// [Search] doubles or halves the rate until it has one that meets the objectives
// and one that misses them, and then takes the middle, on a logarithmic scale,
// until the two are close. Bisection believes that a higher rate is never better
// and would not see it if one were: the two ends are therefore measured once more
// at the end, and every pair of rates that contradicts the belief is said. It
// ends after a given number of trials at the latest.
package slo
