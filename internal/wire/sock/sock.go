// Package sock reads and writes plain sockets that have been taken out of Go's poller.
// It never waits.
//
// On Linux it makes its system calls without telling Go's scheduler. A call that cannot
// wait takes microseconds, and the scheduler's work around it (giving up the core and
// taking it back, and a monitor that wakes every 20 us while calls are under way) was
// 10 % of the CPU time of relaying a token. The package must therefore never be used on
// a descriptor that blocks.
//
// The caller must make sure that a descriptor is not closed during a call.
package sock
