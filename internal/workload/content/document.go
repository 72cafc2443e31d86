package content

import (
	"math"
	"strconv"
	"strings"
)

// How much is written where the schema leaves it open.
const (
	roomyDepth   = 3     // nesting beyond which no more is written than must be
	roomyValues  = 128   // values beyond which the same holds
	maxValues    = 16384 // values of a document, which only required ones reach
	stringWords  = 4     // words of a string, at most
	arrayItems   = 3     // items of an array, at most
	numberChoice = 1000  // numbers to choose from
)

// document writes a document by a schema.
func (p *pen) document(s *Schema) { p.node(s.root, 0) }

// node writes a value. If the document is already deep or long, it writes only what the
// schema requires, which keeps recursive schemas finite.
func (p *pen) node(n *node, depth int) {
	if p.stopped() {
		return
	}
	if p.spent++; p.spent > maxValues {
		p.err = &SchemaError{Reason: "a document by this schema would have more than " + strconv.Itoa(maxValues) + " values"}
		return
	}
	tight := depth >= roomyDepth || p.spent > roomyValues
	switch {
	case n == nil:
		p.text(1+p.draw(stringWords), countRange{0, -1})
	case n.anyOf != nil:
		p.node(n.alternative(p.draw, tight), depth)
	case n.hasEnum:
		p.literal(string(n.enum[p.draw(len(n.enum))].raw))
	default:
		p.kind(n, n.kind(p.draw, tight), depth, tight)
	}
}

// alternative chooses among the alternatives that can be written.
func (n *node) alternative(draw func(int) int, tight bool) *node {
	var open []*node
	least := math.Inf(1)
	for _, a := range n.anyOf {
		switch {
		case math.IsInf(a.cost, 1), tight && a.cost > least:
		case tight && a.cost < least:
			least, open = a.cost, append(open[:0], a)
		default:
			open = append(open, a)
		}
	}
	return open[draw(len(open))]
}

// kind chooses among the types that can be written.
func (n *node) kind(draw func(int) int, tight bool) kinds {
	var open []kinds
	least := math.Inf(1)
	for k := kinds(1); k < kindAny; k <<= 1 {
		if n.write&k == 0 {
			continue
		}
		cost := n.smallestOf(k)
		switch {
		case math.IsInf(cost, 1), tight && cost > least:
		case tight && cost < least:
			least, open = cost, append(open[:0], k)
		default:
			open = append(open, k)
		}
	}
	return open[draw(len(open))]
}

func (p *pen) kind(n *node, k kinds, depth int, tight bool) {
	switch k {
	case kindNull:
		p.literal("null")
	case kindBoolean:
		p.literal([]string{"false", "true"}[p.draw(2)])
	case kindInteger, kindNumber:
		g, _ := n.numbers.grid(k == kindInteger)
		p.literal(g.pick(p.draw))
	case kindString:
		p.string(n)
	case kindArray:
		p.array(n, depth, tight)
	case kindObject:
		p.object(n, depth, tight)
	}
}

func (p *pen) string(n *node) {
	switch {
	case n.pattern != nil:
		s, ok := n.pattern.write(n, p.draw)
		if !ok {
			p.err = refuse(n.path, "pattern %q: no text for it was found", n.pattern.text)
			return
		}
		p.literal(quoted(s))
	case n.format != "":
		p.literal(quoted(formats[n.format](p.draw)))
	default:
		p.text(1+p.draw(stringWords), n.length)
	}
}

// text writes a string of words, and of dots where no word fits.
func (p *pen) text(words int, length countRange) {
	p.literal(`"`)
	room := math.MaxInt
	if length.max >= 0 {
		room = length.max
	}
	written := 0
	for ; (words > 0 || written < length.min) && p.wordFits(room-written) && !p.stopped(); words-- {
		written += p.word()
	}
	if written < length.min {
		p.literal(strings.Repeat(".", length.min-written))
	}
	p.literal(`"`)
}

func (p *pen) array(n *node, depth int, tight bool) {
	most := n.items.min
	if !tight {
		most = max(most, min(arrayItems, n.items.min+2))
		if n.items.max >= 0 {
			most = min(most, n.items.max)
		}
		if n.unique {
			most = max(n.items.min, min(most, 1))
		}
	}
	// An item that cannot be written ends the array before it.
	for i := n.items.min; i < most; i++ {
		if math.IsInf(costOf(n.item(i)), 1) {
			most = i
		}
	}
	count := n.items.min + p.draw(most-n.items.min+1)
	p.literal("[")
	for i := 0; i < count && !p.stopped(); i++ {
		if i > 0 {
			p.literal(", ")
		}
		p.node(n.item(i), depth+1)
	}
	p.literal("]")
}

func (p *pen) object(n *node, depth int, tight bool) {
	chosen := p.members(n, tight)
	p.literal("{")
	first := true
	for i := range n.members {
		if !chosen[i] || p.stopped() {
			continue
		}
		if !first {
			p.literal(", ")
		}
		first = false
		p.literal(quoted(n.members[i].name) + ": ")
		p.node(n.members[i].node, depth+1)
	}
	if len(n.members) == 0 && n.others != nil && n.freely && !tight && !math.IsInf(n.others.cost, 1) {
		p.free(n, depth)
	}
	p.literal("}")
}

// free writes members of a map, whose names the schema does not define.
func (p *pen) free(n *node, depth int) {
	count := 1 + p.draw(arrayItems)
	if n.size.max >= 0 {
		count = min(count, n.size.max)
	}
	for i := 0; i < count && !p.stopped(); i++ {
		if i > 0 {
			p.literal(", ")
		}
		p.literal(quoted(freeName(i)) + ": ")
		p.node(n.others, depth+1)
	}
}

// freeName is the name of a member of a map.
func freeName(i int) string { return string(rune('a' + i)) }

// members chooses which of an object's members are written: those required,
// and of the others as many as there must be, or most where there is room.
func (p *pen) members(n *node, tight bool) []bool {
	chosen := make([]bool, len(n.members))
	count := 0
	for i := range n.members {
		if n.members[i].required {
			chosen[i] = true
			count++
		}
	}
	least := n.size.min - count
	most := len(n.members)
	if n.size.max >= 0 {
		most = n.size.max
	}
	if tight {
		most = max(count, n.size.min)
	}
	// How many optional ones can be written from each place on.
	left := 0
	for i := range n.members {
		if !chosen[i] && !math.IsInf(costOf(n.members[i].node), 1) {
			left++
		}
	}
	for i := range n.members {
		if chosen[i] || math.IsInf(costOf(n.members[i].node), 1) {
			continue
		}
		if must := least >= left; must || count < most && p.draw(4) > 0 {
			chosen[i] = true
			count++
			least--
		}
		left--
	}
	return chosen
}
