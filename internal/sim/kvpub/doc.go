// Package kvpub publishes the content of a simulated engine's KV caches, as vLLM and SGLang
// do: numbered batches of events in msgpack over ZeroMQ, one publisher for each
// data-parallel rank, and the latest batches again for subscribers that ask for them.
//
// The encoder is pure; a Publisher has the sockets. It shares no code with package
// kvevents, which reads these events for the gateway, so that each checks the other.
//
// Goroutines: the one of Serve, one for each listener, and two for each subscriber, one of
// which writes. Publish never waits for any of them: a subscriber that is too slow loses
// batches, as with ZeroMQ.
package kvpub
