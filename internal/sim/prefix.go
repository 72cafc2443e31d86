package sim

import (
	"hash/fnv"
	"math"

	"weir/internal/workload/content"
)

// never is a length that no request reaches.
const never = math.MaxInt32

// saltOf returns a value that is mixed into the keys of pages, because the same tokens have
// different KV under another adapter, and must not be found under another cache salt.
func saltOf(lora, cacheSalt string) uint64 {
	if lora == "" && cacheSalt == "" {
		return 0
	}
	h := fnv.New64a()
	h.Write([]byte(lora))
	if cacheSalt != "" {
		h.Write([]byte("\x00" + cacheSalt))
	}
	return h.Sum64()
}

// keyOf returns the key of the page that ends where the stream is.
func keyOf(s *content.Stream, salt uint64) uint64 { return s.Hash() ^ salt }

// digest advances a stream by a prompt and gives the keys of its full pages;
// none if nothing is cached.
func (o *Options) digest(s *content.Stream, prompt []uint32, salt uint64) []uint64 {
	if o.KVTokens == 0 {
		o.Words.Extend(s, prompt)
		return nil
	}
	keys := make([]uint64, 0, len(prompt)/o.PageSize)
	for len(prompt) >= o.PageSize {
		o.Words.Extend(s, prompt[:o.PageSize])
		keys = append(keys, keyOf(s, salt))
		prompt = prompt[o.PageSize:]
	}
	o.Words.Extend(s, prompt)
	return keys
}

// admissible returns the keys of the pages that a prompt may find in the cache:
// its last token is always computed.
func (k *kv) admissible(d *details, tokens int) []uint64 {
	if d.fresh {
		return nil
	}
	return d.keys[:min(len(d.keys), (tokens-1)/k.pageSize)]
}

// freed is the number of pages that could be taken if a request let go of its
// own, without those of the keys.
func (k *kv) freed(table []pageID, keys []uint64) int {
	n := 0
	for i, p := range table {
		g := &k.pages[p]
		if g.held == 1 && !(i < len(keys) && g.keyed && g.key == keys[i]) {
			n++
		}
	}
	return n
}

// occupy takes pages for room tokens of a request, at least for those that it has so far.
// It takes cached pages first and returns the number of tokens found in the cache.
func (k *kv) occupy(r *request, d *details, room int) int {
	tokens := r.length()
	for _, key := range k.admissible(d, tokens) {
		p, ok := k.byKey[key]
		if !ok {
			break
		}
		k.hold(p)
		d.table = append(d.table, p)
	}
	d.keyed = len(d.table)
	found := d.keyed * k.pageSize
	k.enlarge(r, d, k.pagesFor(room))
	r.mark = int32((tokens/k.pageSize + 1) * k.pageSize)
	return found
}

// enlarge takes pages until a request has this many.
func (k *kv) enlarge(r *request, d *details, pages int) {
	for len(d.table) < pages {
		d.table = append(d.table, k.take())
	}
	r.room = int32(len(d.table) * k.pageSize)
}

// enter puts the pages of a request's first tokens, which are computed, into the tree.
func (k *kv) enter(d *details, tokens int) {
	for ; d.keyed < tokens/k.pageSize; d.keyed++ {
		held, added := k.put(d.keys[d.keyed], d.table[d.keyed])
		if d.table[d.keyed] = held; added {
			k.stored(d, d.keyed)
		}
	}
}

// turn is called when the length of a generating request reaches its mark. At the first
// mark a page is full of ids, and its key is known. At the second one more id has been
// generated, which completes the page's KV.
func (k *kv) turn(r *request, d *details) {
	tokens := r.length()
	k.enter(d, tokens-1)
	if tokens%k.pageSize == 0 {
		d.keys = append(d.keys, keyOf(&r.stream, d.salt))
		r.mark = int32(tokens + 1)
		return
	}
	r.mark = int32((tokens/k.pageSize + 1) * k.pageSize)
}

// leave gives a request's pages back; those in the tree stay until they are
// evicted.
func (k *kv) leave(d *details) {
	k.release(d.table)
	d.table, d.keyed = d.table[:0], 0
}
