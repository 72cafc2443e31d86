package tokenizer

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// largePage is the size of the pages that tables ask for, on the machines that weir is for.
const largePage = 2 << 20

// makeLarge makes a slice whose memory the kernel is asked to back by large pages, where it is
// large enough. A table that is read all over then needs a five-hundredth of the entries of the
// machine's table of pages, and as few faults to be filled. The kernel may decline.
func makeLarge[T any](n int) []T {
	s := make([]T, n)
	size := uintptr(n) * unsafe.Sizeof(*new(T))
	if size < largePage {
		return s
	}
	base := unsafe.Pointer(unsafe.SliceData(s))
	skip := -uintptr(base) & (largePage - 1)
	if size = size - min(size, skip); size >= largePage {
		whole := unsafe.Slice((*byte)(unsafe.Add(base, skip)), size&^(largePage-1))
		unix.Madvise(whole, unix.MADV_HUGEPAGE)
	}
	return s
}
