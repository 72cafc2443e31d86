package vllmcore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
)

// meeting is how an engine says that its halves of requests meet the others. Its word of
// itself does not say it; what it answers to a prefill half does.
type meeting struct {
	id   string // of the half that it was asked for; empty: it was not. Whoever dispatches has it
	said atomic.Pointer[meetsSaid]
	told func() // is called when it has said it
}

// meetsSaid is the engine's answer: the params, or the reason why there are none.
type meetsSaid struct {
	params []byte
	err    error
}

// asked reports whether an output belongs to the half that was sent as a question.
func (m *meeting) asked(id []byte) bool { return m.id != "" && m.id == string(id) }

// take takes in its end.
func (m *meeting) take(params []byte, finish int) {
	switch {
	case finish < 0:
		return
	case finish != finishLength && finish != finishStop:
		m.said.Store(&meetsSaid{err: fmt.Errorf("it ended a prefill half with %q", finishWords[finish])})
	default:
		m.said.Store(&meetsSaid{params: paramsJSON(params)})
	}
	m.told()
}

// askHalves asks the engine, once, as soon as it has shown that it reads what it is asked.
func (s *session) askHalves() {
	if !s.opts.AskHalves || s.meeting.id != "" {
		return
	}
	s.meeting.id = fmt.Sprintf("weir-meets-%016x", rand.Uint64())
	ask := &engine.Meets{Way: engine.ByPull}
	req := &infer.Request{ID: s.meeting.id, Prompt: []uint32{0}, MaxTokens: 1, IgnoreEOS: true,
		Half: &infer.Half{Role: infer.RolePrefill, Params: ask.PrefillParams("")}}
	s.Out.Post(typeAdd, appendAdd(nil, req, nil, nil, s.opts, float64(time.Now().UnixMicro())/1e6))
	s.e.wake()
}

// meets returns the engine's answer. Without one the engine cannot be used for halves.
func (s *session) meets() (engine.Meets, error) {
	said := s.meeting.said.Load()
	switch {
	case said == nil:
		return engine.Meets{}, errors.New("it has not reported yet how its halves of requests meet")
	case said.err != nil:
		return engine.Meets{}, said.err
	}
	rank := s.rank
	if len(s.e.ranks) == 1 && s.rank == 0 {
		rank = -1
	}
	return engine.ReadMeets(said.params, rank)
}
