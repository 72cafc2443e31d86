package infer

// Reuse returns an emptied buffer for its next use, and nil for one that has grown
// beyond most elements. A single large request or answer thus does not hold its
// memory for ever.
func Reuse[T any](buf []T, most int) []T {
	if cap(buf) > most {
		return nil
	}
	return buf[:0]
}
