package record

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"weir/internal/infer"
	"weir/internal/trace"
)

// Each request that fails has a line, and only a share of those that do well has one.
func TestAccessLogShare(t *testing.T) {
	var out bytes.Buffer
	none := AccessLog{Log: slog.New(slog.NewJSONHandler(&out, nil))}
	for range 100 {
		none.logAccess(&trace.Record{Outcome: infer.Finished}, nil)
		none.logAccess(&trace.Record{Outcome: infer.Rejected}, infer.Errorf(infer.CodeOverloaded, "full"))
	}
	if out.Len() > 0 {
		t.Errorf("of a share of 0: %s", out.String())
	}
	none.logAccess(&trace.Record{Outcome: infer.Failed}, infer.Errorf(infer.CodeEngine, "it failed"))
	if strings.Count(out.String(), "\n") != 1 || strings.Contains(out.String(), "it failed") {
		t.Errorf("of one that failed: %s", out.String())
	}
}
