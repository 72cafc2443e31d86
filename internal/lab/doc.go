//go:build linux

// Package lab measures what it costs to carry the output of thousands of
// streams from an engine to their clients, and proves that nothing went missing
// on the way. It runs weir's two paths beside nginx, httputil.ReverseProxy and
// two controls that must fail, one after the other on the same machine in the
// same run, because only ratios within a run mean anything. The command
// bench/outputpath and the scenarios of weir bench are made of it.
//
// A cell is one gateway under one load, in three processes of its own: an
// engine (loadengine), the gateway, and a client. They meet over loopback
// sockets and one shared page of memory, the board (cell), which holds the
// moment the load begins. Engine, client and controls are this program itself,
// started anew in a role (RunRole).
//
// CPU is user + system of the gateway's processes from /proc over the measured
// window; the kernel charges a loopback write's receiving side to the writer.
// Lost are tokens missing from a stream that ended as complete; streams that
// ended any other way are counted apart.
//
// Linux only: the kernel's receive stamps, epoll and /proc are what it measures
// with.
package lab
