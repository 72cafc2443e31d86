package gateway

import (
	"net/http"
	"testing"
	"testing/synctest"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/gateway/place"
	"weir/internal/infer"
)

// A request that takes two engines waits for whichever has no room, in its place, and leaves
// when that one has: the prefill engine when the KV was fetched, the decode engine when an
// answer ends. Explain says the same beforehand.
func TestPairWaits(t *testing.T) {
	for name, full := range map[string]infer.Role{"prefill": infer.RolePrefill, "decode": infer.RoleDecode} {
		t.Run(name, func(t *testing.T) {
			p, d := couple(engine.ByRoom)
			if p.most = 1; full == infer.RoleDecode {
				p.most, d.most = 0, 1
			}
			inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
				for _, m := range b.snapshot.Load().Models {
					m.Policy, m.Prefill = new(balance.Cost), new(balance.Cost) // which may choose what is full
				}
				first, second := b.post(chatPath, askStream(``)), b.post(chatPath, askStream(``))
				prefill, decode := p.call(t, 1), d.call(t, 1)
				synctest.Wait()
				if p.count() != 1 || d.count() != 1 {
					t.Fatalf("%d and %d halves were handed over, with room for one", p.count(), d.count())
				}
				r, wait, err := b.g.Explain(t.Context(), chatPath, http.Header{"Content-Type": {"application/json"}}, []byte(askStream(``)))
				if err != nil || wait == nil || *wait != (place.Waiting{Waits: true, Behind: 1}) {
					t.Fatalf("%+v, %v", wait, err)
				}
				if a := r.Attempts[0]; a.Prefill == nil || a.Prefill.Best[0].Engine != "p" || a.Choice.Best[0].Engine != "d" || !a.Choice.Best[0].Half {
					t.Errorf("the choice is %+v", a)
				}
				prefill.prefilled()
				if p.count() != 1 || d.count() != 1 {
					t.Fatal("one left whose engine still keeps KV, or decodes")
				}
				decode.send(words()[0])
				synctest.Wait()
				if full == infer.RolePrefill && p.count() != 2 {
					t.Error("the KV was fetched, and nobody took its place")
				}
				decode.end(infer.ReasonStop, words()[1])
				first.wantWhole(text(words()[:2]...), "stop")
				prefill, decode = p.call(t, 2), d.call(t, 2)
				prefill.prefilled()
				decode.end(infer.ReasonStop, words()[0])
				second.wantWhole(text(words()[0]), "stop")
				b.wantRecord(second, "finished", "")
			})
		})
	}
}
