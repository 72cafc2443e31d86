//go:build !race

package harness

// RaceEnabled reports whether the tests, and so the program, run under the race
// detector.
const RaceEnabled = false
