package kvpub

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/sim"
)

// Form is how an engine writes events, and names blocks.
type Form uint8

// The forms. In all of them a batch is an array.
const (
	// VLLM is vLLM's form since June 2026: events are maps, and list for each block what it
	// contains besides its ids. Its names of blocks mean nothing outside of the engine.
	VLLM Form = iota
	// SGLang is SGLang's since 0.5.21: events are maps, and blocks are named by a chain of
	// SHA-256 over their ids. Adapters are named as since 0.5.23.
	SGLang
	// SGLangArrays is SGLang's earlier form: members without names, in their order. It does
	// not distinguish an adapter's blocks from those of the model.
	SGLangArrays
)

// encoder encodes the batches of one rank.
type encoder struct {
	form     Form
	rank     int
	pageSize int
	pages    map[uint64]page // those that are there, by the core's names; of SGLang's forms
	names    []uint64
	tokens   []uint32
	// placeholders has each stored page announced a second time, by its name only.
	placeholders bool
}

// page is how SGLang names one.
type page struct {
	digest [sha256.Size]byte // of the ids up to its end
	name   uint64
}

func newEncoder(form Form, rank, pageSize int) *encoder {
	return &encoder{form: form, rank: rank, pageSize: pageSize, pages: map[uint64]page{}}
}

// batch returns the batch of some events, at a time in seconds since 1970.
func (e *encoder) batch(now float64, events []sim.KVEvent) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), now)
	n := uint32(0)
	for rest := events; len(rest) > 0; n++ {
		if e.placeholders && rest[0].Kind == sim.KVStored {
			n++
		}
		rest = rest[e.together(rest):]
	}
	b = msgp.AppendArrayHeader(b, n)
	for len(events) > 0 {
		n := e.together(events)
		b = e.event(b, events[:n])
		if e.placeholders && events[0].Kind == sim.KVStored {
			b = e.placeholder(b)
		}
		events = events[n:]
	}
	return msgp.AppendInt(b, e.rank)
}

// together returns how many of the next events are written as one: pages that follow each
// other and, with SGLang, pages that are removed.
func (e *encoder) together(events []sim.KVEvent) int {
	n := 1
	for ; n < len(events); n++ {
		a, b := &events[n-1], &events[n]
		stored := a.Kind == sim.KVStored && b.Kind == sim.KVStored && b.Chained && b.Parent == a.Page && b.LoRA == a.LoRA && b.Salt == a.Salt
		removed := a.Kind == sim.KVRemoved && b.Kind == sim.KVRemoved
		if !(stored && e.form != SGLangArrays || removed && e.form == SGLang) {
			break
		}
	}
	return n
}

// event appends events that are written as one.
func (e *encoder) event(b []byte, events []sim.KVEvent) []byte {
	e.names, e.tokens = e.names[:0], e.tokens[:0]
	w := writer{b: b, array: e.form == SGLangArrays}
	first := &events[0]
	switch first.Kind {
	case sim.KVStored:
		e.stored(&w, events)
	case sim.KVRemoved:
		for i := range events {
			e.names = append(e.names, e.name(events[i].Page))
			delete(e.pages, events[i].Page)
		}
		if e.form == VLLM {
			w.begin("BlockRemoved", 3)
		} else {
			w.begin("BlockRemoved", 2)
		}
		e.hashes(&w)
		w.word("medium", "GPU")
		if e.form == VLLM {
			w.number("group_idx", 0)
		}
	case sim.KVCleared:
		clear(e.pages)
		w.begin("AllBlocksCleared", 0)
	}
	return w.b
}

func (e *encoder) stored(w *writer, events []sim.KVEvent) {
	first := &events[0]
	for i := range events {
		e.add(&events[i])
		e.names = append(e.names, e.name(events[i].Page))
		e.tokens = append(e.tokens, events[i].Tokens...)
	}
	members := 6
	switch {
	case e.form == VLLM:
		members = 10
	case e.form == SGLang:
		for _, word := range []string{first.LoRA, first.Salt} {
			if word != "" {
				members++
			}
		}
	}
	w.begin("BlockStored", members)
	e.hashes(w)
	w.member("parent_block_hash")
	if first.Chained {
		w.b = e.hash(w.b, e.name(first.Parent))
	} else {
		w.b = msgp.AppendNil(w.b)
	}
	w.member("token_ids")
	w.b = msgp.AppendArrayHeader(w.b, uint32(len(e.tokens)))
	for _, id := range e.tokens {
		w.b = msgp.AppendUint32(w.b, id)
	}
	w.number("block_size", e.pageSize)
	w.word("lora_id", "")
	w.word("medium", "GPU")
	if e.form == SGLang && first.Salt != "" {
		w.word("cache_salt", first.Salt)
	}
	if e.form == VLLM || e.form == SGLang && first.LoRA != "" {
		w.word("lora_name", first.LoRA)
	}
	if e.form != VLLM {
		return
	}
	w.member("extra_keys")
	w.b = msgp.AppendArrayHeader(w.b, uint32(len(events)))
	for i := range events {
		salt := ""
		if !events[i].Chained { // the names of the blocks behind follow from the first one's
			salt = first.Salt
		}
		w.b = appendKeys(w.b, first.LoRA, salt)
	}
	w.number("group_idx", 0)
	w.word("kv_cache_spec_kind", "full_attention")
}

