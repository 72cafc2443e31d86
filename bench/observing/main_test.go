//go:build linux

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// An unknown part is refused by its name, before anything is built or run.
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

// A round begins with everything off. Then come the parts by themselves, if they are wanted,
// and last the cell with all parts that are not left off.
func TestVariants(t *testing.T) {
	names := func(list []variant) (all []string) {
		for _, v := range list {
			all = append(all, v.name+":"+strings.Join(v.on, "+"))
		}
		return all
	}
	if got := names(variants(nil, false)); !slices.Equal(got, []string{"off:", "on:" + strings.Join(known(), "+")}) {
		t.Error(got)
	}
	got := names(variants([]string{"records", "otlp", "page", "scrape", "profiles"}, true))
	if !slices.Equal(got, []string{"off:", "access:access", "watch:watch", "on:access+watch"}) {
		t.Error(got)
	}
}
