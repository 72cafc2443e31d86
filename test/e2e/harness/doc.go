// Package harness runs the built weir for the end-to-end tests of test/e2e and of
// interop: it builds the binary once, starts it as gateway, simulated engine or
// command, asks it over real sockets, reads its metrics and its timeline, and
// ends it with the test.
//
// A package of tests calls [Main] from its TestMain. A test calls [Beside] first, and declares how
// much of the machine it needs.
package harness
