//go:build linux

// Package lab measures what it costs to carry the output of thousands of streams from an
// engine to their clients, and proves that nothing was lost on the way. It runs weir's two
// paths next to nginx, httputil.ReverseProxy and two controls that must fail, one after the
// other on the same machine in the same run, because only ratios within a run are
// meaningful. The command bench/outputpath and weir scenario use it.
//
// A cell is one gateway under one load, in three processes: an engine (loadengine), the
// gateway, and a client. They share loopback sockets and one page of memory, the board
// (cell), which holds the time when the load begins. Engine, client and controls are this
// program itself, started again in a role (RunRole).
//
// CPU is user + system time of the gateway's processes from /proc over the measured window;
// the kernel charges the receiving side of a loopback write to the writer. Lost tokens are
// those missing from a stream that ended as complete. Streams with any other end are
// counted separately.
//
// Linux only: the measurements need the kernel's receive stamps, epoll and /proc.
package lab
