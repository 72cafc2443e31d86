package dialect

import "weir/internal/infer"

// Verifiable is an Endpoint whose relayed streams can be verified on some engines. weir
// asks the engine for the ids of the output and for its count of them, compares the two,
// and removes from the stream what the caller did not ask for.
type Verifiable interface {
	Endpoint
	// Verify returns the verifier of the request's stream, and the body to send instead
	// of body, whose fields are at h. If the stream cannot be verified, it returns the
	// reason in a word, and body is sent unchanged.
	Verify(h *Head, engine infer.Verify) (body *Asked, v Verifier, why string)
}

// Counted is an Endpoint whose relayed streams state their usage only if the request asks
// for it.
type Counted interface {
	Endpoint
	// Count returns the body that asks for the usage, and the Verifier that removes it from
	// the stream. It returns nil if the caller asks for the usage too.
	Count(h *Head) (body *Asked, v Verifier)
}

// Verifier verifies a stream. It gets what an Inspector has found in order. It is used
// by one goroutine, and no longer after an error.
type Verifier interface {
	// Events appends to dst the part of a region that the caller gets. good and err
	// have the meaning of Inspector.Events. An event may be held back until the next
	// call.
	Events(dst, region []byte) (out []byte, good int, err error)
	// Rest appends what was held back. It is called at the stream's end.
	Rest(dst []byte) []byte
	// Verified reports, after the end of a stream, whether it had as many ids as the
	// engine counted. If that is not known, why is the reason in a word.
	Verified() (ok bool, why string)
	// Usage returns the counts that the engine stated, for all choices together.
	Usage() (infer.Usage, bool)
}
