package attempt

import "testing"

// Rooms are as a prefill engine divides them among its ranks.
func TestRoom(t *testing.T) {
	seen := map[int64]bool{}
	for range 1000 {
		for rank := -1; rank < 3; rank++ {
			r := room(rank, 3)
			if r < 0 || rank >= 0 && r%3 != int64(rank) || seen[r] {
				t.Fatalf("rank %d of 3 has room %d", rank, r)
			}
			seen[r] = true
		}
	}
	if r := room(0, 0); r < 0 {
		t.Errorf("room %d", r)
	}
}
