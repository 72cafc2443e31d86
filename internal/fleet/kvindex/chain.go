package kvindex

import (
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Block is the hash of a block and of all blocks before it.
type Block uint64

// Root returns the beginning of a chain. Prompts with different roots share no block.
// The positions of the parts matter: ("a", "") differs from ("", "a").
func Root(seed uint64, parts ...string) Block {
	for _, p := range parts {
		seed = xxh3.HashStringSeed(p, seed)
	}
	return Block(seed)
}

// Next returns the block with the data that follows b, which is a root or a block.
// Applied to a root it can also extend the root by further data.
func (b Block) Next(data []byte) Block { return Block(xxh3.HashSeed(data, uint64(b))) }

// AppendChain appends the blocks of ids that follow prev, which is a root or the last
// block before ids. Ids that do not fill a block are left out. It allocates only to
// grow dst.
func AppendChain(dst []Block, prev Block, ids []uint32, blockTokens int) []Block {
	for len(ids) >= blockTokens {
		block := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ids))), 4*blockTokens)
		prev = prev.Next(block)
		dst = append(dst, prev)
		ids = ids[blockTokens:]
	}
	return dst
}
