package jinja

import "math"

// args are the arguments of a call.
type args struct {
	pos []Value
	kw  []kwarg
}

type kwarg struct {
	name string
	v    Value
}

// spread adds the entries of a **kwargs dictionary.
func (a *args) spread(v Value) error {
	d, ok := v.(*Dict)
	if !ok {
		return typeErrorf("argument after ** must be a mapping, not %s", v.typeName())
	}
	for i, k := range d.keys {
		s, ok := asText(k)
		if !ok {
			return typeErrorf("keywords must be strings")
		}
		for _, have := range a.kw {
			if have.name == s {
				return typeErrorf("got multiple values for keyword argument '%s'", s)
			}
		}
		a.kw = append(a.kw, kwarg{s, d.vals[i]})
	}
	return nil
}

// bind assigns arguments to parameters; the first need of them must be given. An argument that was
// not given is nil.
func (a args) bind(fn string, need int, names ...string) ([]Value, error) {
	if len(a.pos) > len(names) {
		return nil, typeErrorf("%s() takes at most %d arguments (%d given)", fn, len(names), len(a.pos))
	}
	out := make([]Value, len(names))
	copy(out, a.pos)
next:
	for _, k := range a.kw {
		for i, n := range names {
			if n != k.name {
				continue
			}
			if out[i] != nil {
				return nil, typeErrorf("%s() got multiple values for argument '%s'", fn, n)
			}
			out[i] = k.v
			continue next
		}
		return nil, typeErrorf("%s() got an unexpected keyword argument '%s'", fn, k.name)
	}
	for i, v := range out[:need] {
		if v == nil {
			return nil, typeErrorf("%s() missing required argument: '%s'", fn, names[i])
		}
	}
	return out, nil
}

// bindPos is bind for functions that take no keywords.
func (a args) bindPos(fn string, need, most int) ([]Value, error) {
	if len(a.kw) > 0 {
		return nil, typeErrorf("%s() takes no keyword arguments", fn)
	}
	if len(a.pos) < need || len(a.pos) > most {
		return nil, typeErrorf("%s() takes %d to %d arguments (%d given)", fn, need, most, len(a.pos))
	}
	out := make([]Value, most)
	copy(out, a.pos)
	return out, nil
}

// asIndex is Python's __index__: integers and booleans.
func asIndex(v Value) (int, error) {
	n, ok := asNumber(v)
	if !ok || n.float {
		return 0, typeErrorf("'%s' object cannot be interpreted as an integer", v.typeName())
	}
	if !n.small || n.i > math.MaxInt || n.i < math.MinInt {
		if n.big().Sign() < 0 {
			return math.MinInt, nil
		}
		return math.MaxInt, nil
	}
	return int(n.i), nil
}

// call calls any value.
func call(st *state, fn Value, a args) (Value, error) {
	switch f := fn.(type) {
	case *Macro:
		return f.call(st, a)
	case *Func:
		return f.fn(st, a)
	case *Undefined:
		return nil, f.fail()
	case *Joiner:
		if _, err := a.bind("joiner", 0); err != nil {
			return nil, err
		}
		if !f.used {
			f.used = true
			return Str(""), nil
		}
		return f.sep, nil
	case *Loop:
		v, err := a.bind("loop", 1, "iterable")
		if err != nil {
			return nil, err
		}
		if f.recurse == nil {
			return nil, typeErrorf("The loop must have the 'recursive' marker to be called recursively.")
		}
		return f.recurse(st, v[0], f.depth0+1)
	}
	return nil, typeErrorf("'%s' object is not callable", fn.typeName())
}

func callable(v Value) bool {
	switch v.(type) {
	case *Macro, *Func, *Undefined, *Joiner, *Loop:
		return true
	}
	return false
}

// call renders the macro.
func (m *Macro) call(st *state, a args) (Value, error) {
	if err := st.push(); err != nil {
		return nil, err
	}
	defer st.pop()
	c := m.code
	sc := &scope{slots: make([]Value, len(c.fn.slots)), up: m.sc}
	c.enter(st, sc)
	if err := c.bind(sc, a); err != nil {
		return nil, err
	}
	for i, slot := range c.slots {
		if sc.slots[slot] != nil {
			continue
		}
		if d := c.defaults[i]; d != nil {
			v, err := d(st, sc)
			if err != nil {
				return nil, err
			}
			sc.slots[slot] = v
			continue
		}
		sc.slots[slot] = &Undefined{hint: "parameter '" + c.params[i] + "' was not provided", name: Str(c.params[i])}
	}
	mark := len(st.out)
	if _, err := c.body(st, sc); err != nil {
		return nil, err
	}
	return st.cut(mark)
}

// bind sets the macro's parameters, and caller, kwargs and varargs where the
// body uses them.
func (c *macroCode) bind(sc *scope, a args) error {
	n := min(len(a.pos), len(c.slots))
	for i, v := range a.pos[:n] {
		sc.slots[c.slots[i]] = v
	}
	kw := NewDict(len(a.kw))
	for _, k := range a.kw {
		kw.Set(k.name, k.v)
	}
	take := func(name string) Value {
		v, ok := kw.Get(name)
		if !ok {
			return nil
		}
		rest := NewDict(kw.Len())
		for i, k := range kw.keys {
			if k != Str(name) {
				rest.Set(string(k.(Str)), kw.vals[i])
			}
		}
		kw = rest
		return v
	}
	for i := n; i < len(c.slots); i++ {
		sc.slots[c.slots[i]] = take(c.params[i])
	}
	if c.caller >= 0 {
		v := take("caller")
		if v == nil || v == None {
			v = &Undefined{hint: "No caller defined", name: Str("caller")}
		}
		sc.slots[c.caller] = v
	}
	if c.catchKw >= 0 {
		sc.slots[c.catchKw] = kw
	} else if kw.Len() > 0 {
		if _, ok := kw.Get("caller"); ok {
			return typeErrorf("macro '%s' was invoked with two values for the special caller argument."+
				" This is most likely a bug.", c.name)
		}
		return typeErrorf("macro '%s' takes no keyword argument %s", c.name, reprOrType(kw.keys[0]))
	}
	if c.catchVar >= 0 {
		sc.slots[c.catchVar] = &Tuple{Items: a.pos[n:]}
	} else if len(a.pos) > n {
		return typeErrorf("macro '%s' takes not more than %d argument(s)", c.name, len(c.slots))
	}
	return nil
}
