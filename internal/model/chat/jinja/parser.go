package jinja

import "strings"

// maxNesting bounds how deep expressions and statements nest, in the parser
// and so in everything that walks the tree. The reference fails near 100.
// An expression in brackets counts twice.
const maxNesting = 400

// parser turns tokens into the tree.
type parser struct {
	toks  []token
	i     int
	depth int
	// tags are the open statements, for error messages.
	tags []string
}

func (p *parser) cur() token { return p.toks[p.i] }

func (p *parser) look() token {
	if p.i+1 < len(p.toks) {
		return p.toks[p.i+1]
	}
	return p.toks[len(p.toks)-1]
}

func (p *parser) next() token {
	t := p.toks[p.i]
	if p.i+1 < len(p.toks) {
		p.i++
	}
	return t
}

func (p *parser) isOp(op string) bool     { t := p.cur(); return t.kind == tokOp && t.text == op }
func (p *parser) isName(name string) bool { t := p.cur(); return t.kind == tokName && t.text == name }

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) fail(format string, args ...any) error {
	return syntaxErrorf(p.cur().line, format, args...)
}

func (p *parser) expect(want string, ok bool) (token, error) {
	if !ok {
		if p.cur().kind == tokEOF {
			return token{}, p.fail("unexpected end of template, expected '%s'.", want)
		}
		return token{}, p.fail("expected token '%s', got '%s'", want, p.cur().describe())
	}
	return p.next(), nil
}

func (p *parser) expectOp(op string) (token, error)     { return p.expect(op, p.isOp(op)) }
func (p *parser) expectName(name string) (token, error) { return p.expect(name, p.isName(name)) }
func (p *parser) expectIdent() (token, error)           { return p.expect("name", p.cur().kind == tokName) }
func (p *parser) expectBlockEnd() error {
	_, err := p.expect("end of statement block", p.cur().kind == tokBlockEnd)
	return err
}

// enter and leave bound the nesting.
func (p *parser) enter() error {
	if p.depth++; p.depth > maxNesting {
		return p.fail("the template nests deeper than %d levels", maxNesting)
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// subparse reads statements until one of the end tags (or the end of the
// template when there are none), leaving the end tag's name current.
func (p *parser) subparse(ends []string) ([]node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var body []node
	var out *outputNode
	add := func(n node) {
		if out == nil {
			out = &outputNode{at: at(n.pos())}
			body = append(body, out)
		}
		out.parts = append(out.parts, n)
	}
	for {
		t := p.cur()
		switch t.kind {
		case tokEOF:
			if ends != nil {
				return nil, p.fail("Unexpected end of template. Jinja was looking for the following tags: '%s'."+
					" The innermost block that needs to be closed is '%s'.",
					strings.Join(ends, "' or '"), p.tags[len(p.tags)-1])
			}
			return body, nil
		case tokData:
			p.next()
			add(&dataNode{at(t.line), t.text})
		case tokVarBegin:
			p.next()
			n, err := p.tuple(true, nil, false)
			if err != nil {
				return nil, err
			}
			if _, err := p.expect("end of print statement", p.cur().kind == tokVarEnd); err != nil {
				return nil, err
			}
			add(n)
		case tokBlockBegin:
			out = nil
			p.next()
			for _, e := range ends {
				if p.isName(e) {
					return body, nil
				}
			}
			n, err := p.statement()
			if err != nil {
				return nil, err
			}
			body = append(body, n)
			if err := p.expectBlockEnd(); err != nil {
				return nil, err
			}
		default:
			return nil, p.fail("unexpected '%s'", t.describe())
		}
	}
}

// statements reads the body of a statement: past the end of its opening tag,
// up to one of the end tags, which it also consumes and returns.
func (p *parser) statements(ends ...string) ([]node, string, error) {
	p.skipOp(":")
	if err := p.expectBlockEnd(); err != nil {
		return nil, "", err
	}
	body, err := p.subparse(ends)
	if err != nil {
		return nil, "", err
	}
	return body, p.next().text, nil
}

// statement reads one statement, its tag's name being current.
func (p *parser) statement() (node, error) {
	t := p.cur()
	if t.kind != tokName {
		return nil, p.fail("tag name expected")
	}
	p.tags = append(p.tags, t.text)
	defer func() { p.tags = p.tags[:len(p.tags)-1] }()
	switch t.text {
	case "for":
		return p.forStatement()
	case "if":
		return p.ifStatement()
	case "set":
		return p.set()
	case "macro":
		return p.macro()
	case "call":
		return p.callBlock()
	case "filter":
		return p.filterBlock()
	case "with":
		return p.with()
	case "print":
		return p.print()
	case "generation":
		p.next()
		n := &macroNode{at: at(t.line), generation: true}
		var err error
		n.body, _, err = p.statements("endgeneration")
		return n, err
	case "break":
		p.next()
		return &breakNode{at(t.line)}, nil
	case "continue":
		p.next()
		return &continueNode{at(t.line)}, nil
	case "block", "extends", "include", "import", "from", "autoescape":
		return nil, unsupportedf(t.line, "the statement '%s' is not supported in chat templates", t.text)
	}
	return nil, p.fail("Encountered unknown tag '%s'.", t.text)
}

func (p *parser) set() (node, error) {
	line := at(p.next().line)
	target, err := p.assignTarget(nil, true)
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		val, err := p.tuple(true, nil, false)
		return &setNode{line, target, val}, err
	}
	n := &setBlockNode{at: line, target: target}
	if p.isOp("|") {
		if n.filter, err = p.filters(nil, false); err != nil {
			return nil, err
		}
	}
	n.body, _, err = p.statements("endset")
	return n, err
}

func (p *parser) forStatement() (node, error) {
	n := &forNode{at: at(p.next().line)}
	var err error
	if n.target, err = p.assignTarget([]string{"in"}, false); err != nil {
		return nil, err
	}
	if _, err = p.expectName("in"); err != nil {
		return nil, err
	}
	if n.iter, err = p.tuple(false, []string{"recursive"}, false); err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if n.test, err = p.expression(true); err != nil {
			return nil, err
		}
	}
	n.recursive = p.skipName("recursive")
	var end string
	if n.body, end, err = p.statements("endfor", "else"); err != nil {
		return nil, err
	}
	if end == "else" {
		n.els, _, err = p.statements("endfor")
	}
	return n, err
}

