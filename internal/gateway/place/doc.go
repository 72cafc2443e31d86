// Package place has how a request comes to an engine: which one is chosen, and what the request has
// in its books until it ends. It knows neither the gateway nor the wire. Times are arguments, so that
// internal/lab/fleetsim places requests on virtual time by the same code.
package place
