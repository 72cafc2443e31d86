package jinja

// filter is a filter on its subject.
type filter func(st *state, v Value, a args) (Value, error)

// refusedFilter reports whether Jinja has a filter which this package has not.
func refusedFilter(name string) bool {
	switch name {
	case "pprint", "random", "striptags", "urlize", "wordwrap":
		return true
	}
	return false
}

// lookupFilter returns a filter, nil where there is none of that name.
func lookupFilter(name string) filter {
	switch name {
	case "abs":
		return filterAbs
	case "attr":
		return filterAttr
	case "batch":
		return filterBatch
	case "capitalize":
		return textFilter(name, capitalize)
	case "center":
		return filterCenter
	case "count", "length":
		return filterLength
	case "d", "default":
		return filterDefault
	case "dictsort":
		return filterDictSort
	case "e", "escape", "forceescape":
		return filterEscape(name == "forceescape")
	case "filesizeformat":
		return filterFileSize
	case "first":
		return filterFirst
	case "float":
		return filterFloat
	case "format":
		return filterFormat
	case "groupby":
		return filterGroupBy
	case "indent":
		return filterIndent
	case "int":
		return filterInt
	case "items":
		return filterItems
	case "join":
		return filterJoin
	case "last":
		return filterLast
	case "list":
		return filterList
	case "lower":
		return textFilter(name, lower)
	case "map":
		return filterMap
	case "max", "min":
		return filterExtreme(name)
	}
	return lookupFilter2(name)
}

func lookupFilter2(name string) filter {
	switch name {
	case "reject", "rejectattr", "select", "selectattr":
		return filterSelect(name)
	case "replace":
		return filterReplace
	case "reverse":
		return filterReverse
	case "round":
		return filterRound
	case "safe":
		return filterSafe
	case "slice":
		return filterSlice
	case "sort":
		return filterSort
	case "string":
		return filterString
	case "sum":
		return filterSum
	case "title":
		return filterTitle
	case "tojson":
		return filterToJSON
	case "trim":
		return filterTrim
	case "truncate":
		return filterTruncate
	case "unique":
		return filterUnique
	case "upper":
		return textFilter(name, upper)
	case "urlencode":
		return filterURLEncode
	case "wordcount":
		return filterWordCount
	case "xmlattr":
		return filterXMLAttr
	}
	return nil
}

// generator makes what Python's generator functions give.
func generator(f func(st *state) (Value, bool, error)) Value {
	return &Iter{iterFunc(f), "generator"}
}

// generate makes a generator whose items are computed when it is first read.
func generate(make func(st *state) ([]Value, error)) Value {
	var it *sliceIter
	return generator(func(st *state) (Value, bool, error) {
		if it == nil {
			items, err := make(st)
			if err != nil {
				return nil, false, err
			}
			it = &sliceIter{items: items}
		}
		return it.next(st)
	})
}

// path is an attribute path of map, sort and their like: `a.b.0`.
type path []Value

func parsePath(v Value) path {
	s, ok := asText(v)
	if !ok {
		if v == nil || v == None {
			return nil
		}
		return path{v}
	}
	var p path
	for _, part := range splitSep(s, ".", -1, false) {
		if all(part, isDigit) {
			if n, err := parseInt(part, 10); err == nil {
				p = append(p, n)
				continue
			}
		}
		p = append(p, Str(part))
	}
	return p
}

// get follows the path; def stands in for what is undefined, if not nil.
func (p path) get(st *state, v Value, def Value) (Value, error) {
	for _, part := range p {
		var err error
		if v, err = getItem(st, v, part); err != nil {
			return nil, err
		}
		if _, undef := v.(*Undefined); undef && def != nil && def != None {
			v = def
		}
	}
	return v, nil
}

func ignoreCase(v Value) Value {
	if s, ok := asText(v); ok {
		return Str(lower(s))
	}
	return v
}

// flag returns a boolean argument.
func flag(v Value, def bool) (bool, error) {
	if v == nil {
		return def, nil
	}
	return truth(v)
}

