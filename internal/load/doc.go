// Package load is a verifying load generator for servers that speak OpenAI's
// HTTP API or SGLang's /generate. It is a black box's other half: it knows nothing of the server but
// what arrives on the socket, so it measures any of them alike.
//
// A [Plan] says what to send: which API, how many requests, in a closed loop
// of N workers or on an open-loop schedule. [Run] carries it out and returns a
// [Report]; [Plan.OnSample] is given every request's own record besides.
//
// # What counts as success
//
// Load generators commonly count a 200 as a success and stop reading at the
// end of the connection. Here a stream is complete only when all of this held:
// status 200; the HTTP framing and the event framing intact to the last byte;
// every event a chunk of the API; one finish_reason and nothing for the choice
// after it; usage present when asked for and equal to the words counted; the
// text's own check chain valid (when [Plan.Verify] is set); and [DONE] last
// with nothing after it. Every request ends in exactly one [Outcome]:
//
//   - Complete: all of the above.
//   - Corrupt: the server ended the stream as if it were complete, but the
//     text or the counts are wrong. Tokens missing here are the ones reported
//     as lost: nobody was told.
//   - Errored: the request failed and the client could see it: no connection,
//     another status, an error event, a broken or unfinished stream.
//   - Abandoned: the plan made this client hang up.
//   - Unfinished: the run was cancelled with the request in flight.
//
// # Clock and origin
//
// Stamps are nanoseconds of [trace.Now]. Latencies are measured from the
// intended time first: the moment the arrival process wanted the request sent,
// whatever kept the generator or the server from it. The twins measured from
// the moment of sending are beside them. In a closed loop both differ only by
// the time to connect. Percentiles are over complete streams; the share of the
// others is always printed with them. A percentile is refused where fewer values
// were seen than it takes to have one above it.
//
// # Trust
//
// [Verdict] says what the figures are worth: whether requests were sent when
// they should have been, whether the generator was there when it was needed,
// whether what arrived was answered, and whether anything failed. Latencies of a
// rate that the server cannot keep up with depend on how long the run was, and
// are refused.
//
// # Receive times
//
// On Linux a receive time is the kernel's stamp, taken as the bytes arrived. A read
// has one stamp, that of its last segment, and an event has that of the read which
// brought its last byte. Events that came in one segment came together. Where a read
// brought several segments, because the generator was late or the server writes
// often, only its last event has a time of its own: the others arrived some time
// since the read before. So no event is stamped too early. [Receive] counts these
// events, and percentiles that are made of them have bounds ([latency.Judged]),
// between which they lie however late the generator was; the verdict is made of the
// bounds. What follows an answer's last content in the same read counts as sent with
// it. Elsewhere than on Linux, and where the plan slows reading down, a receive time
// is that of reading, and the verdict is [Degraded] at best.
//
// # Cost
//
// Connections over plain TCP are read by one goroutine per two cores, edge by edge
// over epoll, and parsed where they lie in the connection's buffer; the goroutine
// that sent a request sleeps until its response is over. A goroutine per stream in
// Go's poller, which other systems and TLS have, costs each event a wake-up and a
// read that finds no more. net/http's client costs two more goroutines and two more
// buffers for each connection, and hides both when bytes arrived and how they were
// framed. What is left is the kernel's: the read that brings the event and
// acknowledges it. An open loop sends over idle connections from its own thread, so
// that slip is not the wait of a goroutine for a core.
package load
