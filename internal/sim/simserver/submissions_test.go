package simserver

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine/plane/planepb"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
)

// Requests that come many in a message are answered among the notices: each once, by its first
// ids or its end at the latest, and a refusal frees the slot.
func TestSubmissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		g := b.dial(7, 0)
		calls, err := g.client.Submissions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		batch := &planepb.SubmitBatch{}
		for slot := range uint32(30) {
			req := &planepb.SubmitRequest{Session: g.id, Slot: slot, RequestId: fmt.Sprintf("r%d", slot), Prompt: []uint32{1, 2, slot}, MaxTokens: 3, IgnoreEos: true}
			if slot%3 == 2 {
				req.Prompt = nil // which cannot run
			}
			batch.Submit = append(batch.Submit, req)
		}
		if err := calls.Send(batch); err != nil {
			t.Fatal(err)
		}
		accepted, refused, finished := map[uint32]bool{}, map[uint32]bool{}, 0
		for finished < 20 || len(refused) < 10 {
			s, err := g.steps.Recv()
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range s.Notice {
				switch {
				case n.Accepted != nil:
					if accepted[n.Slot] || n.Accepted.ServerCreated == 0 {
						t.Errorf("answer %v of slot %d", n, n.Slot)
					}
					accepted[n.Slot] = true
				case n.Refused != nil:
					if refused[n.Slot] || codes.Code(n.Refused.Code) != codes.InvalidArgument || n.Refused.Message == "" {
						t.Errorf("refusal %v", n)
					}
					refused[n.Slot] = true
				case n.Finish != nil:
					finished++
				}
			}
			for _, slot := range s.Slot { // which are read after the notices
				if !accepted[slot] {
					t.Errorf("ids of slot %d before its answer", slot)
				}
			}
		}
		if len(accepted) != 20 {
			t.Errorf("%d accepted", len(accepted))
		}
		if s := b.e.sessions.get(g.id); s.owed != 0 || len(s.slots) != 0 {
			t.Errorf("%d answers owed, %d slots in use", s.owed, len(s.slots))
		}
		// A session that does not exist has no steps to answer with.
		batch.Submit[0].Session = 8
		if err := calls.Send(batch); err != nil {
			t.Fatal(err)
		}
		if err := calls.RecvMsg(new(planepb.SubmissionsReply)); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("error %v", err)
		}
	})
}

// The ids or the end of a request bring its answer with them if that has not gone.
func TestOutputBringsTheAnswer(t *testing.T) {
	var all sessions
	all.byID = map[uint64]*session{}
	s, err := all.open(&Engine{run: new(engine.Engine)}, 7, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	var jobs []*slotJob
	for slot := range uint32(3) {
		j, err := s.reserve(slot, "r", 0, -1, sim.Fault{}, false, way{created: 5, batched: slot < 2})
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, j)
	}
	s.taken = engine.Batch{Steps: 1}
	s.taken.Add(jobs[0].Slot, 9, 1)
	s.taken.Add(jobs[2].Slot, 9, 1)
	s.taken.Done = []engine.Done{{Slot: jobs[1].Slot}}
	s.encode()
	var answered []uint32
	for _, n := range s.step.Notice {
		if n.GetAccepted().GetServerCreated() == 5 {
			answered = append(answered, n.Slot)
		}
	}
	if !slices.Equal(answered, []uint32{0, 1}) || s.owed != 0 {
		t.Errorf("answers of %v, %d owed", answered, s.owed)
	}
	s.answer(jobs[0])
	if len(s.answers) > 0 {
		t.Error("answered twice")
	}
}