func filterMap(st *state, v Value, a args) (Value, error) {
	return generate(func(st *state) ([]Value, error) {
		if ok, err := truth(v); err != nil || !ok {
			return nil, err
		}
		each, err := mapper(a)
		if err != nil {
			return nil, err
		}
		return mapItems(st, v, each)
	}), nil
}

func mapItems(st *state, v Value, each func(*state, Value) (Value, error)) ([]Value, error) {
	items, err := list(st, v)
	if err != nil {
		return nil, err
	}
	if err := st.alloc(valueSize * len(items)); err != nil {
		return nil, err
	}
	out := make([]Value, 0, len(items))
	for _, it := range items {
		if err := st.step(1); err != nil {
			return nil, err
		}
		r, err := each(st, it)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// mapper returns what map applies: an attribute or a filter by name.
func mapper(a args) (func(*state, Value) (Value, error), error) {
	if len(a.pos) == 0 {
		var attr, def Value
		for _, k := range a.kw {
			switch k.name {
			case "attribute":
				attr = k.v
			case "default":
				def = k.v
			}
		}
		if attr == nil {
			return nil, errorf(KindRuntime, "map requires a filter argument")
		}
		for _, k := range a.kw {
			if k.name != "attribute" && k.name != "default" {
				return nil, errorf(KindRuntime, "Unexpected keyword argument '%s'", k.name)
			}
		}
		p := parsePath(attr)
		return func(st *state, v Value) (Value, error) { return p.get(st, v, def) }, nil
	}
	name, _ := asText(a.pos[0])
	fn := lookupFilter(name)
	if fn == nil {
		if refusedFilter(name) {
			return nil, errorf(KindUnsupported, "the filter '%s' is not supported in chat templates", name)
		}
		return nil, errorf(KindRuntime, "No filter named %s.", reprOrType(a.pos[0]))
	}
	rest := args{pos: a.pos[1:], kw: a.kw}
	return func(st *state, v Value) (Value, error) { return fn(st, v, rest) }, nil
}

// filterSelect is select, reject, selectattr and rejectattr.
func filterSelect(name string) filter {
	want := name[0] == 's'
	byAttr := len(name) > len("select")
	return func(st *state, v Value, a args) (Value, error) {
		return generate(func(st *state) ([]Value, error) {
			if ok, err := truth(v); err != nil || !ok {
				return nil, err
			}
			keep, err := selector(a, byAttr)
			if err != nil {
				return nil, err
			}
			items, err := list(st, v)
			if err != nil {
				return nil, err
			}
			var out []Value
			for _, it := range items {
				if err := st.step(1); err != nil {
					return nil, err
				}
				ok, err := keep(st, it)
				if err != nil {
					return nil, err
				}
				if ok == want {
					out = append(out, it)
				}
			}
			return out, st.alloc(valueSize * len(out))
		}), nil
	}
}

func selector(a args, byAttr bool) (func(*state, Value) (bool, error), error) {
	var p path
	pos := a.pos
	if byAttr {
		if len(pos) == 0 {
			return nil, errorf(KindRuntime, "Missing parameter for attribute name")
		}
		p, pos = parsePath(pos[0]), pos[1:]
	}
	check := func(_ *state, v Value) (bool, error) { return truth(v) }
	if len(pos) > 0 {
		name, _ := asText(pos[0])
		fn := lookupTest(name)
		if fn == nil {
			return nil, errorf(KindRuntime, "No test named %s.", reprOrType(pos[0]))
		}
		rest := args{pos: pos[1:], kw: a.kw}
		check = func(st *state, v Value) (bool, error) {
			r, err := fn(st, v, rest)
			if err != nil {
				return false, err
			}
			return truth(r)
		}
	}
	return func(st *state, v Value) (bool, error) {
		v, err := p.get(st, v, nil)
		if err != nil {
			return false, err
		}
		return check(st, v)
	}, nil
}