func (p *parser) ifStatement() (node, error) {
	n := &ifNode{at: at(p.next().line)}
	for branch := n; ; {
		var err error
		var end string
		if branch.test, err = p.tuple(false, nil, false); err != nil {
			return nil, err
		}
		if branch.body, end, err = p.statements("elif", "else", "endif"); err != nil {
			return nil, err
		}
		switch end {
		case "elif":
			branch = &ifNode{at: at(p.cur().line)}
			n.elifs = append(n.elifs, branch)
			continue
		case "else":
			n.els, _, err = p.statements("endif")
		}
		return n, err
	}
}

func (p *parser) with() (node, error) {
	n := &withNode{at: at(p.next().line)}
	for p.cur().kind != tokBlockEnd {
		if len(n.targets) > 0 {
			if _, err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		target, err := p.assignTarget(nil, false)
		if err != nil {
			return nil, err
		}
		setCtx(target, ctxParam)
		if _, err := p.expectOp("="); err != nil {
			return nil, err
		}
		val, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		n.targets, n.vals = append(n.targets, target), append(n.vals, val)
	}
	var err error
	n.body, _, err = p.statements("endwith")
	return n, err
}

func (p *parser) print() (node, error) {
	n := &outputNode{at: at(p.next().line)}
	for p.cur().kind != tokBlockEnd {
		if len(n.parts) > 0 {
			if _, err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		e, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		n.parts = append(n.parts, e)
	}
	return n, nil
}

func (p *parser) signature(n *macroNode) error {
	if _, err := p.expectOp("("); err != nil {
		return err
	}
	for !p.isOp(")") {
		if len(n.params) > 0 {
			if _, err := p.expectOp(","); err != nil {
				return err
			}
		}
		t, err := p.expectIdent()
		if err != nil {
			return err
		}
		if !assignable(t.text) {
			return syntaxErrorf(t.line, "can't assign to '%s'", t.text)
		}
		for _, q := range n.params {
			if q.name == t.text {
				return syntaxErrorf(t.line, "duplicate argument '%s' in the definition of a macro", t.text)
			}
		}
		if p.skipOp("=") {
			d, err := p.expression(true)
			if err != nil {
				return err
			}
			n.defaults = append(n.defaults, d)
		} else if len(n.defaults) > 0 {
			return p.fail("non-default argument follows default argument")
		}
		n.params = append(n.params, &nameNode{at(t.line), t.text, ctxParam})
	}
	_, err := p.expectOp(")")
	return err
}

func (p *parser) macro() (node, error) {
	n := &macroNode{at: at(p.next().line)}
	t, err := p.expectIdent()
	if err != nil {
		return nil, err
	}
	if !assignable(t.text) {
		return nil, syntaxErrorf(t.line, "can't assign to '%s'", t.text)
	}
	n.name = t.text
	if err := p.signature(n); err != nil {
		return nil, err
	}
	n.body, _, err = p.statements("endmacro")
	return n, err
}

func (p *parser) callBlock() (node, error) {
	n := &macroNode{at: at(p.next().line)}
	if p.isOp("(") {
		if err := p.signature(n); err != nil {
			return nil, err
		}
	}
	e, err := p.expression(true)
	if err != nil {
		return nil, err
	}
	call, ok := e.(*callNode)
	if !ok {
		return nil, syntaxErrorf(n.pos(), "expected call")
	}
	n.call = call
	n.body, _, err = p.statements("endcall")
	return n, err
}

func (p *parser) filterBlock() (node, error) {
	n := &filterBlockNode{at: at(p.next().line)}
	var err error
	if n.filter, err = p.filters(nil, true); err != nil {
		return nil, err
	}
	n.body, _, err = p.statements("endfilter")
	return n, err
}

func assignable(name string) bool {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		return false
	}
	return true
}

// assignTarget reads the target of an assignment: a name, a namespace's
// attribute (where ns allows it) or a tuple of them.
func (p *parser) assignTarget(ends []string, ns bool) (node, error) {
	line := p.cur().line
	target, err := p.tupleOf(ends, false, func() (node, error) { return p.primary(ns) })
	if err != nil {
		return nil, err
	}
	if !setCtx(target, ctxStore) {
		return nil, syntaxErrorf(line, "can't assign to this expression")
	}
	return target, nil
}

// setCtx marks the names of an assignment target; it reports whether the
// target can be assigned to.
func setCtx(n node, ctx ctxKind) bool {
	switch n := n.(type) {
	case *nameNode:
		n.ctx = ctx
		return assignable(n.name)
	case *nsRefNode:
		return true
	case *tupleNode:
		for _, it := range n.items {
			if !setCtx(it, ctx) {
				return false
			}
		}
		return true
	}
	return false
}
