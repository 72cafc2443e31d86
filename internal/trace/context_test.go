package trace

import (
	"strings"
	"testing"
)

// The examples of the specification (W3C Trace Context, section 3.2), and what breaks its
// rules.
func TestJoinTrace(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	c := JoinTrace(parent, "rojo=00f067aa0ba902b7")
	if c == nil || !c.Sampled() || c.State != "rojo=00f067aa0ba902b7" || c.Header(c.Parent) != parent {
		t.Fatalf("%+v", c)
	}
	if own := c.Header(c.Span); own == parent || JoinTrace(own, "") == nil || own[:36] != parent[:36] || own[52:] != "-01" {
		t.Errorf("weir's own span is %s", own)
	}
	if c := JoinTrace(parent[:53]+"00", strings.Repeat("a", maxState+1)); c == nil || c.Sampled() || c.State != "" {
		t.Errorf("not sampled, and with too much state: %+v", c)
	}
	if c := JoinTrace("cc"+parent[2:]+"-what-will-be", ""); c == nil || c.Header(c.Parent) != parent {
		t.Errorf("a later version: %+v", c)
	}
	for _, bad := range []string{
		"", "00", parent[:54], parent + "-", parent + "0", "ff" + parent[2:], strings.ToUpper(parent), strings.Replace(parent, "-", "_", 1),
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
		"00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01", "0g" + parent[2:],
	} {
		if c := JoinTrace(bad, ""); c != nil {
			t.Errorf("%q is taken for %+v", bad, c)
		}
	}
}

// A request's spans have ids of their own, the same whenever they are asked for.
func TestChildren(t *testing.T) {
	c := NewTrace(true)
	for i := range c.Span {
		c.Span[i] = 0xff
	}
	seen := map[[8]byte]bool{c.Span: true, {}: true}
	for n := range 100 {
		id := c.Child(n)
		if seen[id] || id != c.Child(n) {
			t.Errorf("span %d is %x", n, id)
		}
		seen[id] = true
	}
	if a, b := NewTrace(true), NewTrace(false); a.Trace == b.Trace || a.Span == b.Span || !a.Sampled() || b.Sampled() {
		t.Errorf("%+v, %+v", a, b)
	}
}
