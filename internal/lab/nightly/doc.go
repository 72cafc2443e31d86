// Package nightly runs measurements that are too slow for every change, keeps their
// figures, and compares them with the last accepted ones, so that a figure that got worse
// fails without a reader.
//
// A [Step] is a command with a time limit and a reader of its output. [Run] runs steps one
// after the other and makes a [Record] of them, which is saved after every step. [Compare]
// compares a record with a baseline, a record that somebody has read and committed. It
// returns a list of [Finding]s, and [Report] writes them.
//
// How much worse is too much depends on what a figure measures, its [Kind], and not on the
// single figure: see the table [Rules].
//
// The package starts no process and reads no file. Its caller executes a step, and provides
// the clock.
package nightly
