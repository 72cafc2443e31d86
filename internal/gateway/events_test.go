package gateway

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/models"
)

// A prompt that was believed to be at an engine, and is not by its events, is computed
// there again: while it is, others that begin alike find it on its way.
func TestPromptThatWasEvictedIsOnItsWayAgain(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		snap := b.snapshot.Load()
		m := snap.Models[models.SimName]
		books := m.Targets[0].Books
		ids := make([]uint32, 4*route.BlockTokens+1)
		for i := range ids {
			ids[i] = uint32(10 + i)
		}
		prompt := route.Prompt{Blocks: kvindex.AppendChain(nil, route.Root(m.Name, "", ""), ids, route.BlockTokens), Length: len(ids), ByIDs: true}
		match := func() kvindex.Match {
			var c route.Choice
			m.Match(snap.Index, &c, &prompt, trace.Now())
			return c.Request.Matches.Of(books.Cache.ID)
		}
		books.Place(prompt.Blocks, 0)
		if got := match(); got.Resident != 4 {
			t.Fatalf("%+v before anything is known", got)
		}
		events := route.NewEvents(m.Name, route.BlockTokens, false, kvevents.NewBudget(math.MaxInt64))
		events.Rank.Live(trace.Now(), 0, []byte("\x92\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x91\x81\xa4type\xb0AllBlocksCleared"))
		books.Follow(events)
		if got := match(); got.Resident != 0 || got.Soon != 0 || events.Rank.Knowledge() != kvevents.Known {
			t.Fatalf("%+v after all was cleared, %v", got, events.Rank.Knowledge())
		}
		text, err := json.Marshal(ids)
		if err != nil {
			t.Fatal(err)
		}
		n := e.count()
		c := b.post("/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":%s,"max_tokens":1,"stream":true}`, text))
		call := e.call(t, n+1)
		if got := match(); got.Resident != 0 || got.Soon != 4 {
			t.Errorf("%+v while it is computed", got)
		}
		call.offer(words()[:1], ending(infer.ReasonLength))
		b.wantRecord(c, "finished", "")
		books.Follow(nil)
	})
}
