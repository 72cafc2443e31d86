package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"
)

// Kind is the kind of an event.
type Kind uint8

// The events that both engines publish.
const (
	Stored Kind = iota + 1
	Removed
	Cleared
)

// Event is one event of a batch. Its slices belong to the decoder and are valid until
// the next event.
type Event struct {
	Kind Kind
	// Hashes name the blocks. A hash in the form of bytes is reduced to its last
	// eight.
	Hashes []uint64
	// Parent names the block that the first one follows, if Chained.
	Parent  uint64
	Chained bool
	// Tokens are the ids of all blocks, of BlockSize each.
	Tokens    []uint32
	BlockSize int
	LoRA      string // the adapter's name; empty: none
	// Salt is the cache salt of the prompt, if the engine reports it. vLLM reports it with
	// the first block only.
	Salt string
	// Keyed has an entry for each block, if the engine reports it: whether the block
	// depends on more than its ids and adapter, such as a salt, media or embeddings.
	Keyed []bool
	Tells bool // the engine reports Keyed
	// Medium is where the blocks are, Spec what kind of attention they are for, and Group
	// which of the engine's caches they are in, -1 where there is one.
	Medium, Spec string
	Group        int
	// Elsewhere is set if the blocks are not in the publisher's own cache.
	Elsewhere bool
}

// The bounds of one event. An engine that stores a prompt of a million tokens at once
// keeps to them.
const (
	maxHashes = 1 << 20
	maxTokens = 1 << 21
)

// Odd is what an event is that is passed over.
type Odd uint8

// The odd ones.
const (
	// Placeholder is a BlockStored that names blocks without their ids. vLLM sends one for each
	// block that its CPU offloading has copied, in the batches of its own cache's events.
	Placeholder Odd = iota
	// Unreadable is an event that is not in the form of its kind.
	Unreadable
	// Strange is an event of a kind that is not known.
	Strange
	NumOdd
)

// String returns the word of metrics.
func (o Odd) String() string { return [...]string{"placeholder", "unreadable", "unknown"}[o] }

// Decoder decodes batches. It keeps its buffers from one to the next.
type Decoder struct {
	event     Event
	keyed     []bool
	keyedSalt bool // the event's salt is a key of its first block
}

// errForm is of a batch that is not of a form that is known.
var errForm = errors.New("kvevents: not a batch of KV events")

// errPlaceholder is of an event that is a Placeholder.
var errPlaceholder = errors.New("a BlockStored without ids")

// Decode calls do for each event of a batch, in order, and odd for each that it passes over: one odd
// event costs itself only. Events may be arrays or maps. Missing members are left zero,
// and unknown members are skipped. An error is of a batch whose events cannot be told apart.
// Before an error do may have been called for some events.
func (d *Decoder) Decode(batch []byte, do func(*Event), odd func(Odd)) error {
	var events []byte
	switch msgp.NextType(batch) {
	case msgp.ArrayType:
		n, rest, err := msgp.ReadArrayHeaderBytes(batch)
		if err != nil || n < 2 {
			return errForm
		}
		if rest, err = msgp.Skip(rest); err != nil { // the time
			return fmt.Errorf("kvevents: %w", err)
		}
		events = rest
	case msgp.MapType:
		_, err := eachMember(batch, func(name, b []byte) ([]byte, error) {
			if string(name) == "events" {
				events = b
			}
			return msgp.Skip(b)
		})
		if err != nil {
			return fmt.Errorf("kvevents: %w", err)
		}
	}
	if msgp.NextType(events) != msgp.ArrayType {
		return errForm
	}
	n, rest, err := msgp.ReadArrayHeaderBytes(events)
	for i := uint32(0); i < n && err == nil; i++ {
		d.reset()
		behind, wrong := d.one(rest)
		if wrong != nil {
			behind, err = msgp.Skip(rest)
		}
		rest = behind
		switch {
		case err != nil:
		case errors.Is(wrong, errPlaceholder):
			odd(Placeholder)
		case wrong != nil:
			odd(Unreadable)
		case d.event.Kind == 0:
			odd(Strange)
		default:
			do(&d.event)
		}
	}
	d.trim()
	if err != nil {
		return fmt.Errorf("kvevents: %w", err)
	}
	return nil
}

