package gateway

import "sync/atomic"

// history is the ids of a stream that can go on at another engine: those of its prompt,
// which the request lets go of once the answer begins, and those that have come.
//
// It is what continuation costs a stream that needs none: three bytes for each token of
// prompt and answer, which is less than the text has. The other way, to render and tokenize
// the request once more, would have to hold its body, which is more, and the output's ids
// cannot be had of its text at all.
type history struct {
	prompt, out packedIDs
	of          *atomic.Int64 // counts the bytes of all; nil: nothing is kept
}

// keep begins a history with the prompt, whose bytes and those to come count in of. It is
// false where they would be more than most.
func (h *history) keep(prompt []uint32, of *atomic.Int64, most int64) bool {
	size := int64(len(prompt)) * packedSize
	if of.Add(size) > most {
		of.Add(-size)
		return false
	}
	h.of = of
	h.prompt = make(packedIDs, 0, size).append(prompt)
	return true
}

// add adds what has come.
func (h *history) add(ids []uint32) {
	had := cap(h.out)
	h.out = h.out.append(ids)
	if more := cap(h.out) - had; more > 0 {
		h.of.Add(int64(more))
	}
}

// drop lets go of all.
func (h *history) drop() {
	if h.of != nil {
		h.of.Add(-int64(cap(h.prompt) + cap(h.out)))
	}
	*h = history{}
}

// restart forgets what has come, of which the client has nothing.
func (h *history) restart() {
	h.out = h.out[:0]
}

// came counts the ids that have come.
func (h *history) came() int { return len(h.out) / packedSize }

// all gives the prompt with what has come behind it.
func (h *history) all() []uint32 {
	ids := make([]uint32, 0, (len(h.prompt)+len(h.out))/packedSize)
	return h.out.unpack(h.prompt.unpack(ids))
}

// last gives the last id that has come; ok is false where none has.
func (h *history) last() (id uint32, ok bool) {
	if len(h.out) == 0 {
		return 0, false
	}
	return h.out[len(h.out)-packedSize:].unpack(nil)[0], true
}

// packedIDs are ids of packedSize bytes each.
type packedIDs []byte

const (
	packedSize = 3
	maxPacked  = 1<<(8*packedSize) - 1
)

func (p packedIDs) append(ids []uint32) packedIDs {
	for _, id := range ids {
		p = append(p, byte(id), byte(id>>8), byte(id>>16))
	}
	return p
}

func (p packedIDs) unpack(ids []uint32) []uint32 {
	for i := 0; i+packedSize <= len(p); i += packedSize {
		ids = append(ids, uint32(p[i])|uint32(p[i+1])<<8|uint32(p[i+2])<<16)
	}
	return ids
}
