package content

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Schema is a JSON Schema that documents can be written by. It is immutable.
//
// Of draft 2020-12 it takes type, enum, const, properties, required,
// additionalProperties, minProperties, maxProperties, items, prefixItems,
// minItems, maxItems, uniqueItems, minLength, maxLength, pattern, format,
// minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, anyOf,
// oneOf, allOf, and $ref within the document, recursive ones included.
// Annotations have no effect. All else, and any combination that documents
// cannot be made for with certainty, is refused by its name.
type Schema struct {
	root *node
	text string
}

// String gives the schema's JSON, without white space.
func (s *Schema) String() string { return s.text }

// SchemaError says what of a schema cannot be done.
type SchemaError struct {
	Path   string // JSON pointer of the schema it stands in, as in "/properties/a"
	Reason string
}

// Error implements error.
func (e *SchemaError) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return e.Reason + ", at " + e.Path
}

// Bounds of a schema and of what is written by it.
const (
	maxSchemaNodes  = 5000
	maxAlternatives = 256
	maxCount        = 4096  // of items and properties that must be there
	maxStringLength = 16384 // that a string must have
	maxNumberLength = 64    // bytes of a number in a schema
)

// CompileSchema reads a JSON Schema. Its errors are *SchemaError, or say why
// the text is not JSON.
func CompileSchema(raw []byte) (*Schema, error) {
	root, err := parseValue(raw)
	if err != nil {
		return nil, fmt.Errorf("not valid JSON: %w", err)
	}
	return compileSchema(root, false)
}

// compileSchema reads a schema whose documents are objects, where that is
// asked for.
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

// kinds is a set of JSON types.
type kinds uint8

const (
	kindNull kinds = 1 << iota
	kindBoolean
	kindInteger
	kindNumber // that is no integer
	kindString
	kindArray
	kindObject
	kindAny = kindObject<<1 - 1
)

// kindsOf gives the type of a value.
func kindsOf(v *value) kinds {
	switch v.kind {
	case 'n':
		return kindNull
	case 't', 'f':
		return kindBoolean
	case '"':
		return kindString
	case '[':
		return kindArray
	case '{':
		return kindObject
	}
	if r, ok := new(big.Rat).SetString(string(v.raw)); ok && r.IsInt() {
		return kindInteger
	}
	return kindNumber
}

// node is what holds of one place in a document: the conjunction of all
// schemas that apply to it. Where it has alternatives, one of them holds, each
// with all the rest in it.
type node struct {
	path  string
	never string // why no value fits, where that is so

	blocked string // why none can be written, though some may fit

	kinds   kinds   // that values may have
	write   kinds   // that are written
	enum    []value // where hasEnum
	hasEnum bool

	numbers numberRange
	length  countRange // of a string, in code points
	pattern *pattern
	format  string

	items   countRange
	prefix  []*node
	each    *node // items after the prefix; nil: any
	unique  bool
	size    countRange // of an object
	members []field
	others  *node // of members that have no field; nil: any
	anyOf   []*node
	oneOf   bool // the alternatives must exclude each other

	cost float64 // values of the smallest document; +Inf until one is known
}

type field struct {
	name     string
	node     *node
	required bool
}

type countRange struct {
	min, max int // max -1: no bound
}

func (r *countRange) meet(o countRange) {
	r.min = max(r.min, o.min)
	if o.max >= 0 && (r.max < 0 || o.max < r.max) {
		r.max = o.max
	}
}

func (r countRange) empty() bool { return r.max >= 0 && r.max < r.min }

// numberRange bounds numbers; nil is no bound.
type numberRange struct {
	min, max         *big.Rat
	openMin, openMax bool
	multiple         *big.Rat
}

