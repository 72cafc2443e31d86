package dialect

import (
	"bytes"

	"weir/internal/jsonlex"
)

// maxShapeNames bounds the names of open objects that a shape compares, and maxShapeDepth how
// deep it looks.
const (
	maxShapeNames = 64
	maxShapeDepth = 256
)

// shape reads JSON that callers write in one pass over its bytes, of which jsontext needs
// several. It decides nothing against the caller: what it does not read or calls loose goes
// to jsontext, which also words the error.
type shape struct {
	b []byte
	// loose is set if something may break the strict rules: a name that an object has
	// twice, or half a surrogate pair. It may be set without need.
	loose bool
	names *shapeNames // nil if names are not compared
}

// shapeNames are the names of the objects that are open, the innermost's last.
type shapeNames struct {
	n   int
	all [maxShapeNames]struct{ from, to int }
}

// value returns the place behind the value at b[i], or -1 if there is none that it reads.
func (s *shape) value(i, depth int) int {
	if i == len(s.b) || depth > maxShapeDepth {
		return -1
	}
	var end int
	switch s.b[i] {
	case '"':
		end, _ = s.text(i)
	case '{':
		end, _ = s.object(i, depth, nil)
	case '[':
		end, _ = s.array(i, depth, nil)
	default:
		var ok bool
		if end, ok = skipScalar(s.b, i); !ok {
			return -1
		}
	}
	return end
}

// text returns the place behind the string at b[i], or -1, and whether it has escapes.
func (s *shape) text(i int) (end int, escaped bool) {
	end, how, ok := jsonlex.String(s.b, i+1)
	if !ok {
		return -1, false
	}
	if how&jsonlex.Half != 0 {
		s.loose = true
	}
	return end, how&jsonlex.Escaped != 0
}

// next returns the place of what follows white space at b[i], and the byte there; 0 at the end.
func (s *shape) next(i int) (int, byte) {
	if i = SkipSpace(s.b, i); i == len(s.b) {
		return i, 0
	}
	return i, s.b[i]
}

// array reads the array at b[i] and returns the place behind it, or -1. It calls visit, if that
// is not nil, for each item b[from:to], and ends with its error.
func (s *shape) array(i, depth int, visit func(from, to int) error) (end int, err error) {
	i, c := s.next(i + 1)
	for c != ']' {
		if visit == nil && c-'1' < 9 { // ids come by the ten thousand
			i = s.ids(i)
		}
		end := s.value(i, depth+1)
		if end < 0 {
			return -1, nil
		}
		if visit != nil {
			if err := visit(i, end); err != nil {
				return -1, err
			}
		}
		if i, c = s.more(end, ']'); i < 0 {
			return -1, nil
		}
	}
	return i + 1, nil
}

// ids passes over plain numbers at b[i] that have a comma behind them. It returns the place
// behind the last one.
func (s *shape) ids(i int) int {
	for {
		end := i
		for end < len(s.b) && s.b[end]-'0' < 10 {
			end++
		}
		if end == len(s.b) || s.b[end] != ',' {
			return i
		}
		if end++; end < len(s.b) && s.b[end] == ' ' {
			end++
		}
		if end == len(s.b) || s.b[end]-'1' >= 9 {
			return SkipSpace(s.b, end)
		}
		i = end
	}
}

// more passes over the comma behind a value that ends at b[i]. It returns the place and the
// first byte of what follows, which is the closing bracket if no comma does, or -1.
func (s *shape) more(i int, closing byte) (int, byte) {
	i, c := s.next(i)
	if c == closing {
		return i, c
	}
	if c == ',' {
		if i, c = s.next(i + 1); c != closing {
			return i, c
		}
	}
	return -1, 0
}

// object reads the object at b[i] as array does an array. The name of a member, with its quotes,
// is b[name:nameEnd].
func (s *shape) object(i, depth int, visit func(name, nameEnd, from, to int) error) (end int, err error) {
	outer := 0
	if s.names != nil {
		outer = s.names.n
	}
	i, c := s.next(i + 1)
	for c != '}' {
		if c != '"' {
			return -1, nil
		}
		nameEnd, escaped := s.text(i)
		if nameEnd < 0 {
			return -1, nil
		}
		if s.names != nil && !s.loose {
			s.loose = escaped || !s.names.add(s.b, i+1, nameEnd-1, outer)
		}
		from, c2 := s.next(nameEnd)
		if c2 != ':' {
			return -1, nil
		}
		from, _ = s.next(from + 1)
		end := s.value(from, depth+1)
		if end < 0 {
			return -1, nil
		}
		if visit != nil {
			if err := visit(i, nameEnd, from, end); err != nil {
				return -1, err
			}
		}
		if i, c = s.more(end, '}'); i < 0 {
			return -1, nil
		}
	}
	if s.names != nil {
		s.names.n = outer
	}
	return i + 1, nil
}

// add takes note of the name b[from:to] of an object, whose other names are all[outer:n]. It
// returns false if the object has the name, or if there are too many to know.
func (n *shapeNames) add(b []byte, from, to, outer int) bool {
	if n.n == len(n.all) {
		return false
	}
	for _, other := range n.all[outer:n.n] {
		if bytes.Equal(b[other.from:other.to], b[from:to]) {
			return false
		}
	}
	n.all[n.n] = struct{ from, to int }{from, to}
	n.n++
	return true
}

// isStrict reports whether b is one value that keeps the strict rules. It may report false for
// one that does.
func isStrict(b []byte) bool {
	var names shapeNames
	s := shape{b: b, names: &names}
	return s.value(0, 0) == len(b) && !s.loose && InvalidUTF8(b) < 0
}
