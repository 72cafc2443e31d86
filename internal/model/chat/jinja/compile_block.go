package jinja

// forStatement compiles a loop. A loop whose body does not use `loop` runs without the
// loop object; a recursive loop has a separate function.
func (c *compiler) forStatement(n *forNode, f frame) (exec, error) {
	assigned := true
	walk(n, func(n node) bool {
		if n, ok := n.(*nameNode); ok && n.ctx == ctxStore && n.name == "loop" {
			assigned = false
		}
		return assigned
	})
	if !assigned {
		return nil, syntaxErrorf(n.pos(), "Can't assign to special loop variable in for-loop target")
	}
	l := &loopCode{recursive: n.recursive, loopSlot: -1}
	in := f.inner()
	if n.recursive {
		in = f.innerFunction()
		l.fn = in.sym.fn
	}
	in.loop = true
	if n.recursive || undeclared(n.body, "loop")["loop"] {
		_, l.loopSlot = in.variable(in.sym.param("loop"))
	}
	in.sym.visit(n.target, true)
	in.sym.visitAll(n.body)
	var err error
	if l.iter, err = c.expr(n.iter, f); err != nil {
		return nil, err
	}
	if l.filter, err = c.loopFilter(n, f); err != nil {
		return nil, err
	}
	if l.target, err = c.assign(n.target, in); err != nil {
		return nil, err
	}
	if l.enter, err = c.enter(in); err != nil {
		return nil, err
	}
	if l.body, err = c.block(n.body, in); err != nil {
		return nil, err
	}
	if n.els != nil {
		els := frame{sym: newSymbols(f.sym, in.sym.fn), loop: f.loop && !n.recursive}
		els.sym.visitAll(n.els)
		if l.enterElse, err = c.enter(els); err != nil {
			return nil, err
		}
		if l.els, err = c.block(n.els, els); err != nil {
			return nil, err
		}
	}
	if !n.recursive {
		return func(st *state, sc *scope) (signal, error) {
			v, err := l.iter(st, sc)
			if err != nil {
				return goOn, err
			}
			return l.run(st, sc, sc, v, nil, 0)
		}, nil
	}
	return func(st *state, sc *scope) (signal, error) {
		v, err := l.iter(st, sc)
		if err != nil {
			return goOn, err
		}
		s, err := l.recurse(st, sc, v, 0)
		if err != nil {
			return goOn, err
		}
		return goOn, st.write(string(s))
	}, nil
}

// loopFilter compiles the condition of `for x in y if condition`: a function
// of its own that binds the target and tests it.
func (c *compiler) loopFilter(n *forNode, f frame) (func(st *state, sc *scope, src iterator) iterator, error) {
	if n.test == nil {
		return nil, nil
	}
	in := f.innerFunction()
	in.sym.visit(n.target, true)
	in.sym.visit(n.test, false)
	target, err := c.assign(n.target, in)
	if err != nil {
		return nil, err
	}
	enter, err := c.enter(in)
	if err != nil {
		return nil, err
	}
	test, err := c.expr(n.test, in)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope, src iterator) iterator {
		own := &scope{slots: make([]Value, len(in.sym.fn.slots)), up: sc}
		enter(st, own)
		return iterFunc(func(st *state) (Value, bool, error) {
			for {
				v, ok, err := src.next(st)
				if err != nil || !ok {
					return nil, false, err
				}
				if err := target(st, own, v); err != nil {
					return nil, false, err
				}
				r, err := test(st, own)
				if err != nil {
					return nil, false, err
				}
				if ok, err = truth(r); err != nil || ok {
					return v, ok, err
				}
			}
		})
	}, nil
}

// loopCode is a compiled loop.
type loopCode struct {
	iter      eval
	filter    func(st *state, sc *scope, src iterator) iterator
	target    func(st *state, sc *scope, v Value) error
	enter     func(st *state, sc *scope)
	body      exec
	enterElse func(st *state, sc *scope)
	els       exec
	loopSlot  int // -1 when the body does not use the loop object
	recursive bool
	fn        *function // recursive only
}

