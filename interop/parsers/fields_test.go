//go:build interop

package parsers

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/test/e2e/harness"
)

// The simulated engine's table of fields has a row for each field of the requests of vLLM, SGLang
// and OpenAI, and for no other.
func TestFieldsOfRequests(t *testing.T) {
	table, err := os.ReadFile("../../internal/sim/simserver/testdata/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	var asked [][2]string
	var listed []map[string]bool
	for line := range strings.Lines(string(table)) {
		line = strings.TrimSuffix(line, "\n")
		if heading, ok := strings.CutPrefix(line, "== "); ok {
			words := strings.Fields(heading)
			asked, listed = append(asked, [2]string{words[0], words[2]}), append(listed, map[string]bool{})
			continue
		}
		if name, _, ok := strings.Cut(line, ": "); ok && line[0] != '{' && line[0] != '#' {
			listed[len(listed)-1][name] = true
		}
	}
	input, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), harness.Python(t), "fields.py", os.Getenv("WEIR_VLLM_SOURCE"), os.Getenv("WEIR_SGLANG_PARSERS"))
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the sources of vLLM and SGLang (make interop-ready fetches them): %v", err)
	}
	var declared [][]string
	if err := json.Unmarshal(out, &declared); err != nil {
		t.Fatal(err)
	}
	if len(asked) < 15 {
		t.Errorf("%d requests: the table says too little", len(asked))
	}
	for i, names := range declared {
		if len(names) == 0 {
			t.Errorf("%s has no %s", asked[i][0], asked[i][1])
		}
		slices.Sort(names)
		if diff := cmp.Diff(slices.Compact(names), slices.Sorted(maps.Keys(listed[i]))); diff != "" {
			t.Errorf("%s's %s (declared -, in the table +):\n%s", asked[i][0], asked[i][1], diff)
		}
	}
}
