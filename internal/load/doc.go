// Package load is a verifying load generator for servers that speak OpenAI's HTTP API or
// SGLang's /generate. It treats the server as a black box: it sees only what arrives on the
// socket, so it measures all servers alike.
//
// A [Plan] defines what to send: which API, how many requests, in a closed loop of N
// workers or on an open-loop schedule. [Run] carries it out and returns a [Report];
// [Plan.OnSample] receives the record of each request.
//
// # What counts as success
//
// Load generators commonly count a 200 as a success and stop reading at the end of the
// connection. Here a stream is complete only if all of this holds: status 200; the HTTP
// framing and the event framing intact to the last byte; every event a chunk of the API;
// one finish_reason, with nothing for the choice after it; usage present when asked for and
// equal to the words counted; the text's own check chain valid (if [Plan.Verify] is set);
// and [DONE] last, with nothing after it. Every request ends in exactly one [Outcome]:
//
//   - Complete: all of the above.
//   - Corrupt: the server ended the stream as if it were complete, but the
//     text or the counts are wrong. Tokens missing here are reported as lost,
//     because the client saw no error.
//   - Errored: the request failed and the client could see it: no connection,
//     another status, an error event, a broken or unfinished stream.
//   - Abandoned: the plan made this client hang up.
//   - Unfinished: the run was cancelled with the request in flight.
//
// # Clock and origin
//
// Stamps are nanoseconds of [trace.Now]. Latencies are measured first from the intended
// time: the moment at which the arrival process wanted the request to be sent, even if the
// generator or the server delayed it. A second set is measured from the moment of sending.
// In a closed loop the two differ only by the time to connect. Percentiles cover complete
// streams; the share of the others is always printed with them. A percentile is refused if
// there are too few values for one of them to lie above it.
//
// # Trust
//
// [Verdict] states what the figures are worth: whether requests were sent on time, whether
// the generator was ready when it was needed, whether all arrivals were answered, and
// whether anything failed. If the server cannot keep up with a rate, its latencies depend
// on the length of the run, and they are refused.
//
// # Receive times
//
// On Linux a receive time is the kernel's stamp, taken when the bytes arrived. A read has
// one stamp, that of its last segment, and an event has the stamp of the read that brought
// its last byte. Events in one segment came together. If a read brought several segments,
// because the generator was late or the server writes often, only its last event has an
// exact time: the others arrived at some time since the read before. So no event is stamped
// too early. [Receive] counts these events. Percentiles that include them have bounds
// ([latency.Judged]), between which the true values lie however late the generator was; the
// verdict uses the bounds. Bytes that follow an answer's last content in the same read
// count as sent with it. On other systems, and if the plan slows reading down, a receive
// time is the time of reading, and the verdict is [Degraded] at best.
//
// # Cost
//
// One goroutine per two cores reads the connections over plain TCP, edge-triggered by
// epoll, and parses the bytes in place in the connection's buffer. The goroutine that sent
// a request sleeps until its response is over. Other systems and TLS need a goroutine per
// stream in Go's poller, which costs each event a wake-up and an additional read that finds
// nothing. net/http's client costs two more goroutines and two more buffers for each
// connection, and hides both the time at which bytes arrived and their framing. The
// remaining cost is the kernel's: the read that brings the event and acknowledges it. An
// open loop sends over idle connections from its own thread, so that slip does not include
// a goroutine's wait for a core.
package load
