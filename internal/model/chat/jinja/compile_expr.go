package jinja

// expr compiles an expression.
func (c *compiler) expr(n node, f frame) (eval, error) {
	switch n := n.(type) {
	case *constNode:
		return func(*state, *scope) (Value, error) { return n.val, nil }, nil
	case *nameNode:
		return c.name(n, f)
	case *attrNode:
		obj, err := c.expr(n.obj, f)
		if err != nil {
			return nil, err
		}
		return func(st *state, sc *scope) (Value, error) {
			o, err := obj(st, sc)
			if err != nil {
				return nil, err
			}
			return getAttr(st, o, n.name)
		}, nil
	case *itemNode:
		return c.item(n, f)
	case *callNode:
		return c.call(n, f)
	case *filterNode:
		return c.filter(n, f)
	case *testNode:
		return c.test(n, f)
	case *binNode:
		return c.binary(n, f)
	case *unaryNode:
		return c.unary(n, f)
	case *compareNode:
		return c.compare(n, f)
	case *condNode:
		return c.cond(n, f)
	case *concatNode:
		return c.concat(n, f)
	case *listNode:
		items, err := c.exprs(n.items, f)
		return func(st *state, sc *scope) (Value, error) {
			vs, err := evalAll(st, sc, items)
			return &List{vs}, err
		}, err
	case *tupleNode:
		items, err := c.exprs(n.items, f)
		return func(st *state, sc *scope) (Value, error) {
			vs, err := evalAll(st, sc, items)
			return &Tuple{Items: vs}, err
		}, err
	case *dictNode:
		return c.dict(n, f)
	}
	return nil, syntaxErrorf(n.pos(), "unexpected expression")
}

