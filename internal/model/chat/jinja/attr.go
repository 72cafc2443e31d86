package jinja

import (
	"math/big"
	"strings"
	"unicode/utf8"
)

// getAttr is `obj.name`: the attribute if there is one, else the item.
func getAttr(st *state, obj Value, name string) (Value, error) {
	if d, ok := obj.(*Dict); ok {
		// The common case first: a key of a message.
		if !isDictAttr(name) {
			if v, ok := d.Get(name); ok {
				return v, nil
			}
			return &Undefined{obj: obj, name: Str(name)}, nil
		}
	}
	v, err := attribute(st, obj, name)
	if err != nil || v != nil {
		return v, err
	}
	if d, ok := obj.(*Dict); ok {
		if v, ok := d.Get(name); ok {
			return v, nil
		}
	}
	return &Undefined{obj: obj, name: Str(name)}, nil
}

// getItem is `obj[arg]`: the item if there is one, else the attribute.
func getItem(st *state, obj, arg Value) (Value, error) {
	for _, v := range [2]Value{obj, arg} {
		if s, ok := v.(Str); ok {
			// A subscript counts code points, a key is hashed.
			if err := st.scan(string(s)); err != nil {
				return nil, err
			}
		}
	}
	switch o := obj.(type) {
	case *Dict:
		v, ok, err := o.get(arg)
		if ok {
			return v, nil
		}
		if err != nil && !isKind(err, KindType) {
			return nil, err
		}
	case *Undefined:
		return nil, o.fail()
	default:
		if n, ok := asNumber(arg); ok && !n.float && n.small {
			if v := index(obj, n.i); v != nil {
				return v, nil
			}
		}
	}
	if s, ok := asText(arg); ok {
		if v, err := attribute(st, obj, s); err != nil || v != nil {
			return v, err
		}
	}
	return &Undefined{obj: obj, name: arg}, nil
}

// index returns the i-th item of a sequence, nil where there is none.
func index(obj Value, i int64) Value {
	pick := func(items []Value) Value {
		if i < 0 {
			i += int64(len(items))
		}
		if i < 0 || i >= int64(len(items)) {
			return nil
		}
		return items[i]
	}
	switch o := obj.(type) {
	case *List:
		return pick(o.Items)
	case *Tuple:
		return pick(o.Items)
	case Str:
		return charAt(string(o), i)
	case Markup:
		if c, ok := charAt(string(o), i).(Str); ok {
			return Markup(c)
		}
	case *Range:
		if i < 0 {
			i += o.n
		}
		if i >= 0 && i < o.n {
			return Int(o.start + i*o.step)
		}
	}
	return nil
}

// charAt returns the i-th code point, from the end for a negative i, or nil.
func charAt(s string, i int64) Value {
	if i < 0 {
		for ; s != ""; i++ {
			_, n := utf8.DecodeLastRuneInString(s)
			if i == -1 {
				return Str(s[len(s)-n:])
			}
			s = s[:len(s)-n]
		}
		return nil
	}
	for ; s != ""; i-- {
		_, n := utf8.DecodeRuneInString(s)
		if i == 0 {
			return Str(s[:n])
		}
		s = s[n:]
	}
	return nil
}

// slice is `obj[start:stop:step]`.
func slice(st *state, obj, start, stop, step Value) (Value, error) {
	if u, ok := obj.(*Undefined); ok {
		return nil, u.fail()
	}
	n := 0
	switch obj.(type) {
	case Str, Markup, *List, *Tuple, *Range:
		var err error
		if n, err = length(st, obj); err != nil {
			return nil, err
		}
	case *Dict:
		return nil, typeErrorf("unhashable type: 'slice'")
	default:
		return nil, typeErrorf("'%s' object is not subscriptable", obj.typeName())
	}
	lo, hi, by, err := sliceBounds(n, start, stop, step)
	if err != nil {
		return nil, err
	}
	switch o := obj.(type) {
	case Str:
		s, err := sliceText(string(o), n, lo, hi, by)
		if err != nil {
			return nil, err
		}
		return st.str(s)
	case Markup:
		s, err := sliceText(string(o), n, lo, hi, by)
		return Markup(s), err
	case *List:
		items, err := sliceItems(st, o.Items, lo, hi, by)
		return &List{items}, err
	case *Tuple:
		items, err := sliceItems(st, o.Items, lo, hi, by)
		return &Tuple{Items: items}, err
	}
	r := obj.(*Range)
	count := int64(0)
	if by > 0 && hi > lo {
		count = int64((hi - lo + by - 1) / by)
	} else if by < 0 && lo > hi {
		count = int64((lo - hi - by - 1) / -by)
	}
	return &Range{r.start + int64(lo)*r.step, r.start + int64(hi)*r.step, r.step * int64(by), count}, nil
}

