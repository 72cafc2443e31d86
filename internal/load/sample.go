package load

// Outcome is how a request ended; the package documentation defines each.
type Outcome uint8

// The outcomes.
const (
	Complete Outcome = iota
	Corrupt
	Errored
	Abandoned
	Unfinished
)

var outcomeNames = [...]string{"complete", "corrupt", "errored", "abandoned", "unfinished"}

// String returns the outcome's name in reports.
func (o Outcome) String() string { return outcomeNames[o] }

// MarshalText implements encoding.TextMarshaler.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Kind names what was wrong with a corrupt or errored request.
type Kind string

// The kinds of an errored request: the client could see that it failed.
const (
	KindConnect      Kind = "connect"       // no connection
	KindSend         Kind = "send"          // the request could not be written
	KindNoResponse   Kind = "no_response"   // the connection ended before the response's head
	KindStatus       Kind = "status"        // another status than 200; the status follows: "status_503"
	KindContentType  Kind = "content_type"  // 200, but neither a stream nor JSON as asked
	KindFraming      Kind = "framing"       // malformed HTTP
	KindCut          Kind = "cut"           // the connection was closed before the body's end
	KindReset        Kind = "reset"         // the connection was reset
	KindTimeout      Kind = "timeout"       // the plan's timeout ran out
	KindIO           Kind = "io"            // reading failed in another way
	KindErrorEvent   Kind = "error_event"   // an error after status 200
	KindPartialEvent Kind = "partial_event" // the body ended inside an event
	KindBadEvent     Kind = "bad_event"     // an event that is not an OpenAI chunk
	KindPrefill      Kind = "prefill"       // its other half failed, and its answer did not say so
	KindNoDone       Kind = "no_done"       // the body ended without [DONE]
)

// The kinds of a corrupt request: it was ended as if it were complete.
const (
	KindLost        Kind = "lost"         // fewer tokens than the server counted
	KindDuplicated  Kind = "duplicated"   // more tokens than the server counted, and the text does not follow
	KindOrder       Kind = "order"        // as many as counted, but the text does not follow
	KindText        Kind = "text"         // the text does not follow, and there is no count to say why
	KindUsage       Kind = "usage"        // sound text, but another count
	KindNoUsage     Kind = "no_usage"     // usage was asked for and never came
	KindNoFinish    Kind = "no_finish"    // no finish_reason
	KindAfterFinish Kind = "after_finish" // text or another finish_reason after the finish_reason
	KindAfterDone   Kind = "after_done"   // anything after [DONE]
)

// Sample is the record of one request. Stamps are nanoseconds of trace.Now; zero means that
// the moment was not reached. Received bytes have the kernel's stamp, as the package
// documentation explains, or otherwise the time of reading.
type Sample struct {
	// Index counts the run's requests from 0.
	Index int
	// Session and Turn are set for a workload with sessions, counted from 1.
	Session, Turn int
	// RequestID is the response's X-Request-Id, or the one that was sent if the response
	// has none.
	RequestID string

	Intended  int64 // when the arrival process wanted it sent
	Started   int64 // when the generator took it up
	Sent      int64 // connected, right before writing
	FirstByte int64 // first byte of the response received
	// FirstContent is the first content of any channel: answer, reasoning,
	// refusal or tool call.
	FirstContent int64
	FirstToken   int64 // first answer text
	LastToken    int64 // last content of any channel
	LastByte     int64 // last byte

	// FirstContentSince, FirstTokenSince and LastTokenSince are the earliest possible
	// times of the three. They are earlier than these if an event has no exact time.
	FirstContentSince, FirstTokenSince, LastTokenSince int64

	Status       int   // HTTP status, 0 when no head was read
	Events       int   // events with data, [DONE] included
	TextEvents   int   // events with content
	Together     int   // those of them that one read brought with the one before
	Unknown      int   // those of them that have no time of their own
	Frames       int   // chunks of the HTTP framing
	Reads        int   // reads of the socket that brought bytes
	Bytes        int64 // of the body
	Reused       bool  // an earlier request's connection was used
	FinishReason string
	Done         bool // [DONE] was seen

	// Tokens is the number of answer tokens received: the words counted if the text is
	// verified, otherwise the server's count, or the number of events with content if the
	// server reported none.
	Tokens int
	// AskedInput and AskedOutput are the lengths asked for, in tokens.
	AskedInput, AskedOutput int
	// HasUsage reports whether usage came; the counts are the server's.
	HasUsage                       bool
	PromptTokens, CompletionTokens int
	CachedTokens                   int
	// Server holds the stages that an SGLang server reported for the request.
	Server ServerTimes

	Outcome Outcome
	Kind    Kind   // empty when complete, abandoned or unfinished
	Detail  string // what exactly, for a person
	// Lost is the number of tokens missing from a stream that was ended as
	// complete.
	Lost int

	// Chunks holds the receive time of each event with content, when the plan
	// keeps them.
	Chunks []int64

	gaps  []int64 // ns between events with content
	loose []loose // those that are known only to lie in a range
	later later   // of the content that was booked last
	older []later // of reads that brought what has no time of its own
	late  []int64 // ns from arrival to reading, of each read
	whole bool    // not a stream: its text has no times of its own
}

