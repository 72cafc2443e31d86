package content

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"unicode/utf8"
)

// node holds the constraints of one place in a document: the conjunction of all schemas
// that apply to it. If it has alternatives, one of them holds, and each includes all other
// constraints.
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
	pattern *pattern   // that texts are written by
	matches []*pattern // others that they must match too
	format  string

	items     countRange
	prefix    []*node
	each      *node // items after the prefix; nil: any
	unique    bool
	size      countRange // of an object
	members   []field
	others    *node // of members that have no field; nil: any
	names     *node // of the names of members; nil: any
	patterned bool  // patternProperties says something of members
	named     bool  // the name of a member says what may stand there, or whether
	freely    bool  // members of any name may be written
	anyOf     []*node
	oneOf     bool // the alternatives must exclude each other

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

func (n *node) meetPattern(p *pattern) {
	switch {
	case n.pattern == nil:
		n.pattern = p
	case n.pattern.text != p.text:
		n.matches = append(n.matches, p)
	}
}

// choosePattern finds a pattern whose texts match all the others, too.
func (n *node) choosePattern() bool {
	all := append([]*pattern{n.pattern}, n.matches...)
	for i, p := range all {
		n.pattern, n.matches = p, slices.Delete(slices.Clone(all), i, i+1)
		if p.writable(n) {
			return true
		}
	}
	return false
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

// impliedKind returns the type to write if the schema names none: the one that its other
// keywords apply to.
func (n *node) impliedKind() kinds {
	switch {
	case len(n.members) > 0 || n.others != nil || n.named || n.size != (countRange{0, -1}):
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
			if len(n.members) > 0 || n.others != nil || n.named || n.size != (countRange{0, -1}) {
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

func (n *node) admitsString(s string) bool {
	runes := utf8.RuneCountInString(s)
	return runes >= n.length.min && (n.length.max < 0 || runes <= n.length.max) &&
		(n.pattern == nil || n.pattern.expr.MatchString(s)) &&
		!slices.ContainsFunc(n.matches, func(p *pattern) bool { return !p.expr.MatchString(s) })
}

// admitsName reports whether a string surely fits, for the name of a member.
func (n *node) admitsName(s string) bool {
	if n.anyOf != nil {
		fit := 0
		for _, a := range n.anyOf {
			if a.admitsName(s) {
				fit++
			}
		}
		return fit == 1 || fit > 1 && !n.oneOf
	}
	if n.never != "" || n.kinds&kindString == 0 || n.format != "" || !n.admitsString(s) {
		return false
	}
	return !n.hasEnum || slices.ContainsFunc(n.enum, func(v value) bool { return v.kind == '"' && v.text() == s })
}

// rename removes the members whose names do not fit, and reports whether members with other
// names may be written.
func (n *node) rename() {
	if n.freely = !n.named; n.names == nil {
		return
	}
	n.freely = !n.patterned
	for i := range arrayItems {
		n.freely = n.freely && n.names.admitsName(freeName(i))
	}
	for i, f := range n.members {
		if !n.names.admitsName(f.name) {
			n.members[i].node = &node{path: n.path, blocked: fmt.Sprintf("propertyNames does not surely admit %q", f.name), cost: math.Inf(1)}
		}
	}
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
		if text := n.pattern.text; !n.choosePattern() {
			return refuse(n.path, "pattern %q: no text for it was found (with minLength and maxLength, and other patterns)", text)
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

// smallest returns the number of values of the smallest document, as far as it
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

// item returns the schema of an array's item, nil for any.
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

// unwritable returns why there is no finite document.
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

// disjoint reports whether no value can fit both, as far as that is easy to see.
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

// admitted returns the types that values may have. For a node without a type these are more
// than those that are written.
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
		// Values of this type that the other schema does not admit.
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

// tellsApart reports whether a requires a member that b has no place for.
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
