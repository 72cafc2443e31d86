package infer

import (
	"strconv"
	"unicode/utf8"
)

// Fault is in the chain of every error that reports an inconsistency in an engine's
// output. A Fault may have two more methods. Evidence() any returns what was kept of
// the output, fit for JSON and bounded in size. Shared() bool reports whether it is a
// single failure, however many requests end by it.
type Fault interface {
	error
	// FaultReason returns one of a small fixed set of words, fit for a metric's
	// label.
	FaultReason() string
}

// Flaw is a Fault that consists of its reason. The error around it has the details.
type Flaw string

// Error implements error.
func (f Flaw) Error() string { return string(f) }

// FaultReason implements Fault.
func (f Flaw) FaultReason() string { return string(f) }

// Excerpt is bytes of evidence. Its JSON form is the text itself, or the text quoted
// as in Go if the bytes are not UTF-8.
type Excerpt struct {
	Text   string `json:"text,omitzero"`
	Quoted string `json:"quoted,omitzero"`
}

// NewExcerpt returns an excerpt of all of b.
func NewExcerpt(b []byte) Excerpt {
	if utf8.Valid(b) {
		return Excerpt{Text: string(b)}
	}
	return Excerpt{Quoted: strconv.QuoteToASCII(string(b))}
}