// later records that bytes came after some content in one read. Then it is only known that
// the content has come since a time, at most this much before the stamp. read counts the
// response's reads from 0, and text reports whether it was the answer's first.
type later struct {
	since, by int64
	read      int
	text      bool
}

// loose is the range in which the gap of an index lies.
type loose struct {
	Gap       int
	Low, High int64
}

// ServerTimes are the stages of a request as reported by an SGLang server with
// --enable-metrics, in seconds since 1970 on its clock; zero for a missing one.
type ServerTimes struct {
	Received        float64 // request_received_ts
	ForwardEntry    float64 // forward_entry_time: first placed in a batch
	QueueTime       float64 // queue_time, a duration
	PrefillFinished float64 // prefill_finished_time
	ResponseSent    float64 // response_sent_to_client_ts: the first output
	Finished        float64 // request_finished_ts
	// Reported by servers that were patched to use the names of weir's timeline; the other
	// stamps then have these names as well.
	QueueStart   float64 // queue_time_start
	PrefillStart float64 // prefill_start_time
	FirstToken   float64 // server_first_token_time
}

// TPOT returns the mean time per token after the first of a stream. ok is false if
// there is no second token.
func (s *Sample) TPOT() (ns int64, ok bool) {
	if s.whole || s.FirstContent == 0 || s.Tokens < 2 {
		return 0, false
	}
	return (s.LastToken - s.FirstContent) / int64(s.Tokens-1), true
}

// content records content that was received at a time; text reports whether it belongs to
// the answer.
func (s *Sample) content(now int64, text bool) {
	if s.later.by > 0 {
		s.doubt()
	}
	s.TextEvents++
	if s.FirstContent == 0 {
		s.FirstContent, s.FirstContentSince = now, now
	} else {
		gap := now - s.LastToken
		s.gaps = append(s.gaps, gap)
		if gap == 0 {
			s.Together++
		}
		if s.LastTokenSince < s.LastToken {
			s.loose = append(s.loose, loose{len(s.gaps) - 1, gap, now - s.LastTokenSince})
		}
	}
	s.LastToken, s.LastTokenSince = now, now
	if text && s.FirstToken == 0 {
		s.FirstToken, s.FirstTokenSince = now, now
	}
}

// doubt marks the last recorded content as having no exact time. It is called when more
// content follows. Bytes after an answer's last content are sent with it, so their stamp is
// also that content's stamp.
func (s *Sample) doubt() {
	since := s.later.since
	s.Unknown++
	s.LastTokenSince = since
	if s.later.text {
		s.FirstTokenSince = since
	}
	if n := len(s.older); n == 0 || s.older[n-1].read != s.later.read {
		s.older = append(s.older, s.later)
	}
	s.later = later{}
	gap := len(s.gaps) - 1
	if gap < 0 {
		s.FirstContentSince = since
		return
	}
	if n := len(s.loose); n == 0 || s.loose[n-1].Gap != gap {
		s.loose = append(s.loose, loose{gap, s.gaps[gap], s.gaps[gap]})
	}
	before := s.LastToken - s.gaps[gap]
	s.loose[len(s.loose)-1].Low = max(0, since-before)
}

// Streamed reports whether the answer came in parts that have times of their own.
func (s *Sample) Streamed() bool { return !s.whole }

// lateness sets the lateness of reads with inexact content to that of their oldest content.
func (s *Sample) lateness() {
	for _, o := range s.older {
		if o.read < len(s.late) && s.late[o.read] != unstamped {
			s.late[o.read] += o.by
		}
	}
}

// reset makes the sample ready for another request and keeps its storage.
func (s *Sample) reset(index int, intended int64) {
	*s = Sample{Index: index, Intended: intended, Chunks: s.Chunks[:0], gaps: s.gaps[:0], loose: s.loose[:0], older: s.older[:0], late: s.late[:0], whole: s.whole}
}

// fail settles the outcome as errored.
func (s *Sample) fail(kind Kind, detail string) {
	s.Outcome, s.Kind, s.Detail = Errored, kind, detail
}