func (r *numberRange) meet(o numberRange) {
	if o.min != nil && (r.min == nil || o.min.Cmp(r.min) > 0 || o.min.Cmp(r.min) == 0 && o.openMin) {
		r.min, r.openMin = o.min, o.openMin
	}
	if o.max != nil && (r.max == nil || o.max.Cmp(r.max) < 0 || o.max.Cmp(r.max) == 0 && o.openMax) {
		r.max, r.openMax = o.max, o.openMax
	}
	switch {
	case o.multiple == nil:
	case r.multiple == nil:
		r.multiple = o.multiple
	default:
		r.multiple = commonMultiple(r.multiple, o.multiple)
	}
}

// commonMultiple gives the least number that is a multiple of both.
func commonMultiple(a, b *big.Rat) *big.Rat {
	// Over the common denominator they are integers.
	x := new(big.Int).Mul(a.Num(), b.Denom())
	y := new(big.Int).Mul(b.Num(), a.Denom())
	gcd := new(big.Int).GCD(nil, nil, x, y)
	lcm := new(big.Int).Mul(x, new(big.Int).Div(y, gcd))
	return new(big.Rat).SetFrac(lcm, new(big.Int).Mul(a.Denom(), b.Denom()))
}

// atom is one schema of the document by itself: its keywords, without what
// $ref, allOf, anyOf and oneOf bring.
type atom struct {
	path    string
	never   bool // the schema false
	kinds   kinds
	enum    []value
	hasEnum bool
	numbers numberRange
	length  countRange
	pattern *pattern
	format  string
	items   countRange
	prefix  []place
	each    *place
	unique  bool
	size    countRange
	members []memberPlace
	others  *place // additionalProperties
	require []string
	all     []place  // allOf, and $ref
	choices []choice // anyOf and oneOf
}

// place is a schema and where it stands. up leads to those that brought it by
// $ref, allOf, anyOf or oneOf, for the same value.
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

// under gives places with those that bring them.
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

func refuse(path, format string, args ...any) error {
	return &SchemaError{Path: path, Reason: fmt.Sprintf(format, args...)}
}

// node gives the node of a conjunction: schemas, and choices yet to be made.
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

// flatten collects the atoms of schemas, following $ref and allOf, and their
// choices. What is reached twice counts once.
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
			// An atom whose choices are being made; what it brings is here too.
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
			if n.pattern != nil && n.pattern.text != a.pattern.text {
				return refuse(a.path, "pattern: two that must hold together cannot be written by")
			}
			n.pattern = a.pattern
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

func (n *node) meetEnum(list []value) {
	if !n.hasEnum {
		n.enum, n.hasEnum = list, true
		return
	}
	n.enum = slices.DeleteFunc(slices.Clone(n.enum), func(v value) bool {
		return !slices.ContainsFunc(list, func(o value) bool { return o.canonical() == v.canonical() })
	})
}

// conjunction defers the making of a child until its parent is known, which
// keeps the stack flat and lets recursion find it.
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
	var others []place
	for _, a := range atoms {
		if a.others != nil {
			others = append(others, *a.others)
		}
	}
	for i := range n.members {
		var of []place
		for _, a := range atoms {
			k := slices.IndexFunc(a.members, func(m memberPlace) bool { return m.name == n.members[i].name })
			switch {
			case k >= 0:
				of = append(of, a.members[k].place)
			case a.others != nil:
				of = append(of, *a.others)
			}
		}
		c.conjunction(of, func(child *node) { n.members[i].node = child })
	}
	c.conjunction(others, func(child *node) { n.others = child })
	return nil
}

// settle chooses the types and checks what can be checked at once.
func (n *node) settle() error {
	if n.write = n.kinds; n.kinds == kindAny {
		n.write = n.impliedKind()
	}
	if n.kinds == 0 && n.never == "" {
		n.never = "no type is left"
	}
	if n.length.empty() {
		n.dropKind(kindString, "minLength %d is above maxLength %d", n.length.min, n.length.max)
	}
	if n.items.empty() {
		n.dropKind(kindArray, "minItems %d is above maxItems %d", n.items.min, n.items.max)
	}
	if n.size.empty() {
		n.dropKind(kindObject, "minProperties %d is above maxProperties %d", n.size.min, n.size.max)
	}
	if n.hasEnum {
		return n.settleEnum()
	}
	if n.write&(kindInteger|kindNumber) != 0 {
		n.settleNumbers()
	}
	if n.write&kindString != 0 {
		if err := n.settleString(); err != nil {
			return err
		}
	}
	if n.write&kindArray != 0 && n.unique && n.items.min > 1 {
		return refuse(n.path, "uniqueItems with minItems above 1 cannot be written by")
	}
	if n.write&kindObject != 0 && n.size.min > len(n.members) {
		return refuse(n.path, "minProperties %d is more than the %d properties it names", n.size.min, len(n.members))
	}
	return nil
}

