//go:build linux

package loadengine

import (
	"context"
	"runtime"
	"sync"

	"weir/internal/engine/plane/planepb"
	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/lab/cell"
)

// coreEngine sends over vLLM's wire what planeEngine sends over the plane: a step is a
// message, and a slot is a stream's number.
type coreEngine struct {
	planeEngine

	calls struct {
		sync.Mutex
		waiting []int64
		probes  []string // ids of requests by which the gateway looks whether the engine is alive
	}
	ids     []string // of requests, by stream
	message coretest.Batch
}

// RunCore serves until it is killed: it dials in to the gateway.
func RunCore(c *cell.Cell) error {
	b, err := c.OpenBoard()
	if err != nil {
		return err
	}
	defer b.Close()
	w, err := cell.LoadWords()
	if err != nil {
		return err
	}
	e := &coreEngine{
		planeEngine: planeEngine{cell: c, board: b, words: w, sched: cell.NewSchedule(c.Load, c.Times), streams: make([]planeStream, c.Capacity())},
		ids:         make([]string, c.Capacity()),
	}
	runtime.LockOSThread()
	core, err := coretest.Start(context.Background(), coretest.Options{
		Handshake: "tcp://" + c.Engine, ContextLength: 1 << 20, MaxRunning: c.Capacity(), Receive: func(_ *coretest.Core, m coretest.Message) { e.receive(m) },
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-core.Done()
		cancel()
	}()
	return e.run(ctx, func(s *planepb.Step) error { return core.Send(e.batch(s)) }, func() error { return e.answer(core) })
}

// receive handles a message. The seed identifies a request's stream.
func (e *coreEngine) receive(m coretest.Message) {
	switch m.Type {
	case 0:
		if m.Add.Sampling["seed"] == nil {
			e.calls.Lock()
			e.calls.probes = append(e.calls.probes, m.Add.ID)
			e.calls.Unlock()
			return
		}
		n := coretest.Number(m.Add.Sampling["seed"])
		e.mu.Lock()
		e.ids[n] = m.Add.ID
		e.mu.Unlock()
		if _, err := e.Submit(context.Background(), &planepb.SubmitRequest{RequestId: m.Add.ID, Slot: uint32(n), Seed: &n, MaxTokens: uint32(coretest.Number(m.Add.Sampling["max_tokens"]))}); err != nil {
			panic(err)
		}
	case 1:
		gone := map[string]bool{}
		for _, id := range m.Abort {
			gone[id] = true
		}
		e.mu.Lock()
		for i := range e.streams {
			if s := &e.streams[i]; s.live && gone[s.id] {
				s.live = false
				e.running--
			}
		}
		e.mu.Unlock()
	case 3:
		e.calls.Lock()
		e.calls.waiting = append(e.calls.waiting, m.Call)
		e.calls.Unlock()
	}
}

// answer answers the calls and probes that have come.
func (e *coreEngine) answer(core *coretest.Core) error {
	e.calls.Lock()
	calls, probes := e.calls.waiting, e.calls.probes
	e.calls.waiting, e.calls.probes = nil, nil
	e.calls.Unlock()
	for _, id := range probes {
		if err := core.Send(coretest.Batch{Outputs: []coretest.Output{{ID: id, IDs: []uint32{0}, Finish: finishLength}}}); err != nil {
			return err
		}
	}
	for _, call := range calls {
		if err := core.Send(coretest.Batch{Call: call}); err != nil {
			return err
		}
	}
	return nil
}

// batch converts a step to the other wire's form.
func (e *coreEngine) batch(s *planepb.Step) coretest.Batch {
	m := &e.message
	e.mu.Lock()
	defer e.mu.Unlock()
	if cap(m.Outputs) < len(s.Slot)+len(s.Notice) {
		m.Outputs = make([]coretest.Output, 0, 2*(len(s.Slot)+len(s.Notice)))
	}
	m.Outputs = m.Outputs[:0]
	at := make(map[uint32]int, len(s.Notice))
	for _, n := range s.Notice {
		if n.Finish != nil {
			at[n.Slot] = -1
		}
	}
	for i, slot := range s.Slot {
		if len(at) > 0 {
			if _, ends := at[slot]; ends {
				at[slot] = len(m.Outputs)
			}
		}
		m.Outputs = append(m.Outputs, coretest.Output{ID: e.ids[slot], IDs: s.Id[i : i+1 : i+1], Finish: -1})
	}
	for slot, i := range at {
		if i < 0 {
			i = len(m.Outputs)
			m.Outputs = append(m.Outputs, coretest.Output{ID: e.ids[slot]})
		}
		m.Outputs[i].Finish = finishLength
	}
	m.Stats = &coretest.Stats{Running: int(s.Running)}
	return *m
}

// finishLength is the wire's word for an end by the limit.
const finishLength = 1
