package dialect

import (
	"encoding/json"
	"testing"
)

// TestEscapeEveryByte puts each byte at each place of a word of eight.
func TestEscapeEveryByte(t *testing.T) {
	for c := range 256 {
		for at := range 9 {
			text := []byte("abcdefghi")
			text[at] = byte(c)
			var got string
			out := AppendString(nil, string(text))
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			if want := string([]rune(string(text))); got != want {
				t.Fatalf("%q became %q", want, got)
			}
		}
	}
}
