package sim

// KVEventKind names a change of pages in a KV cache.
type KVEventKind uint8

// The kinds.
const (
	KVStored  KVEventKind = iota // a page is full and computed: prompts that begin with its tokens find it
	KVRemoved                    // a page was evicted
	KVCleared                    // there are none left
)

// KVEvent is a change in the part of a rank's KV cache that later prompts can reuse.
type KVEvent struct {
	Kind KVEventKind
	// Page names the page: by all tokens up to its end, the adapter and the cache salt.
	Page uint64
	// Parent names the page before it, if Chained, in the prompts that it is of.
	Parent  uint64
	Chained bool
	// Tokens are a stored page's own. They must not be changed.
	Tokens []uint32
	LoRA   string // a stored page's adapter; empty: none
	Salt   string // and its request's cache salt
}

// KVEvents appends what has changed of a rank's KV cache since it was called last, in
// order. Nothing has unless Options.KVEvents is set.
func (c *Core) KVEvents(rank int, events []KVEvent) []KVEvent {
	k := c.ranks[rank].kv
	if k == nil {
		return events
	}
	events = append(events, k.events...)
	clear(k.events)
	k.events = k.events[:0]
	return events
}

// note records an event if events are wanted.
func (k *kv) note(e KVEvent) {
	if k.notes {
		k.events = append(k.events, e)
	}
}

// stored notes that the i-th page of a request is in the tree now.
func (k *kv) stored(d *details, i int) {
	if !k.notes {
		return
	}
	e := KVEvent{Kind: KVStored, Page: d.keys[i], Tokens: d.ids[i*k.pageSize : (i+1)*k.pageSize], LoRA: d.lora, Salt: d.cacheSalt}
	if i > 0 {
		e.Parent, e.Chained = d.keys[i-1], true
	}
	k.events = append(k.events, e)
}
