package stop

// Search looks for the first of some strings in one text. Text is given out when it is
// certain: what may be the beginning of a string is held. It serves one goroutine at a time,
// and allocates nothing once its buffer has grown.
type Search struct {
	// Early is set while no string can be complete: what is complete then is text.
	Early bool
	// Include leaves the string that is found in the text.
	Include bool

	matched int // index of the string found, or -1
	list    []stopString
	states  []int32 // how much of each string the text's end matches
	held    []byte
}

// NewSearch begins a search; nil if there is nothing to search for.
func NewSearch(set *Set) *Search {
	if set == nil {
		return nil
	}
	return &Search{matched: -1, list: set.list, states: make([]int32, len(set.list))}
}

// Found returns the index of the string that was found, or -1. No search finds none.
func (s *Search) Found() int {
	if s == nil {
		return -1
	}
	return s.matched
}

// Held is how many bytes are held.
func (s *Search) Held() int {
	if s == nil {
		return 0
	}
	return len(s.held)
}

// Append appends to dst what a piece of the text makes certain. Once a string is found,
// nothing more is.
func (s *Search) Append(dst, text []byte) []byte {
	if s.matched >= 0 {
		return dst
	}
	for i, b := range text {
		if longest := s.step(s.states, b); s.matched >= 0 {
			s.held = append(s.held, text[:i+1]...)
			if !s.Include {
				s.held = s.held[:len(s.held)-longest]
			}
			dst = append(dst, s.held...)
			s.held = s.held[:0]
			return dst
		}
	}
	possible := 0
	for _, state := range s.states {
		possible = max(possible, int(state))
	}
	// held and text together end in what may be a string's beginning.
	certain := len(s.held) + len(text) - possible
	if certain <= len(s.held) {
		dst = append(dst, s.held[:certain]...)
		s.held = append(s.held[:copy(s.held, s.held[certain:])], text...)
		return dst
	}
	dst = append(dst, s.held...)
	certain -= len(s.held)
	dst = append(dst, text[:certain]...)
	s.held = append(s.held[:0], text[certain:]...)
	return dst
}

// step takes one byte, and returns how long the string is that it completes.
func (s *Search) step(states []int32, b byte) (longest int) {
	for k := range s.list {
		one := &s.list[k]
		state := one.step(states[k], b)
		complete := int(state) == len(one.text)
		switch {
		case complete && s.Early:
			state = one.fail[len(one.text)-1]
		case complete && len(one.text) > longest:
			longest, s.matched = len(one.text), k
		}
		states[k] = state
	}
	return longest
}

// Completes reports whether a string would be found in a piece. The search stays as it is.
func (s *Search) Completes(text []byte) bool {
	if s.matched >= 0 || s.Early {
		return false
	}
	var room [16]int32
	states := append(room[:0], s.states...)
	for _, b := range text {
		if s.step(states, b); s.matched >= 0 {
			s.matched = -1
			return true
		}
	}
	return false
}

// Flush appends what is held, which nothing can complete any more. Text that follows is another
// text.
func (s *Search) Flush(dst []byte) []byte {
	dst = append(dst, s.held...)
	s.held = s.held[:0]
	clear(s.states)
	return dst
}
