package allow

import (
	"fmt"
	"strings"
	"testing"

	"weir/internal/dialect/dialecttest"
)

func TestManual(t *testing.T) {
	var table strings.Builder
	table.WriteString("| field | is refused, because | read by |\n| --- | --- | --- |\n")
	for _, f := range List() {
		where := map[Place]string{Body: "", Part: " of a part", Header: " header"}[f.Place]
		fmt.Fprintf(&table, "| `%s`%s | %s | %s |\n", f.Name, where, f.Why, f.Source)
	}
	dialecttest.Part(t, "../../../docs/apis.md", "<!-- steering -->", table.String())
}
