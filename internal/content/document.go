package content

import (
	"math"
	"math/big"
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

// node writes a value. Its size is what the schema requires where the document
// is deep or long already, which keeps recursive schemas finite.
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
	if len(n.members) == 0 && n.others != nil && !tight && !math.IsInf(n.others.cost, 1) {
		p.free(n, depth)
	}
	p.literal("}")
}

// free writes members of a map, whose names the schema leaves open.
func (p *pen) free(n *node, depth int) {
	count := 1 + p.draw(arrayItems)
	if n.size.max >= 0 {
		count = min(count, n.size.max)
	}
	for i := 0; i < count && !p.stopped(); i++ {
		if i > 0 {
			p.literal(", ")
		}
		p.literal(`"` + string(rune('a'+i)) + `": `)
		p.node(n.others, depth+1)
	}
}

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

// grid is a set of numbers to choose from: step times each of n integers from
// first on.
type grid struct {
	step  *big.Rat
	first *big.Int
	n     int
}

// grid gives the numbers of a range that are written; false when there are
// none. Numbers are written in hundredths where there is room for them.
func (r *numberRange) grid(integer bool) (grid, bool) {
	if r.multiple != nil {
		step := r.multiple
		if integer {
			// An integer multiple of a/b in lowest terms is a multiple of a.
			step = new(big.Rat).SetInt(step.Num())
		}
		return r.gridOf(step)
	}
	if integer {
		return r.gridOf(big.NewRat(1, 1))
	}
	step := big.NewRat(1, 100)
	for range 40 {
		if g, ok := r.gridOf(step); ok {
			return g, true
		}
		step.Quo(step, big.NewRat(10, 1))
	}
	return grid{}, false
}

func (r *numberRange) gridOf(step *big.Rat) (grid, bool) {
	var first, last *big.Int
	if r.min != nil {
		first = ceil(new(big.Rat).Quo(r.min, step))
		if r.openMin && new(big.Rat).Mul(new(big.Rat).SetInt(first), step).Cmp(r.min) == 0 {
			first.Add(first, big.NewInt(1))
		}
	}
	if r.max != nil {
		last = ceil(new(big.Rat).Neg(new(big.Rat).Quo(r.max, step)))
		last.Neg(last)
		if r.openMax && new(big.Rat).Mul(new(big.Rat).SetInt(last), step).Cmp(r.max) == 0 {
			last.Sub(last, big.NewInt(1))
		}
	}
	many := big.NewInt(numberChoice - 1)
	switch {
	case first == nil && last == nil:
		first, last = new(big.Int), many
	case first == nil:
		// Towards zero and beyond it only as far as the bound lies.
		if last.Sign() >= 0 {
			first = new(big.Int)
		} else {
			first = new(big.Int).Sub(last, many)
		}
	case last == nil:
		last = new(big.Int).Add(first, many)
	}
	n := new(big.Int).Sub(last, first)
	switch {
	case n.Sign() < 0:
		return grid{}, false
	case n.Cmp(many) > 0:
		n = many
	}
	return grid{step, first, int(n.Int64()) + 1}, true
}

func ceil(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int)) // of Euclid: m >= 0
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

// pick chooses a number and gives its text. Validators that divide by
// multipleOf in floating point find a remainder in some multiples of a
// fraction; those are passed over where that is possible.
func (g grid) pick(draw func(int) int) string {
	at := draw(g.n)
	for try := range min(g.n, 64) {
		x := g.at((at + try) % g.n)
		if f, _ := x.Float64(); g.step.IsInt() || divides(f, g.step) {
			return decimal(x)
		}
	}
	return decimal(g.at(at))
}

func divides(x float64, step *big.Rat) bool {
	s, _ := step.Float64()
	q := x / s
	return q == math.Trunc(q)
}

func (g grid) at(i int) *big.Rat {
	k := new(big.Int).Add(g.first, big.NewInt(int64(i)))
	return new(big.Rat).Mul(new(big.Rat).SetInt(k), g.step)
}

// decimal gives a number whose denominator is a product of twos and fives.
func decimal(x *big.Rat) string {
	n, exact := x.FloatPrec()
	if !exact {
		panic("content: " + x.String() + " has no decimal form") // steps are decimals
	}
	return x.FloatString(n)
}