// placeholder announces the pages of the event before as copied to the host's memory.
func (e *encoder) placeholder(b []byte) []byte {
	w := writer{b: b, array: e.form == SGLangArrays}
	w.begin("BlockStored", 6)
	e.hashes(&w)
	w.word("parent_block_hash", "")
	w.member("token_ids")
	w.b = msgp.AppendArrayHeader(w.b, 0)
	w.number("block_size", 0)
	w.word("lora_id", "")
	w.word("medium", "CPU")
	return w.b
}

// appendKeys appends the extra keys of a block: the words that are not empty, or nil.
func appendKeys(b []byte, words ...string) []byte {
	words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
	if len(words) == 0 {
		return msgp.AppendNil(b)
	}
	b = msgp.AppendArrayHeader(b, uint32(len(words)))
	for _, w := range words {
		b = msgp.AppendString(b, w)
	}
	return b
}

// add names a page as SGLang does: by the first bytes of a digest of the digest before it,
// which is the salt's for a first page, and the page's ids. Since 0.5.23 adapters have
// separate names.
func (e *encoder) add(v *sim.KVEvent) {
	if e.form == VLLM {
		return
	}
	h := sha256.New()
	if v.Chained {
		before := e.pages[v.Parent].digest
		h.Write(before[:])
	} else if e.form == SGLang && v.Salt != "" {
		seed := sha256.Sum256([]byte("sglang-cache-salt-v1\x00" + v.Salt))
		h.Write(seed[:])
	}
	var word [4]byte
	for _, id := range v.Tokens {
		binary.LittleEndian.PutUint32(word[:], id)
		h.Write(word[:])
	}
	var p page
	h.Sum(p.digest[:0])
	p.name = binary.BigEndian.Uint64(p.digest[:])
	if e.form == SGLang && v.LoRA != "" {
		p.name = apart(v.LoRA, p.name)
	}
	e.pages[v.Page] = p
}

// apart returns SGLang's name for an adapter's block; name is what the block would be
// called for the model.
func apart(lora string, name uint64) uint64 {
	space := append([]byte("sglang-kv-event-namespace-v1"), 1)
	space = binary.LittleEndian.AppendUint64(space, uint64(len(lora)))
	space = append(append(space, lora...), 0)
	seed := sha256.Sum256(space)
	digest := sha256.Sum256(binary.BigEndian.AppendUint64(seed[:], name))
	return binary.BigEndian.Uint64(digest[:])
}

// name is a page's as it is published.
func (e *encoder) name(of uint64) uint64 {
	if e.form == VLLM {
		return of
	}
	return e.pages[of].name
}

func (e *encoder) hashes(w *writer) {
	w.member("block_hashes")
	w.b = msgp.AppendArrayHeader(w.b, uint32(len(e.names)))
	for _, name := range e.names {
		w.b = e.hash(w.b, name)
	}
}

// hash appends a name, which SGLang writes as a signed number.
func (e *encoder) hash(b []byte, name uint64) []byte {
	if e.form == VLLM {
		return msgp.AppendUint64(b, name)
	}
	return msgp.AppendInt64(b, int64(name))
}

// writer writes an event: a map of its members, or an array of their values.
type writer struct {
	b     []byte
	array bool
}

// begin begins an event with this many members.
func (w *writer) begin(tag string, members int) {
	if w.array {
		w.b = msgp.AppendArrayHeader(w.b, uint32(members+1))
	} else {
		w.b = msgp.AppendMapHeader(w.b, uint32(members+1))
		w.b = msgp.AppendString(w.b, "type")
	}
	w.b = msgp.AppendString(w.b, tag)
}

// member begins a member.
func (w *writer) member(name string) {
	if !w.array {
		w.b = msgp.AppendString(w.b, name)
	}
}

// word appends a member that is a word; an empty one is null.
func (w *writer) word(name, word string) {
	if w.member(name); word == "" {
		w.b = msgp.AppendNil(w.b)
	} else {
		w.b = msgp.AppendString(w.b, word)
	}
}

func (w *writer) number(name string, n int) {
	w.member(name)
	w.b = msgp.AppendInt(w.b, n)
}