// recurse renders a recursive loop over v into a string.
func (l *loopCode) recurse(st *state, outer *scope, v Value, depth int) (Str, error) {
	if err := st.push(); err != nil {
		return "", err
	}
	defer st.pop()
	sc := &scope{slots: make([]Value, len(l.fn.slots)), up: outer}
	mark := len(st.out)
	_, err := l.run(st, sc, outer, v, func(st *state, v Value, depth int) (Value, error) {
		return l.recurse(st, outer, v, depth)
	}, depth)
	if err != nil {
		return "", err
	}
	return st.cut(mark)
}

// run runs the loop over v with its variables in sc. As in the reference, the
// else branch runs unless some turn reached the end of the body: a turn that
// left by continue or break does not count.
func (l *loopCode) run(st *state, sc, outer *scope, v Value, recurse func(*state, Value, int) (Value, error), depth int) (signal, error) {
	it, err := iterate(v)
	if err != nil {
		return goOn, err
	}
	sized := v
	if l.filter != nil {
		it, sized = l.filter(st, outer, it), nil
	}
	var loop *Loop
	if l.loopSlot >= 0 {
		loop = &Loop{it: it, sized: sized, index0: -1, length: -1, recurse: recurse, depth0: depth}
		it = loop
	}
	completed := false
	for {
		if err := st.step(1); err != nil {
			return goOn, err
		}
		e, ok, err := it.next(st)
		if err != nil {
			return goOn, err
		}
		if !ok {
			break
		}
		if err := l.target(st, sc, e); err != nil {
			return goOn, err
		}
		if loop != nil {
			sc.slots[l.loopSlot] = loop
		}
		l.enter(st, sc)
		sig, err := l.body(st, sc)
		if err != nil {
			return goOn, err
		}
		if sig == doBreak {
			break
		}
		completed = completed || sig == goOn
	}
	if l.els == nil || completed {
		return goOn, nil
	}
	l.enterElse(st, sc)
	return l.els(st, sc)
}

// macroCode is a compiled macro or the body of a call block.
type macroCode struct {
	name      string // "" for a call block
	params    []string
	slots     []int
	defaults  []eval // parallel to params, nil where there is none
	fn        *function
	enter     func(st *state, sc *scope)
	body      exec
	catchKw   int // slot of kwargs, -1 when the body does not use it
	catchVar  int
	caller    int
	wantsCall bool // the body uses caller, by whichever route it comes
}

func (c *compiler) macro(n *macroNode, f frame) (*macroCode, error) {
	in := f.innerFunction()
	body := macroScope(n)
	in.sym.visitAll(body)
	m := &macroCode{name: n.name, fn: in.sym.fn, catchKw: -1, catchVar: -1, caller: -1}
	special := undeclared(n.body, "caller", "kwargs", "varargs")
	m.wantsCall = special["caller"]
	for i, p := range n.params {
		switch p.name {
		case "caller":
			if special["caller"] && i < len(n.params)-len(n.defaults) {
				return nil, syntaxErrorf(n.pos(), "When defining macros or call blocks the special \"caller\""+
					" argument must be omitted or be given a default.")
			}
			special["caller"] = false
		case "kwargs", "varargs":
			special[p.name] = false
		}
	}
	for _, s := range []struct {
		name string
		slot *int
	}{{"caller", &m.caller}, {"kwargs", &m.catchKw}, {"varargs", &m.catchVar}} {
		if special[s.name] {
			_, *s.slot = in.variable(in.sym.param(s.name))
		}
	}
	in.sym.visitAll(body)
	for i, p := range n.params {
		r, _ := in.sym.find(p.name)
		m.params = append(m.params, p.name)
		_, slot := in.variable(r)
		m.slots = append(m.slots, slot)
		var d eval
		if j := i - (len(n.params) - len(n.defaults)); j >= 0 {
			var err error
			if d, err = c.expr(n.defaults[j], in); err != nil {
				return nil, err
			}
		}
		m.defaults = append(m.defaults, d)
	}
	var err error
	if m.enter, err = c.enter(in); err != nil {
		return nil, err
	}
	m.body, err = c.block(n.body, in)
	return m, err
}

