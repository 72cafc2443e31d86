package jinja

import (
	"slices"
)

func filterLength(st *state, v Value, a args) (Value, error) {
	if _, err := a.bindPos("len", 0, 0); err != nil {
		return nil, err
	}
	n, err := length(st, v)
	return Int(n), err
}

func filterList(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("list", 0); err != nil {
		return nil, err
	}
	items, err := list(st, v)
	return &List{items}, err
}

func filterFirst(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("first", 0); err != nil {
		return nil, err
	}
	it, err := iterate(v)
	if err != nil {
		return nil, err
	}
	e, ok, err := it.next(st)
	if err != nil || ok {
		return e, err
	}
	return &Undefined{hint: "No first item, sequence was empty."}, nil
}

func filterLast(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("last", 0); err != nil {
		return nil, err
	}
	if r := index(v, -1); r != nil {
		return r, nil
	}
	switch v.(type) {
	case Str, Markup, *List, *Tuple, *Range, *Dict, *View, *Undefined:
	default:
		return nil, typeErrorf("'%s' object is not reversible", v.typeName())
	}
	items, err := list(st, v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return &Undefined{hint: "No last item, sequence was empty."}, nil
	}
	return items[len(items)-1], nil
}

func filterReverse(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("reverse", 0); err != nil {
		return nil, err
	}
	if s, ok := asText(v); ok {
		r := []rune(s)
		slices.Reverse(r)
		if _, ok := v.(Markup); ok {
			return Markup(r), st.alloc(len(s))
		}
		return st.str(string(r))
	}
	items, err := list(st, v)
	if err != nil {
		if isKind(err, KindType) {
			return nil, errorf(KindRuntime, "argument must be iterable")
		}
		return nil, err
	}
	items = slices.Clone(items)
	slices.Reverse(items)
	if err := st.alloc(valueSize * len(items)); err != nil {
		return nil, err
	}
	switch v.(type) {
	case *List, *Tuple, *Dict, *View, *Range, *Undefined:
		return &Iter{&sliceIter{items: items}, "list_reverseiterator"}, nil
	}
	return &List{items}, nil
}

func filterItems(st *state, v Value, a args) (Value, error) {
	if _, err := a.bind("items", 0); err != nil {
		return nil, err
	}
	return generate(func(*state) ([]Value, error) {
		switch d := v.(type) {
		case *Undefined:
			return nil, nil
		case *Dict:
			view := &View{d, viewItems}
			out := make([]Value, d.Len())
			for i := range out {
				out[i] = view.at(i)
			}
			return out, nil
		}
		return nil, typeErrorf("Can only get item pairs from a mapping.")
	}), nil
}

// compareForSort orders two values by <.
func compareForSort(st *state, a, b Value) (int, error) {
	less, err := order(st, "<", a, b, 0)
	if err != nil {
		return 0, err
	}
	if less {
		return -1, nil
	}
	if less, err = order(st, "<", b, a, 0); less {
		return 1, err
	}
	return 0, err
}

// sorted is Python's sorted() with a key.
func sorted(st *state, items []Value, key func(*state, Value) (Value, error), reverse bool) ([]Value, error) {
	type keyed struct{ key, val Value }
	all := make([]keyed, len(items))
	if err := st.alloc(3 * valueSize * len(items)); err != nil {
		return nil, err
	}
	for i, it := range items {
		k, err := key(st, it)
		if err != nil {
			return nil, err
		}
		all[i] = keyed{k, it}
	}
	var failed error
	slices.SortStableFunc(all, func(x, y keyed) int {
		if failed != nil {
			return 0
		}
		if err := st.step(1); err != nil {
			failed = err
			return 0
		}
		if reverse {
			x, y = y, x
		}
		c, err := compareForSort(st, x.key, y.key)
		if err != nil {
			failed = err
		}
		return c
	})
	if failed != nil {
		return nil, failed
	}
	out := make([]Value, len(items))
	for i, k := range all {
		out[i] = k.val
	}
	return out, nil
}

