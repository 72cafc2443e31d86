// Package health decides which engine ranks may receive requests. It observes the gateway's own
// requests, because forward progress is the one signal that distinguishes a busy engine from a
// hung one.
//
//	up       takes requests
//	soft     owes progress for longer than is usual there: it takes requests only where
//	         no other rank does, and nothing else happens to it
//	suspect  owes it for so long that it may hang, or fails: a probe is due, and it takes
//	         requests only where no soft one does either
//	probing  the probe is under way
//	down     the probe failed or was not answered, too: it takes no requests
//	draining an operator's word, or the engine's own: it takes no new requests
//
// A rank goes down only if two signals agree: first its requests (silence, three transport
// faults in a row, a refused connection, three faults of the engine in a row), and then a
// failed probe that needs the engine's core. The exception is an engine whose probe generates
// nothing: three faults of the engine in a row suffice, because an answered probe would not
// contradict them. Overload, refused requests and canceled requests do not count.
//
// A probe that generates nothing cannot find an engine that answers it but begins no request.
// If possible, such a rank is sampled: the gateway sends it requests of its own for one token.
// An answered sample brings the rank back. A sample that is unanswered after the timeout of a
// probe is the second signal, if nothing else on the rank has advanced meanwhile: no stream of
// this gateway, and no other work by the engine's own counters (Rank.Alive), for which the rank
// is probed once more. A rank that went down this way is up again when a sample is answered.
//
// A rank that comes back first gets one request, and after that request has progressed, slow
// start. The time for which a rank stays down grows with repetition. The fleet's guard allows
// at most a share of a model's ranks to be down by judgement, and never the last one that might
// serve the model. A refused connection is not a judgement: no process is listening.
//
// Silence is measured from the time at which a request was sent (Request.Sent), on a clock that
// runs only while the gateway itself was on time (Fleet.Tick). An engine is therefore never
// blamed for delays of the gateway.
//
// Only the work before the next sign of progress (Rank.Ahead) explains a silence, not the work
// that is queued behind it.
//
// A gateway cannot see requests of other clients that wait in the engine's queue. A probe that
// generates waits behind them. Either the predicted work must therefore include them (package
// cost learns it), or Rank.Alive must report that the engine's own counters advance.
//
// The package is pure: it has no clock, goroutine or lock. Times are nanoseconds on any one
// clock, predicted work is milliseconds. The caller must serialize access to a Fleet and its
// ranks. Two gateways may judge the same engine differently.
package health