func (c *compiler) exprs(nodes []node, f frame) ([]eval, error) {
	out := make([]eval, 0, len(nodes))
	for _, n := range nodes {
		e, err := c.expr(n, f)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func evalAll(st *state, sc *scope, es []eval) ([]Value, error) {
	out := make([]Value, 0, len(es))
	for _, e := range es {
		v, err := e(st, sc)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func (c *compiler) name(n *nameNode, f frame) (eval, error) {
	r, ok := f.sym.find(n.name)
	if !ok {
		return nil, syntaxErrorf(n.pos(), "the name '%s' is not known here", n.name)
	}
	hops, slot := f.variable(r)
	undef := &Undefined{name: Str(n.name)}
	if hops == 0 {
		return func(_ *state, sc *scope) (Value, error) {
			if v := sc.slots[slot]; v != nil {
				return v, nil
			}
			return undef, nil
		}, nil
	}
	return func(_ *state, sc *scope) (Value, error) {
		if v := sc.at(hops).slots[slot]; v != nil {
			return v, nil
		}
		return undef, nil
	}, nil
}

func (c *compiler) item(n *itemNode, f frame) (eval, error) {
	obj, err := c.expr(n.obj, f)
	if err != nil {
		return nil, err
	}
	if s, ok := n.arg.(*sliceNode); ok {
		var parts [3]eval
		for i, p := range []node{s.start, s.stop, s.step} {
			if p == nil {
				p = &constNode{s.at, None}
			}
			if parts[i], err = c.expr(p, f); err != nil {
				return nil, err
			}
		}
		return func(st *state, sc *scope) (Value, error) {
			o, err := obj(st, sc)
			if err != nil {
				return nil, err
			}
			var b [3]Value
			for i, p := range parts {
				if b[i], err = p(st, sc); err != nil {
					return nil, err
				}
			}
			return slice(st, o, b[0], b[1], b[2])
		}, nil
	}
	arg, err := c.expr(n.arg, f)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (Value, error) {
		o, err := obj(st, sc)
		if err != nil {
			return nil, err
		}
		a, err := arg(st, sc)
		if err != nil {
			return nil, err
		}
		return getItem(st, o, a)
	}, nil
}

// args compiles the arguments of a call.
func (c *compiler) args(n *callArgs, f frame) (func(st *state, sc *scope) (args, error), error) {
	pos, err := c.exprs(n.pos, f)
	if err != nil {
		return nil, err
	}
	kw, err := c.exprs(n.kwVals, f)
	if err != nil {
		return nil, err
	}
	var star, stars2 eval
	if n.star != nil {
		if star, err = c.expr(n.star, f); err != nil {
			return nil, err
		}
	}
	if n.stars2 != nil {
		if stars2, err = c.expr(n.stars2, f); err != nil {
			return nil, err
		}
	}
	if len(pos) == 0 && len(kw) == 0 && star == nil && stars2 == nil {
		return func(*state, *scope) (args, error) { return args{}, nil }, nil
	}
	return func(st *state, sc *scope) (args, error) {
		var a args
		var err error
		if a.pos, err = evalAll(st, sc, pos); err != nil {
			return a, err
		}
		if star != nil {
			v, err := star(st, sc)
			if err != nil {
				return a, err
			}
			more, err := list(st, v)
			if err != nil {
				return a, err
			}
			a.pos = append(a.pos, more...)
		}
		for i, k := range kw {
			v, err := k(st, sc)
			if err != nil {
				return a, err
			}
			a.kw = append(a.kw, kwarg{n.kwNames[i], v})
		}
		if stars2 != nil {
			v, err := stars2(st, sc)
			if err != nil {
				return a, err
			}
			if err := a.spread(v); err != nil {
				return a, err
			}
		}
		return a, nil
	}, nil
}

func (c *compiler) call(n *callNode, f frame) (eval, error) {
	fn, err := c.expr(n.fn, f)
	if err != nil {
		return nil, err
	}
	argv, err := c.args(&n.args, f)
	if err != nil {
		return nil, err
	}
	line := n.pos()
	return func(st *state, sc *scope) (Value, error) {
		fv, err := fn(st, sc)
		if err != nil {
			return nil, err
		}
		a, err := argv(st, sc)
		if err != nil {
			return nil, err
		}
		v, err := call(st, fv, a)
		if err != nil {
			return nil, atLine(err, line)
		}
		return v, nil
	}, nil
}

func (c *compiler) filter(n *filterNode, f frame) (eval, error) {
	subject := func(st *state, _ *scope) (Value, error) { return st.block, nil }
	if n.subject != nil {
		s, err := c.expr(n.subject, f)
		if err != nil {
			return nil, err
		}
		subject = s
	}
	argv, err := c.args(&n.args, f)
	if err != nil {
		return nil, err
	}
	fn := lookupFilter(n.name)
	if fn == nil {
		if refusedFilter(n.name) {
			return nil, unsupportedf(n.pos(), "the filter '%s' is not supported in chat templates", n.name)
		}
		if !f.soft {
			return nil, syntaxErrorf(n.pos(), "No filter named '%s'.", n.name)
		}
		fn = func(*state, Value, args) (Value, error) {
			return nil, errorf(KindRuntime, "No filter named '%s' found.", n.name)
		}
	}
	line := n.pos()
	return func(st *state, sc *scope) (Value, error) {
		v, err := subject(st, sc)
		if err != nil {
			return nil, err
		}
		a, err := argv(st, sc)
		if err != nil {
			return nil, err
		}
		if v, err = fn(st, v, a); err != nil {
			return nil, atLine(err, line)
		}
		return v, nil
	}, nil
}

func (c *compiler) test(n *testNode, f frame) (eval, error) {
	subject, err := c.expr(n.subject, f)
	if err != nil {
		return nil, err
	}
	argv, err := c.args(&n.args, f)
	if err != nil {
		return nil, err
	}
	fn := lookupTest(n.name)
	if fn == nil {
		if !f.soft {
			return nil, syntaxErrorf(n.pos(), "No test named '%s'.", n.name)
		}
		fn = func(*state, Value, args) (Value, error) {
			return nil, errorf(KindRuntime, "No test named '%s' found.", n.name)
		}
	}
	return func(st *state, sc *scope) (Value, error) {
		v, err := subject(st, sc)
		if err != nil {
			return nil, err
		}
		a, err := argv(st, sc)
		if err != nil {
			return nil, err
		}
		return fn(st, v, a)
	}, nil
}

func (c *compiler) binary(n *binNode, f frame) (eval, error) {
	l, err := c.expr(n.l, f)
	if err != nil {
		return nil, err
	}
	r, err := c.expr(n.r, f)
	if err != nil {
		return nil, err
	}
	if n.op == "and" || n.op == "or" {
		stop := n.op == "or"
		return func(st *state, sc *scope) (Value, error) {
			v, err := l(st, sc)
			if err != nil {
				return nil, err
			}
			ok, err := truth(v)
			if err != nil || ok == stop {
				return v, err
			}
			return r(st, sc)
		}, nil
	}
	return func(st *state, sc *scope) (Value, error) {
		a, err := l(st, sc)
		if err != nil {
			return nil, err
		}
		b, err := r(st, sc)
		if err != nil {
			return nil, err
		}
		return arith(st, n.op, a, b)
	}, nil
}

func (c *compiler) unary(n *unaryNode, f frame) (eval, error) {
	x, err := c.expr(n.x, f)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (Value, error) {
		v, err := x(st, sc)
		if err != nil {
			return nil, err
		}
		if n.op != "not" {
			return sign(n.op, v)
		}
		ok, err := truth(v)
		return Bool(!ok), err
	}, nil
}

func (c *compiler) compare(n *compareNode, f frame) (eval, error) {
	first, err := c.expr(n.first, f)
	if err != nil {
		return nil, err
	}
	rest, err := c.exprs(n.rest, f)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (Value, error) {
		l, err := first(st, sc)
		if err != nil {
			return nil, err
		}
		for i, op := range n.ops {
			r, err := rest[i](st, sc)
			if err != nil {
				return nil, err
			}
			ok, err := compareOp(st, op, l, r)
			if err != nil {
				return nil, err
			}
			if !ok {
				return Bool(false), nil
			}
			l = r
		}
		return Bool(true), nil
	}, nil
}

func (c *compiler) cond(n *condNode, f frame) (eval, error) {
	f = f.softly()
	test, err := c.expr(n.test, f)
	if err != nil {
		return nil, err
	}
	then, err := c.expr(n.then, f)
	if err != nil {
		return nil, err
	}
	undef := &Undefined{hint: "the inline if-expression on line " + itoa(n.pos()) +
		" evaluated to false and no else section was defined."}
	els := func(*state, *scope) (Value, error) { return undef, nil }
	if n.els != nil {
		if els, err = c.expr(n.els, f); err != nil {
			return nil, err
		}
	}
	return func(st *state, sc *scope) (Value, error) {
		v, err := test(st, sc)
		if err != nil {
			return nil, err
		}
		ok, err := truth(v)
		if err != nil {
			return nil, err
		}
		if ok {
			return then(st, sc)
		}
		return els(st, sc)
	}, nil
}

func (c *compiler) concat(n *concatNode, f frame) (eval, error) {
	parts, err := c.exprs(n.parts, f)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (Value, error) {
		var b []byte
		for _, p := range parts {
			v, err := p(st, sc)
			if err != nil {
				return nil, err
			}
			if b, err = appendStr(st, b, v); err != nil {
				return nil, err
			}
			if len(b) > st.opt.MaxAlloc-st.allocated {
				return nil, st.alloc(len(b))
			}
		}
		return st.str(string(b))
	}, nil
}

func (c *compiler) dict(n *dictNode, f frame) (eval, error) {
	keys, err := c.exprs(n.keys, f)
	if err != nil {
		return nil, err
	}
	vals, err := c.exprs(n.vals, f)
	if err != nil {
		return nil, err
	}
	return func(st *state, sc *scope) (Value, error) {
		d := NewDict(len(keys))
		for i := range keys {
			k, err := keys[i](st, sc)
			if err != nil {
				return nil, err
			}
			v, err := vals[i](st, sc)
			if err != nil {
				return nil, err
			}
			if err := d.set(k, v); err != nil {
				return nil, err
			}
		}
		return d, nil
	}, nil
}
