package idstream

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// Scanner reads events. It reuses its memory between generations, and belongs to the
// goroutine that has a turn.
type Scanner struct {
	Dec  *jsontext.Decoder
	Rest []byte // room for a copy of a part of an event
	// Delta is room for what an event brings, which is offered before the next event is read.
	// One made for each event would be garbage with each token.
	Delta infer.Delta

	in    bytes.Reader
	ids   []uint32
	large bool // the event before was large
}

// keepEvent is the size in bytes of the events whose buffers a scanner keeps.
const keepEvent = 256 << 10

// NewScanner makes one.
func NewScanner() *Scanner {
	return &Scanner{Dec: jsontext.NewDecoder(bytes.NewReader(nil))}
}

// begin makes ready for an event. What a large one before needed is not kept.
func (s *Scanner) begin(data []byte) {
	if s.large {
		*s = *NewScanner()
	}
	s.large = len(data) > keepEvent
}

// Reset has Dec read b.
func (s *Scanner) Reset(b []byte) {
	s.in.Reset(b)
	s.Dec.Reset(&s.in)
}

// Members calls f for each member of the object that comes next, with its name;
// f consumes the value.
func (s *Scanner) Members(f func(name []byte) error) error {
	if _, err := s.Dec.ReadToken(); err != nil {
		return err
	}
	for s.Dec.PeekKind() != '}' {
		name, err := s.Dec.ReadValue()
		if err != nil {
			return err
		}
		// No name that is looked for needs an escape.
		if err := f(name[1 : len(name)-1]); err != nil {
			return err
		}
	}
	_, err := s.Dec.ReadToken()
	return err
}

// Object is Members where there is an object, and passes over anything else.
func (s *Scanner) Object(f func(name []byte) error) error {
	if s.Dec.PeekKind() != '{' {
		return s.Dec.SkipValue()
	}
	return s.Members(f)
}

// Elements calls f for each element of the array that comes next; f consumes it. Anything
// else than an array is passed over.
func (s *Scanner) Elements(f func() error) error {
	if s.Dec.PeekKind() != '[' {
		return s.Dec.SkipValue()
	}
	if _, err := s.Dec.ReadToken(); err != nil {
		return err
	}
	for s.Dec.PeekKind() != ']' {
		if err := f(); err != nil {
			return err
		}
	}
	_, err := s.Dec.ReadToken()
	return err
}

// Event reads data, which is an event's object and nothing else, member by member.
func (s *Scanner) Event(data []byte, f func(name []byte) error) error {
	s.Reset(data)
	if s.Dec.PeekKind() != '{' {
		return errors.New("the event is not a JSON object")
	}
	if err := s.Members(f); err != nil {
		return err
	}
	if rest := bytes.TrimSpace(data[s.Dec.InputOffset():]); len(rest) > 0 {
		return errors.New("something follows the event's JSON object")
	}
	return nil
}

// Array reads the array of ids that comes next in data, which Reset was given. It gives
// the text between the brackets and how many ids are in it.
func (s *Scanner) Array(data []byte) (array []byte, n int, err error) {
	if _, err := s.Dec.ReadToken(); err != nil {
		return nil, 0, err
	}
	from := s.Dec.InputOffset()
	for s.Dec.PeekKind() != ']' {
		v, err := s.Dec.ReadValue()
		if err != nil {
			return nil, 0, err
		}
		if _, err := ParseID(v); err != nil {
			return nil, 0, err
		}
		n++
	}
	to := s.Dec.InputOffset()
	if _, err := s.Dec.ReadToken(); err != nil {
		return nil, 0, err
	}
	return data[from:to], n, nil
}

// ParseID reads a token id.
func ParseID(b []byte) (uint32, error) {
	id, err := strconv.ParseUint(string(b), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%.20q is not a token id", b)
	}
	return uint32(id), nil
}

// Tail returns the last n ids of an array's text, valid until the next call. There are
// at least n.
func (s *Scanner) Tail(array []byte, n int) ([]uint32, error) {
	if cap(s.ids) < n {
		s.ids = make([]uint32, max(n, 2*cap(s.ids)))
	}
	s.ids = s.ids[:n]
	rest := array
	for i := n - 1; i >= 0; i-- {
		at := bytes.LastIndexByte(rest, ',')
		id, err := ParseID(bytes.TrimSpace(rest[at+1:]))
		if err != nil {
			return nil, err
		}
		s.ids[i] = id
		rest = rest[:max(at, 0)]
	}
	return s.ids, nil
}

// Count reads a count; null means that it is not known.
func (s *Scanner) Count(n *int) error {
	v, err := s.Dec.ReadValue()
	if err != nil {
		return err
	}
	if v.Kind() == 'n' {
		return nil
	}
	c, err := strconv.ParseInt(string(v), 10, 32)
	if err != nil || c < 0 {
		return fmt.Errorf("%.20q is not a count", v)
	}
	*n = int(c)
	return nil
}

// Text reads what is a string, and passes over anything else.
func (s *Scanner) Text(to *string) error {
	if s.Dec.PeekKind() != '"' {
		return s.Dec.SkipValue()
	}
	t, err := s.Dec.ReadToken()
	if err != nil {
		return err
	}
	*to = t.String()
	return nil
}

// ID reads a token id.
func (s *Scanner) ID(id *uint32) error {
	v, err := s.Dec.ReadValue()
	if err == nil {
		*id, err = ParseID(v)
	}
	return err
}

// Failure reads an error that comes in place of output: its message, and the HTTP status
// under code, which stays as it is where code is no number.
func (s *Scanner) Failure(message *string, status *int) error {
	return s.Object(func(name []byte) error {
		switch string(name) {
		case "message":
			return s.Text(message)
		case "code":
			if s.Dec.PeekKind() != '0' {
				return s.Dec.SkipValue()
			}
			return s.Count(status)
		}
		return s.Dec.SkipValue()
	})
}
