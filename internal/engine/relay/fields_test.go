package relay

import (
	"net/http"
	"testing"
)

// A name with an underscore is another name to weir and, where headers become
// variables, the same one to an engine.
func TestUnderscores(t *testing.T) {
	h := http.Header{"Content_length": {"5"}, "X-Trace": {"1"}, "Transfer_Encoding": {"chunked"}}
	got := http.Header{}
	if EndToEnd(got, h); len(got) != 1 || got.Get("X-Trace") != "1" {
		t.Errorf("got %v", got)
	}
	if len(h) != 3 {
		t.Error("the caller's header was changed")
	}
}
