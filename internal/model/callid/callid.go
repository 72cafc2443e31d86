// Package callid makes the ids of tool calls in the form that a model's template takes.
package callid

import (
	"crypto/rand"
	"encoding/binary"
	"hash/fnv"
	"strconv"
	"strings"
)

// Form is a form of ids.
type Form uint8

// The forms that templates ask for.
const (
	Any   Form = iota
	Typed      // functions.NAME:NUMBER, which may be the only place of the name
	Short      // nine letters and digits
)

// Functions begins a typed id.
const Functions = "functions."

const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// New makes an id for a call that has none. It is empty if every id will do. n is how many calls
// come before it in the conversation.
func (f Form) New(tool string, n int) string {
	switch f {
	case Typed:
		return Functions + tool + ":" + strconv.Itoa(n)
	case Short:
		var b [8]byte
		rand.Read(b[:]) // never fails
		return short(binary.NativeEndian.Uint64(b[:]))
	}
	return ""
}

// takes reports whether an id has the form.
func (f Form) takes(id, tool string) bool {
	switch f {
	case Typed:
		number, ok := strings.CutPrefix(id, Functions+tool+":")
		return ok && number != "" && strings.Trim(number, "0123456789") == ""
	case Short:
		return len(id) == 9 && strings.Trim(id, digits) == ""
	}
	return true
}

// short spells a number as a short id.
func short(n uint64) string {
	var b [9]byte
	for i := range b {
		b[i] = digits[n%uint64(len(digits))]
		n /= uint64(len(digits))
	}
	return string(b[:])
}

// History gives the calls and results of a conversation ids of a form. Ids that have the form
// stay. The same conversation has the same ids.
type History struct {
	Form  Form
	Calls int // so far

	taken  map[string]bool
	became map[string]string // by the id that came
}

// Keep notes the id of a call of the conversation. It precedes every Call, so that no other call
// is given that id.
func (h *History) Keep(id, tool string) {
	if h.Form == Any || !h.Form.takes(id, tool) {
		return
	}
	if h.taken == nil {
		h.taken = map[string]bool{}
	}
	h.taken[id] = true
}

// Call returns the id of the next call.
func (h *History) Call(id, tool string) string {
	n := h.Calls
	h.Calls++
	own := id
	if !h.Form.takes(id, tool) {
		for more := 0; own == id || h.taken[own]; more++ {
			own = h.Form.replace(id, tool, n, more)
		}
		if h.taken == nil {
			h.taken = map[string]bool{}
		}
		h.taken[own] = true
	}
	if own != id || h.became != nil {
		if h.became == nil {
			h.became = map[string]string{}
		}
		h.became[id] = own
	}
	return own
}

// Result returns the id of the call that a result names by the id that came.
func (h *History) Result(id string) string {
	if own, ok := h.became[id]; ok {
		return own
	}
	if h.Form == Short && id != "" && !h.Form.takes(id, "") {
		return h.Form.replace(id, "", 0, 0)
	}
	return id
}

// replace makes an id in place of one that does not have the form. Each value of more gives
// another.
func (f Form) replace(id, tool string, n, more int) string {
	if f == Typed {
		return f.New(tool, n+more)
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	if more > 0 {
		h.Write(strconv.AppendInt([]byte{0}, int64(n+more), 10))
	}
	return short(h.Sum64())
}
