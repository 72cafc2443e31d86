package serve

import (
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// The built program has its process's streams and exit code. What they are for each
// command is in internal/cli/testdata/script.
func TestExitCodes(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, c := range []struct {
		stdin          string
		args           []string
		code           int
		stdout, stderr string // how it begins
	}{
		{"", []string{"--help"}, 0, "Usage: weir ", ""},
		{"", []string{"version"}, 0, "weir ", ""},
		{"a", []string{"tokenize", "-"}, 0, "[64]\n", ""},
		{"", []string{"tokenize", "/no/such/file"}, 1, "", "weir: /no/such/file: no such file"},
		{"", []string{"serve"}, 2, "", "weir: no engine was given"},
	} {
		stdout, stderr, code := harness.Finish(t, c.stdin, c.args...)
		if code != c.code || !strings.HasPrefix(stdout, c.stdout) || !strings.HasPrefix(stderr, c.stderr) || (stdout == "") != (c.stdout == "") || (stderr == "") != (c.stderr == "") {
			t.Errorf("%q: exit code %d, want %d; stdout %q, stderr %q", c.args, code, c.code, stdout, stderr)
		}
	}
}
