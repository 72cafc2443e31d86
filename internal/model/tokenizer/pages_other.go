//go:build !linux

package tokenizer

// makeLarge makes a slice, as elsewhere.
func makeLarge[T any](n int) []T { return make([]T, n) }
