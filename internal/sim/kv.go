package sim

import "fmt"

// pageID names a page of a KV cache.
type pageID int32

const noPage pageID = -1

// kv is the KV cache of one rank: pages of PageSize tokens. A page is held (by the requests
// that read it), idle (kept because a later prompt may begin with the same tokens) or free.
// Idle pages are evicted in the order in which they were last held.
//
// Pages with a key form the prefix tree. A key is a hash of all tokens from the beginning
// of a prompt to the end of the page; so a page with a key has one parent, whose key hashes
// the tokens before the page. A request that holds a page holds all its ancestors and
// releases the last one first. Therefore ancestors become idle after their descendants, and
// the evicted page is always a leaf of the tree.
type kv struct {
	pageSize int
	total    int    // pages there may be
	pages    []page // those that were ever used
	free     []pageID
	byKey    map[uint64]pageID

	oldest, newest pageID // the idle pages, as a list
	idle           int

	evicted uint64 // pages

	notes  bool // of what becomes of the pages of the tree
	events []KVEvent
}

type page struct {
	key        uint64
	held       int32 // requests that hold it
	keyed      bool  // it is in byKey
	prev, next pageID
}

func newKV(tokens, pageSize int) *kv {
	return &kv{pageSize: pageSize, total: tokens / pageSize, byKey: map[uint64]pageID{}, oldest: noPage, newest: noPage}
}

// pagesFor returns the number of pages that hold this many tokens.
func (k *kv) pagesFor(tokens int) int { return (tokens + k.pageSize - 1) / k.pageSize }

// available is the number of pages that can be taken.
func (k *kv) available() int { return len(k.free) + k.total - len(k.pages) + k.idle }

// inUse is the number of pages that requests hold.
func (k *kv) inUse() int { return k.total - k.available() }

// take returns a page to one request. The caller must have checked that one is available.
func (k *kv) take() pageID {
	var p pageID
	switch {
	case len(k.free) > 0:
		p = k.free[len(k.free)-1]
		k.free = k.free[:len(k.free)-1]
	case len(k.pages) < k.total:
		p = pageID(len(k.pages))
		k.pages = append(k.pages, page{})
	default:
		p = k.evict()
	}
	k.pages[p].held = 1
	return p
}

// evict takes the page that was idle longest out of the tree.
func (k *kv) evict() pageID {
	if k.oldest == noPage {
		panic(fmt.Sprintf("sim: all %d pages are held", k.total))
	}
	k.evicted++
	return k.forget()
}

// forget takes the oldest idle page out of the tree.
func (k *kv) forget() pageID {
	p := k.oldest
	k.unlist(p)
	delete(k.byKey, k.pages[p].key)
	k.note(KVEvent{Kind: KVRemoved, Page: k.pages[p].key})
	k.pages[p].keyed = false
	return p
}

// hold adds a request to a page of the tree.
func (k *kv) hold(p pageID) {
	if k.pages[p].held == 0 {
		k.unlist(p)
	}
	k.pages[p].held++
}

// drop takes a request off a page.
func (k *kv) drop(p pageID) {
	g := &k.pages[p]
	g.held--
	switch {
	case g.held > 0:
	case g.keyed:
		k.list(p)
	default:
		k.free = append(k.free, p)
	}
}

// release drops all pages of a request, the last one first.
func (k *kv) release(table []pageID) {
	for i := len(table) - 1; i >= 0; i-- {
		k.drop(table[i])
	}
}

// list makes a page the newest idle one.
func (k *kv) list(p pageID) {
	g := &k.pages[p]
	g.prev, g.next = k.newest, noPage
	if k.newest == noPage {
		k.oldest = p
	} else {
		k.pages[k.newest].next = p
	}
	k.newest = p
	k.idle++
}

func (k *kv) unlist(p pageID) {
	g := &k.pages[p]
	if g.prev == noPage {
		k.oldest = g.next
	} else {
		k.pages[g.prev].next = g.next
	}
	if g.next == noPage {
		k.newest = g.prev
	} else {
		k.pages[g.next].prev = g.prev
	}
	k.idle--
}

// lookup returns how many pages of a prompt with these keys are cached, and how many of
// them are idle.
func (k *kv) lookup(keys []uint64) (found, idle int) {
	for _, key := range keys {
		p, ok := k.byKey[key]
		if !ok {
			break
		}
		found++
		if k.pages[p].held == 0 {
			idle++
		}
	}
	return found, idle
}

// put enters a request's page, which is complete now, into the tree and returns the page to
// hold from now on. If another request has entered the same key before, this is the other
// request's page, and the tree is unchanged.
func (k *kv) put(key uint64, p pageID) (held pageID, added bool) {
	first, ok := k.byKey[key]
	if ok {
		k.hold(first)
		k.drop(p)
		return first, false
	}
	k.byKey[key] = p
	k.pages[p].key, k.pages[p].keyed = key, true
	return p, true
}

// flush forgets all idle pages.
func (k *kv) flush() {
	for k.oldest != noPage {
		k.free = append(k.free, k.forget())
	}
}
