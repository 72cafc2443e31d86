package answer

import (
	"bytes"
	"errors"

	"weir/internal/infer"
)

// Reasons why a relayed answer does not add up, beside those of its events
// (openai.Inspector) and of its HTTP (http1.Error).
const (
	flawEnd    infer.Flaw = "incomplete" // it ended inside an event, or without its end marker
	flawCoding infer.Flaw = "coding"     // it is compressed
	flawLength infer.Flaw = "length"     // it is not as long as it declared
	// It ended with its connection, as that of an engine that died would, and is
	// neither a closed document nor a stream with its end marker.
	flawUnframed infer.Flaw = "unframed"
)

// relayFault is a fault found in a relayed answer, with the bytes at hand when it
// was. Nothing is kept for its sake while all is well: what has been forwarded
// before the last read is gone.
type relayFault struct {
	infer.Fault
	read          int64  // bytes of the body so far
	before, found []byte // copies of at most evidenceBytes
	length        int    // of what was found, before it was cut
}

// evidenceBytes bounds each half of the evidence of a relay.
const evidenceBytes = 1 << 10

// kept adds evidence to an integrity error: the wrong bytes, which are in buf from at
// on, and the bytes before them. Other errors are returned unchanged.
func (r *Relayed) kept(e *infer.Error, buf []byte, at int) *infer.Error {
	var fault infer.Fault
	if !errors.As(e, &fault) {
		return e
	}
	before, found := buf[:at], buf[at:]
	if wire, ok := fault.(interface{ Found() []byte }); ok {
		before, found = buf, wire.Found()
	}
	f := &relayFault{Fault: fault, read: r.read, length: len(found)}
	f.before = bytes.Clone(before[max(0, len(before)-evidenceBytes):])
	f.found = bytes.Clone(found[:min(len(found), evidenceBytes)])
	with := *e // it may be others' too
	with.Cause = f
	return &with
}

// Unwrap returns what is wrong.
func (f *relayFault) Unwrap() error { return f.Fault }

// Evidence returns what was kept, for JSON.
func (f *relayFault) Evidence() any {
	return struct {
		Read   int64         `json:"bytes_read"`
		Before infer.Excerpt `json:"before"`
		Found  infer.Excerpt `json:"found"`
		Length int           `json:"found_bytes"` // of which found shows the first
	}{f.read, infer.NewExcerpt(f.before), infer.NewExcerpt(f.found), f.length}
}
