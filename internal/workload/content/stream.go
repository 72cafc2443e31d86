package content

import "math"

// Stream is the content of one request: a running state of all its ids, prompt
// and generated, of constant size. Copying it forks the content.
type Stream struct {
	hash uint64
	seed uint64
	last uint16 // word of the last id, or noWord
}

// Start returns the stream that continues prompt. Seeds give different streams;
// requests without a seed use 0.
func (w *Words) Start(prompt []uint32, seed uint64) Stream {
	s := Stream{seed: seed, last: noWord}
	w.Extend(&s, prompt)
	return s
}

// Extend advances the stream by ids that were not generated from it.
func (w *Words) Extend(s *Stream, ids []uint32) {
	for _, id := range ids {
		s.hash = step(s.hash, id)
	}
	if len(ids) > 0 {
		s.last = w.word(ids[len(ids)-1])
	}
}

// Hash returns a hash of the ids so far, which does not depend on the seed.
func (s *Stream) Hash() uint64 { return s.hash }

func step(hash uint64, id uint32) uint64 { return mix(hash+0x632be59bd9b4e019, uint64(id)+1) }

// draw returns a number that depends on the whole stream so far; purposes with
// different salts get independent ones.
func (s *Stream) draw(salt uint64) uint64 { return mix(s.hash^s.seed*0xd6e8feb86659fd93, salt) }

// Next returns the word that comes next. It does not advance the stream.
func (w *Words) Next(s *Stream) uint32 {
	free := uint16(s.draw(0xa0761d6478bd642f) >> (64 - freeBits))
	return w.ids[free<<w.checkBits|w.after(s.last)]
}

// Push advances the stream by an id that was generated.
func (w *Words) Push(s *Stream, id uint32) {
	s.hash = step(s.hash, id)
	s.last = w.word(id)
}

// Hazard is the chance of an end at each token, as a share of 2^32.
type Hazard uint32

// MeanLength returns the hazard whose outputs have n ids on average, including the end id.
// With zero and below they never end by themselves.
func MeanLength(n int) Hazard {
	if n <= 0 {
		return 0
	}
	return Hazard(math.MaxUint32 / uint32(min(n, math.MaxInt32)))
}

// Ends draws whether the stream ends here.
func (s *Stream) Ends(h Hazard) bool {
	return h != 0 && uint32(s.draw(0xe7037ed1a0b428db)>>32) <= uint32(h)
}

// Pick draws one of n alternatives.
func (s *Stream) Pick(n int) int {
	return int(s.draw(0x8ebc6af09c88c6e3) % uint64(n))
}
