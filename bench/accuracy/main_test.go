//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/lab"
)

// The benchmark's processes are this program itself.
func TestMain(m *testing.M) {
	if lab.IsRole(os.Args[1:]) {
		if err := lab.RunRole(os.Args[1], os.Args[2]); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestQuick compares every token of both kinds of load with the engine's stamp, and
// reads the written results back.
func TestQuick(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	var out, problem bytes.Buffer
	if err := run(context.Background(), []string{"-quick", "-cells", "100 streams,1000 at 50/s,500 requests/s", "-json", file}, &out, &problem); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &problem)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var b Baseline
	if err := json.Unmarshal(text, &b); err != nil || len(b.Results) != 3 || b.Machine == "" {
		t.Fatalf("%v: %s", err, text)
	}
	for _, r := range b.Results {
		if r.Failed != "" || r.Requests == 0 || r.TTFTError.Count != r.Requests || r.ITLError.Count != r.Requests*(r.Tokens-1) || r.EngineLate.Count != r.Requests*r.Tokens ||
			r.Receive.Stamps != "kernel" || (r.Slip != nil) != (r.Rate > 0) || !strings.Contains(out.String(), r.Cell) {
			t.Errorf("%+v %+v", r, r.Calibration)
		}
		// The raw error is the error plus the lateness of the engine. The engine stamps a
		// write after it has begun, so nothing is received before it was due.
		if r.TTFTRaw.Mean < -1 || r.EngineLate.Mean < 0 {
			t.Errorf("%s: %+v %+v", r.Cell, r.TTFTRaw, r.EngineLate)
		}
	}
}

func TestWrongCells(t *testing.T) {
	var out bytes.Buffer
	if err := run(context.Background(), []string{"-cells", "7 streams"}, &out, &out); err == nil || !strings.Contains(err.Error(), "100 streams") {
		t.Errorf("%v", err)
	}
}
