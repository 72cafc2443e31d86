package dialecttest

import (
	"testing"

	"weir/internal/dialect"
	"weir/internal/infer"
)

func TestTable(t *testing.T) {
	fields := []dialect.Field{
		{Name: "a", Note: "a string", Needs: infer.CarriesMinP | infer.CarriesRegex},
		{Name: "b[] text", On: 1, Treatment: dialect.Refused, Defaults: []string{"0", `"x"`}, Note: "send a"},
		{Name: "header c", On: 2, Treatment: dialect.Ignored, Note: "why"},
		{Name: "d", On: 3, Treatment: dialect.Refused},
	}
	const want = "| field | of | treatment |  |\n| --- | --- | --- | --- |\n" +
		"| `a` | one, two | carried | a string; needs min_p, regex |\n" +
		"| `b[]` text | one | refused | except `0`, `\"x\"`; send a |\n" +
		"| `header c` | two | ignored | why |\n" +
		"| `d` | one, two | refused |  |\n"
	if got := table(fields, []string{"one", "two"}); got != want {
		t.Errorf("%s", got)
	}
	fields[3].Elsewhere = "both read it"
	if got, want := table(fields[3:], nil), "| field | treatment |  | vLLM 0.33, SGLang 0.5.23 |\n| --- | --- | --- | --- |\n| `d` | refused |  | both read it |\n"; got != want {
		t.Errorf("%s", got)
	}
	fields[3].Elsewhere = ""
	if got, want := table(fields[3:], nil), "| field | treatment |  |\n| --- | --- | --- |\n| `d` | refused |  |\n"; got != want {
		t.Errorf("%s", got)
	}
}
