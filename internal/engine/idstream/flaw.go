package idstream

import (
	"bytes"
	"errors"
	"fmt"

	"weir/internal/infer"
)

// Mismatch is an event whose ids and counts do not agree.
type Mismatch struct {
	Reason     string `json:"-"`
	Form       string `json:"form,omitempty"` // of the wire's chunks, where it has several
	Have       int    `json:"received"`
	IDs        int    `json:"ids"`
	Completion int    `json:"completion_tokens"`
	Logprobs   int    `json:"logprobs,omitzero"`
	Finish     string `json:"finish_reason,omitempty"`
}

// Error implements error.
func (m *Mismatch) Error() string {
	form := ""
	if m.Form != "" {
		form = " (" + m.Form + ")"
	}
	return fmt.Sprintf("%s: %d ids in a chunk%s that counts %d after %d were received", m.Reason, m.IDs, form, m.Completion, m.Have)
}

// flaw is an event that cannot be what an engine means to say, as evidence.
type flaw struct {
	error
	reason string
	found  []byte // the event's end
	length int    // of all of it
}

// Unwrap returns what was wrong.
func (f *flaw) Unwrap() error { return f.error }

// FaultReason implements infer.Fault.
func (f *flaw) FaultReason() string { return f.reason }

// Evidence returns what was kept, for JSON.
func (f *flaw) Evidence() any {
	e := struct {
		Counts *Mismatch     `json:"counts,omitempty"`
		Found  infer.Excerpt `json:"found"`
		Length int           `json:"found_bytes"` // of which found shows the last
	}{Found: infer.NewExcerpt(f.found), Length: f.length}
	errors.As(f.error, &e.Counts)
	return e
}

var _ infer.Fault = (*flaw)(nil)

const foundBytes = 1 << 10

// Flawed ends the generation because what the engine sends does not add up, and
// stops the engine. A Mismatch has its own reason.
func (g *Generation) Flawed(reason string, err error, data []byte, now int64) {
	var counts *Mismatch
	if errors.As(err, &counts) {
		reason = counts.Reason
	}
	g.Wire.Stop()
	found := bytes.Clone(data[max(0, len(data)-foundBytes):])
	g.Fail(&infer.Error{Code: infer.CodeIntegrity, Engine: g.host.Name, Retryable: true, Cause: &flaw{err, reason, found, len(data)},
		Message: "what the engine sent does not add up; send the request again"}, now)
	g.ctx.End(nil)
}
