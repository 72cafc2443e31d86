//go:build linux

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// A part that is not there is refused before anything is built or run, by its name.
func TestUnknownPart(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-without", "otlp,spans"}, &out, &out); err == nil || !strings.Contains(err.Error(), "records, otlp, access") {
		t.Errorf("%v: %s", err, &out)
	}
}

// Each part changes something, so that on and off are not the same.
func TestParts(t *testing.T) {
	for _, p := range parts("dir", "collector") {
		if slices.Equal(p.on, p.off) && len(p.asks) == 0 {
			t.Errorf("%s changes nothing", p.name)
		}
	}
	all := []Compared{{CPU: 1.2}, {CPU: 1}, {CPU: 1.1}, {CPU: 3}}
	if got := spread(all, func(c *Compared) float64 { return c.CPU }); got != "1.150 (1.000 to 3.000)" {
		t.Errorf("%s", got)
	}
}
