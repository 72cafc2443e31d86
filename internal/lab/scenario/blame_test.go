//go:build linux

package scenario

import "testing"

// The cells that are built in can be read, and what is no cell is refused.
func TestReadBlame(t *testing.T) {
	cells, err := readBlame(blameCells)
	if err != nil || len(cells) != 8 {
		t.Fatalf("%d cells, %v", len(cells), err)
	}
	for _, bad := range []string{"a | batch=1 | hold 2s | hop", "a | batch=x tokens=1 | hold 2s | hop | engine", "a | batch=1 tokens=1 | none | hop | engine", "a | colour=1 tokens=1 | hold 2s | hop | engine"} {
		if cells, err := readBlame(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, cells)
		}
	}
}

// A cell passes if the stage is named in 99 % with the fault and in no more than 1 % without it,
// and says nothing if the host took the machine.
func TestBlamedVerdict(t *testing.T) {
	for _, c := range []struct {
		of   Blamed
		want Outcome
	}{
		{Blamed{Faulty: true, Requests: 200, Named: 198}, OK},
		{Blamed{Faulty: true, Requests: 200, Named: 197}, Missed},
		{Blamed{Requests: 200, Named: 2}, OK},
		{Blamed{Requests: 200, Named: 3}, Missed},
		{Blamed{Faulty: true, Requests: 200, Named: 200, Steal: 0.2}, Missed},
	} {
		if got := c.of.verdict(); got.Outcome != c.want {
			t.Errorf("%+v: %+v", c.of, got)
		}
	}
	if low, high := wilson(198, 200); low < 0.96 || low > 0.97 || high < 0.99 || high > 1 {
		t.Errorf("%v to %v", low, high)
	}
}
