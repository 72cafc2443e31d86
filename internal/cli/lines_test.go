package cli

import (
	"errors"
	"testing"

	"weir/internal/config"
)

// The line of an error is that of the wrong value in a list, and none where the environment
// overrides the file.
func TestLineOf(t *testing.T) {
	file := &config.File{
		Values: map[string][]string{"engine": {"http://a:1", "sglang=", "http://b:1"}, "listen": {":1"}},
		Lines:  map[string][]int{"engine": {2, 3, 4}, "listen": {7}},
	}
	for _, c := range []struct {
		flag string
		item int
		want int
	}{{"engine", -1, 3}, {"engine", 0, 2}, {"engine", 9, 4}, {"listen", -1, 7}, {"keys", -1, 0}, {"", 0, 0}} {
		if got := lineOf(file, c.flag, c.item); got != c.want {
			t.Errorf("%s, item %d: line %d, want %d", c.flag, c.item, got, c.want)
		}
	}
	if got := flagIn(errors.New("bad --tls-key x --listen y")); got != "tls-key" {
		t.Errorf("the error is about %q", got)
	}
	t.Setenv("WEIR_LISTEN", ":2")
	if got := lineOf(file, "listen", -1); got != 0 {
		t.Errorf("line %d of a flag that the environment sets", got)
	}
}
