package jinja

import "math"

// maxRange is the sandbox's bound on range().
const maxRange = 100000

// builtin returns a global of the environment, nil where there is none such.
func builtin(name string) Value {
	switch name {
	case "range":
		return &Func{name, newRange}
	case "dict":
		return &Func{name, newDict}
	case "namespace":
		return &Func{name, newNamespace}
	case "cycler":
		return &Func{name, func(_ *state, a args) (Value, error) {
			if len(a.kw) > 0 {
				return nil, typeErrorf("cycler() got an unexpected keyword argument '%s'", a.kw[0].name)
			}
			if len(a.pos) == 0 {
				return nil, errorf(KindRuntime, "at least one item has to be provided")
			}
			return &Cycler{items: a.pos}, nil
		}}
	case "joiner":
		return &Func{name, func(_ *state, a args) (Value, error) {
			v, err := a.bind(name, 0, "sep")
			if err != nil {
				return nil, err
			}
			if v[0] == nil {
				v[0] = Str(", ")
			}
			return &Joiner{sep: v[0]}, nil
		}}
	case "raise_exception":
		return &Func{name, func(st *state, a args) (Value, error) {
			v, err := a.bind(name, 1, "message")
			if err != nil {
				return nil, err
			}
			s, err := text(st, v[0])
			if err != nil {
				return nil, err
			}
			return nil, errorf(KindRaised, "%s", s)
		}}
	case "strftime_now":
		return &Func{name, func(st *state, a args) (Value, error) {
			v, err := a.bind(name, 1, "format")
			if err != nil {
				return nil, err
			}
			format, ok := asText(v[0])
			if !ok {
				return nil, typeErrorf("strftime() argument 1 must be str, not %s", v[0].typeName())
			}
			s, err := strftime(st.opt.Now, format)
			if err != nil {
				return nil, err
			}
			return st.str(s)
		}}
	}
	return nil
}

func newNamespace(st *state, a args) (Value, error) {
	v, err := newDict(st, a)
	if err != nil {
		return nil, err
	}
	d := v.(*Dict)
	for _, k := range d.keys {
		if s, ok := asText(k); ok {
			if err := checkNamespaceName(s); err != nil {
				return nil, err
			}
		}
	}
	return &Namespace{d}, nil
}

func newRange(_ *state, a args) (Value, error) {
	v, err := a.bindPos("range", 1, 3)
	if err != nil {
		return nil, err
	}
	var n [3]int64
	for i, x := range v {
		if x == nil {
			continue
		}
		k, err := asIndex(x)
		if err != nil {
			return nil, err
		}
		n[i] = int64(k)
	}
	r := &Range{start: n[0], stop: n[1], step: n[2]}
	switch {
	case v[1] == nil:
		r.start, r.stop, r.step = 0, n[0], 1
	case v[2] == nil:
		r.step = 1
	case r.step == 0:
		return nil, valueErrorf("range() arg 3 must not be zero")
	}
	// Unsigned differences cannot overflow.
	if r.step > 0 && r.stop > r.start {
		r.n = clampCount((uint64(r.stop) - uint64(r.start) - 1) / uint64(r.step))
	} else if r.step < 0 && r.stop < r.start {
		r.n = clampCount((uint64(r.start) - uint64(r.stop) - 1) / (-uint64(r.step)))
	}
	if r.n > maxRange {
		return nil, valueErrorf("Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
	}
	return r, nil
}

// clampCount returns steps+1, or a number that is too big where it is so.
func clampCount(steps uint64) int64 {
	if steps >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(steps) + 1
}
