//go:build interop

package clients

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/anthropic"
	"weir/internal/dialect/openai"
	"weir/internal/dialect/responses"
	"weir/test/e2e/harness"
)

// rowsOn returns the rows of an endpoint, which has one bit.
func rowsOn(rows []dialect.Field, bit uint8) (on []dialect.Field) {
	for _, f := range rows {
		if f.On == 0 || f.On&bit != 0 {
			on = append(on, f)
		}
	}
	return on
}

// TestRequestTypes walks every field of the official clients' newest request types,
// whatever it is inside of: each is in the table of its API, and so is what becomes of it.
func TestRequestTypes(t *testing.T) {
	cmd := exec.Command(harness.Python(t), "request_types.py")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tables := map[string][]dialect.Field{
		"chat":         rowsOn(openai.Fields(), 1<<openai.Chat),
		"completions":  rowsOn(openai.Fields(), 1<<openai.Completions),
		"responses":    responses.Fields(),
		"messages":     rowsOn(anthropic.Fields(), 1<<anthropic.Messages),
		"embeddings":   openai.EmbeddingFields(),
		"count_tokens": rowsOn(anthropic.Fields(), 1<<anthropic.CountTokens),
	}
	walked := map[string]int{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var field struct{ API, Path string }
		if err := json.Unmarshal(lines.Bytes(), &field); err != nil {
			t.Fatal(err)
		}
		walked[field.API]++
		if !dialect.Covers(tables[field.API], field.Path) {
			t.Errorf("%s: %s is in no table: say in internal/ what becomes of it", field.API, field.Path)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	for name, least := range map[string]int{"chat": 120, "completions": 20, "responses": 500, "messages": 500, "count_tokens": 400, "embeddings": 5} {
		if walked[name] < least {
			t.Errorf("%s: walked %d fields, want %d at least", name, walked[name], least)
		}
	}
	t.Logf("fields walked: %v", walked)
}
