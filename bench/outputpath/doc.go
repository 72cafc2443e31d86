//go:build linux

// Command outputpath measures what it costs to carry the output of thousands
// of streams from an engine to their clients, and proves that nothing went
// missing on the way. It runs weir's two paths beside nginx,
// httputil.ReverseProxy and two controls that must fail, one after the other
// on the same machine in the same run, because only ratios within a run mean
// anything.
//
// A cell is one gateway under one load, in three processes of its own: an
// engine, the gateway, and a client. They meet over loopback sockets and one
// shared page of memory, the board, which holds the moment the load begins.
//
//   - The engine is made for the purpose and as cheap as it can be. For relays
//     it is raw sockets and prepared bytes, one event per write, each event
//     carrying its number and the time just before its write. For the plane it
//     is a gRPC server that says the same as steps; ids cannot carry a time, so
//     it notes the time of every (stream, token) on the board before it sends.
//   - The client is one thread over epoll. The kernel stamps what it receives
//     (SO_TIMESTAMPNS), so a token's delay is from the engine's stamp to its
//     arrival in the client's kernel, both on CLOCK_REALTIME, and does not
//     contain the client's own lateness. Where several segments wait in one
//     socket the kernel gives the last one's time: a client that is behind
//     makes delays look longer, never shorter.
//   - CPU is user + system of the gateway's processes from /proc over the
//     measured window; the kernel charges a loopback write's receiving side to
//     the writer.
//
// Every stream is verified to its end: each token once, in order; the count in
// the usage; the end marker. Lost are tokens missing from a stream that ended
// as complete; streams that ended any other way are counted apart.
package main
