package dialect

import "weir/internal/infer"

// Endpoint is a path of a dialect. Its values can be compared.
type Endpoint interface {
	// String gives the path.
	String() string
	// Traits says what is asked for at the path, and who can answer.
	Traits() Traits
	// ParseHead passes over a body once. Its error is an *infer.Error that names
	// the field, or the line and column where the body stops being JSON.
	ParseHead(body []byte) (*Head, error)
	// Request decodes every field for an engine of a kind that takes ids and
	// carries so much; kind is named in refusals. Its error is an *infer.Error
	// that names the field.
	Request(h *Head, kind string, carries infer.Carries) (*Request, error)
	// NewInspector gives the judge of a stream that answers the request; nil when
	// nothing is known of such streams.
	NewInspector(h *Head) Inspector
	// Status gives the HTTP status of an error, and AppendError appends it as the
	// body of a response.
	Status(e *infer.Error) int
	AppendError(dst []byte, e *infer.Error) []byte
	// AppendErrorEvent appends an error as the last event of a stream that weir
	// passes on. Of one that weir writes, the Encoder appends it.
	AppendErrorEvent(dst []byte, e *infer.Error) []byte
}

// Traits are what the gateway must know of a path besides its bodies.
type Traits struct {
	Wants Wants
	// TokensOnly says that an engine which is relayed cannot answer, and RelaysOnly
	// that no other can.
	TokensOnly, RelaysOnly bool
	// RequestIDField is a field of a response's head that has the request's id,
	// besides X-Request-Id; empty: none has.
	RequestIDField string
	// Ignored are the fields of a request's head that ask for something beside the answer.
	Ignored []HeadField
}

// HeadField is a field of a request's head: by the name in a dialect's table, and as
// net/http has it.
type HeadField struct{ Name, Canonical string }

// Wants is what a request asks for.
type Wants uint8

// Things that a request can ask for. All but an Answer weir gives by itself where it has the
// model's tokenizer.
const (
	Answer       Wants = iota // of a model
	PromptLength              // its tokens; the Endpoint is a Counter
	TokenIDs                  // of a text
	Text                      // of ids
)

// Counter is an Endpoint that wants a PromptLength.
type Counter interface {
	Endpoint
	// AppendCount appends the answer.
	AppendCount(dst []byte, tokens int) []byte
}

// Inspector checks a stream that passes from an engine to the caller untouched.
// It is shown each region of whole events before that is forwarded. It is used
// by one goroutine, and not again after an error.
type Inspector interface {
	// Events looks at the next region. good is the length of its front that is
	// in order: all of it, or, with an *infer.Error of CodeIntegrity that names
	// the event and what is wrong with it, the whole events before that one.
	Events(region []byte) (good int, err error)
	// Done says that the stream has had its end marker.
	Done() bool
	// Whole says that every choice has said how it ended: a stream that ends here
	// by its framing is whole, although it has no end marker.
	Whole() bool
	// Failed says that the engine itself said that it failed. FailedAs is the HTTP status
	// that it gave for that; 0: it gave none.
	Failed() bool
	FailedAs() (status int)
	// Usage gives the latest usage that the engine stated. CachedTokens is -1
	// where it did not say.
	Usage() (infer.Usage, bool)
}
