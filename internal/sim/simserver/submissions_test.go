package simserver

import (
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine/plane/planepb"
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
		if slots, owed := b.e.plane.Held(g.id); owed != 0 || slots != 0 {
			t.Errorf("%d answers owed, %d slots in use", owed, slots)
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
