package jinja

// eval computes an expression; exec runs a statement.
type (
	eval func(st *state, sc *scope) (Value, error)
	exec func(st *state, sc *scope) (signal, error)
)

// signal states how a statement left its block.
type signal uint8

const (
	goOn signal = iota
	doBreak
	doContinue
)

// scope holds a function's variables for one call of it. A nil value is a
// variable that is not set.
type scope struct {
	slots []Value
	up    *scope
}

// frame is where the compiler stands: which scope names belong to, and what
// surrounds the statement.
type frame struct {
	sym *symbols
	// soft is set inside if and inline if, where the reference defers the
	// complaint about an unknown filter to the moment it is used.
	soft bool
	// loop is set where break and continue have a loop to act on.
	loop bool
}

func (f frame) inner() frame {
	return frame{sym: newSymbols(f.sym, f.sym.fn), loop: f.loop}
}

// innerFunction opens a scope in a function of its own.
func (f frame) innerFunction() frame {
	return frame{sym: newSymbols(f.sym, newFunction(f.sym.fn))}
}

func (f frame) softly() frame {
	f.soft = true
	return f
}

// compiler turns the tree into closures.
type compiler struct {
	// globals are the names looked up among the rendering's variables; a
	// template refers to them by index.
	globals map[string]int
	names   []string
	body    []node
}

// lineOf returns the line where a name is first mentioned.
func (c *compiler) lineOf(name string) int {
	line := 0
	for _, n := range c.body {
		walk(n, func(n node) bool {
			if n, ok := n.(*nameNode); ok && n.name == name && line == 0 {
				line = n.pos()
			}
			return line == 0
		})
	}
	return line
}

func (c *compiler) global(name string) int {
	i, ok := c.globals[name]
	if !ok {
		i = len(c.names)
		c.globals[name] = i
		c.names = append(c.names, name)
	}
	return i
}

// variable returns where a ref is as seen from the frame: how many functions up, and
// the slot there.
func (f frame) variable(r ref) (hops, slot int) {
	return f.sym.fn.depth - r.fn.depth, r.fn.slot(r.ident)
}

func (sc *scope) at(hops int) *scope {
	for ; hops > 0; hops-- {
		sc = sc.up
	}
	return sc
}

// enter sets the variables of a scope to how they start.
func (c *compiler) enter(f frame) (func(st *state, sc *scope), error) {
	type start struct {
		slot, hops, from int
		kind             loadKind
	}
	var starts []start
	for _, l := range f.sym.starts() {
		s := start{slot: l.ref.fn.slot(l.ref.ident), kind: l.kind}
		switch l.kind {
		case loadAlias:
			s.hops, s.from = f.variable(l.from)
		case loadResolve:
			if l.name == "lipsum" || l.name == "self" {
				return nil, unsupportedf(c.lineOf(l.name), "the global '%s' is not supported in chat templates", l.name)
			}
			s.from = c.global(l.name)
		}
		starts = append(starts, s)
	}
	if len(starts) == 0 {
		return func(*state, *scope) {}, nil
	}
	return func(st *state, sc *scope) {
		for i := range starts {
			switch s := &starts[i]; s.kind {
			case loadAlias:
				sc.slots[s.slot] = sc.at(s.hops).slots[s.from]
			case loadResolve:
				sc.slots[s.slot] = st.globals[s.from]
			default:
				sc.slots[s.slot] = nil
			}
		}
	}, nil
}

// template compiles the whole tree.
func (c *compiler) template(body []node) (*function, exec, error) {
	fn := newFunction(nil)
	f := frame{sym: newSymbols(nil, fn)}
	f.sym.visitAll(body)
	enter, err := c.enter(f)
	if err != nil {
		return nil, nil, err
	}
	run, err := c.block(body, f)
	if err != nil {
		return nil, nil, err
	}
	return fn, func(st *state, sc *scope) (signal, error) {
		enter(st, sc)
		return run(st, sc)
	}, nil
}

// block compiles statements in a row.
func (c *compiler) block(nodes []node, f frame) (exec, error) {
	var steps []exec
	for _, n := range nodes {
		s, err := c.statement(n, f)
		if err != nil {
			return nil, atLine(err, n.pos())
		}
		line := n.pos()
		steps = append(steps, func(st *state, sc *scope) (signal, error) {
			if err := st.step(1); err != nil {
				return goOn, atLine(err, line)
			}
			sig, err := s(st, sc)
			if err != nil {
				return goOn, atLine(err, line)
			}
			return sig, nil
		})
	}
	return func(st *state, sc *scope) (signal, error) {
		for _, s := range steps {
			if sig, err := s(st, sc); err != nil || sig != goOn {
				return sig, err
			}
		}
		return goOn, nil
	}, nil
}

func (c *compiler) statement(n node, f frame) (exec, error) {
	switch n := n.(type) {
	case *outputNode:
		return c.output(n, f)
	case *ifNode:
		return c.ifStatement(n, f)
	case *forNode:
		return c.forStatement(n, f)
	case *setNode:
		return c.set(n, f)
	case *setBlockNode:
		return c.setBlock(n, f)
	case *macroNode:
		if n.call != nil || n.generation {
			return c.callBlock(n, f)
		}
		return c.macroStatement(n, f)
	case *filterBlockNode:
		return c.filterBlock(n, f)
	case *withNode:
		return c.with(n, f)
	case *breakNode:
		if !f.loop {
			return nil, syntaxErrorf(n.pos(), "'break' outside loop")
		}
		return func(*state, *scope) (signal, error) { return doBreak, nil }, nil
	case *continueNode:
		if !f.loop {
			return nil, syntaxErrorf(n.pos(), "'continue' outside loop")
		}
		return func(*state, *scope) (signal, error) { return doContinue, nil }, nil
	}
	return nil, syntaxErrorf(n.pos(), "unexpected node %T", n)
}

