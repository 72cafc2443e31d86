package content

import (
	"math"
	"slices"
	"strings"
)

// compileSchema reads a schema; with object its documents must be objects.
func compileSchema(root value, object bool) (*Schema, error) {
	c := &compiler{root: root, atoms: map[string]*atom{}, nodes: map[string]*node{}}
	of := []place{{value: root}}
	if object {
		only, err := parseValue([]byte(`{"type":"object"}`))
		if err != nil {
			return nil, err
		}
		of = append(of, place{value: only, path: "/(an object)"})
	}
	n, err := c.node(of, nil)
	if err != nil {
		return nil, err
	}
	if err := c.finish(n); err != nil {
		return nil, err
	}
	return &Schema{root: n, text: string(root.raw)}, nil
}

// atom is one schema of the document alone: its keywords, without those that $ref, allOf,
// anyOf and oneOf add.
type atom struct {
	path     string
	never    bool // the schema false
	kinds    kinds
	enum     []value
	hasEnum  bool
	numbers  numberRange
	length   countRange
	pattern  *pattern
	format   string
	items    countRange
	prefix   []place
	each     *place
	unique   bool
	size     countRange
	members  []memberPlace
	others   *place // additionalProperties
	require  []string
	names    *place         // propertyNames
	patterns []patternPlace // patternProperties
	all      []place        // allOf, and $ref
	choices  []choice       // anyOf and oneOf
}

// place is a schema and its location. up leads to the schemas that refer to it for the same
// value, by $ref, allOf, anyOf or oneOf.
type place struct {
	value value
	path  string
	up    *chain
}

type chain struct {
	path string
	up   *chain
}

func (c *chain) has(path string) bool {
	for ; c != nil; c = c.up {
		if c.path == path {
			return true
		}
	}
	return false
}

// under returns places with the schemas that refer to them.
func under(of []place, up *chain) []place {
	out := make([]place, len(of))
	for i, p := range of {
		out[i] = place{p.value, p.path, up}
	}
	return out
}

type memberPlace struct {
	name string
	place
}

// patternPlace is the schema of the members whose names match.
type patternPlace struct {
	names *pattern
	place
}

type choice struct {
	path string
	of   []place
	one  bool
}

// compiler makes nodes of conjunctions of atoms. A conjunction is made once,
// so that recursive schemas give a graph.
type compiler struct {
	root  value
	atoms map[string]*atom // by path
	nodes map[string]*node // by their conjunction
	order []*node
	todo  []func() error
}

// node returns the node of a conjunction: schemas, and choices yet to be made.
func (c *compiler) node(of []place, choices []choice) (*node, error) {
	var atoms []*atom
	seen := map[string]bool{}
	if err := c.flatten(of, seen, &atoms, &choices); err != nil {
		return nil, err
	}
	key := conjunctionKey(atoms, choices)
	if n, ok := c.nodes[key]; ok {
		return n, nil
	}
	if len(c.nodes) >= maxSchemaNodes {
		return nil, refuse(of[0].path, "the schema comes to more than %d places", maxSchemaNodes)
	}
	n := &node{path: of[0].path, kinds: kindAny, length: countRange{0, -1}, items: countRange{0, -1}, size: countRange{0, -1}, cost: math.Inf(1)}
	c.nodes[key] = n
	c.order = append(c.order, n)
	if len(choices) == 0 {
		return n, c.fill(n, atoms)
	}
	first, rest := choices[0], choices[1:]
	if len(first.of) > maxAlternatives {
		return nil, refuse(first.path, "%d alternatives are more than %d", len(first.of), maxAlternatives)
	}
	n.oneOf = first.one
	base := make([]place, 0, len(atoms)+1)
	for _, a := range atoms {
		base = append(base, place{path: a.path})
	}
	for _, alternative := range first.of {
		child, err := c.node(append(slices.Clip(slices.Clone(base)), alternative), slices.Clone(rest))
		if err != nil {
			return nil, err
		}
		n.anyOf = append(n.anyOf, child)
	}
	return n, nil
}

// flatten collects the atoms of schemas, following $ref and allOf, and their choices.
// Schemas reached twice count once.
func (c *compiler) flatten(of []place, seen map[string]bool, atoms *[]*atom, choices *[]choice) error {
	for _, p := range of {
		if p.up.has(p.path) {
			return refuse(p.path, "the schema refers to itself for the same value")
		}
		if seen[p.path] {
			continue
		}
		seen[p.path] = true
		a, known := c.atoms[p.path]
		if !known {
			var err error
			if a, err = c.read(p); err != nil {
				return err
			}
			c.atoms[p.path] = a
		}
		*atoms = append(*atoms, a)
		if p.value.kind == 0 {
			// This atom's choices are being made; its other schemas are here too.
			continue
		}
		up := &chain{p.path, p.up}
		for _, ch := range a.choices {
			*choices = append(*choices, choice{ch.path, under(ch.of, up), ch.one})
		}
		if err := c.flatten(under(a.all, up), seen, atoms, choices); err != nil {
			return err
		}
	}
	return nil
}

