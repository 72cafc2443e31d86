package attempt

import (
	"encoding/binary"
	"sync/atomic"
)

// history holds the ids of a stream that can continue at another engine: those of its
// prompt, which the request releases when the answer begins, and those of its output.
//
// The history is the cost of continuation for a stream that never needs it: three bytes for
// each token of prompt and answer, which is less than the text. The alternative, to render
// and tokenize the request again, would have to keep the body, which is larger, and the ids
// of the output cannot be derived from its text.
type history struct {
	prompt, out packedIDs
	of          *atomic.Int64 // counts the bytes of all histories; nil if this one is not kept
}

// keep begins a history with the prompt and counts its bytes, now and later, in of. It
// returns false if of would exceed most.
func (h *history) keep(prompt []uint32, of *atomic.Int64, most int64) bool {
	size := int64(len(prompt)) * packedSize
	if of.Add(size) > most {
		of.Add(-size)
		return false
	}
	h.of = of
	h.prompt = pack(prompt)
	return true
}

// add appends ids of the output.
func (h *history) add(ids []uint32) {
	had := cap(h.out)
	h.out = h.out.append(ids)
	if more := cap(h.out) - had; more > 0 {
		h.of.Add(int64(more))
	}
}

// drop releases the history and its bytes.
func (h *history) drop() {
	if h.of != nil {
		h.of.Add(-int64(cap(h.prompt) + cap(h.out)))
	}
	*h = history{}
}

// restart discards the output, none of which the client has received.
func (h *history) restart() {
	h.out = h.out[:0]
}

// came returns the number of ids of the output.
func (h *history) came() int { return len(h.out) / packedSize }

// all returns the ids of the prompt followed by those of the output.
func (h *history) all() []uint32 {
	ids := make([]uint32, 0, (len(h.prompt)+len(h.out))/packedSize)
	return h.out.unpack(h.prompt.unpack(ids))
}

// last returns the last id of the output; ok is false if there is none.
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

// pack packs the ids of a prompt, eight in three words at a time.
func pack(ids []uint32) packedIDs {
	p := make(packedIDs, 0, packedSize*len(ids))
	for len(ids) >= 8 {
		a, b, c, d, e, f, g, h := uint64(ids[0]), uint64(ids[1]), uint64(ids[2]), uint64(ids[3]), uint64(ids[4]), uint64(ids[5]), uint64(ids[6]), uint64(ids[7])
		p = binary.LittleEndian.AppendUint64(p, a|b<<24|c<<48)
		p = binary.LittleEndian.AppendUint64(p, c>>16|d<<8|e<<32|f<<56)
		p = binary.LittleEndian.AppendUint64(p, f>>8|g<<16|h<<40)
		ids = ids[8:]
	}
	return p.append(ids)
}

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
