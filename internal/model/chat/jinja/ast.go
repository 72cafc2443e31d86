package jinja

// The tree mirrors the reference's node by node: which scope a name belongs to
// follows from the order in which a walk meets the children.

type node interface{ pos() int }

// at is the template line of a node.
type at int

func (a at) pos() int { return int(a) }

type ctxKind uint8

const (
	ctxLoad ctxKind = iota
	ctxStore
	ctxParam
)

type (
	nameNode struct {
		at
		name string
		ctx  ctxKind
	}
	// nsRefNode is `ns.attr` as the target of a set.
	nsRefNode struct {
		at
		name, attr string
	}
	constNode struct {
		at
		val Value
	}
	dataNode struct {
		at
		text string
	}
	tupleNode struct {
		at
		items []node
	}
	listNode struct {
		at
		items []node
	}
	dictNode struct {
		at
		keys, vals []node
	}
	condNode struct {
		at
		test, then, els node // els may be nil
	}
	// callArgs are the arguments of a call, a filter or a test.
	callArgs struct {
		pos          []node
		kwNames      []string
		kwVals       []node
		star, stars2 node // *args and **kwargs, may be nil
	}
	filterNode struct {
		at
		subject node // nil in a filter block
		name    string
		args    callArgs
	}
	testNode struct {
		at
		subject node
		name    string
		args    callArgs
	}
	callNode struct {
		at
		fn   node
		args callArgs
	}
	itemNode struct {
		at
		obj, arg node
	}
	attrNode struct {
		at
		obj  node
		name string
	}
	sliceNode struct {
		at
		start, stop, step node // each may be nil
	}
	concatNode struct {
		at
		parts []node
	}
	compareNode struct {
		at
		first node
		ops   []string
		rest  []node
	}
	binNode struct {
		at
		op   string // + - * / // % ** and or
		l, r node
	}
	unaryNode struct {
		at
		op string // + - not
		x  node
	}
)

type (
	outputNode struct {
		at
		parts []node
	}
	setNode struct {
		at
		target, val node
	}
	setBlockNode struct {
		at
		target node
		filter node // may be nil
		body   []node
	}
	ifNode struct {
		at
		test  node
		body  []node
		elifs []*ifNode
		els   []node
	}
	forNode struct {
		at
		target, iter node
		body, els    []node
		test         node // may be nil
		recursive    bool
	}
	// macroNode is a macro, a call block (call is set) or a generation block
	// (generation is set), which is a call block of the caller itself.
	macroNode struct {
		at
		name       string
		params     []*nameNode
		defaults   []node
		body       []node
		call       *callNode
		generation bool
	}
	filterBlockNode struct {
		at
		filter node
		body   []node
	}
	withNode struct {
		at
		targets, vals []node
		body          []node
	}
	breakNode    struct{ at }
	continueNode struct{ at }
)

// children returns a node's children in the reference's field order.
func children(n node) []node {
	switch n := n.(type) {
	case *tupleNode:
		return n.items
	case *listNode:
		return n.items
	case *dictNode:
		out := make([]node, 0, 2*len(n.keys))
		for i := range n.keys {
			out = append(out, n.keys[i], n.vals[i])
		}
		return out
	case *condNode:
		return present(n.test, n.then, n.els)
	case *filterNode:
		return append(present(n.subject), n.args.nodes()...)
	case *testNode:
		return append(present(n.subject), n.args.nodes()...)
	case *callNode:
		return append(present(n.fn), n.args.nodes()...)
	case *itemNode:
		return []node{n.obj, n.arg}
	case *attrNode:
		return []node{n.obj}
	case *sliceNode:
		return present(n.start, n.stop, n.step)
	case *concatNode:
		return n.parts
	case *compareNode:
		return append([]node{n.first}, n.rest...)
	case *binNode:
		return []node{n.l, n.r}
	case *unaryNode:
		return []node{n.x}
	case *outputNode:
		return n.parts
	case *setNode:
		return []node{n.target, n.val}
	case *setBlockNode:
		return append(present(n.target, n.filter), n.body...)
	case *ifNode:
		out := append([]node{n.test}, n.body...)
		for _, e := range n.elifs {
			out = append(out, e)
		}
		return append(out, n.els...)
	case *forNode:
		out := append([]node{n.target, n.iter}, n.body...)
		return append(append(out, n.els...), present(n.test)...)
	case *macroNode:
		if n.call != nil {
			return append([]node{n.call}, macroScope(n)...)
		}
		return macroScope(n)
	case *filterBlockNode:
		return append(append([]node{}, n.body...), n.filter)
	case *withNode:
		return append(append(append([]node{}, n.targets...), n.vals...), n.body...)
	}
	return nil
}

// macroScope returns what of a macro belongs to the macro's own scope.
func macroScope(n *macroNode) []node {
	var out []node
	for _, p := range n.params {
		out = append(out, p)
	}
	return append(append(out, n.defaults...), n.body...)
}

func (a *callArgs) nodes() []node {
	out := append([]node{}, a.pos...)
	return append(append(out, a.kwVals...), present(a.star, a.stars2)...)
}

func present(nodes ...node) []node {
	out := make([]node, 0, len(nodes))
	for _, n := range nodes {
		if n != nil {
			out = append(out, n)
		}
	}
	return out
}

// walk visits n and everything below it, in order, until visit says false.
func walk(n node, visit func(node) bool) bool {
	if !visit(n) {
		return false
	}
	for _, c := range children(n) {
		if !walk(c, visit) {
			return false
		}
	}
	return true
}

// undeclared returns which of names are read in nodes before they are assigned there.
// Like the reference it looks only at the order of the text.
func undeclared(nodes []node, names ...string) map[string]bool {
	open := make(map[string]bool, len(names))
	for _, n := range names {
		open[n] = true
	}
	found := map[string]bool{}
	for _, n := range nodes {
		walk(n, func(n node) bool {
			if n, ok := n.(*nameNode); ok {
				if n.ctx == ctxLoad && open[n.name] {
					found[n.name] = true
				} else {
					delete(open, n.name)
				}
			}
			return true
		})
	}
	return found
}
