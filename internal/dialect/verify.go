package dialect

import "weir/internal/infer"

// Verifiable is an Endpoint whose streams can be verified on some relayed engines: weir
// asks the engine for the ids of the output and for its count of them, holds one against
// the other, and takes out of the stream what the caller did not ask for.
type Verifiable interface {
	Endpoint
	// Verify gives the verifier of the request's stream, and the body that makes the
	// engine say what it needs, made of body, whose fields stand where h says. With why,
	// a word, the stream cannot be verified, and the body goes as it is.
	Verify(h *Head, engine infer.Verify) (body *Asked, v Verifier, why string)
}

// Counted is an Endpoint whose relayed streams state what they used only if the request asks
// for it.
type Counted interface {
	Endpoint
	// Count gives the body that asks for it, and the Verifier that takes out of the stream
	// what the caller did not ask for. It gives nil if the caller asks for it too.
	Count(h *Head) (body *Asked, v Verifier)
}

// Verifier verifies a stream. It is shown what an Inspector found in order, and is used
// by one goroutine, not again after an error.
type Verifier interface {
	// Events appends to dst what the caller gets of a region. good and err are as an
	// Inspector's. It may hold back an event until the next.
	Events(dst, region []byte) (out []byte, good int, err error)
	// Rest appends what was held back, at the stream's end.
	Rest(dst []byte) []byte
	// Verified says of a stream that has ended whether its ids were as many as the engine
	// counted; why it is not known otherwise, in a word.
	Verified() (ok bool, why string)
	// Usage gives the counts that the engine stated, of all choices.
	Usage() (infer.Usage, bool)
}
