package jinja

import (
	"math/big"
	"strconv"
	"strings"
)

// expression reads one expression; cond allows the inline if.
func (p *parser) expression(cond bool) (node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	if !cond {
		return p.or()
	}
	e, err := p.or()
	if err != nil {
		return nil, err
	}
	for chain := 0; p.isName("if"); chain++ {
		if chain >= maxNesting {
			return nil, p.fail("the template nests deeper than %d levels", maxNesting)
		}
		line := at(p.next().line)
		test, err := p.or()
		if err != nil {
			return nil, err
		}
		var els node
		if p.skipName("else") {
			if els, err = p.expression(true); err != nil {
				return nil, err
			}
		}
		e = &condNode{line, test, e, els}
	}
	return e, nil
}

// leftAssoc reads operands joined by the operators that match accepts. The
// chain's length counts as depth, because its tree is as deep as it is long.
func (p *parser) leftAssoc(operand func() (node, error), match func(token) bool) (node, error) {
	l, err := operand()
	for chain := 0; err == nil && match(p.cur()); chain++ {
		if chain >= 10*maxNesting {
			return nil, p.fail("the expression has more than %d operators in a row", 10*maxNesting)
		}
		op := p.next()
		var r node
		if r, err = operand(); err == nil {
			l = &binNode{at(op.line), op.text, l, r}
		}
	}
	return l, err
}

func (p *parser) or() (node, error) {
	return p.leftAssoc(p.and, func(t token) bool { return t.kind == tokName && t.text == "or" })
}

func (p *parser) and() (node, error) {
	return p.leftAssoc(p.not, func(t token) bool { return t.kind == tokName && t.text == "and" })
}