func (n *node) dropKind(k kinds, format string, args ...any) {
	n.kinds, n.write = n.kinds&^k, n.write&^k
	if n.write == 0 && n.never == "" {
		n.never = fmt.Sprintf(format, args...)
	}
}

// impliedKind is the type to write where the schema names none: the one its
// other keywords are about.
func (n *node) impliedKind() kinds {
	switch {
	case len(n.members) > 0 || n.others != nil || n.size != (countRange{0, -1}):
		return kindObject
	case len(n.prefix) > 0 || n.each != nil || n.items != (countRange{0, -1}) || n.unique:
		return kindArray
	case n.numbers != numberRange{}:
		return kindInteger | kindNumber
	}
	return kindString
}

// settleEnum leaves the values that the other keywords admit.
func (n *node) settleEnum() error {
	var err error
	n.enum = slices.DeleteFunc(slices.Clone(n.enum), func(v value) bool {
		k := kindsOf(&v)
		if n.kinds&k == 0 {
			return true
		}
		switch k {
		case kindInteger, kindNumber:
			r, ok := new(big.Rat).SetString(string(v.raw))
			return !ok || !n.numbers.has(r)
		case kindString:
			if n.format != "" {
				err = refuse(n.path, "enum with a string, together with format, is not checked")
			}
			return !n.admitsString(v.text())
		case kindArray:
			if n.items != (countRange{0, -1}) || len(n.prefix) > 0 || n.each != nil || n.unique {
				err = refuse(n.path, "enum with an array, together with keywords about arrays, is not checked")
			}
		case kindObject:
			if len(n.members) > 0 || n.others != nil || n.size != (countRange{0, -1}) {
				err = refuse(n.path, "enum with an object, together with keywords about objects, is not checked")
			}
		}
		return false
	})
	if len(n.enum) == 0 && n.never == "" {
		n.never = "no value of the enum fits"
	}
	return err
}

func (r *numberRange) has(x *big.Rat) bool {
	if r.min != nil {
		if c := x.Cmp(r.min); c < 0 || c == 0 && r.openMin {
			return false
		}
	}
	if r.max != nil {
		if c := x.Cmp(r.max); c > 0 || c == 0 && r.openMax {
			return false
		}
	}
	return r.multiple == nil || new(big.Rat).Quo(x, r.multiple).IsInt()
}

func (n *node) admitsString(s string) bool {
	runes := utf8.RuneCountInString(s)
	return runes >= n.length.min && (n.length.max < 0 || runes <= n.length.max) &&
		(n.pattern == nil || n.pattern.expr.MatchString(s))
}

// settleNumbers makes sure that a number of each type can be found.
func (n *node) settleNumbers() {
	for _, k := range []kinds{kindInteger, kindNumber} {
		if n.write&k != 0 {
			if _, ok := n.numbers.grid(k == kindInteger); !ok {
				n.dropKind(k, "no number fits minimum, maximum and multipleOf")
			}
		}
	}
}

func (n *node) settleString() error {
	switch {
	case n.length.min > maxStringLength:
		return refuse(n.path, "minLength %d is more than %d", n.length.min, maxStringLength)
	case n.pattern != nil && n.format != "":
		return refuse(n.path, "pattern and format together cannot be written by")
	case n.pattern != nil:
		if !n.pattern.writable(n) {
			return refuse(n.path, "pattern %q: no text for it was found (with minLength and maxLength)", n.pattern.text)
		}
	case n.format != "":
		write, ok := formats[n.format]
		if !ok {
			return refuse(n.path, "format %q cannot be written by; known are %s", n.format, formatNames())
		}
		if !n.admitsString(write(func(int) int { return 0 })) {
			return refuse(n.path, "format %q does not fit minLength and maxLength", n.format)
		}
	}
	return nil
}

