package gateway

import (
	"testing"
	"unsafe"
)

// An exchange and the allocator's word before it fill a size class. A byte more takes the next
// one, which is 256 bytes larger, for each stream that waits. A new field therefore belongs
// elsewhere: to prepare.preparing, if nobody needs it once the prompt has its ids; to the leg, if only one
// engine's attempt does; or behind a pointer, as partner is, if few requests have it.
func TestExchangeFillsASizeClass(t *testing.T) {
	if size, most := unsafe.Sizeof(exchange{}), uintptr(1536-8); size > most {
		t.Errorf("an exchange has %d bytes, %d more than its class: move what is needed only for a while to what lives as long", size, size-most)
	}
}
