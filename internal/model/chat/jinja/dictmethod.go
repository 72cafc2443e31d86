package jinja

// isDictAttr reports whether a Python dict has an attribute of that name, which then
// hides a key of the same name.
func isDictAttr(name string) bool {
	switch name {
	case "clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values":
		return true
	}
	return len(name) > 4 && name[:2] == "__"
}

// dictMethod returns a dictionary's method, nil where it has none such.
func dictMethod(d *Dict, name string) (Value, error) {
	switch name {
	case "get":
		return &Func{name, func(_ *state, a args) (Value, error) {
			v, err := a.bindPos(name, 1, 2)
			if err != nil {
				return nil, err
			}
			got, ok, err := d.get(v[0])
			switch {
			case err != nil || ok:
				return got, err
			case v[1] != nil:
				return v[1], nil
			}
			return None, nil
		}}, nil
	case "items", "keys", "values":
		kind := map[string]viewKind{"items": viewItems, "keys": viewKeys, "values": viewValues}[name]
		return &Func{name, func(_ *state, a args) (Value, error) {
			_, err := a.bindPos(name, 0, 0)
			return &View{d, kind}, err
		}}, nil
	case "copy":
		return &Func{name, func(_ *state, a args) (Value, error) {
			_, err := a.bindPos(name, 0, 0)
			// A dictionary cannot change, so it is its own copy.
			return d, err
		}}, nil
	case "clear", "pop", "popitem", "setdefault", "update":
		return unsafeAttr(d, name), nil
	case "fromkeys":
		return &Func{name, fromKeys}, nil
	}
	return nil, nil
}

// fromKeys is dict.fromkeys.
func fromKeys(st *state, a args) (Value, error) {
	v, err := a.bindPos("fromkeys", 1, 2)
	if err != nil {
		return nil, err
	}
	if v[1] == nil {
		v[1] = None
	}
	keys, err := list(st, v[0])
	if err != nil {
		return nil, err
	}
	d := NewDict(len(keys))
	for _, k := range keys {
		if err := d.set(k, v[1]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// newDict is Python's dict().
func newDict(st *state, a args) (Value, error) {
	d := NewDict(len(a.kw))
	if len(a.pos) > 1 {
		return nil, typeErrorf("dict expected at most 1 argument, got %d", len(a.pos))
	}
	if len(a.pos) == 1 {
		switch src := a.pos[0].(type) {
		case *Dict:
			d = src.Clone()
		case *Undefined:
			return nil, src.fail()
		default:
			pairs, err := list(st, src)
			if err != nil {
				return nil, err
			}
			for i, p := range pairs {
				kv, err := list(st, p)
				if err != nil {
					return nil, typeErrorf("cannot convert dictionary update sequence element #%d to a sequence", i)
				}
				if len(kv) != 2 {
					return nil, valueErrorf("dictionary update sequence element #%d has length %d; 2 is required", i, len(kv))
				}
				if err := d.set(kv[0], kv[1]); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, k := range a.kw {
		d.Set(k.name, k.v)
	}
	return d, st.alloc(2 * valueSize * d.Len())
}
