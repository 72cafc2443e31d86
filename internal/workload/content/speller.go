package content

import (
	"fmt"
	"sync"
)

// Speller writes any text in the ids of one vocabulary. It is safe for concurrent use.
//
// It takes the longest token at each place. A tokenizer would give other ids, but the text
// is the same: ids are concatenated texts here, and the ids that an engine generates need
// not be those of an encoder.
type Speller struct {
	*Words
	size int
	text func(id uint32) ([]byte, bool)

	once    sync.Once
	byText  map[string]uint32
	longest int
}

// longestSpelled bounds the tokens that are looked for, in bytes: it is that of
// the longest control token in use, </tool_response>.
const longestSpelled = 16

// Speller returns the speller of the vocabulary that the words were made of: size
// and text are as for New.
func (w *Words) Speller(size int, text func(id uint32) ([]byte, bool)) *Speller {
	return &Speller{Words: w, size: size, text: text}
}

func (s *Speller) build() {
	s.byText = make(map[string]uint32, s.size)
	for id := uint32(0); int(id) < s.size; id++ {
		b, ok := s.text(id)
		if !ok || len(b) == 0 || len(b) > longestSpelled {
			continue
		}
		if _, twice := s.byText[string(b)]; !twice {
			s.byText[string(b)] = id
			s.longest = max(s.longest, len(b))
		}
	}
}

// Spell appends the ids of a text. It fails on a byte that no token begins
// with.
func (s *Speller) Spell(ids []uint32, text string) ([]uint32, error) {
	s.once.Do(s.build)
	for at := 0; at < len(text); {
		n := min(s.longest, len(text)-at)
		for ; n > 0; n-- {
			if id, ok := s.byText[text[at:at+n]]; ok {
				ids = append(ids, id)
				break
			}
		}
		if n == 0 {
			return ids, fmt.Errorf("content: the vocabulary has no token for byte %#02x of %q", text[at], text)
		}
		at += n
	}
	return ids, nil
}

// Text returns the bytes of an id, none for one that must not be generated.
func (s *Speller) Text(id uint32) []byte {
	if int64(id) >= int64(s.size) {
		return nil
	}
	if b, ok := s.text(id); ok {
		return b
	}
	return nil
}
