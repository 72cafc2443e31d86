// Package sock reads and writes plain sockets that have been taken out of Go's
// poller, without ever waiting.
//
// On Linux it makes its system calls without telling Go's scheduler. A call that
// cannot wait is over in microseconds, and what the scheduler does around one
// (giving up the core and taking it back, and a monitor that wakes every 20 us as
// long as calls are seen under way) was 10 % of the CPU of relaying a token. It
// must therefore never be used on a descriptor that blocks.
//
// Whoever holds a descriptor must see to it that nobody closes it meanwhile.
package sock