// sliceBounds resolves a slice against a length, as Python does: the bounds
// clamp, and a step may run backwards.
func sliceBounds(n int, start, stop, step Value) (lo, hi, by int, err error) {
	by = 1
	if step != None {
		if by, err = sliceIndex(step); err != nil {
			return
		}
		if by == 0 {
			err = valueErrorf("slice step cannot be zero")
			return
		}
		// A step beyond the length takes one item; clamping keeps the
		// arithmetic from overflowing.
		by = max(-n-1, min(by, n+1))
	}
	low, high := 0, n
	if by < 0 {
		low, high = -1, n-1
	}
	bound := func(v Value, none int) (int, error) {
		if v == None {
			return none, nil
		}
		i, err := sliceIndex(v)
		if err != nil {
			return 0, err
		}
		if i < 0 {
			i += n
		}
		return max(low, min(i, high)), nil
	}
	if by > 0 {
		if lo, err = bound(start, low); err == nil {
			hi, err = bound(stop, high)
		}
		return
	}
	if lo, err = bound(start, high); err == nil {
		hi, err = bound(stop, low)
	}
	return
}

func sliceIndex(v Value) (int, error) {
	i, err := asIndex(v)
	if isKind(err, KindType) {
		err = typeErrorf("slice indices must be integers or None or have an __index__ method")
	}
	return i, err
}

func sliceItems(st *state, items []Value, lo, hi, by int) ([]Value, error) {
	if by == 1 {
		return items[lo:max(lo, hi):max(lo, hi)], nil
	}
	if err := st.alloc(valueSize * len(items)); err != nil {
		return nil, err
	}
	var out []Value
	for i := lo; by > 0 && i < hi || by < 0 && i > hi; i += by {
		out = append(out, items[i])
	}
	return out, nil
}

func sliceText(s string, n, lo, hi, by int) (string, error) {
	if by == 1 {
		if hi <= lo {
			return "", nil
		}
		if n == len(s) {
			return s[lo:hi], nil
		}
		from := runeOffset(s, lo)
		return s[from : from+runeOffset(s[from:], hi-lo)], nil
	}
	var b strings.Builder
	if n == len(s) {
		for i := lo; by > 0 && i < hi || by < 0 && i > hi; i += by {
			b.WriteByte(s[i])
		}
		return b.String(), nil
	}
	runes := []rune(s)
	for i := lo; by > 0 && i < hi || by < 0 && i > hi; i += by {
		b.WriteRune(runes[i])
	}
	return b.String(), nil
}

