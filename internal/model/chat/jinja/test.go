package jinja

// test is a test on its subject; it has the form of a filter.
type test = filter

// lookupTest returns a test, nil where there is none of that name.
func lookupTest(name string) test {
	if op := testOperator(name); op != "" {
		return func(st *state, v Value, a args) (Value, error) {
			p, err := a.bindPos(name, 1, 1)
			if err != nil {
				return nil, err
			}
			ok, err := compareOp(st, op, v, p[0])
			return Bool(ok), err
		}
	}
	switch name {
	case "divisibleby":
		return func(st *state, v Value, a args) (Value, error) {
			p, err := a.bind(name, 1, "num")
			if err != nil {
				return nil, err
			}
			return remainder(st, v, p[0], 0)
		}
	case "in":
		return func(st *state, v Value, a args) (Value, error) {
			p, err := a.bind(name, 1, "seq")
			if err != nil {
				return nil, err
			}
			ok, err := contains(st, p[0], v)
			return Bool(ok), err
		}
	case "sameas":
		return func(_ *state, v Value, a args) (Value, error) {
			p, err := a.bind(name, 1, "other")
			if err != nil {
				return nil, err
			}
			return Bool(v == p[0]), nil
		}
	}
	ok := predicate(name)
	if ok == nil {
		return nil
	}
	return func(st *state, v Value, a args) (Value, error) {
		if _, err := a.bind(name, 0); err != nil {
			return nil, err
		}
		return ok(st, v)
	}
}

func testOperator(name string) string {
	switch name {
	case "==", "eq", "equalto":
		return "=="
	case "!=", "ne":
		return "!="
	case ">", "gt", "greaterthan":
		return ">"
	case ">=", "ge":
		return ">="
	case "<", "lt", "lessthan":
		return "<"
	case "<=", "le":
		return "<="
	}
	return ""
}

// remainder tests v % by == want.
func remainder(st *state, v, by Value, want int) (Value, error) {
	m, err := arith(st, "%", v, by)
	if err != nil {
		return nil, err
	}
	ok, err := equal(st, m, Int(want), 0)
	return Bool(ok), err
}

// predicate returns a test without arguments.
func predicate(name string) func(st *state, v Value) (Value, error) {
	is := func(f func(v Value) bool) func(*state, Value) (Value, error) {
		return func(_ *state, v Value) (Value, error) { return Bool(f(v)), nil }
	}
	switch name {
	case "odd":
		return func(st *state, v Value) (Value, error) { return remainder(st, v, Int(2), 1) }
	case "even":
		return func(st *state, v Value) (Value, error) { return remainder(st, v, Int(2), 0) }
	case "lower", "upper":
		letter := isLowerRune
		if name == "upper" {
			letter = isUpperRune
		}
		return func(st *state, v Value) (Value, error) {
			s, err := text(st, v)
			return Bool(caseTest(s, letter)), err
		}
	case "filter":
		return named(func(s string) bool { return lookupFilter(s) != nil || refusedFilter(s) })
	case "test":
		return named(func(s string) bool { return lookupTest(s) != nil })
	}
	if f := typePredicate(name); f != nil {
		return is(f)
	}
	return nil
}

func named(known func(string) bool) func(*state, Value) (Value, error) {
	return func(_ *state, v Value) (Value, error) {
		if s, ok := asText(v); ok {
			return Bool(known(s)), nil
		}
		_, err := hashKey(v)
		return Bool(false), err
	}
}

// typePredicate returns a test that looks only at what the value is.
func typePredicate(name string) func(Value) bool {
	switch name {
	case "defined":
		return func(v Value) bool { _, ok := v.(*Undefined); return !ok }
	case "undefined":
		return func(v Value) bool { _, ok := v.(*Undefined); return ok }
	case "none":
		return func(v Value) bool { return v == None }
	case "boolean":
		return func(v Value) bool { _, ok := v.(Bool); return ok }
	case "true":
		return func(v Value) bool { return v == Bool(true) }
	case "false":
		return func(v Value) bool { return v == Bool(false) }
	case "integer":
		return func(v Value) bool {
			_, small := v.(Int)
			_, big := v.(*Big)
			return small || big
		}
	case "float":
		return func(v Value) bool { _, ok := v.(Float); return ok }
	case "number":
		return func(v Value) bool { _, ok := asNumber(v); return ok }
	case "string":
		return func(v Value) bool { _, ok := asText(v); return ok }
	case "escaped":
		return func(v Value) bool { _, ok := v.(Markup); return ok }
	case "mapping":
		return func(v Value) bool { _, ok := v.(*Dict); return ok }
	case "sequence":
		return func(v Value) bool {
			switch v.(type) {
			case Str, Markup, *List, *Tuple, *Dict, *Range, *Undefined:
				return true
			}
			return false
		}
	case "iterable":
		return func(v Value) bool { _, err := iterate(v); return err == nil }
	case "callable":
		return callable
	}
	return nil
}
