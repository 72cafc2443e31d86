package outputparse

import "testing"

// Answers that an engine was made to write as calls; and what becomes of those
// of an engine that did not obey, or was cut.
func TestForced(t *testing.T) {
	named, any := Options{Calls: true, ForcedTool: "f"}, Options{Calls: true, ForcedAny: true}
	single := any
	single.Single = true
	for _, test := range []struct {
		o          Options
		text, want string
	}{
		{named, `{"a": [1, "]"]}`, "call 0 f\narguments 0 {\"a\": [1, \"]\"]}\nend 0 true\n"},
		{named, " \n{}\n", "call 0 f\narguments 0 {}\nend 0 true\n"},
		{named, `{"a": `, "call 0 f\narguments 0 {\"a\": \nend 0 false\n"},
		{named, `no`, "call 0 f\narguments 0 no\nend 0 false\n"},
		{named, ``, ""},
		{any, `[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]`,
			"call 0 f\narguments 0 {\"a\": 1}\nend 0 true\ncall 1 g\narguments 1 {}\nend 1 true\n"},
		{single, `[{"name": "f", "parameters": {}}, {"name": "g", "parameters": {}}]`, "call 0 f\narguments 0 {}\nend 0 true\n"},
		{any, `[{"name": "f", "parameters": {"a`, "call 0 f\narguments 0 {\"a\nend 0 false\n"},
		{any, `no [ {}`, "content \"no [ {}\"\n"},
		{any, `[1]`, "content \"[1]\"\n"},
	} {
		for _, size := range []int{1, 2, 5, 100} {
			if got := read(test.o, test.text, size).lines(); got != test.want {
				t.Errorf("%q by %d: %s", test.text, size, got)
			}
		}
	}
}