// runeOffset returns the byte offset of the n-th code point.
func runeOffset(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

// unsafeAttr is what the sandbox gives for an attribute it hides.
func unsafeAttr(obj Value, name string) Value {
	return &Undefined{
		hint: "access to attribute '" + name + "' of '" + obj.typeName() + "' object is unsafe.",
		obj:  obj, name: Str(name), kind: KindSecurity,
	}
}

// attribute returns an attribute of obj's own type, nil where it has none such.
func attribute(st *state, obj Value, name string) (Value, error) {
	if strings.HasPrefix(name, "__") && isDunder(name) {
		return unsafeAttr(obj, name), nil
	}
	switch o := obj.(type) {
	case *Undefined:
		return nil, o.fail()
	case Str, Markup:
		return stringMethod(obj, name)
	case *Dict:
		return dictMethod(o, name)
	case *List:
		switch name {
		case "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove":
			return unsafeAttr(obj, name), nil
		case "copy":
			return &Func{name, func(_ *state, a args) (Value, error) {
				_, err := a.bindPos(name, 0, 0)
				return o, err
			}}, nil
		}
		return sequenceMethod(obj, o.Items, name)
	case *Tuple:
		if o.group && name == "grouper" {
			return o.Items[0], nil
		}
		if o.group && name == "list" {
			return o.Items[1], nil
		}
		return sequenceMethod(obj, o.Items, name)
	case *Range:
		switch name {
		case "start":
			return Int(o.start), nil
		case "stop":
			return Int(o.stop), nil
		case "step":
			return Int(o.step), nil
		case "count", "index":
			items, err := list(st, o)
			if err != nil {
				return nil, err
			}
			return sequenceMethod(obj, items, name)
		}
	case *Namespace:
		if v, ok := o.d.Get(name); ok {
			return v, nil
		}
	case *Loop:
		return o.attr(st, name)
	case *Macro:
		return o.attr(name), nil
	case *Cycler:
		return o.attr(name), nil
	case *Joiner:
		switch name {
		case "sep":
			return o.sep, nil
		case "used":
			return Bool(o.used), nil
		}
	case Int, Bool, *Big, Float:
		return numberAttr(obj, name), nil
	}
	return nil, nil
}

// isDunder reports whether every Python object has the attribute, so that the sandbox
// hides it rather than look for an item of that name.
func isDunder(name string) bool {
	switch name {
	case "__class__", "__doc__", "__dir__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
		"__format__", "__getattribute__", "__hash__", "__init__", "__init_subclass__", "__new__",
		"__reduce__", "__reduce_ex__", "__repr__", "__setattr__", "__delattr__", "__sizeof__", "__str__",
		"__subclasshook__":
		return true
	}
	return false
}

func (m *Macro) attr(name string) Value {
	switch name {
	case "name":
		return Str(m.code.name)
	case "arguments":
		t := &Tuple{}
		for _, p := range m.code.params {
			t.Items = append(t.Items, Str(p))
		}
		return t
	case "catch_kwargs":
		return Bool(m.code.catchKw >= 0)
	case "catch_varargs":
		return Bool(m.code.catchVar >= 0)
	case "caller":
		return Bool(m.code.wantsCall)
	}
	return nil
}

func (c *Cycler) attr(name string) Value {
	switch name {
	case "current":
		return c.items[c.pos]
	case "items":
		return &Tuple{Items: c.items}
	case "pos":
		return Int(c.pos)
	case "next":
		return &Func{name, func(_ *state, a args) (Value, error) {
			if _, err := a.bindPos(name, 0, 0); err != nil {
				return nil, err
			}
			v := c.items[c.pos]
			c.pos = (c.pos + 1) % len(c.items)
			return v, nil
		}}
	case "reset":
		return &Func{name, func(_ *state, a args) (Value, error) {
			_, err := a.bindPos(name, 0, 0)
			c.pos = 0
			return None, err
		}}
	}
	return nil
}

func numberAttr(v Value, name string) Value {
	n, _ := asNumber(v)
	plain := v
	if _, ok := v.(Bool); ok {
		plain = Int(n.i)
	}
	switch name {
	case "real":
		return plain
	case "imag":
		if n.float {
			return Float(0)
		}
		return Int(0)
	case "is_integer":
		if n.float {
			return &Func{name, func(_ *state, a args) (Value, error) {
				_, err := a.bindPos(name, 0, 0)
				_, whole := floatToInt(n.f)
				return Bool(whole), err
			}}
		}
	case "numerator", "denominator":
		if n.float {
			return nil
		}
		if name == "denominator" {
			return Int(1)
		}
		return plain
	case "bit_length":
		if !n.float {
			return &Func{name, func(_ *state, a args) (Value, error) {
				_, err := a.bindPos(name, 0, 0)
				return Int(new(big.Int).Abs(n.big()).BitLen()), err
			}}
		}
	}
	return nil
}

// sequenceMethod returns the methods that lists and tuples share.
func sequenceMethod(obj Value, items []Value, name string) (Value, error) {
	switch name {
	case "count":
		return &Func{name, func(st *state, a args) (Value, error) {
			v, err := a.bindPos(name, 1, 1)
			if err != nil {
				return nil, err
			}
			n := 0
			for _, it := range items {
				eq, err := equal(st, it, v[0], 0)
				if err != nil {
					return nil, err
				}
				if eq {
					n++
				}
			}
			return Int(n), nil
		}}, nil
	case "index":
		return &Func{name, func(st *state, a args) (Value, error) {
			v, err := a.bindPos(name, 1, 3)
			if err != nil {
				return nil, err
			}
			for i := 1; i < 3; i++ {
				if v[i] == nil {
					v[i] = None
				}
			}
			lo, hi, _, err := sliceBounds(len(items), v[1], v[2], None)
			if err != nil {
				return nil, err
			}
			for i := lo; i < hi; i++ {
				eq, err := equal(st, items[i], v[0], 0)
				if err != nil {
					return nil, err
				}
				if eq {
					return Int(i), nil
				}
			}
			return nil, valueErrorf("%s is not in %s", reprOrType(v[0]), obj.typeName())
		}}, nil
	}
	return nil, nil
}
