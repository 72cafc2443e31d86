package infer

import (
	"strconv"
	"unicode/utf8"
)

// Fault is in the chain of every error that says that an engine's output does
// not add up. A Fault may also have a method Evidence() any, which gives what was
// kept of the output, fit for JSON and bounded in size; and Shared() bool, which
// says that it is one failure however many requests end by it.
type Fault interface {
	error
	// FaultReason is one of a small fixed set of words, fit for a metric's label.
	FaultReason() string
}

// Flaw is a Fault that is nothing but its reason; the error around it says the
// rest.
type Flaw string

// Error implements error.
func (f Flaw) Error() string { return string(f) }

// FaultReason implements Fault.
func (f Flaw) FaultReason() string { return string(f) }

// Excerpt shows bytes of evidence as they are: as text, or quoted as in Go where
// they are not UTF-8.
type Excerpt struct {
	Text   string `json:"text,omitzero"`
	Quoted string `json:"quoted,omitzero"`
}

// NewExcerpt makes an excerpt of all of b.
func NewExcerpt(b []byte) Excerpt {
	if utf8.Valid(b) {
		return Excerpt{Text: string(b)}
	}
	return Excerpt{Quoted: strconv.QuoteToASCII(string(b))}
}
