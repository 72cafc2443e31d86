package responses

import (
	"runtime"
	"strings"
	"testing"
)

// A conversation of as many parts as there may be is put together in memory in
// proportion to its bytes.
func TestInputIsReadOnce(t *testing.T) {
	for _, item := range []string{
		`{"role":"system","content":[` + strings.Repeat(`{"type":"input_text","text":"aaaaaaaaaaaaaaaaaaaa"},`, 20_000) + `{"type":"input_text","text":"a"}` + `]},{"role":"user","content":"a"}`,
		`{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},` + strings.Repeat(`{"role":"assistant","content":"aaaaaaaaaaaaaaaaaaaa"},`, 20_000) + `{"role":"user","content":"a"}`,
	} {
		body := `{"model":"m","input":[` + item + `]}`
		e := Endpoint{}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h, err := e.ParseHead([]byte(body))
		if err == nil {
			_, err = e.Request(h, "weir", 0)
		}
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; err != nil || taken > 50*uint64(len(body)) {
			t.Errorf("%d bytes for a body of %d, %v", taken, len(body), err)
		}
	}
}