func (d *Decoder) reset() {
	e := &d.event
	*e = Event{Hashes: e.Hashes[:0], Tokens: e.Tokens[:0], Group: -1}
	d.keyed, d.keyedSalt = d.keyed[:0], false
}

// trim lets go of buffers that one large event has made.
func (d *Decoder) trim() {
	const keep = 1 << 16
	if cap(d.event.Hashes) > keep || cap(d.event.Tokens) > keep || cap(d.keyed) > keep {
		d.event, d.keyed = Event{}, nil
	}
}

// positional are the members of an event that is an array, in order. SGLang's BlockStored
// parts from vLLM's behind the medium.
var positional = map[Kind][]string{
	Stored: {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
		"kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership", "session_id"},
	Removed: {"block_hashes", "medium", "group_idx", "locality", "ownership"},
}

func (d *Decoder) one(b []byte) ([]byte, error) {
	switch msgp.NextType(b) {
	case msgp.ArrayType:
		n, b, err := msgp.ReadArrayHeaderBytes(b)
		if err != nil || n == 0 {
			return b, errors.Join(err, errForm)
		}
		tag, b, err := msgp.ReadStringZC(b)
		if err != nil {
			return b, err
		}
		d.event.Kind = kindOf(tag)
		names := positional[d.event.Kind]
		for i := uint32(1); i < n; i++ {
			name := ""
			if int(i) <= len(names) {
				name = names[i-1]
			}
			if b, err = d.member(name, b); err != nil {
				return b, err
			}
		}
		return b, d.judge()
	case msgp.MapType:
		rest, err := eachMember(b, func(name, b []byte) ([]byte, error) {
			if string(name) != "type" {
				return d.member(string(name), b)
			}
			tag, b, err := msgp.ReadStringZC(b)
			d.event.Kind = kindOf(tag)
			return b, err
		})
		if err != nil {
			return rest, err
		}
		return rest, d.judge()
	}
	return b, errForm
}

func kindOf(tag []byte) Kind {
	switch string(tag) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	}
	return 0
}

// judge checks that the event is consistent.
func (d *Decoder) judge() error {
	e := &d.event
	if e.Kind != Stored {
		return nil
	}
	if len(e.Tokens) == 0 {
		return errPlaceholder
	}
	if e.BlockSize <= 0 || len(e.Hashes) == 0 {
		return fmt.Errorf("a BlockStored of %d blocks of %d tokens", len(e.Hashes), e.BlockSize)
	}
	if e.Tells {
		if len(d.keyed) != len(e.Hashes) {
			return fmt.Errorf("a BlockStored of %d blocks with extra keys of %d", len(e.Hashes), len(d.keyed))
		}
		if d.keyedSalt && (e.Chained || d.keyed[0]) { // it is no prompt's first block, or has other keys too
			e.Salt, d.keyed[0] = "", true
		}
		e.Keyed = d.keyed
	}
	return nil
}

// member takes a member of an event.
func (d *Decoder) member(name string, b []byte) ([]byte, error) {
	e := &d.event
	if msgp.IsNil(b) {
		return msgp.ReadNilBytes(b)
	}
	var err error
	switch name {
	case "block_hashes":
		return each(b, maxHashes, func(b []byte) ([]byte, error) {
			h, b, err := hash(b)
			e.Hashes = append(e.Hashes, h)
			return b, err
		})
	case "parent_block_hash":
		e.Parent, b, err = hash(b)
		e.Chained = true
	case "token_ids":
		return each(b, maxTokens, func(b []byte) ([]byte, error) {
			id, b, err := msgp.ReadUint32Bytes(b)
			e.Tokens = append(e.Tokens, id)
			return b, err
		})
	case "block_size":
		e.BlockSize, b, err = number(b)
	case "medium":
		e.Medium, b, err = word(b)
	case "lora_name":
		if msgp.NextType(b) == msgp.MapType { // SGLang's salt, where vLLM has the name
			return d.salts(b)
		}
		e.LoRA, b, err = word(b)
	case "cache_salt":
		e.Salt, b, err = word(b)
	case "extra_keys":
		e.Tells = true
		return each(b, maxHashes, d.extra)
	case "group_idx":
		e.Group, b, err = number(b)
	case "kv_cache_spec_kind":
		e.Spec, b, err = word(b)
	case "locality":
		var where string
		where, b, err = word(b)
		e.Elsewhere = e.Elsewhere || where != "LOCAL"
	case "ownership":
		e.Elsewhere = true
		return msgp.Skip(b)
	default:
		return msgp.Skip(b)
	}
	return b, err
}