func conjunctionKey(atoms []*atom, choices []choice) string {
	var keys []string
	for _, a := range atoms {
		keys = append(keys, a.path)
	}
	for _, ch := range choices {
		keys = append(keys, "\x01"+ch.path)
	}
	slices.Sort(keys)
	return strings.Join(slices.Compact(keys), "\x00")
}

// fill makes the conjunction of atoms that have no choices left.
func (c *compiler) fill(n *node, atoms []*atom) error {
	for _, a := range atoms {
		if a.never {
			n.never = "the schema is false"
		}
		n.kinds &= a.kinds
		n.numbers.meet(a.numbers)
		n.length.meet(a.length)
		n.items.meet(a.items)
		n.size.meet(a.size)
		n.unique = n.unique || a.unique
		if a.pattern != nil {
			n.meetPattern(a.pattern)
		}
		if a.format != "" {
			if n.format != "" && n.format != a.format {
				return refuse(a.path, "format: %q and %q cannot hold together", n.format, a.format)
			}
			n.format = a.format
		}
		if a.hasEnum {
			n.meetEnum(a.enum)
		}
	}
	if err := c.fillArray(n, atoms); err != nil {
		return err
	}
	if err := c.fillObject(n, atoms); err != nil {
		return err
	}
	return n.settle()
}

// conjunction defers the making of a child until its parent is known, which keeps the stack
// flat and lets recursion find it.
func (c *compiler) conjunction(of []place, set func(*node)) {
	if len(of) == 0 {
		return
	}
	c.todo = append(c.todo, func() error {
		n, err := c.node(of, nil)
		if err == nil {
			set(n)
		}
		return err
	})
}

func (c *compiler) fillArray(n *node, atoms []*atom) error {
	longest := 0
	for _, a := range atoms {
		longest = max(longest, len(a.prefix))
	}
	n.prefix = make([]*node, longest)
	var each []place
	for i := range longest + 1 {
		var of []place
		for _, a := range atoms {
			switch {
			case i < len(a.prefix):
				of = append(of, a.prefix[i])
			case a.each != nil:
				of = append(of, *a.each)
			}
		}
		if i == longest {
			each = of
		} else {
			c.conjunction(of, func(child *node) { n.prefix[i] = child })
		}
	}
	c.conjunction(each, func(child *node) { n.each = child })
	return nil
}

func (c *compiler) fillObject(n *node, atoms []*atom) error {
	at := map[string]int{}
	add := func(name string) int {
		i, ok := at[name]
		if !ok {
			i = len(n.members)
			at[name] = i
			n.members = append(n.members, field{name: name})
		}
		return i
	}
	for _, a := range atoms {
		for _, m := range a.members {
			add(m.name)
		}
	}
	for _, a := range atoms {
		for _, name := range a.require {
			n.members[add(name)].required = true
		}
	}
	var others, names []place
	for _, a := range atoms {
		if a.others != nil {
			others = append(others, *a.others)
		}
		if a.names != nil {
			names = append(names, *a.names)
		}
		n.patterned = n.patterned || len(a.patterns) > 0
		n.named = n.named || n.patterned || a.names != nil
	}
	c.conjunction(names, func(child *node) { n.names = child })
	for i := range n.members {
		var of []place
		for _, a := range atoms {
			k := slices.IndexFunc(a.members, func(m memberPlace) bool { return m.name == n.members[i].name })
			if k >= 0 {
				of = append(of, a.members[k].place)
			}
			for _, p := range a.patterns {
				if p.names.expr.MatchString(n.members[i].name) {
					of, k = append(of, p.place), 0
				}
			}
			if k < 0 && a.others != nil {
				of = append(of, *a.others)
			}
		}
		c.conjunction(of, func(child *node) { n.members[i].node = child })
	}
	c.conjunction(others, func(child *node) { n.others = child })
	return nil
}

// finish makes the deferred nodes, and finds out which places have a finite document.
func (c *compiler) finish(root *node) error {
	for len(c.todo) > 0 {
		next := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		if err := next(); err != nil {
			return err
		}
	}
	for _, n := range c.order {
		n.rename()
	}
	for _, n := range c.order {
		if n.oneOf {
			n.exclude()
		}
	}
	for changed := true; changed; {
		changed = false
		for _, n := range slices.Backward(c.order) {
			if cost := n.smallest(); cost < n.cost {
				n.cost, changed = cost, true
			}
		}
	}
	if math.IsInf(root.cost, 1) {
		return root.unwritable(map[*node]bool{})
	}
	return nil
}
