// Package nightly runs measurements that are too slow for every change, keeps
// their figures, and compares them with the last accepted ones, so that a figure
// that got worse fails by itself.
//
// A [Step] is a command with a time limit and a reader of its output. [Run]
// carries steps out one after the other and makes a [Record] of them, which is
// kept after every step. [Compare] holds a record to a baseline, a record that
// somebody has read and committed; what it finds is a list of [Finding]s, and
// [Report] writes them down.
//
// How much worse is too much is a property of what a figure measures, its
// [Kind], and not of the single figure: the table [Rules] is all there is.
//
// The package starts no process and reads no file. Its caller brings the
// execution of a step, and with it the clock.
package nightly
