package sglang

import (
	"bytes"

	"weir/internal/engine/idstream"
)

// form is the content of a server's chunks.
type form uint8

const (
	unknownForm form = iota // not reported: the counts will show it
	cumulative              // all ids so far
	incremental             // the new ones
)

// String returns the form's name.
func (f form) String() string { return [...]string{"unknown", "cumulative", "incremental"}[f] }

// tally is the rule of this wire: how the ids of an event and the engine's own
// cumulative count must agree.
//
//   - A cumulative chunk has as many ids as the engine counts, an incremental one
//     as many as it counts beyond those received.
//   - The id of a stop that was matched is counted and not sent, at the end. It
//     has been sent if the last id is that one, as requests may ask for.
//   - A chunk that says "abort" may repeat the last id, in either form: of its
//     ids only those are new that the count allows.
//   - The count never goes back. It may jump: chunks that wait in the engine
//     merge there.
type tally struct {
	form form
	have int    // ids received
	last uint32 // of them, when there are any
}

// take returns how many ids at the end of an event's array are new, and how many the
// engine counts and does not send.
func (t *tally) take(s *scanner, e *event) (fresh, unsent int, err error) {
	grown := e.completion - t.have
	switch {
	case e.completion < 0:
		return 0, 0, t.wrong("no_count", e)
	case e.finish == "abort":
		// In one form or the other it holds what is new, or repeats what is not.
		if grown > 0 && (e.n == grown && t.form != cumulative || e.n == e.completion && t.form != incremental) {
			return grown, 0, nil
		}
		return 0, 0, nil
	case grown < 0:
		return 0, 0, t.wrong("count_backwards", e)
	}
	if unsent = e.matched; unsent > 0 && e.n > 0 {
		last, err := s.Tail(e.array, 1)
		if err != nil {
			return 0, 0, err
		}
		if last[0] == e.stopID {
			unsent = 0
		}
	}
	if fresh = grown - unsent; fresh < 0 || !t.fits(e.n, fresh) {
		return 0, 0, t.wrong("total_mismatch", e)
	}
	return fresh, unsent, nil
}

// fits reports whether n ids are a chunk that brings fresh ones, and learns the form of
// a server that did not say: from the second chunk on the two differ.
func (t *tally) fits(n, fresh int) bool {
	isDelta, isAll := n == fresh, n == t.have+fresh
	if t.form == unknownForm && t.have > 0 && fresh > 0 {
		switch {
		case isDelta:
			t.form = incremental
		case isAll:
			t.form = cumulative
		}
	}
	switch t.form {
	case cumulative:
		return isAll
	case incremental:
		return isDelta
	}
	return isDelta || isAll
}

func (t *tally) wrong(reason string, e *event) error {
	return &idstream.Mismatch{Reason: reason, Form: t.form.String(), Have: t.have, IDs: e.n, Completion: e.completion, Finish: e.finish,
		Logprobs: bytes.Count(e.own, openBracket)}
}

// read takes the new ids of an event. In a cumulative chunk the one before them
// must be the last one received.
func (t *tally) read(s *scanner, e *event, fresh int) ([]uint32, error) {
	n := fresh
	overlaps := e.n > fresh && t.have > 0 && e.n == t.have+fresh
	if overlaps {
		n++
	}
	ids, err := s.Tail(e.array, n)
	if err != nil {
		return nil, err
	}
	if overlaps {
		if ids[0] != t.last {
			return nil, t.wrong("changed_ids", e)
		}
		ids = ids[1:]
	}
	if t.have += fresh; fresh > 0 {
		t.last = ids[fresh-1]
	}
	return ids, nil
}
