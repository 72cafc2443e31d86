package gateway

import (
	"testing"
	"unsafe"
)

// An exchange and the allocator's word before it fill a size class. A byte more takes the next
// one, which is 256 bytes larger, for each stream that waits. A new field therefore belongs
// elsewhere: to preparing, if nobody needs it once the prompt has its ids; to the leg, if only one
// engine's attempt does; or behind a pointer, as partner is, if few requests have it.
//
// The same holds for a record of one attempt.
func TestExchangeFillsASizeClass(t *testing.T) {
	for _, c := range []struct {
		what        string
		size, class uintptr
	}{
		{"an exchange", unsafe.Sizeof(exchange{}), 1536},
		{"a record", unsafe.Sizeof(recordOfOne{}), 896},
	} {
		if most := c.class - 8; c.size > most {
			t.Errorf("%s has %d bytes, %d more than its class: move what is needed only for a while to what lives as long", c.what, c.size, c.size-most)
		}
	}
}