func (c *compiler) output(n *outputNode, f frame) (exec, error) {
	steps := make([]func(st *state, sc *scope) error, 0, len(n.parts))
	for _, part := range n.parts {
		if d, ok := part.(*dataNode); ok {
			steps = append(steps, func(st *state, _ *scope) error { return st.write(d.text) })
			continue
		}
		e, err := c.expr(part, f)
		if err != nil {
			return nil, err
		}
		line := part.pos()
		steps = append(steps, func(st *state, sc *scope) error {
			v, err := e(st, sc)
			if err == nil {
				err = st.print(v)
			}
			if err != nil {
				return atLine(err, line)
			}
			return nil
		})
	}
	return func(st *state, sc *scope) (signal, error) {
		for _, s := range steps {
			if err := s(st, sc); err != nil {
				return goOn, err
			}
		}
		return goOn, nil
	}, nil
}

func (c *compiler) ifStatement(n *ifNode, f frame) (exec, error) {
	f = f.softly()
	type branch struct {
		test eval // nil for else
		body exec
		line int
	}
	var branches []branch
	for _, b := range append([]*ifNode{n}, n.elifs...) {
		test, err := c.expr(b.test, f)
		if err != nil {
			return nil, atLine(err, b.pos())
		}
		body, err := c.block(b.body, f)
		if err != nil {
			return nil, err
		}
		branches = append(branches, branch{test, body, b.pos()})
	}
	if n.els != nil {
		body, err := c.block(n.els, f)
		if err != nil {
			return nil, err
		}
		branches = append(branches, branch{nil, body, n.pos()})
	}
	return func(st *state, sc *scope) (signal, error) {
		for i := range branches {
			b := &branches[i]
			if b.test != nil {
				v, err := b.test(st, sc)
				if err != nil {
					return goOn, atLine(err, b.line)
				}
				ok, err := truth(v)
				if err != nil {
					return goOn, atLine(err, b.line)
				}
				if !ok {
					continue
				}
			}
			return b.body(st, sc)
		}
		return goOn, nil
	}, nil
}

// assign compiles the storing of a value into a target.
func (c *compiler) assign(target node, f frame) (func(st *state, sc *scope, v Value) error, error) {
	switch t := target.(type) {
	case *nameNode:
		r, ok := f.sym.find(t.name)
		if !ok {
			return nil, syntaxErrorf(t.pos(), "cannot assign to '%s'", t.name)
		}
		// A store always goes to the frame's own function: the scope claimed
		// the name when it was analysed.
		_, slot := f.variable(r)
		return func(_ *state, sc *scope, v Value) error {
			sc.slots[slot] = v
			return nil
		}, nil
	case *nsRefNode:
		get, err := c.name(&nameNode{at: t.at, name: t.name}, f)
		if err != nil {
			return nil, err
		}
		return func(st *state, sc *scope, v Value) error {
			o, err := get(st, sc)
			if err != nil {
				return err
			}
			ns, ok := o.(*Namespace)
			if !ok {
				return errorf(KindRuntime, "cannot assign attribute on non-namespace object")
			}
			return ns.set(t.attr, v)
		}, nil
	case *tupleNode:
		var parts []func(*state, *scope, Value) error
		for _, it := range t.items {
			a, err := c.assign(it, f)
			if err != nil {
				return nil, err
			}
			parts = append(parts, a)
		}
		return func(st *state, sc *scope, v Value) error {
			vals, err := unpack(st, v, len(parts))
			if err != nil {
				return err
			}
			for i, p := range parts {
				if err := p(st, sc, vals[i]); err != nil {
					return err
				}
			}
			return nil
		}, nil
	}
	return nil, syntaxErrorf(target.pos(), "can't assign to this expression")
}

// unpack spreads v over exactly n targets.
func unpack(st *state, v Value, n int) ([]Value, error) {
	switch t := v.(type) {
	case *Tuple:
		if len(t.Items) == n {
			return t.Items, nil
		}
	case *List:
		if len(t.Items) == n {
			return t.Items, nil
		}
	}
	it, err := iterate(v)
	if err != nil {
		if isKind(err, KindType) {
			return nil, typeErrorf("cannot unpack non-iterable %s object", v.typeName())
		}
		return nil, err
	}
	var out []Value
	for {
		e, ok, err := it.next(st)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if out = append(out, e); len(out) > n {
			return nil, valueErrorf("too many values to unpack (expected %d)", n)
		}
	}
	if len(out) < n {
		return nil, valueErrorf("not enough values to unpack (expected %d, got %d)", n, len(out))
	}
	return out, nil
}

func (c *compiler) set(n *setNode, f frame) (exec, error) {
	val, err := c.expr(n.val, f)
	if err != nil {
		return nil, err
	}
	store, err := c.assign(n.target, f)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (signal, error) {
		v, err := val(st, sc)
		if err == nil {
			err = store(st, sc, v)
		}
		return goOn, err
	}, nil
}