func filterSort(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("sort", 0, "reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	reverse, err := flag(p[0], false)
	if err != nil {
		return nil, err
	}
	sensitive, err := flag(p[1], false)
	if err != nil {
		return nil, err
	}
	paths := []path{parsePath(p[2])}
	if s, ok := asText(p[2]); ok {
		paths = nil
		for _, part := range splitSep(s, ",", -1, false) {
			paths = append(paths, parsePath(Str(part)))
		}
	}
	items, err := list(st, v)
	if err != nil {
		return nil, err
	}
	items, err = sorted(st, items, func(st *state, v Value) (Value, error) {
		key := &List{}
		for _, p := range paths {
			k, err := p.get(st, v, nil)
			if err != nil {
				return nil, err
			}
			if !sensitive {
				k = ignoreCase(k)
			}
			key.Items = append(key.Items, k)
		}
		return key, nil
	}, reverse)
	return &List{items}, err
}

func filterDictSort(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("dictsort", 0, "case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	sensitive, err := flag(p[0], false)
	if err != nil {
		return nil, err
	}
	reverse, err := flag(p[2], false)
	if err != nil {
		return nil, err
	}
	pos := 0
	if p[1] != nil {
		switch s, _ := asText(p[1]); s {
		case "key":
		case "value":
			pos = 1
		default:
			return nil, errorf(KindRuntime, `You can only sort by either "key" or "value"`)
		}
	}
	if u, ok := v.(*Undefined); ok {
		return nil, u.fail()
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, errorf(KindRuntime, "'%s' object has no attribute 'items'", v.typeName())
	}
	items, err := list(st, &View{d, viewItems})
	if err != nil {
		return nil, err
	}
	items, err = sorted(st, items, func(_ *state, v Value) (Value, error) {
		k := v.(*Tuple).Items[pos]
		if !sensitive {
			k = ignoreCase(k)
		}
		return k, nil
	}, reverse)
	return &List{items}, err
}

// keyFunc is the key of unique, min and max.
func keyFunc(sensitive, attribute Value) (func(*state, Value) (Value, error), error) {
	cs, err := flag(sensitive, false)
	if err != nil {
		return nil, err
	}
	p := parsePath(attribute)
	return func(st *state, v Value) (Value, error) {
		k, err := p.get(st, v, nil)
		if err == nil && !cs {
			k = ignoreCase(k)
		}
		return k, err
	}, nil
}

func filterUnique(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("unique", 0, "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	key, err := keyFunc(p[0], p[1])
	if err != nil {
		return nil, err
	}
	return generate(func(st *state) ([]Value, error) {
		items, err := list(st, v)
		if err != nil {
			return nil, err
		}
		seen := NewDict(len(items))
		var out []Value
		for _, it := range items {
			k, err := key(st, it)
			if err != nil {
				return nil, err
			}
			n := seen.Len()
			if err := seen.set(k, None); err != nil {
				return nil, err
			}
			if seen.Len() > n {
				out = append(out, it)
			}
		}
		return out, st.alloc(4 * valueSize * len(items))
	}), nil
}

func filterExtreme(name string) filter {
	op := "<"
	if name == "max" {
		op = ">"
	}
	return func(st *state, v Value, a args) (Value, error) {
		p, err := a.bind(name, 0, "case_sensitive", "attribute")
		if err != nil {
			return nil, err
		}
		key, err := keyFunc(p[0], p[1])
		if err != nil {
			return nil, err
		}
		items, err := list(st, v)
		if err != nil {
			return nil, err
		}
		if len(items) == 0 {
			return &Undefined{hint: "No aggregated item, sequence was empty."}, nil
		}
		best := items[0]
		bestKey, err := key(st, best)
		if err != nil {
			return nil, err
		}
		for _, it := range items[1:] {
			k, err := key(st, it)
			if err != nil {
				return nil, err
			}
			better, err := order(st, op, k, bestKey, 0)
			if err != nil {
				return nil, err
			}
			if better {
				best, bestKey = it, k
			}
		}
		return best, nil
	}
}

func filterSum(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("sum", 0, "attribute", "start")
	if err != nil {
		return nil, err
	}
	var total Value = Int(0)
	if p[1] != nil {
		total = p[1]
	}
	if _, ok := asText(total); ok {
		return nil, typeErrorf("sum() can't sum strings [use ''.join(seq) instead]")
	}
	at := parsePath(p[0])
	items, err := list(st, v)
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		if it, err = at.get(st, it, nil); err != nil {
			return nil, err
		}
		if total, err = arith(st, "+", total, it); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func filterGroupBy(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("groupby", 1, "attribute", "default", "case_sensitive")
	if err != nil {
		return nil, err
	}
	sensitive, err := flag(p[2], false)
	if err != nil {
		return nil, err
	}
	at := parsePath(p[0])
	key := func(st *state, v Value) (Value, error) {
		k, err := at.get(st, v, p[1])
		if err == nil && !sensitive {
			k = ignoreCase(k)
		}
		return k, err
	}
	items, err := list(st, v)
	if err != nil {
		return nil, err
	}
	if items, err = sorted(st, items, key, false); err != nil {
		return nil, err
	}
	var out []Value
	var last Value
	for _, it := range items {
		k, err := key(st, it)
		if err != nil {
			return nil, err
		}
		if last != nil {
			same, err := equal(st, last, k, 0)
			if err != nil {
				return nil, err
			}
			if same {
				group := out[len(out)-1].(*Tuple).Items[1].(*List)
				group.Items = append(group.Items, it)
				continue
			}
		}
		last = k
		shown, err := at.get(st, it, p[1])
		if err != nil {
			return nil, err
		}
		out = append(out, &Tuple{Items: []Value{shown, &List{[]Value{it}}}, group: true})
	}
	return &List{out}, nil
}

func filterBatch(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("batch", 1, "linecount", "fill_with")
	if err != nil {
		return nil, err
	}
	return generate(func(st *state) ([]Value, error) {
		items, err := list(st, v)
		if err != nil {
			return nil, err
		}
		n, err := asIndex(p[0])
		if err != nil {
			return nil, err
		}
		if err := st.alloc(2 * valueSize * len(items)); err != nil {
			return nil, err
		}
		var out []Value
		row := &List{}
		for _, it := range items {
			if len(row.Items) == n {
				out, row = append(out, row), &List{}
			}
			row.Items = append(row.Items, it)
		}
		if len(row.Items) > 0 {
			if p[1] != nil && p[1] != None && len(row.Items) < n {
				if err := st.alloc(valueSize * min(n, st.opt.MaxAlloc)); err != nil {
					return nil, err
				}
				for len(row.Items) < n {
					row.Items = append(row.Items, p[1])
				}
			}
			out = append(out, row)
		}
		return out, nil
	}), nil
}

func filterSlice(st *state, v Value, a args) (Value, error) {
	p, err := a.bind("slice", 1, "slices", "fill_with")
	if err != nil {
		return nil, err
	}
	return generate(func(st *state) ([]Value, error) {
		items, err := list(st, v)
		if err != nil {
			return nil, err
		}
		n, err := asIndex(p[0])
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, errorf(KindRuntime, "integer division or modulo by zero")
		}
		if n < 0 {
			return nil, nil
		}
		if err := st.alloc(3 * valueSize * min(n, st.opt.MaxAlloc)); err != nil {
			return nil, err
		}
		per, extra := len(items)/n, len(items)%n
		var out []Value
		at := 0
		for i := range n {
			size := per
			if i < extra {
				size++
			}
			col := slices.Clone(items[at : at+size])
			at += size
			if p[1] != nil && p[1] != None && i >= extra {
				col = append(col, p[1])
			}
			out = append(out, &List{col})
		}
		return out, nil
	}), nil
}
