package kvindex

// Match is the part of a prompt that one cache has, in blocks from the prompt's
// beginning.
type Match struct {
	// Resident is the number of blocks that are there now.
	Resident int32
	// Soon is the number of blocks that are there or that running requests will have
	// computed by Ready, on the clock of the placements.
	Soon  int32
	Ready int64
	// Placed is the time for which the latest of the resident blocks were announced, 0
	// if unknown.
	Placed int64
	// Stale is set if the cache was found to hold less than was placed: the blocks beyond
	// Resident must be forgotten (Truncate). Match never sets it.
	Stale bool
}

// Matches are the matches of all caches, by Cache.ID. A cache beyond the end has
// nothing.
type Matches []Match

// Of returns the match of the cache with the ID.
func (m Matches) Of(id uint32) Match {
	if int(id) >= len(m) {
		return Match{}
	}
	return m[id]
}

// Match returns what each cache has of the chain at time now. It writes into m and
// grows it to the number of caches. It allocates nothing else.
func (x *Index) Match(m Matches, blocks []Block, now int64) Matches {
	m = m[:cap(m)]
	clear(m)
	at := int32(0)
	for int(at) < len(blocks) {
		s, ok := x.segments.Load(blocks[at])
		if !ok {
			break
		}
		common := int32(s.common(blocks[at:]))
		all := s.holders.Load().list()
		for i := range all {
			h := &all[i]
			if int(h.cache) >= len(m) {
				m = append(m, make(Matches, int(h.cache)+1-len(m))...)
				m = m[:cap(m)]
			}
			// Blocks without an unbroken path from the root are useless to the prompt. The rest
			// runs for each of a thousand caches, so it calls no function.
			e := &m[h.cache]
			if e.Soon != at {
				continue
			}
			held, ready := min(h.blocks.Load(), common), h.ready.Load()
			e.Soon = at + held
			if sure := h.sure.Load(); ready > now && sure < held {
				if e.Resident == at {
					e.Resident = at + sure
				}
				e.Ready = max(e.Ready, ready)
				continue
			}
			if e.Resident == at {
				e.Resident = at + held
			}
			e.Placed = max(e.Placed, ready)
		}
		at += common
	}
	return m
}
