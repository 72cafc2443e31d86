package infer

import "testing"

func TestReuse(t *testing.T) {
	small, large := make([]int, 3, 8), make([]int, 3, 9)
	if got := Reuse(small, 8); len(got) != 0 || cap(got) != 8 || &got[:1][0] != &small[0] {
		t.Errorf("a small buffer: %d of %d", len(got), cap(got))
	}
	if got := Reuse(large, 8); got != nil {
		t.Errorf("a large buffer is kept")
	}
}