func (p *parser) not() (node, error) {
	if !p.isName("not") {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	line := at(p.next().line)
	x, err := p.not()
	return &unaryNode{line, "not", x}, err
}

func (p *parser) compare() (node, error) {
	line := at(p.cur().line)
	first, err := p.addSub()
	if err != nil {
		return nil, err
	}
	n := &compareNode{at: line, first: first}
	for {
		op := ""
		switch t := p.cur(); {
		case t.kind == tokOp:
			switch t.text {
			case "==", "!=", "<", "<=", ">", ">=":
				op = t.text
				p.next()
			}
		case p.isName("in"):
			op = "in"
			p.next()
		case p.isName("not") && p.look().kind == tokName && p.look().text == "in":
			op = "not in"
			p.next()
			p.next()
		}
		if op == "" {
			break
		}
		r, err := p.addSub()
		if err != nil {
			return nil, err
		}
		n.ops, n.rest = append(n.ops, op), append(n.rest, r)
	}
	if len(n.ops) == 0 {
		return first, nil
	}
	return n, nil
}

func opIn(ops ...string) func(token) bool {
	return func(t token) bool {
		if t.kind != tokOp {
			return false
		}
		for _, op := range ops {
			if t.text == op {
				return true
			}
		}
		return false
	}
}

func (p *parser) addSub() (node, error) { return p.leftAssoc(p.concat, opIn("+", "-")) }

func (p *parser) concat() (node, error) {
	line := at(p.cur().line)
	e, err := p.mulDiv()
	if err != nil || !p.isOp("~") {
		return e, err
	}
	n := &concatNode{line, []node{e}}
	for p.skipOp("~") {
		if e, err = p.mulDiv(); err != nil {
			return nil, err
		}
		n.parts = append(n.parts, e)
	}
	return n, nil
}

func (p *parser) mulDiv() (node, error) { return p.leftAssoc(p.pow, opIn("*", "/", "//", "%")) }

// pow chains to the left and binds looser than a sign, unlike in Python.
func (p *parser) pow() (node, error) {
	return p.leftAssoc(func() (node, error) { return p.unary(true) }, opIn("**"))
}

func (p *parser) unary(withFilter bool) (node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var n node
	var err error
	if t := p.cur(); p.isOp("-") || p.isOp("+") {
		p.next()
		if n, err = p.unary(false); err == nil {
			n = &unaryNode{at(t.line), t.text, n}
		}
	} else {
		n, err = p.primary(false)
	}
	if err != nil {
		return nil, err
	}
	if n, err = p.postfix(n); err != nil || !withFilter {
		return n, err
	}
	return p.filterExpr(n)
}

// primary reads a name or a literal; ns allows `ns.attr` as one target.
func (p *parser) primary(ns bool) (node, error) {
	t := p.cur()
	line := at(t.line)
	switch t.kind {
	case tokName:
		p.next()
		switch t.text {
		case "true", "True":
			return &constNode{line, Bool(true)}, nil
		case "false", "False":
			return &constNode{line, Bool(false)}, nil
		case "none", "None":
			return &constNode{line, None}, nil
		}
		if ns && p.skipOp(".") {
			attr, err := p.expectIdent()
			return &nsRefNode{line, t.text, attr.text}, err
		}
		return &nameNode{line, t.text, ctxLoad}, nil
	case tokString:
		p.next()
		if p.cur().kind != tokString {
			return &constNode{line, Str(t.text)}, nil
		}
		var b strings.Builder
		for b.WriteString(t.text); p.cur().kind == tokString; {
			b.WriteString(p.next().text)
		}
		return &constNode{line, Str(b.String())}, nil
	case tokInt:
		p.next()
		v, err := intLiteral(t)
		return &constNode{line, v}, err
	case tokFloat:
		p.next()
		// The only error is a range error, and then f is the infinity that
		// Python has too.
		f, _ := strconv.ParseFloat(t.text, 64)
		return &constNode{line, Float(f)}, nil
	}
	switch {
	case p.isOp("("):
		p.next()
		e, err := p.tuple(true, nil, true)
		if err != nil {
			return nil, err
		}
		_, err = p.expectOp(")")
		return e, err
	case p.isOp("["):
		return p.list()
	case p.isOp("{"):
		return p.dict()
	}
	return nil, p.fail("unexpected '%s'", t.describe())
}

func intLiteral(t token) (Value, error) {
	if len(t.text) > 4300 {
		return nil, syntaxErrorf(t.line, "an integer of more than 4300 digits")
	}
	base := 10
	if len(t.text) > 1 && t.text[0] == '0' && !isDecimal(t.text[1]) {
		base = 0
	}
	b, ok := new(big.Int).SetString(t.text, base)
	if !ok {
		return nil, syntaxErrorf(t.line, "'%s' is not an integer", t.text)
	}
	return bigValue(b), nil
}

// tupleEnd reports whether no further item of a tuple can follow.
func (p *parser) tupleEnd(ends []string) bool {
	switch t := p.cur(); t.kind {
	case tokVarEnd, tokBlockEnd:
		return true
	case tokOp:
		return t.text == ")"
	case tokName:
		for _, e := range ends {
			if t.text == e {
				return true
			}
		}
	}
	return false
}

// tuple reads an expression, or a tuple where there is a comma. An empty one
// is allowed only inside parentheses.
func (p *parser) tuple(cond bool, ends []string, parens bool) (node, error) {
	return p.tupleOf(ends, parens, func() (node, error) { return p.expression(cond) })
}

func (p *parser) tupleOf(ends []string, parens bool, item func() (node, error)) (node, error) {
	line := at(p.cur().line)
	var items []node
	isTuple := false
	for {
		if len(items) > 0 {
			if _, err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		if p.tupleEnd(ends) {
			break
		}
		e, err := item()
		if err != nil {
			return nil, err
		}
		items = append(items, e)
		if !p.isOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple {
		if len(items) > 0 {
			return items[0], nil
		}
		if !parens {
			return nil, p.fail("Expected an expression, got '%s'", p.cur().describe())
		}
	}
	return &tupleNode{line, items}, nil
}

func (p *parser) list() (node, error) {
	n := &listNode{at: at(p.next().line)}
	for !p.isOp("]") {
		if len(n.items) > 0 {
			if _, err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.isOp("]") {
				break
			}
		}
		e, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, e)
	}
	_, err := p.expectOp("]")
	return n, err
}

func (p *parser) dict() (node, error) {
	n := &dictNode{at: at(p.next().line)}
	for !p.isOp("}") {
		if len(n.keys) > 0 {
			if _, err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.isOp("}") {
				break
			}
		}
		k, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		if _, err := p.expectOp(":"); err != nil {
			return nil, err
		}
		v, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		n.keys, n.vals = append(n.keys, k), append(n.vals, v)
	}
	_, err := p.expectOp("}")
	return n, err
}