func (d *Decoder) salts(b []byte) ([]byte, error) {
	return eachMember(b, func(name, b []byte) ([]byte, error) {
		if string(name) != "cache_salt" || msgp.IsNil(b) {
			return msgp.Skip(b)
		}
		return d.member("cache_salt", b)
	})
}

// extra takes the keys of a block: nothing, or a list of them, of which the name of the
// adapter is one. If the only other key of a prompt's first block is a word, it is the salt.
func (d *Decoder) extra(b []byte) ([]byte, error) {
	keyed := false
	if msgp.IsNil(b) {
		d.keyed = append(d.keyed, keyed)
		return msgp.ReadNilBytes(b)
	}
	e := &d.event
	first, salt := true, len(d.keyed) == 0 && !e.Chained
	rest, err := each(b, maxHashes, func(b []byte) ([]byte, error) {
		if name, rest, err := msgp.ReadStringZC(b); err == nil {
			switch {
			case first && e.LoRA != "" && string(name) == e.LoRA:
				first = false
				return rest, nil
			case salt && !d.keyedSalt && !keyed && len(name) <= maxSalt:
				e.Salt, d.keyedSalt, first = string(name), true, false
				return rest, nil
			}
		}
		keyed, first = true, false
		return msgp.Skip(b)
	})
	d.keyed = append(d.keyed, keyed)
	return rest, err
}

// maxSalt bounds a salt that is told as a key; vLLM takes no longer ones.
const maxSalt = 1 << 10

// each calls do for every member of an array, of which there may be most.
func each(b []byte, most int, do func(b []byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return b, err
	}
	if int64(n) > int64(most) || int64(n) > int64(len(b)) {
		return b, fmt.Errorf("an array of %d", n)
	}
	for range n {
		if b, err = do(b); err != nil {
			return b, err
		}
	}
	return b, nil
}

// eachMember calls do for every member of a map, whose keys are words.
func eachMember(b []byte, do func(name, b []byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	for ; n > 0 && err == nil; n-- {
		var name []byte
		if name, b, err = msgp.ReadMapKeyZC(b); err == nil {
			b, err = do(name, b)
		}
	}
	return b, err
}

// hash takes the name of a block.
func hash(b []byte) (h uint64, rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.UintType:
		return msgp.ReadUint64Bytes(b)
	case msgp.IntType:
		i, rest, err := msgp.ReadInt64Bytes(b)
		return uint64(i), rest, err
	}
	bytes, rest, err := msgp.ReadBytesZC(b)
	if err != nil {
		return 0, rest, err
	}
	var last [8]byte
	copy(last[max(8-len(bytes), 0):], bytes[max(len(bytes)-8, 0):])
	return binary.BigEndian.Uint64(last[:]), rest, nil
}

func number(b []byte) (n int, rest []byte, err error) {
	i, rest, err := msgp.ReadInt64Bytes(b)
	if err == nil && (i < math.MinInt32 || i > math.MaxInt32) {
		err = fmt.Errorf("the number %d", i)
	}
	return int(i), rest, err
}

func word(b []byte) (s string, rest []byte, err error) {
	w, rest, err := msgp.ReadStringZC(b)
	switch {
	case err != nil:
		return "", rest, err
	case len(w) > 1024:
		return "", rest, fmt.Errorf("a word of %d bytes", len(w))
	}
	if known, ok := words[string(w)]; ok {
		return known, rest, nil
	}
	return string(w), rest, nil
}

// words are those that come with every event, so that they are not made anew.
var words = map[string]string{"GPU": "GPU", "CPU": "CPU", "CPU_PINNED": "CPU_PINNED", "LOCAL": "LOCAL", "full_attention": "full_attention", "": ""}
