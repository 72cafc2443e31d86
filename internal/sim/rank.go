package sim

// rank is one data-parallel rank: its queue, its running batch and its KV
// cache.
type rank struct {
	waiting  queue
	await    []Ref // legs that are not queued before their partner is met
	transfer []Ref // admitted, the KV of the prompt is awaited or under way
	prefill  []Ref // admitted, prompt not complete, in the order of admission
	decode   []Ref // generating, in the order in which they began
	kept     []Ref // prefill legs that have their ids, and whose KV is kept
	owed     []owed
	stalled  int   // of decode, those held by a stall
	context  int64 // tokens that the requests of decode have, without those held
	queued   int64 // tokens that the requests of waiting have

	displaced int // of waiting, those that a higher priority ended

	kv    *kv     // nil when unlimited
	short []Ref   // of decode, those that need pages before the next step
	ahead int     // ids that those may generate that ran before the step under composition
	fresh int     // ids that those may generate that this step admits
	share float64 // of what running requests may still generate, kept free by admission
	link  int64   // when the transfers given to the link so far are over it
	soon  int64   // no patience and no lease ends before

	batch Batch // of the step under way
	still bool  // it has no part in the step under way, by a Hindrance
}

// running is the number of requests that were admitted.
func (k *rank) running() int { return len(k.transfer) + len(k.prefill) + len(k.decode) }

// place returns the rank that a request goes to: the one that it asks for, or the one with
// the fewest requests.
func (c *Core) place(asked int) int {
	if asked >= 0 {
		return asked
	}
	best, least := 0, 0
	for i := range c.ranks {
		n := c.ranks[i].running() + c.ranks[i].waiting.len() + len(c.ranks[i].await)
		if i == 0 || n < least {
			best, least = i, n
		}
	}
	return best
}

// Load is the current load of a rank.
type Load struct {
	Awaiting     int // legs that are not queued, as their partner is not met
	Running      int // requests in the running batch
	Transferring int // requests whose KV is awaited or under way
	Kept         int // prefill legs whose KV is kept
	Waiting      int // requests in the queue
	QueuedTokens int // prompt tokens of the requests in the queue, and their ids if they were retracted

	// Tokens of the KV cache, in whole pages: all, those in use, the part of those in use
	// that is kept until it is Written, and those kept for later prompts. Without a limit
	// KVTotal is 0, KVUsed counts the tokens of the generating requests, and the others are
	// 0.
	KVTotal, KVUsed, KVOwed, KVIdle int
}

// Loads appends the load of each rank.
func (c *Core) Loads(loads []Load) []Load {
	for i := range c.ranks {
		k := &c.ranks[i]
		l := Load{
			Awaiting: len(k.await), Running: len(k.prefill) + len(k.decode), Transferring: len(k.transfer), Kept: len(k.kept),
			Waiting: k.waiting.len(), QueuedTokens: int(k.queued), KVUsed: int(k.context),
		}
		if k.kv != nil {
			size := k.kv.pageSize
			l.KVTotal, l.KVUsed, l.KVIdle = k.kv.total*size, k.kv.inUse()*size, k.kv.idle*size
			for i := range k.owed {
				l.KVOwed += len(k.owed[i].table) * size
			}
		}
		loads = append(loads, l)
	}
	return loads
}

// FlushCache forgets all prompts. It is false, and nothing happens, while there
// are requests.
func (c *Core) FlushCache() bool {
	for i := range c.ranks {
		if k := &c.ranks[i]; k.running()+k.waiting.len()+len(k.await)+len(k.kept) > 0 {
			return false
		}
	}
	for i := range c.ranks {
		if k := c.ranks[i].kv; k != nil {
			k.flush()
			k.events = k.events[:0]
			k.note(KVEvent{Kind: KVCleared})
		}
	}
	return true
}
