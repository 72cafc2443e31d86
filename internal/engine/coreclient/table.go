package coreclient

import "sync"

// Table holds the generations of a session by the ids of their requests.
type Table struct {
	mu     sync.Mutex
	all    map[string]*Generation
	closed bool
}

// NewTable returns an empty Table.
func NewTable() *Table { return &Table{all: map[string]*Generation{}} }

// Seat adds a generation. ok is false if the session has ended or the id is taken.
func (t *Table) Seat(g *Generation) (ok, taken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, false
	}
	if _, taken := t.all[g.ID]; taken {
		return false, true
	}
	t.all[g.ID] = g
	return true, false
}

func (t *Table) get(id []byte) *Generation {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[string(id)]
}

// Release removes a generation of which nothing more comes.
func (t *Table) Release(g *Generation) {
	g.Leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[g.ID] == g {
		delete(t.all, g.ID)
	}
}

// Live counts the generations.
func (t *Table) Live() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// close lets nobody in any more and gives those who are.
func (t *Table) close() []*Generation {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	all := make([]*Generation, 0, len(t.all))
	for _, g := range t.all {
		all = append(all, g)
	}
	return all
}
