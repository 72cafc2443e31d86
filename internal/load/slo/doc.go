// Package slo decides whether a load meets its service level objectives, and finds the
// highest rate that does. It is pure: it takes measurements and returns what to measure
// next, and knows neither servers nor clocks.
//
// # Objectives
//
// An [Objective] is a bound and the share of the requests that must keep it:
// "ttft_p99=500ms" means that 99 % of the requests have their first content within 500 ms.
// A failed request keeps no bound. So every objective is a share of requests, and its
// confidence follows from the binomial distribution, whatever the distribution of the
// latencies.
//
// # Noise
//
// Requests that queue behind one another are late together. Therefore a [Tally] counts in
// batches of neighbours, and reduces the effective number of requests if the batches differ
// more than independent requests would. A rate is decided only if the whole 99 % interval
// of the share lies on one side of the objective. Otherwise it is measured again and
// counted together. If that does not decide it either, it belongs to the interval of the
// answer.
//
// # Search
//
// [Search] doubles or halves the rate until it has one that meets the objectives and one
// that misses them. Then it takes the middle, on a logarithmic scale, until the two are
// close. Bisection assumes that a higher rate is never better and would not notice one that
// is. Therefore the two ends are measured once more at the end, and every pair of rates
// that contradicts the assumption is reported. It ends after a given number of trials at
// the latest.
package slo
