// Package place has how a request comes to an engine: whether it waits, which one is chosen, what the
// request has in its books until it ends, and where it may go after a failure. It knows neither the
// gateway nor the wire.
//
// A Line decides who goes where and when, and a Booking counts the work. Both are pure: times are
// arguments, so that internal/lab/fleetsim places requests on virtual time by the same code. A Room is
// the shell of a Line, and calls the owner of a request for what must happen there. Turns, too, have a
// clock: they are few, and are given to streams that continue at another engine.
package place
