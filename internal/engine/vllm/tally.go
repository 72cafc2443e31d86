package vllm

import (
	"weir/internal/engine/idstream"
)

// tally is the rule of this wire: how the ids of an event and the engine's own cumulative
// count must agree. An event holds the new ids, as many as the count has grown by, the id
// that ends an answer among them. The count of the last event, which has no choice, is
// that of all.
type tally struct {
	have  int // ids received
	limit int // that were asked for at most
}

// take reads the new ids of an event.
func (t *tally) take(s *idstream.Scanner, e *event) ([]uint32, error) {
	switch {
	case e.choices != 1 || e.index != 0:
		return nil, t.wrong("choice", e)
	case !e.given:
		return nil, t.wrong("no_ids", e)
	case e.completion < 0:
		return nil, t.wrong("no_count", e)
	case e.completion < t.have:
		return nil, t.wrong("count_backwards", e)
	case e.completion != t.have+e.n:
		return nil, t.wrong("total_mismatch", e)
	case e.completion > t.limit:
		return nil, t.wrong("limit", e)
	}
	ids, err := s.Tail(e.array, e.n)
	if err != nil {
		return nil, err
	}
	if e.stopped && e.finish == "stop" && len(ids) > 0 && ids[len(ids)-1] != e.stopID {
		return nil, t.wrong("stop_id", e)
	}
	t.have += len(ids)
	return ids, nil
}

func (t *tally) wrong(reason string, e *event) error {
	return &idstream.Mismatch{Reason: reason, Have: t.have, IDs: e.n, Completion: e.completion, Finish: e.finish}
}
