package outputparse

import (
	"fmt"
	"strings"
	"testing"
)

// A definition that refers to itself many times is an exponential number of schemas.
// Reading the tools ends all the same, and what parsers are told of other parameters
// is right.
func TestToolsThatReferToThemselves(t *testing.T) {
	refs := strings.Repeat(`{"$ref":"#/$defs/a"},`, 200)
	tools := ReadTools(fmt.Appendf(nil, `[{"type":"function","function":{"name":"f","parameters":{"properties":{
		"a":{"type":"integer"},"b":{"anyOf":[%[1]s{"type":"string"}]},"c":{"type":"string"}},"$defs":{"a":{"anyOf":[%[1]s{"type":"null"}]}}}}}]`, refs))
	if !tools.has("f") || tools.has("g") {
		t.Error("the tools are others")
	}
	for key, want := range map[string]paramClass{"a": jsonClass, "c": stringClass, "d": untyped} {
		if got := tools.of("f").classes[key]; got != want {
			t.Errorf("%s is of class %d, want %d", key, got, want)
		}
	}
}
