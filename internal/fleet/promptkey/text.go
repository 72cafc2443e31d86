package promptkey

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"weir/internal/dialect"
	"weir/internal/fleet/kvindex"
	"weir/internal/jsonlex"
)

// BlockBytes is the length of a block's canonical text, in bytes: about 64 tokens of
// English.
const BlockBytes = 256

// MaxBlocks bounds the blocks of a chain. Text beyond them is counted and has no
// block.
const MaxBlocks = 1 << 16

// The marks of canonical text. They are bytes that UTF-8 never has.
const (
	markMessage = 0xF5 + iota // the role follows
	markText                  // a part of a content
	markField                 // a letter that names it follows, and its text
	markDigest                // 8 bytes follow that stand for what is not written out
	markMedia                 // the same, repeated
	markQuote                 // around the strings of a value that was written freely
	markIDs                   // ids follow, of four bytes each, to the end of the prompt
	markTool                  // a definition
	markCall                  // of a tool
	markPrompt                // another prompt of the same request
)

// mediaBytes is what a medium counts for: of the engines' own counts, which run from 64
// to some thousand tokens, about the least that is usual.
const mediaBytes = 1024

// text is canonical text as it is written: cut into blocks, of which only the hashes are
// kept.
type text struct {
	prev   kvindex.Block
	blocks []kvindex.Block
	room   int  // for blocks
	muted  bool // what is written is counted, and no more
	done   int  // bytes that have left block
	n      int  // bytes in block, below BlockBytes
	block  [BlockBytes + 8]byte
}

// begin begins a text whose blocks follow after root, and are appended to blocks.
func (t *text) begin(root kvindex.Block, blocks []kvindex.Block, room int) {
	t.prev, t.blocks, t.room, t.muted, t.done, t.n = root, blocks, room, false, 0, 0
}

// end returns what stands for all of the text.
func (t *text) end() uint64 { return uint64(t.prev.Next(t.block[:t.n])) }

// bytes is how long the text is so far.
func (t *text) bytes() int { return t.done + t.n }

// wrote takes in the bytes that were put at block[n:], up to 8 beyond its end.
func (t *text) wrote(bytes int) {
	if t.n += bytes; t.n < BlockBytes {
		return
	}
	t.n -= BlockBytes
	t.done += BlockBytes
	if !t.muted {
		t.prev = t.prev.Next(t.block[:BlockBytes])
		if t.room > 0 {
			t.blocks = append(t.blocks, t.prev)
			t.room--
			t.muted = t.room == 0
		}
	}
	copy(t.block[:8], t.block[BlockBytes:])
}

func (t *text) mark(b byte) {
	t.block[t.n] = b
	t.wrote(1)
}

func (t *text) word(s string) {
	for i := range len(s) {
		t.mark(s[i])
	}
}

// uint64 writes eight bytes, and uint32 four.
func (t *text) uint64(x uint64) {
	binary.LittleEndian.PutUint64(t.block[t.n:], x)
	t.wrote(8)
}

func (t *text) uint32(x uint32) {
	binary.LittleEndian.PutUint32(t.block[t.n:], x)
	t.wrote(4)
}

// string writes what the inside of a JSON string spells. Half a surrogate pair stays one,
// in three bytes as UTF-8 would have it if it had any.
//
// Eight bytes are copied together; those from an escape on are overwritten.
func (t *text) string(inside []byte) {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	for len(inside) >= 8 {
		w := binary.LittleEndian.Uint64(inside)
		binary.LittleEndian.PutUint64(t.block[t.n:], w)
		slash := w ^ '\\'*ones
		// The lowest bit that is set is that of the first backslash.
		stop := (slash - ones) &^ slash & highs
		if stop == 0 {
			t.wrote(8)
			inside = inside[8:]
			continue
		}
		k := bits.TrailingZeros64(stop) >> 3
		t.wrote(k)
		inside = t.escape(inside[k+1:])
	}
	for len(inside) > 0 {
		if inside[0] == '\\' {
			inside = t.escape(inside[1:])
			continue
		}
		t.mark(inside[0])
		inside = inside[1:]
	}
}

// escape writes the character of an escape whose backslash has been read, and gives what
// follows it.
func (t *text) escape(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	c := b[0]
	b = b[1:]
	switch c {
	case 'n':
		c = '\n'
	case 't':
		c = '\t'
	case 'r':
		c = '\r'
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'u':
		return t.unicode(b)
	}
	t.mark(c)
	return b
}

// unicode writes the character whose \u has been read, and gives what follows it.
func (t *text) unicode(b []byte) []byte {
	r, ok := jsonlex.Hex(b)
	if !ok {
		return b
	}
	b = b[4:]
	if r&^0x3FF == 0xD800 && len(b) >= 6 && b[0] == '\\' && b[1] == 'u' {
		if low, ok := jsonlex.Hex(b[2:]); ok && low&^0x3FF == 0xDC00 {
			r = 0x10000 + (r&0x3FF)<<10 | low&0x3FF
			b = b[6:]
		}
	}
	if r&^0x7FF == 0xD800 {
		t.mark(0xED)
		t.mark(0x80 | byte(r>>6)&0x3F)
		t.mark(0x80 | byte(r)&0x3F)
		return b
	}
	var spelled [utf8.UTFMax]byte
	for _, c := range spelled[:utf8.EncodeRune(spelled[:], r)] {
		t.mark(c)
	}
	return b
}

// value writes a value that was written freely: as it came, without its white space, and
// its strings by what they spell.
func (t *text) value(raw []byte) {
	for i := 0; i < len(raw); {
		switch c := raw[i]; c {
		case ' ', '\t', '\r', '\n':
			i++
		case '"':
			end := dialect.SkipString(raw, i)
			if end < 0 {
				return
			}
			t.mark(markQuote)
			t.string(raw[i+1 : end-1])
			t.mark(markQuote)
			i = end
		default:
			t.mark(c)
			i++
		}
	}
}
