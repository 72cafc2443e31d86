package exchange

import "strings"

// StopScanner finds the first stop string in a text that comes in pieces. It
// holds back what may be the beginning of one.
type StopScanner struct {
	list  []string
	keep  bool // what is shown ends with the stop string found, not before it
	held  string
	found string
}

// NewStops returns a scanner for stop strings. With keep, what is shown ends with the one found.
func NewStops(list []string, keep bool) StopScanner { return StopScanner{list: list, keep: keep} }

// push adds a piece and returns the text that may be shown. stopped reports whether a stop
// string was found; the text then ends before it, or after it if the stop string is kept.
func (s *StopScanner) push(piece string) (shown string, stopped bool) {
	if len(s.list) == 0 {
		return piece, false
	}
	s.held += piece
	at := -1
	for _, stop := range s.list {
		if i := strings.Index(s.held, stop); i >= 0 && (at < 0 || i < at) {
			at, s.found = i, stop
		}
	}
	if at >= 0 {
		if s.keep {
			at += len(s.found)
		}
		shown, s.held = s.held[:at], ""
		return shown, true
	}
	keep := 0
	for _, stop := range s.list {
		for n := min(len(stop)-1, len(s.held)); n > keep; n-- {
			if strings.HasSuffix(s.held, stop[:n]) {
				keep = n
			}
		}
	}
	shown, s.held = s.held[:len(s.held)-keep], s.held[len(s.held)-keep:]
	return shown, false
}

// rest returns the held text, at the end of the output.
func (s *StopScanner) rest() string {
	rest := s.held
	s.held = ""
	return rest
}
