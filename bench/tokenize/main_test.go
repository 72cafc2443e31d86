package main

import (
	"strings"
	"testing"
	"time"
)

// TestRun runs one grammar of each kind with hardly any time.
func TestRun(t *testing.T) {
	t.Setenv("WEIR_PYTHON", "")
	for _, grammar := range []string{"llama2", "unigram", "llama3, tiktoken's form"} {
		var b strings.Builder
		if err := run(&b, time.Nanosecond, grammar, shortPrompt); err != nil {
			t.Fatal(err)
		}
		if rows := strings.Count(b.String(), "\n| "+grammar+" | "); rows != 5 {
			t.Errorf("%s: %d rows in\n%s", grammar, rows, &b)
		}
	}
}
