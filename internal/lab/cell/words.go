//go:build linux

package cell

import (
	"fmt"

	"weir/internal/model/tokenizer"
	"weir/models"
)

// Words are the texts of streams on the plane: stream s has word s*stride as its token 0,
// the next word as its token 1, and so on around the list. So a reader knows every word in
// advance, and any word identifies its token, up to a full circle of the list.
type Words struct {
	id     []uint32
	text   []string       // with a space in front
	number map[string]int // by text
	ofID   map[uint32]string
}

const stride = 7919 // a prime, so that neighbours say different words

// LoadWords takes the words of the built-in model: tokens of a space and two
// or more lower-case letters.
func LoadWords() (*Words, error) {
	folder, err := tokenizer.Load(models.Sim())
	if err != nil {
		return nil, fmt.Errorf("words: %w", err)
	}
	w := &Words{number: map[string]int{}, ofID: map[uint32]string{}}
	for id := range uint32(folder.VocabSize) {
		b, ok := folder.Tokenizer.OrdinaryBytes(id)
		if !ok {
			continue
		}
		text := string(b)
		if _, twice := w.number[text]; twice || !isWord(text) {
			continue
		}
		w.number[text] = len(w.id)
		w.ofID[id] = text
		w.id = append(w.id, id)
		w.text = append(w.text, text)
	}
	if len(w.id) < 256 {
		return nil, fmt.Errorf("words: the built-in model has only %d", len(w.id))
	}
	return w, nil
}

func isWord(text string) bool {
	if len(text) < 3 || text[0] != ' ' {
		return false
	}
	for _, c := range []byte(text[1:]) {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	return true
}

// at returns the number of the word that is a stream's token.
func (w *Words) at(stream, token int) int { return (stream*stride + token) % len(w.id) }

// ID returns a stream's token.
func (w *Words) ID(stream, token int) uint32 { return w.id[w.at(stream, token)] }

// Text returns a stream's token as the word that it is, a space in front.
func (w *Words) Text(stream, token int) string { return w.text[w.at(stream, token)] }

// Ahead returns which of a stream's tokens a word is, as the number of tokens between it
// and the expected one. It returns false for an unknown word and for one that came before
// the expected one. Up to half the list ahead is a gap, up to half the list back a
// repetition.
func (w *Words) Ahead(stream, expected int, word []byte) (int, bool) {
	number, ok := w.number[string(word)]
	n := len(w.id)
	ahead := (number - w.at(stream, expected) + n) % n
	return ahead, ok && ahead <= n/2
}

// ByID returns the text of an id.
func (w *Words) ByID(id uint32) string { return w.ofID[id] }