// finish makes what was deferred, and finds out which places have a finite
// document.
func (c *compiler) finish(root *node) error {
	for len(c.todo) > 0 {
		next := c.todo[len(c.todo)-1]
		c.todo = c.todo[:len(c.todo)-1]
		if err := next(); err != nil {
			return err
		}
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

// smallest gives the number of values of the smallest document, as far as it
// is known.
func (n *node) smallest() float64 {
	if n.never != "" || n.blocked != "" {
		return math.Inf(1)
	}
	if n.anyOf != nil {
		least := math.Inf(1)
		for _, a := range n.anyOf {
			least = min(least, a.cost)
		}
		return least
	}
	if n.hasEnum {
		return 1
	}
	least := math.Inf(1)
	for k := kinds(1); k < kindAny; k <<= 1 {
		if n.write&k != 0 {
			least = min(least, n.smallestOf(k))
		}
	}
	return least
}

func (n *node) smallestOf(k kinds) float64 {
	cost := 1.0
	switch k {
	case kindArray:
		for i := range n.items.min {
			if cost += costOf(n.item(i)); i >= len(n.prefix) {
				cost += float64(n.items.min-i-1) * costOf(n.each)
				break
			}
		}
	case kindObject:
		var optional []float64
		count := 0
		for _, f := range n.members {
			if f.required {
				cost += costOf(f.node)
				count++
			} else {
				optional = append(optional, costOf(f.node))
			}
		}
		slices.Sort(optional)
		for i := 0; count < n.size.min; i, count = i+1, count+1 {
			cost += optional[i]
		}
		if n.size.max >= 0 && count > n.size.max {
			cost = math.Inf(1)
		}
	}
	return cost
}

// item gives the schema of an array's item, nil for any.
func (n *node) item(i int) *node {
	if i < len(n.prefix) {
		return n.prefix[i]
	}
	return n.each
}

func costOf(n *node) float64 {
	if n == nil {
		return 1
	}
	return n.cost
}

// unwritable says why there is no finite document.
func (n *node) unwritable(seen map[*node]bool) error {
	if seen[n] {
		return refuse(n.path, "the schema requires itself without end")
	}
	seen[n] = true
	switch {
	case n.never != "":
		return refuse(n.path, "no value fits: %s", n.never)
	case n.blocked != "":
		return refuse(n.path, "%s", n.blocked)
	case len(n.anyOf) > 0:
		return n.anyOf[0].unwritable(seen)
	}
	for _, f := range n.members {
		if f.required && f.node != nil && math.IsInf(f.node.cost, 1) {
			return f.node.unwritable(seen)
		}
	}
	for i := range min(n.items.min, len(n.prefix)+1) {
		if child := n.item(i); child != nil && math.IsInf(child.cost, 1) {
			return child.unwritable(seen)
		}
	}
	return refuse(n.path, "no value fits")
}

// exclude leaves of a oneOf the alternatives that certainly exclude all
// others; where there is none, it cannot be written by.
func (n *node) exclude() {
	var left []*node
	for i, a := range n.anyOf {
		alone := true
		for j, b := range n.anyOf {
			alone = alone && (i == j || disjoint(a, b, 0))
		}
		if alone {
			left = append(left, a)
		}
	}
	if n.anyOf = left; len(left) == 0 {
		n.blocked = "oneOf has no alternative that certainly excludes the others; tell them apart by type or by a const of a required property, or use anyOf"
	}
}

// disjoint says whether no value can fit both, as far as that is easy to see.
func disjoint(a, b *node, depth int) bool {
	if a == nil || b == nil || depth > 4 {
		return false
	}
	if a.never != "" || b.never != "" {
		return true
	}
	if a.anyOf != nil {
		return !slices.ContainsFunc(a.anyOf, func(x *node) bool { return !disjoint(x, b, depth+1) })
	}
	if b.anyOf != nil {
		return !slices.ContainsFunc(b.anyOf, func(x *node) bool { return !disjoint(a, x, depth+1) })
	}
	both := a.admitted() & b.admitted()
	for k := kinds(1); k < kindAny; k <<= 1 {
		if both&k != 0 && !disjointIn(k, a, b, depth) {
			return false
		}
	}
	return true
}

// admitted gives the types that values may have, which for a node without a
// type are more than those that are written.
func (n *node) admitted() kinds {
	if !n.hasEnum {
		return n.kinds
	}
	var k kinds
	for i := range n.enum {
		k |= kindsOf(&n.enum[i])
	}
	return k
}

func disjointIn(k kinds, a, b *node, depth int) bool {
	if a.hasEnum && b.hasEnum {
		return !slices.ContainsFunc(a.enum, func(v value) bool {
			return slices.ContainsFunc(b.enum, func(o value) bool { return o.canonical() == v.canonical() })
		})
	}
	if b.hasEnum {
		a, b = b, a
	}
	if a.hasEnum {
		// Values of this type, which the other admits none of.
		return !slices.ContainsFunc(a.enum, func(v value) bool {
			if kindsOf(&v) != k {
				return false
			}
			switch k {
			case kindString:
				return b.admitsString(v.text())
			case kindInteger, kindNumber:
				r, ok := new(big.Rat).SetString(string(v.raw))
				return !ok || b.numbers.has(r)
			}
			return true
		})
	}
	switch k {
	case kindInteger, kindNumber:
		both := a.numbers
		both.multiple = nil
		other := b.numbers
		other.multiple = nil
		both.meet(other)
		return both.min != nil && both.max != nil && (both.min.Cmp(both.max) > 0 || both.min.Cmp(both.max) == 0 && (both.openMin || both.openMax))
	case kindString:
		both := a.length
		both.meet(b.length)
		return both.empty()
	case kindArray:
		both := a.items
		both.meet(b.items)
		return both.empty()
	case kindObject:
		both := a.size
		both.meet(b.size)
		return both.empty() || tellsApart(a, b, depth) || tellsApart(b, a, depth)
	}
	return false
}

// tellsApart says whether a requires a member that b has no place for.
func tellsApart(a, b *node, depth int) bool {
	for _, f := range a.members {
		if !f.required {
			continue
		}
		other := b.others
		if i := slices.IndexFunc(b.members, func(o field) bool { return o.name == f.name }); i >= 0 {
			other = b.members[i].node
		}
		if other != nil && (other.never != "" || disjoint(f.node, other, depth+1)) {
			return true
		}
	}
	return false
}

// number reads a number of a schema.
func number(v value, path, name string) (*big.Rat, error) {
	if v.kind != '0' || len(v.raw) > maxNumberLength {
		return nil, refuse(path, "%s must be a number of at most %d bytes", name, maxNumberLength)
	}
	// SetString makes all the digits of 1e999999999.
	if i := strings.IndexAny(string(v.raw), "eE"); i >= 0 {
		if e, err := strconv.Atoi(string(v.raw[i+1:])); err != nil || e < -30 || e > 30 {
			return nil, refuse(path, "%s: the exponent of %s is beyond 30", name, v.raw)
		}
	}
	r, ok := new(big.Rat).SetString(string(v.raw))
	if !ok {
		return nil, refuse(path, "%s: %s is no number", name, v.raw)
	}
	return r, nil
}

// count reads a count of a schema.
func count(v value, path, name string) (int, error) {
	r, err := number(v, path, name)
	if err != nil {
		return 0, err
	}
	if !r.IsInt() || r.Sign() < 0 {
		return 0, refuse(path, "%s must be a non-negative integer", name)
	}
	if !r.Num().IsInt64() || r.Num().Int64() > math.MaxInt32 {
		return math.MaxInt32, nil
	}
	return int(r.Num().Int64()), nil
}
