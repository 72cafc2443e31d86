package jinja

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// function is one unit of variables that exists once per call: the template,
// a macro, the filter of a for loop, the body of a recursive loop. Variables
// of an enclosing function are reached through its scope, so they are seen as
// they are at the time of the call, as with Python's closures.
type function struct {
	depth int
	slots map[string]int
}

func newFunction(parent *function) *function {
	f := &function{slots: map[string]int{}}
	if parent != nil {
		f.depth = parent.depth + 1
	}
	return f
}

func (f *function) slot(ident string) int {
	s, ok := f.slots[ident]
	if !ok {
		s = len(f.slots)
		f.slots[ident] = s
	}
	return s
}

// ref is a variable: an identifier within a function.
type ref struct {
	ident string
	fn    *function
}

type loadKind uint8

const (
	loadParam   loadKind = iota // bound by whoever enters the scope
	loadResolve                 // from the rendering's variables
	loadAlias                   // starts as the variable it shadows
	loadMissing                 // undefined until assigned
)

type load struct {
	ref  ref
	kind loadKind
	from ref    // loadAlias
	name string // loadResolve
}

// symbols states which variable each name means within one scope, and how the
// scope's variables start. The rules are the reference's: names are claimed in
// the order in which the text meets them, and branches of an if share their
// scope.
type symbols struct {
	level  int
	parent *symbols
	fn     *function
	refs   map[string]ref
	loads  map[string]load // by identifier
	stores map[string]bool
}

func newSymbols(parent *symbols, fn *function) *symbols {
	s := &symbols{parent: parent, fn: fn, refs: map[string]ref{}, loads: map[string]load{}, stores: map[string]bool{}}
	if parent != nil {
		s.level = parent.level + 1
	}
	return s
}

func (s *symbols) copy() *symbols {
	c := *s
	c.refs, c.loads, c.stores = maps.Clone(s.refs), maps.Clone(s.loads), maps.Clone(s.stores)
	return &c
}

func (s *symbols) define(name string, l load) ref {
	r := ref{fmt.Sprintf("%d_%s", s.level, name), s.fn}
	s.refs[name] = r
	l.ref = r
	s.loads[r.ident] = l
	return r
}

func (s *symbols) find(name string) (ref, bool) {
	for ; s != nil; s = s.parent {
		if r, ok := s.refs[name]; ok {
			return r, true
		}
	}
	return ref{}, false
}

func (s *symbols) store(name string) {
	s.stores[name] = true
	if _, ok := s.refs[name]; ok {
		return
	}
	if outer, ok := s.parent.find(name); ok {
		s.define(name, load{kind: loadAlias, from: outer})
		return
	}
	s.define(name, load{kind: loadMissing})
}

func (s *symbols) param(name string) ref {
	s.stores[name] = true
	return s.define(name, load{kind: loadParam})
}

func (s *symbols) load(name string) {
	if _, ok := s.find(name); !ok {
		s.define(name, load{kind: loadResolve, name: name})
	}
}

// merge joins the scopes of an if's branches. A name assigned in only some of
// them starts as what it means outside.
func (s *symbols) merge(branches ...*symbols) {
	stores := map[string]bool{}
	for _, b := range branches {
		maps.Copy(stores, b.stores)
	}
	for name := range s.stores {
		delete(stores, name)
	}
	for _, b := range branches {
		maps.Copy(s.refs, b.refs)
		maps.Copy(s.loads, b.loads)
		maps.Copy(s.stores, b.stores)
	}
	for name := range stores {
		target, _ := s.find(name)
		l := load{ref: target, kind: loadResolve, name: name}
		if outer, ok := s.parent.find(name); ok {
			l = load{ref: target, kind: loadAlias, from: outer}
		}
		s.loads[target.ident] = l
	}
}

// starts returns the scope's loads in a fixed order.
func (s *symbols) starts() []load {
	out := make([]load, 0, len(s.loads))
	for _, l := range s.loads {
		if l.kind != loadParam {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b load) int { return cmp.Compare(a.ref.ident, b.ref.ident) })
	return out
}

// visitAll claims the names of nodes that belong to this scope.
func (s *symbols) visitAll(nodes []node) *symbols {
	for _, n := range nodes {
		s.visit(n, false)
	}
	return s
}

// visit claims the names below n that belong to this scope. It stops where an
// inner scope begins. asParam makes assigned names parameters, as the target
// of a for loop is.
func (s *symbols) visit(n node, asParam bool) {
	switch n := n.(type) {
	case *nameNode:
		switch {
		case asParam || n.ctx == ctxParam:
			s.param(n.name)
		case n.ctx == ctxStore:
			s.store(n.name)
		default:
			s.load(n.name)
		}
	case *nsRefNode:
		s.load(n.name)
	case *ifNode:
		s.visit(n.test, asParam)
		body, elifs, els := s.copy().visitAll(n.body), s.copy(), s.copy().visitAll(n.els)
		for _, e := range n.elifs {
			elifs.visit(e, asParam)
		}
		s.merge(body, elifs, els)
	case *macroNode:
		switch {
		case n.call != nil:
			s.visit(n.call, asParam)
		case !n.generation:
			s.store(n.name)
		}
	case *setNode:
		s.visit(n.val, asParam)
		s.visit(n.target, asParam)
	case *forNode:
		s.visit(n.iter, asParam)
	case *filterBlockNode:
		s.visit(n.filter, asParam)
	case *withNode:
		s.visitAll(n.vals)
	case *setBlockNode:
		s.visit(n.target, asParam)
	default:
		for _, c := range children(n) {
			s.visit(c, asParam)
		}
	}
}
