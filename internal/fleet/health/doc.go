// Package health says which engine ranks may be given requests. It judges by what the
// gateway sees of its own requests: forward progress is the one signal that a busy
// engine gives and a hung one does not.
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
// Two things take a rank out, never one: what was seen of requests (silence, three
// transport faults in a row, a refused connection, three faults of the engine in a row)
// and then a probe that needs the engine's core. The one exception is an engine whose
// probe generates nothing: three faults of it in a row suffice, because its answered
// probe would say nothing about them. Overload and refused requests count for nothing,
// neither does a request that was given up, whatever the reason.
//
// A probe that generates nothing says nothing of an engine that answers it and begins no
// request. Such a rank is sampled, where it can be: it gets requests of one token of the
// gateway's own. Its answer brings the rank back. Its silence, for as long as a probe is waited
// for, is the second reason, where nothing else of the rank has advanced meanwhile: no stream
// of ours, and no other work by the engine's own count (Rank.Alive), for which it is probed
// once more. A rank that is down for that is back when a sample is answered.
//
// A rank comes back by one request, and when that shows progress by slow start. The
// time for which it stays out grows with repetition. The fleet's guard lets at most a
// share of the ranks of a model be down by judgement, and never the last one that might
// serve it. A refused connection is no judgement: nobody is there.
//
// Silence is measured on a clock that runs only while the gateway itself was in time
// (Fleet.Tick), and from when a request was sent (Request.Sent): what the gateway did
// late is never held against an engine.
//
// What explains a silence is the work that comes before the next sign (Rank.Ahead), and not
// all that is queued behind it.
//
// What no gateway can see of its own requests is the queue of others'. A probe that
// generates waits in it, so that the predicted work must have others' part in it
// (package cost learns it), or Rank.Alive say that the engine's own counters move.
//
// The package is pure: it has no clock, goroutine or lock. Times are nanoseconds on any
// one clock, predicted work is milliseconds. A Fleet and all of its ranks belong to
// whoever guards them. Two gateways may judge the same engine differently.
package health
