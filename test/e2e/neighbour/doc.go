//go:build linux

// Package neighbour is the bad-neighbour matrix: clients that misbehave in one way,
// beside good streams of the same gateway, over each protocol. It holds what the small
// form of the matrix, a test of every run, and the full one, which measures, have in
// common.
//
// A [Bed] is a gateway with an engine and, in a process of its own, the client of the
// good streams, which verifies every token of each and takes their times. [Bed.Bad]
// starts a bad neighbour, a further process. Both are the test's own program, started
// anew: its TestMain calls [Role] first.
package neighbour
