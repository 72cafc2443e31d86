package sim

import (
	"fmt"
	"slices"
)

// pages checks the books of the KV caches against the requests that hold pages.
func (w *witness) pages() {
	t, c := w.t, w.core
	var context, queued int64
	holders := make([]map[pageID]int32, len(c.ranks))
	for i := range holders {
		holders[i] = map[pageID]int32{}
	}
	for ref := range w.live {
		r, d := &c.requests[ref], &c.details[ref]
		for _, p := range d.table {
			holders[r.rank][p]++
		}
		for i, key := range d.keys[:d.keyed] {
			k := c.ranks[r.rank].kv
			if p, ok := k.byKey[key]; !ok || p != d.table[i] {
				t.Fatalf("page %d of request %d is not in the tree", i, ref)
			}
			if i > 0 {
				w.parent[key] = d.keys[i-1]
			}
		}
		switch {
		case r.phase == phaseWaiting:
			queued += int64(r.length())
			if len(d.table) > 0 {
				t.Fatalf("request %d waits and holds %v", ref, d.table)
			}
		case r.phase == phaseAwait:
			if len(d.table) > 0 {
				t.Fatalf("request %d awaits its partner and holds %v", ref, d.table)
			}
		case r.phase == phaseKept:
			if w.opts.KVTokens > 0 && len(d.table)*w.opts.PageSize < r.length()-1 {
				t.Fatalf("of request %d of %d tokens %d pages are kept", ref, r.length(), len(d.table))
			}
		case w.opts.KVTokens > 0 && len(d.table)*w.opts.PageSize < r.length():
			t.Fatalf("request %d of %d tokens holds %d pages", ref, r.length(), len(d.table))
		case w.opts.KVTokens > 0 && r.phase == phaseDecode && !r.held && len(d.table)*w.opts.PageSize < r.length()+w.opts.drafts():
			t.Fatalf("request %d of %d tokens decodes in %d pages", ref, r.length(), len(d.table))
		}
		if r.phase == phaseDecode && !r.held {
			context += int64(r.length())
		}
	}
	for i := range c.ranks {
		for _, o := range c.ranks[i].owed {
			for _, p := range o.table {
				holders[i][p]++
			}
		}
	}
	for i := range c.ranks {
		k := &c.ranks[i]
		if want := (Batch{Decode: len(k.decode) - k.stalled, Context: k.context}); k.batch.Decode != want.Decode || k.batch.Context != want.Context {
			t.Fatalf("rank %d: batch %+v, want %+v", i, k.batch, want)
		}
		context -= c.ranks[i].context
		queued -= c.ranks[i].queued
		if err := w.books(c.ranks[i].kv, holders[i]); err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
		if err := w.listen(i); err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	if context != 0 || queued != 0 {
		t.Fatalf("the books of running and waiting tokens are wrong by %d and %d", context, queued)
	}
}

func (w *witness) books(k *kv, holders map[pageID]int32) error {
	if k == nil {
		return nil
	}
	state := map[pageID]string{}
	for p := range k.pages {
		g, id := &k.pages[p], pageID(p)
		if g.held != holders[id] {
			return fmt.Errorf("page %d is held %d times, by %d requests", p, g.held, holders[id])
		}
		if found, ok := k.byKey[g.key]; g.keyed && (!ok || found != id) {
			return fmt.Errorf("page %d is not found by its key", p)
		}
		if parent, ok := w.parent[g.key]; ok && g.keyed {
			if up, ok := k.byKey[parent]; !ok || k.pages[up].held < 1 && g.held > 0 {
				return fmt.Errorf("page %d is kept without its parent", p)
			}
		}
		if g.held > 0 {
			state[id] = "held"
		}
	}
	idle := 0
	for p := k.oldest; p != noPage; p = k.pages[p].next {
		if idle++; state[p] != "" || !k.pages[p].keyed {
			return fmt.Errorf("page %d is idle and %s, in the tree: %v", p, state[p], k.pages[p].keyed)
		}
		state[p] = "idle"
	}
	for _, p := range k.free {
		if state[p] != "" || k.pages[p].keyed {
			return fmt.Errorf("page %d is free and %s", p, state[p])
		}
		state[p] = "free"
	}
	if len(state) != len(k.pages) || idle != k.idle || len(k.pages) > k.total {
		return fmt.Errorf("of %d pages %d are in some state, %d idle, booked %d", len(k.pages), len(state), idle, k.idle)
	}
	return nil
}

// listen takes a rank's events: by them alone its cache is known, and what is in it.
func (w *witness) listen(rank int) error {
	heard := w.heard[rank]
	if heard == nil {
		heard = map[uint64][]uint32{}
		w.heard[rank] = heard
	}
	for _, e := range w.core.KVEvents(rank, nil) {
		switch e.Kind {
		case KVCleared:
			clear(heard)
		case KVRemoved:
			if _, ok := heard[e.Page]; !ok {
				return fmt.Errorf("page %x is removed and was not there", e.Page)
			}
			delete(heard, e.Page)
		case KVStored:
			before, ok := heard[e.Parent]
			if ok != e.Chained || len(e.Tokens) != w.opts.PageSize {
				return fmt.Errorf("page %x of %d tokens is stored behind %x, which is there: %v", e.Page, len(e.Tokens), e.Parent, ok)
			}
			prompt := slices.Concat(before, e.Tokens)
			s := w.opts.Words.Start(prompt, 0)
			if _, ok := heard[e.Page]; ok || keyOf(&s, saltOf(e.LoRA, e.Salt)) != e.Page {
				return fmt.Errorf("page %x is stored, and was there: %v; its tokens are %v of %q", e.Page, ok, prompt, e.LoRA)
			}
			heard[e.Page] = prompt
		}
	}
	if k := w.core.ranks[rank].kv; k != nil && w.opts.KVEvents {
		for key := range k.byKey {
			if _, ok := heard[key]; !ok || len(heard) != len(k.byKey) {
				return fmt.Errorf("page %x is in the tree, and is heard of: %v; %d pages are, %d by the events", key, ok, len(k.byKey), len(heard))
			}
		}
		if len(k.byKey) == 0 && len(heard) > 0 {
			return fmt.Errorf("%d pages are heard of, none is there", len(heard))
		}
	}
	return nil
}
