package infer

// Reuse empties a buffer for its next use, and lets go of one that has grown to more
// than most elements: what one large request or answer took is not held for ever by
// whoever served it.
func Reuse[T any](buf []T, most int) []T {
	if cap(buf) > most {
		return nil
	}
	return buf[:0]
}
