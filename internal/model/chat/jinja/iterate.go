package jinja

import "unicode/utf8"

// iterator gives values one by one.
type iterator interface {
	next(st *state) (Value, bool, error)
}

type iterFunc func(st *state) (Value, bool, error)

func (f iterFunc) next(st *state) (Value, bool, error) { return f(st) }

type sliceIter struct {
	items []Value
	i     int
}

func (s *sliceIter) next(*state) (Value, bool, error) {
	if s.i >= len(s.items) {
		return nil, false, nil
	}
	s.i++
	return s.items[s.i-1], true, nil
}

func (i *Iter) next(st *state) (Value, bool, error) { return i.src.next(st) }

// iterate is Python's iter().
func iterate(v Value) (iterator, error) {
	switch v := v.(type) {
	case *List:
		return &sliceIter{items: v.Items}, nil
	case *Tuple:
		return &sliceIter{items: v.Items}, nil
	case *Dict:
		return &sliceIter{items: v.keys}, nil
	case *View:
		i := 0
		return iterFunc(func(*state) (Value, bool, error) {
			if i >= v.d.Len() {
				return nil, false, nil
			}
			i++
			return v.at(i - 1), true, nil
		}), nil
	case Str:
		return stringIter(string(v)), nil
	case Markup:
		return stringIter(string(v)), nil
	case *Range:
		i := int64(0)
		return iterFunc(func(*state) (Value, bool, error) {
			if i >= v.n {
				return nil, false, nil
			}
			i++
			return Int(v.start + (i-1)*v.step), true, nil
		}), nil
	case *Undefined:
		return &sliceIter{}, nil
	case *Iter:
		return v, nil
	case *Loop:
		return iterFunc(func(st *state) (Value, bool, error) {
			e, ok, err := v.next(st)
			if err != nil || !ok {
				return nil, false, err
			}
			return &Tuple{Items: []Value{e, v}}, true, nil
		}), nil
	}
	return nil, typeErrorf("'%s' object is not iterable", v.typeName())
}

func stringIter(s string) iterator {
	return iterFunc(func(*state) (Value, bool, error) {
		if s == "" {
			return nil, false, nil
		}
		_, n := utf8.DecodeRuneInString(s)
		e := Str(s[:n])
		s = s[n:]
		return e, true, nil
	})
}

// at returns the i-th element of a view.
func (v *View) at(i int) Value {
	switch v.kind {
	case viewKeys:
		return v.d.keys[i]
	case viewValues:
		return v.d.vals[i]
	}
	return &Tuple{Items: []Value{v.d.keys[i], v.d.vals[i]}}
}

// list is Python's list(). The caller must not change the result.
func list(st *state, v Value) ([]Value, error) {
	switch v := v.(type) {
	case *List:
		return v.Items, nil
	case *Tuple:
		return v.Items, nil
	case *Dict:
		return v.keys, nil
	}
	it, err := iterate(v)
	if err != nil {
		return nil, err
	}
	return collect(st, it)
}

// collect reads an iterator to its end.
func collect(st *state, it iterator) ([]Value, error) {
	var out []Value
	for {
		e, ok, err := it.next(st)
		if err != nil {
			return nil, err
		}
		if !ok {
			return out, nil
		}
		if err := st.step(1); err != nil {
			return nil, err
		}
		if err := st.alloc(valueSize); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
}

// length is Python's len().
func length(st *state, v Value) (int, error) {
	switch v := v.(type) {
	case Str:
		return utf8.RuneCountInString(string(v)), st.scan(string(v))
	case Markup:
		return utf8.RuneCountInString(string(v)), st.scan(string(v))
	case *List:
		return len(v.Items), nil
	case *Tuple:
		return len(v.Items), nil
	case *Dict:
		return v.Len(), nil
	case *View:
		return v.d.Len(), nil
	case *Range:
		return int(v.n), nil
	case *Undefined:
		return 0, nil
	case *Loop:
		return v.len(st)
	}
	return 0, typeErrorf("object of type '%s' has no len()", v.typeName())
}

// Loop is the loop variable of a for loop.
type Loop struct {
	it      iterator
	sized   Value // what is iterated over, nil when it has no length of its own
	index0  int
	length  int // -1 until asked for
	peeked  bool
	after   Value // the next item when peeked; nil at the end
	current Value
	before  Value
	last    []Value // of changed()
	changed bool    // whether last is set
	recurse func(*state, Value, int) (Value, error)
	depth0  int
}

func (l *Loop) next(st *state) (Value, bool, error) {
	v, err := l.peek(st)
	if err != nil || v == nil {
		return nil, false, err
	}
	l.peeked, l.after = false, nil
	l.index0++
	l.before, l.current = l.current, v
	return v, true, nil
}

// peek reads one item ahead; nil means that there is none.
func (l *Loop) peek(st *state) (Value, error) {
	if l.peeked && l.after != nil {
		return l.after, nil
	}
	v, ok, err := l.it.next(st)
	if err != nil {
		return nil, err
	}
	if !ok {
		v = nil
	}
	l.peeked, l.after = true, v
	return v, nil
}

// len returns the number of items; where they come one by one, the rest of them is read
// now.
func (l *Loop) len(st *state) (int, error) {
	if l.length >= 0 {
		return l.length, nil
	}
	if l.sized != nil {
		if n, err := length(st, l.sized); err == nil {
			l.length = n
			return n, nil
		}
	}
	rest, err := collect(st, l.it)
	if err != nil {
		return 0, err
	}
	l.it = &sliceIter{items: rest}
	l.length = len(rest) + l.index0 + 1
	if l.peeked && l.after != nil {
		l.length++
	}
	return l.length, nil
}

// attr returns an attribute of the loop variable, nil if it has none such.
func (l *Loop) attr(st *state, name string) (Value, error) {
	switch name {
	case "index":
		return Int(l.index0 + 1), nil
	case "index0":
		return Int(l.index0), nil
	case "first":
		return Bool(l.index0 == 0), nil
	case "last":
		v, err := l.peek(st)
		return Bool(v == nil), err
	case "length", "revindex", "revindex0":
		n, err := l.len(st)
		switch name {
		case "revindex":
			n -= l.index0
		case "revindex0":
			n -= l.index0 + 1
		}
		return Int(n), err
	case "depth":
		return Int(l.depth0 + 1), nil
	case "depth0":
		return Int(l.depth0), nil
	case "previtem":
		if l.index0 == 0 {
			return &Undefined{hint: "there is no previous item"}, nil
		}
		return l.before, nil
	case "nextitem":
		v, err := l.peek(st)
		if v == nil && err == nil {
			v = &Undefined{hint: "there is no next item"}
		}
		return v, err
	case "cycle":
		return &Func{"cycle", func(_ *state, a args) (Value, error) {
			if len(a.pos) == 0 {
				return nil, typeErrorf("no items for cycling given")
			}
			return a.pos[l.index0%len(a.pos)], nil
		}}, nil
	case "changed":
		return &Func{"changed", func(st *state, a args) (Value, error) {
			if l.changed {
				same, err := equalItems(st, l.last, a.pos)
				if err != nil || same {
					return Bool(false), err
				}
			}
			l.last, l.changed = a.pos, true
			return Bool(true), nil
		}}, nil
	}
	return nil, nil
}
