// Package kvpub publishes what the KV caches of a simulated engine hold, as vLLM and
// SGLang do: numbered batches of events in msgpack over ZeroMQ, one publisher for each
// data-parallel rank, and the latest batches again to those who ask for them.
//
// The encoder is pure; a Publisher has the sockets. It shares no code with package
// kvevents, which reads these events for the gateway: each is the other's check.
//
// Goroutines: Serve's, one for each listener, and two for each subscriber, of which one
// writes. Publish never waits for any of them: what a subscriber does not take in time is
// lost to it, as with ZeroMQ.
package kvpub
