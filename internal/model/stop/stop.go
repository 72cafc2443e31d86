// Package stop finds stop strings in a text that comes in pieces.
package stop

// Set is stop strings, with the tables by which they are found in a text. It does
// not change once it is made, so that searches share it: a table has four
// times as many bytes as its string.
//
// If several are complete at the same character, the longest counts. Empty strings never match.
type Set struct{ list []stopString }

// New returns the tables of stop strings, nil if there are none. It takes time
// in proportion to the strings' length.
func New(texts []string) *Set {
	if len(texts) == 0 {
		return nil
	}
	s := &Set{list: make([]stopString, len(texts))}
	for i, text := range texts {
		s.list[i] = newStopString(text)
	}
	return s
}

// stopString is followed through a text by Knuth, Morris and Pratt.
type stopString struct {
	text string
	fail []int32 // longest proper border of each prefix
}

func newStopString(text string) stopString {
	s := stopString{text: text, fail: make([]int32, len(text))}
	for i := 1; i < len(text); i++ {
		k := s.fail[i-1]
		for k > 0 && text[i] != text[k] {
			k = s.fail[k-1]
		}
		if text[i] == text[k] {
			k++
		}
		s.fail[i] = k
	}
	return s
}

// step takes one byte: state is how much of the string the text's end matches before
// it, which is not all, and the result how much after it.
func (s *stopString) step(state int32, b byte) int32 {
	if s.text == "" {
		return -1
	}
	for state > 0 && s.text[state] != b {
		state = s.fail[state-1]
	}
	if s.text[state] == b {
		state++
	}
	return state
}
