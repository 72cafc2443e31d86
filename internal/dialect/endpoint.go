package dialect

import "weir/internal/infer"

// Endpoint is a path of a dialect. Endpoints can be compared with ==.
type Endpoint interface {
	// String returns the path.
	String() string
	// Traits returns what a request at the path asks for, and which engines can
	// answer it.
	Traits() Traits
	// ParseHead reads the head of a body in one pass. Its error is an *infer.Error
	// that names the field, or the line and column where the body stops being JSON.
	ParseHead(body []byte) (*Head, error)
	// Request decodes every field for engines of a kind that take ids and support
	// carries. Refusals name the kind. Its error is an *infer.Error that names the
	// field.
	Request(h *Head, kind string, carries infer.Carries) (*Request, error)
	// NewInspector returns the inspector of a relayed stream that answers the
	// request, nil if the path's streams have no known form.
	NewInspector(h *Head) Inspector
	// Status returns the HTTP status of an error, and AppendError appends the error
	// as the body of a response.
	Status(e *infer.Error) int
	AppendError(dst []byte, e *infer.Error) []byte
	// AppendErrorEvent appends an error as the last event of a relayed stream. The
	// Encoder does so for streams that weir writes.
	AppendErrorEvent(dst []byte, e *infer.Error) []byte
}

// Traits are the properties of a path besides its bodies that the gateway acts on.
type Traits struct {
	Wants Wants
	// TokensOnly is set if relayed engines cannot answer at the path, RelaysOnly if
	// only they can.
	TokensOnly, RelaysOnly bool
	// RequestIDField is the header field, besides X-Request-Id, in which a response
	// states the request's id; empty if there is none.
	RequestIDField string
	// Ignored are header fields of a request that ask for a service beside the answer.
	Ignored []HeadField
}

// HeadField is a header field of a request, by its name in a dialect's table and in
// net/http's canonical form.
type HeadField struct{ Name, Canonical string }

// Wants is the kind of result that a request asks for.
type Wants uint8

// The kinds of results. weir computes all but an Answer by itself if it has the model's
// tokenizer.
const (
	Answer       Wants = iota // of a model
	PromptLength              // the number of the number of its tokens; the Endpoint is a Counter
	TokenIDs                  // of a text
	Text                      // of ids
)

// Counter is an Endpoint whose requests want a PromptLength.
type Counter interface {
	Endpoint
	// AppendCount appends the answer to such a request.
	AppendCount(dst []byte, tokens int) []byte
}

// Inspector checks a stream that is relayed unchanged from an engine to the caller.
// It gets each region of whole events before the region is forwarded. It is used by
// one goroutine, and no longer after an error.
type Inspector interface {
	// Events checks the next region. good is the length of the part that is in order,
	// counted from the region's beginning: all of it, or, with an *infer.Error of
	// CodeIntegrity that names the event and what is wrong with it, the whole events
	// before that one.
	Events(region []byte) (good int, err error)
	// Done reports whether the stream has had its end marker.
	Done() bool
	// Whole reports whether every choice has stated how it ended. A stream that ends
	// here by its framing is whole although it has no end marker.
	Whole() bool
	// Failed reports whether the engine itself reported a failure. FailedAs returns the HTTP
	// status that it gave, 0 if it gave none.
	Failed() bool
	FailedAs() (status int)
	// Usage returns the latest usage that the engine stated. Its CachedTokens is -1
	// if the engine did not state it.
	Usage() (infer.Usage, bool)
	// Odd returns what the stream had that its API does not have. It has lost no output.
	Odd() Odd
}

// Odd is what released engines send, and what passes because no output is lost by it.
type Odd uint8

// The odd ends.
const (
	FinishedTwice Odd = 1 << iota // a choice or a message says a second time that it has ended
	DoneTwice                     // a second end marker
)

// Words returns a word for each, for a metric's label.
func (o Odd) Words() (words []string) {
	for i, word := range []string{"finished_twice", "done_twice"} {
		if o>>i&1 != 0 {
			words = append(words, word)
		}
	}
	return words
}
