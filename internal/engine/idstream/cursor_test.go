package idstream

import (
	"encoding/json"
	"testing"
)

// A text that the cursor passes over whole is JSON, and one of its own form is passed over.
func FuzzCursor(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,-2.5e+3,"x\n\u00e9",true,false,null,{}],"b":{"c":[]}}`, ` [ 1 , 2 ] `, `01`, `-`, `1.`, `1e`, `"\x"`, `"\u00g0"`, "\"\x01\"",
		`[1,]`, `{"a":}`, `{"a" 1}`, `{,}`, `[1 2]`, `nul`, `1 2`, "\"\xff\"", `[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := NewCursor(data)
		c.Skip()
		whole := c.Whole()
		if whole && !json.Valid(data) {
			t.Fatalf("%q is passed over", data)
		}
		if !whole && json.Valid(data) && deepest(data) < maxDepth {
			t.Fatalf("%q is not passed over", data)
		}
		ids := NewCursor(data)
		array, n := ids.IDs()
		var want []uint32
		switch err := json.Unmarshal(data, &want); {
		case ids.Whole() && (err != nil || len(want) != n):
			t.Fatalf("%q has %d ids: %v", data, n, err)
		case ids.Whole():
			got, err := NewScanner().Tail(array, n)
			for i := range want {
				if err != nil || got[i] != want[i] {
					t.Fatalf("%q: %v, %v", data, got, err)
				}
			}
		}
	})
}

// deepest is how many brackets are open at once at most, those in strings counted.
func deepest(data []byte) (most int) {
	depth := 0
	for _, b := range data {
		switch b {
		case '[', '{':
			depth++
			most = max(most, depth)
		case ']', '}':
			depth--
		}
	}
	return most
}