func (c *compiler) macroStatement(n *macroNode, f frame) (exec, error) {
	m, err := c.macro(n, f)
	if err != nil {
		return nil, err
	}
	store, err := c.assign(&nameNode{at: n.at, name: n.name, ctx: ctxStore}, f)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (signal, error) {
		return goOn, store(st, sc, &Macro{code: m, sc: sc})
	}, nil
}

func (c *compiler) callBlock(n *macroNode, f frame) (exec, error) {
	m, err := c.macro(n, f)
	if err != nil {
		return nil, err
	}
	if n.generation {
		return func(st *state, sc *scope) (signal, error) {
			v, err := (&Macro{code: m, sc: sc}).call(st, args{})
			if err != nil {
				return goOn, err
			}
			return goOn, st.writeText(v)
		}, nil
	}
	fn, err := c.expr(n.call.fn, f)
	if err != nil {
		return nil, err
	}
	argv, err := c.args(&n.call.args, f)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (signal, error) {
		fv, err := fn(st, sc)
		if err != nil {
			return goOn, err
		}
		a, err := argv(st, sc)
		if err != nil {
			return goOn, err
		}
		a.kw = append(a.kw, kwarg{"caller", &Macro{code: m, sc: sc}})
		v, err := call(st, fv, a)
		if err != nil {
			return goOn, err
		}
		return goOn, st.writeText(v)
	}, nil
}

func (c *compiler) filterBlock(n *filterBlockNode, f frame) (exec, error) {
	in := f.inner()
	in.sym.visitAll(append(append([]node{}, n.body...), n.filter))
	enter, err := c.enter(in)
	if err != nil {
		return nil, err
	}
	body, err := c.block(n.body, in)
	if err != nil {
		return nil, err
	}
	filter, err := c.expr(n.filter, in)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (signal, error) {
		enter(st, sc)
		s, sig, err := st.capture(sc, body)
		if err != nil || sig != goOn {
			return sig, err
		}
		st.block = s
		v, err := filter(st, sc)
		if err != nil {
			return goOn, err
		}
		return goOn, st.writeText(v)
	}, nil
}

func (c *compiler) setBlock(n *setBlockNode, f frame) (exec, error) {
	in := f.inner()
	in.sym.visitAll(n.body)
	if n.filter != nil {
		in.sym.visit(n.filter, false)
	}
	enter, err := c.enter(in)
	if err != nil {
		return nil, err
	}
	body, err := c.block(n.body, in)
	if err != nil {
		return nil, err
	}
	var filter eval
	if n.filter != nil {
		if filter, err = c.expr(n.filter, in); err != nil {
			return nil, err
		}
	}
	store, err := c.assign(n.target, f)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (signal, error) {
		enter(st, sc)
		s, sig, err := st.capture(sc, body)
		if err != nil || sig != goOn {
			return sig, err
		}
		var v Value = s
		if filter != nil {
			st.block = s
			if v, err = filter(st, sc); err != nil {
				return goOn, err
			}
		}
		return goOn, store(st, sc, v)
	}, nil
}

func (c *compiler) with(n *withNode, f frame) (exec, error) {
	in := f.inner()
	in.sym.visitAll(n.targets)
	in.sym.visitAll(n.body)
	enter, err := c.enter(in)
	if err != nil {
		return nil, err
	}
	var vals []eval
	var stores []func(*state, *scope, Value) error
	for i := range n.targets {
		v, err := c.expr(n.vals[i], f)
		if err != nil {
			return nil, err
		}
		s, err := c.assign(n.targets[i], in)
		if err != nil {
			return nil, err
		}
		vals, stores = append(vals, v), append(stores, s)
	}
	body, err := c.block(n.body, in)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (signal, error) {
		enter(st, sc)
		for i := range vals {
			v, err := vals[i](st, sc)
			if err == nil {
				err = stores[i](st, sc, v)
			}
			if err != nil {
				return goOn, err
			}
		}
		return body(st, sc)
	}, nil
}
