package answer

import (
	"runtime"
	"strings"
	"testing"

	"weir/internal/dialect"
	"weir/internal/model/stop"
)

// The choices of a request share the tables of its stop strings: 128 choices take
// hardly more than one, of as many and as long strings as there may be.
func TestChoicesShareStops(t *testing.T) {
	texts := make([]string, 64)
	for i := range texts {
		texts[i] = strings.Repeat("ab", dialect.MaxStop/2)
	}
	o := TokensOptions{Request: &dialect.Request{Stop: texts}, Tokenizer: testModel().Tokenizer, Stops: stop.New(texts)}
	taken := func(choices int) int64 {
		o.Choices = choices
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a := NewTokens(o)
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(a)
		return int64(after.TotalAlloc - before.TotalAlloc)
	}
	if n := taken(128); n > 128<<10 {
		t.Errorf("128 choices take %d bytes", n)
	}
}
