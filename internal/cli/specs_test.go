package cli

import (
	"log/slog"
	"strings"
	"testing"
)

// An engine that is given twice is logged, under whatever names, unless it serves another
// model each time.
func TestTwins(t *testing.T) {
	for _, test := range []struct {
		specs []string
		want  string // of the log; "" nothing
	}{
		{[]string{"http://127.0.0.1:1", "openai=http://127.0.0.1:1,name=b"}, "engine=b other=127.0.0.1:1"},
		{[]string{"weir=127.0.0.1:1", "weir=127.0.0.1:1"}, "engine=127.0.0.1:1#2 other=127.0.0.1:1#1"},
		{[]string{"http://127.0.0.1:1,model=a", "http://127.0.0.1:1,model=b", "http://127.0.0.1:2"}, ""},
	} {
		engines, err := parseEngines(test.specs)
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		warnOfTwins(engines, slog.New(slog.NewTextHandler(&log, nil)))
		if said := log.String(); strings.Contains(said, "given twice") != (test.want != "") || !strings.Contains(said, test.want) {
			t.Errorf("%q: %s", test.specs, said)
		}
	}
}
