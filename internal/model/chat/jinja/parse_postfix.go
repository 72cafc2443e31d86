package jinja

// postfix reads subscripts and calls after n.
func (p *parser) postfix(n node) (node, error) {
	var err error
	for chain := 0; err == nil; chain++ {
		if chain >= 10*maxNesting {
			return nil, p.fail("the expression has more than %d subscripts in a row", 10*maxNesting)
		}
		switch {
		case p.isOp("."), p.isOp("["):
			n, err = p.subscript(n)
		case p.isOp("("):
			n, err = p.call(n)
		default:
			return n, nil
		}
	}
	return nil, err
}

// filterExpr reads filters, tests and calls after n.
func (p *parser) filterExpr(n node) (node, error) {
	var err error
	for chain := 0; err == nil; chain++ {
		if chain >= 10*maxNesting {
			return nil, p.fail("the expression has more than %d filters in a row", 10*maxNesting)
		}
		switch {
		case p.isOp("|"):
			n, err = p.filters(n, false)
		case p.isName("is"):
			n, err = p.test(n)
		case p.isOp("("):
			n, err = p.call(n)
		default:
			return n, nil
		}
	}
	return nil, err
}

func (p *parser) subscript(n node) (node, error) {
	t := p.next()
	line := at(t.line)
	if t.text == "." {
		switch a := p.next(); a.kind {
		case tokName:
			return &attrNode{line, n, a.text}, nil
		case tokInt:
			v, err := intLiteral(a)
			return &itemNode{line, n, &constNode{at(a.line), v}}, err
		default:
			return nil, syntaxErrorf(a.line, "expected name or number")
		}
	}
	var args []node
	for !p.isOp("]") {
		if len(args) > 0 {
			if _, err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		a, err := p.subscribed()
		if err != nil {
			return nil, err
		}
		args = append(args, a)
	}
	p.next()
	if len(args) == 1 {
		return &itemNode{line, n, args[0]}, nil
	}
	for _, a := range args {
		if _, ok := a.(*sliceNode); ok {
			return nil, unsupportedf(t.line, "a slice among several subscripts is not supported")
		}
	}
	return &itemNode{line, n, &tupleNode{line, args}}, nil
}

// subscribed reads what stands between square brackets: an expression or a
// slice.
func (p *parser) subscribed() (node, error) {
	n := &sliceNode{at: at(p.cur().line)}
	var err error
	if !p.isOp(":") {
		if n.start, err = p.expression(true); err != nil {
			return nil, err
		}
		if !p.isOp(":") {
			return n.start, nil
		}
	}
	p.next()
	if !p.isOp(":") && !p.isOp("]") && !p.isOp(",") {
		if n.stop, err = p.expression(true); err != nil {
			return nil, err
		}
	}
	if p.skipOp(":") && !p.isOp("]") && !p.isOp(",") {
		if n.step, err = p.expression(true); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (p *parser) callArgs() (callArgs, error) {
	var a callArgs
	open, err := p.expectOp("(")
	if err != nil {
		return a, err
	}
	bad := func() error { return syntaxErrorf(open.line, "invalid syntax for function call expression") }
	for comma := false; !p.isOp(")"); comma = true {
		if comma {
			if _, err := p.expectOp(","); err != nil {
				return a, err
			}
			if p.isOp(")") {
				break
			}
		}
		switch {
		case p.skipOp("*"):
			if a.star != nil || a.stars2 != nil {
				return a, bad()
			}
			if a.star, err = p.expression(true); err != nil {
				return a, err
			}
		case p.skipOp("**"):
			if a.stars2 != nil {
				return a, bad()
			}
			if a.stars2, err = p.expression(true); err != nil {
				return a, err
			}
		case p.cur().kind == tokName && p.look().kind == tokOp && p.look().text == "=":
			if a.stars2 != nil {
				return a, bad()
			}
			key := p.next()
			for _, k := range a.kwNames {
				if k == key.text {
					return a, syntaxErrorf(key.line, "keyword argument repeated: %s", k)
				}
			}
			p.next()
			v, err := p.expression(true)
			if err != nil {
				return a, err
			}
			a.kwNames, a.kwVals = append(a.kwNames, key.text), append(a.kwVals, v)
		default:
			if a.star != nil || a.stars2 != nil || len(a.kwNames) > 0 {
				return a, bad()
			}
			v, err := p.expression(true)
			if err != nil {
				return a, err
			}
			a.pos = append(a.pos, v)
		}
	}
	_, err = p.expectOp(")")
	return a, err
}

func (p *parser) call(n node) (node, error) {
	line := at(p.cur().line)
	args, err := p.callArgs()
	return &callNode{line, n, args}, err
}

// dottedName reads the name of a filter or test.
func (p *parser) dottedName() (token, error) {
	t, err := p.expectIdent()
	for err == nil && p.skipOp(".") {
		var part token
		if part, err = p.expectIdent(); err == nil {
			t.text += "." + part.text
		}
	}
	return t, err
}

// filters reads a chain of filters; inline says that the first has no bar.
func (p *parser) filters(n node, inline bool) (node, error) {
	for chain := 0; inline || p.isOp("|"); chain++ {
		if chain >= 10*maxNesting {
			return nil, p.fail("the expression has more than %d filters in a row", 10*maxNesting)
		}
		if !inline {
			p.next()
		}
		inline = false
		t, err := p.dottedName()
		if err != nil {
			return nil, err
		}
		f := &filterNode{at: at(t.line), subject: n, name: t.text}
		if p.isOp("(") {
			if f.args, err = p.callArgs(); err != nil {
				return nil, err
			}
		}
		n = f
	}
	return n, nil
}

func (p *parser) test(n node) (node, error) {
	line := at(p.next().line)
	negated := p.skipName("not")
	name, err := p.dottedName()
	if err != nil {
		return nil, err
	}
	t := &testNode{at: line, subject: n, name: name.text}
	switch c := p.cur(); {
	case p.isOp("("):
		if t.args, err = p.callArgs(); err != nil {
			return nil, err
		}
	case c.kind == tokName && (c.text == "else" || c.text == "or" || c.text == "and"):
	case c.kind == tokName && c.text == "is":
		return nil, p.fail("You cannot chain multiple tests with is")
	case c.kind == tokName, c.kind == tokString, c.kind == tokInt, c.kind == tokFloat, p.isOp("["), p.isOp("{"):
		arg, err := p.primary(false)
		if err != nil {
			return nil, err
		}
		if arg, err = p.postfix(arg); err != nil {
			return nil, err
		}
		t.args.pos = []node{arg}
	}
	if negated {
		return &unaryNode{line, "not", t}, nil
	}
	return t, nil
}
