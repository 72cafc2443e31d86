package jinja

import "strings"

// add is + on values that are not both numbers.
func add(st *state, a, b Value) (Value, error) {
	switch x := a.(type) {
	case Str:
		switch y := b.(type) {
		case Str:
			if err := st.alloc(len(x) + len(y)); err != nil {
				return nil, err
			}
			return x + y, nil
		case Markup:
			return Markup(escapeHTML(string(x))) + y, st.alloc(len(x) + len(y))
		}
		return nil, typeErrorf("can only concatenate str (not \"%s\") to str", b.typeName())
	case Markup:
		switch y := b.(type) {
		case Str:
			return x + Markup(escapeHTML(string(y))), st.alloc(len(x) + len(y))
		case Markup:
			return x + y, st.alloc(len(x) + len(y))
		}
	case *List:
		if y, ok := b.(*List); ok {
			items, err := join(st, x.Items, y.Items)
			return &List{items}, err
		}
		return nil, typeErrorf("can only concatenate list (not \"%s\") to list", b.typeName())
	case *Tuple:
		if y, ok := b.(*Tuple); ok {
			items, err := join(st, x.Items, y.Items)
			return &Tuple{Items: items}, err
		}
		return nil, typeErrorf("can only concatenate tuple (not \"%s\") to tuple", b.typeName())
	}
	return nil, typeErrorf("unsupported operand type(s) for +: '%s' and '%s'", a.typeName(), b.typeName())
}

func join(st *state, a, b []Value) ([]Value, error) {
	if err := st.alloc(valueSize * (len(a) + len(b))); err != nil {
		return nil, err
	}
	return append(append(make([]Value, 0, len(a)+len(b)), a...), b...), nil
}

// repeat is * of a sequence with an integer; by is the integer as a value.
func repeat(st *state, seq Value, n number, by Value) (Value, error) {
	count, err := asIndex(by)
	if err != nil {
		return nil, err
	}
	count = max(count, 0)
	fits := func(size int) error {
		if size > 0 && count > (st.opt.MaxAlloc-st.allocated)/size {
			return st.alloc(st.opt.MaxAlloc + 1)
		}
		return st.alloc(size * count)
	}
	times := func(items []Value) ([]Value, error) {
		if err := fits(valueSize * len(items)); err != nil || len(items) == 0 {
			return nil, err
		}
		out := make([]Value, 0, len(items)*count)
		for range count {
			out = append(out, items...)
		}
		return out, nil
	}
	switch s := seq.(type) {
	case Str:
		if err := fits(len(s)); err != nil || len(s) == 0 {
			return Str(""), err
		}
		return Str(strings.Repeat(string(s), count)), nil
	case Markup:
		if err := fits(len(s)); err != nil || len(s) == 0 {
			return Markup(""), err
		}
		return Markup(strings.Repeat(string(s), count)), nil
	case *List:
		items, err := times(s.Items)
		return &List{items}, err
	case *Tuple:
		items, err := times(s.Items)
		return &Tuple{Items: items}, err
	}
	if n.float {
		return nil, typeErrorf("can't multiply sequence by non-int of type 'float'")
	}
	return nil, typeErrorf("unsupported operand type(s) for *: '%s' and '%s'", seq.typeName(), by.typeName())
}
