package tokenizer

import "fmt"

// The steps of a tokenizer.json are each some bytes of the file, and together a product: a Replace
// that writes ten letters for one makes 10^n of each letter if it is there n times. So what steps
// write beyond the text has a bound, which all steps and all parts of a text share. NFKD writes at
// most 11 bytes for one, and no published file more than 3.
const (
	growth     = 11
	growthLeft = 4 << 10
)

// room is how many bytes steps may still write beyond the text.
type room struct {
	left int
	over bool // they would have written more
}

// roomFor returns the room of a text of n bytes.
func roomFor(n int) room { return room{left: growth*n + growthLeft} }

// has reports whether text may become so many bytes longer.
func (r *room) has(longer int) bool {
	r.over = r.over || longer > r.left
	return !r.over
}

// takes is has for a text that has become that, and gives up the room.
func (r *room) takes(longer int) bool {
	if !r.has(longer) {
		return false
	}
	r.left -= max(longer, 0)
	return true
}

// errGrown is why a step gives up.
var errGrown = fmt.Errorf("the steps of %s make more than %d times as much of the text", fileTokenizer, growth+1)
