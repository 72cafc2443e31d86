package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func wantedOf(t *testing.T, spec string) *Wanted {
	t.Helper()
	e, err := ParseEngine(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &Wanted{Engine: e, Spec: spec}
}

// A name has an engine at each of its addresses, but not at those of this machine.
func TestResolved(t *testing.T) {
	addrs := func(of ...string) (all []netip.Addr) {
		for _, a := range of {
			all = append(all, netip.MustParseAddr(a))
		}
		return all
	}
	for _, c := range []struct {
		spec  string
		addrs []netip.Addr
		names string
		err   string
	}{
		{"http://pods:8000,resolve=each", addrs("10.0.0.2", "10.0.0.1", "10.0.0.2"), "[10.0.0.1:8000 10.0.0.2:8000]", ""},
		{"weir=pods:9000,name=p,resolve=each", addrs("10.0.0.1", "fd00::1"), "[p@10.0.0.1:9000 p@[fd00::1]:9000]", ""},
		{"http://pods:8000,resolve=each", addrs("127.0.0.1", "::ffff:127.0.0.2", "10.0.0.1"), "[10.0.0.1:8000]", "this machine's own"},
		{"http://pods:8000,resolve=each+loopback", addrs("127.0.0.1"), "[127.0.0.1:8000]", ""},
		{"http://localhost:8000,resolve=each", addrs("127.0.0.1"), "[127.0.0.1:8000]", ""},
		{"http://pods:8000,resolve=each", addrs("0.0.0.0", "169.254.169.254", "224.0.0.1"), "[]", "no engine's"},
		{"http://pods:8000,resolve=each", nil, "[]", ""},
	} {
		w := wantedOf(t, c.spec)
		engines, err := w.Resolved(c.addrs)
		d := Desired{Engines: engines}
		if got := fmt.Sprint(d.Names()); got != c.names || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s at %v: %s, %v; want %s, %q", c.spec, c.addrs, got, err, c.names, c.err)
		}
	}
}

// The steps between two fleets: what stays is not touched, and another engine of a name
// replaces the one before.
func TestDiff(t *testing.T) {
	from := Desired{Engines: []*Wanted{wantedOf(t, "http://a:1"), wantedOf(t, "http://b:1,name=b"), wantedOf(t, "http://c:1,name=c")}, Models: []Model{{Name: "m", Dir: "/m"}}}
	to := Desired{Engines: []*Wanted{wantedOf(t, "http://c:1,name=c,weight=0.5"), wantedOf(t, "http://b:2,name=b"), wantedOf(t, "weir=d:1")}, Models: []Model{{Name: "n", Dir: "/n"}}}
	to.Engines[0].Drained = true
	want := "[model m removed model n added: /n engine a:1 removed engine b replaced: http://b:2,name=b engine d:1 added: weir=d:1 engine c weight: 0.5 engine c drained]"
	if got := fmt.Sprint(Diff(&from, &to)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if steps := Diff(&to, &to); len(steps) > 0 {
		t.Errorf("from a fleet to itself: %v", steps)
	}
}
