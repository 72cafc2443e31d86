package gateway

import (
	"testing"

	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
)

// One tenant's request does not wait behind many of another one's: it is the next that the
// engine is given, and its record says whose turn it was and what waited. A request that the
// queue has no place for is refused by its own tenant's rate, or has another one's put out.
func TestTenantsTakeTurns(t *testing.T) {
	e := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}, Place: PlaceOptions{Queue: place.Queueing{Requests: 5}}}, []any{e}, func(t *testing.T, b *bench) {
		var greedy []*caller
		for range 6 {
			greedy = append(greedy, b.post(chatPath, askStream(``), "Test-Caller", "greedy"))
		}
		e.call(t, 1)
		full := b.post(chatPath, askStream(``), "Test-Caller", "greedy")
		if a := full.answer(); a.status != 429 || a.header.Get("X-Refusal-Reason") != "queue_full" {
			t.Errorf("the greedy one's seventh: status %d, %s", a.status, a.body)
		}
		small := b.post(chatPath, askStream(``), "Test-Caller", "small")
		if a := greedy[5].answer(); a.status != 429 || a.header.Get("X-Refusal-Reason") != "queue_full" {
			t.Errorf("the greedy one's sixth, for which the small one came: status %d, %s", a.status, a.body)
		}
		serve(t, e, 1)
		serve(t, e, 2)
		small.wantWhole(text(words()[0]), "stop")
		r := b.wantRecord(small, "finished", "")
		turn := r.Attempts[0].Turn
		if turn == nil || turn.Tenant != "tenant-small" || turn.Own != 0 || turn.Others != 4 || turn.Tenants != 1 || turn.Charged <= 0 {
			t.Errorf("its turn was %+v", turn)
		}
		for n := range 4 {
			serve(t, e, 3+n)
		}
		if served := b.metric("weir_tenant_served_seconds_total"); len(served) != 2 || served[0].value <= 0 || served[1].value <= 0 {
			t.Errorf("the tenants were served %+v", served)
		}
	})
}
