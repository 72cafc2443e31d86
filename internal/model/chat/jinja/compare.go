package jinja

import (
	"strings"
)

// compareOp is a comparison operator, in and not in among them.
func compareOp(st *state, op string, a, b Value) (bool, error) {
	switch op {
	case "==":
		return equal(st, a, b, 0)
	case "!=":
		eq, err := equal(st, a, b, 0)
		return !eq, err
	case "in":
		return contains(st, b, a)
	case "not in":
		in, err := contains(st, b, a)
		return !in, err
	}
	return order(st, op, a, b, 0)
}

// equal is Python's ==.
func equal(st *state, a, b Value, depth int) (bool, error) {
	switch x := a.(type) {
	case Str, Markup:
		s, _ := asText(a)
		t, ok := asText(b)
		return ok && s == t, st.scan(s)
	case Bool, Int, Float, *Big:
		n, _ := asNumber(a)
		m, ok := asNumber(b)
		if !ok {
			return false, nil
		}
		c, ok := cmpNumbers(n, m)
		return ok && c == 0, nil
	case *Undefined:
		_, ok := b.(*Undefined)
		return ok, nil
	case *List:
		y, ok := b.(*List)
		if !ok || len(x.Items) != len(y.Items) {
			return false, nil
		}
		return equalDeep(st, x.Items, y.Items, depth)
	case *Tuple:
		y, ok := b.(*Tuple)
		if !ok || len(x.Items) != len(y.Items) {
			return false, nil
		}
		return equalDeep(st, x.Items, y.Items, depth)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false, nil
		}
		for i, k := range x.keys {
			if err := st.nest(depth); err != nil {
				return false, err
			}
			v, ok, err := y.get(k)
			if err != nil || !ok {
				return false, err
			}
			if eq, err := equal(st, x.vals[i], v, depth+1); err != nil || !eq {
				return false, err
			}
		}
		return true, nil
	case *View:
		return equalViews(st, x, b, depth)
	case *Range:
		y, ok := b.(*Range)
		if !ok || x.n != y.n {
			return false, nil
		}
		return x.n == 0 || x.start == y.start && (x.n == 1 || x.step == y.step), nil
	}
	return a == b, nil
}

// equalViews compares keys or items as the sets they are; values are equal
// only to themselves.
func equalViews(st *state, x *View, b Value, depth int) (bool, error) {
	y, ok := b.(*View)
	if !ok || x.kind == viewValues || y.kind == viewValues {
		return x == b, nil
	}
	if x.d.Len() != y.d.Len() {
		return false, nil
	}
	if x.kind == y.kind && x.kind == viewItems {
		return equal(st, x.d, y.d, depth)
	}
	for i := range x.d.Len() {
		if in, err := contains(st, y, x.at(i)); err != nil || !in {
			return false, err
		}
	}
	return true, nil
}

func equalItems(st *state, a, b []Value) (bool, error) {
	if len(a) != len(b) {
		return false, nil
	}
	return equalDeep(st, a, b, 0)
}

func equalDeep(st *state, a, b []Value, depth int) (bool, error) {
	for i := range a {
		if err := st.nest(depth); err != nil {
			return false, err
		}
		if eq, err := equal(st, a[i], b[i], depth+1); err != nil || !eq {
			return false, err
		}
	}
	return true, nil
}

// order is one of < <= > >=.
func order(st *state, op string, a, b Value, depth int) (bool, error) {
	for _, v := range []Value{a, b} {
		if u, ok := v.(*Undefined); ok {
			return false, u.fail()
		}
	}
	if n, ok := asNumber(a); ok {
		if m, ok := asNumber(b); ok {
			c, ok := cmpNumbers(n, m)
			return ok && holds(op, c), nil
		}
	}
	if s, ok := asText(a); ok {
		if t, ok := asText(b); ok {
			// UTF-8 sorts as code points do.
			return holds(op, strings.Compare(s, t)), st.scan(s)
		}
	}
	if x, ok := a.(*List); ok {
		if y, ok := b.(*List); ok {
			return orderItems(st, op, x.Items, y.Items, depth)
		}
	}
	if x, ok := a.(*Tuple); ok {
		if y, ok := b.(*Tuple); ok {
			return orderItems(st, op, x.Items, y.Items, depth)
		}
	}
	if _, ok := a.(*View); ok {
		return false, errorf(KindUnsupported, "ordering '%s' objects is not supported", a.typeName())
	}
	return false, typeErrorf("'%s' not supported between instances of '%s' and '%s'", op, a.typeName(), b.typeName())
}

func orderItems(st *state, op string, a, b []Value, depth int) (bool, error) {
	for i := 0; i < len(a) && i < len(b); i++ {
		if err := st.nest(depth); err != nil {
			return false, err
		}
		eq, err := equal(st, a[i], b[i], depth+1)
		if err != nil {
			return false, err
		}
		if !eq {
			return order(st, op, a[i], b[i], depth+1)
		}
	}
	return holds(op, len(a)-len(b)), nil
}

func holds(op string, c int) bool {
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// contains is Python's `v in seq`.
func contains(st *state, seq, v Value) (bool, error) {
	switch s := seq.(type) {
	case Str, Markup:
		t, _ := asText(seq)
		sub, ok := asText(v)
		if !ok {
			return false, typeErrorf("'in <string>' requires string as left operand, not %s", v.typeName())
		}
		return strings.Contains(t, sub), st.scan(t)
	case *Dict:
		if k, ok := v.(Str); ok {
			if err := st.scan(string(k)); err != nil {
				return false, err
			}
		}
		_, ok, err := s.get(v)
		return ok, err
	case *View:
		if s.kind == viewKeys {
			_, ok, err := s.d.get(v)
			return ok, err
		}
	}
	it, err := iterate(seq)
	if err != nil {
		if isKind(err, KindType) {
			return false, typeErrorf("argument of type '%s' is not iterable", seq.typeName())
		}
		return false, err
	}
	for {
		e, ok, err := it.next(st)
		if err != nil || !ok {
			return false, err
		}
		if err := st.step(1); err != nil {
			return false, err
		}
		if eq, err := equal(st, e, v, 0); err != nil || eq {
			return eq, err
		}
	}
}
