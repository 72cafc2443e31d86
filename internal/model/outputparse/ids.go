package outputparse

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"
)

// CallID makes an id for a call that has none, where the model's template does not take any
// id; else it is empty. n is how many calls are before it in the conversation.
func (f Format) CallID(tool string, n int) string {
	switch {
	case f.tools == nil:
		return ""
	case f.tools.typedIDs:
		return functions + tool + ":" + strconv.Itoa(n)
	case f.tools.shortIDs:
		var b [8]byte
		rand.Read(b[:]) // never fails
		return shortID(binary.NativeEndian.Uint64(b[:]))
	}
	return ""
}

// shortID spells a number as an id of nine letters and digits.
func shortID(n uint64) string {
	var b [9]byte
	for i := range b {
		b[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[n%36]
		n /= 36
	}
	return string(b[:])
}
