package admission

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A book never holds more than its limits; at the limit exactly the longest idle gives
// way, then the oldest without a request, each after a second; and a busy one never.
func TestConns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := ConnLimits{Total: rapid.IntRange(0, 6).Draw(t, "total"), PerClient: rapid.IntRange(0, 3).Draw(t, "per client")}
		b := NewConns(limits)
		type entry struct {
			c      *Conn
			shut   bool
			state  string
			since  time.Time
			client netip.Addr
		}
		var in []*entry
		gone := func(e *entry) { in = slices.DeleteFunc(in, func(o *entry) bool { return o == e }) }
		now := time.Unix(1000, 0)
		oldest := func(state string) *entry {
			var found *entry
			for _, e := range in {
				if e.state == state && (found == nil || e.since.Before(found.since)) {
					found = e
				}
			}
			return found
		}
		for range rapid.IntRange(1, 60).Draw(t, "ops") {
			now = now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond)
			switch op := rapid.IntRange(0, 4).Draw(t, "op"); {
			case op == 0:
				var victim *entry
				for _, state := range []string{"fresh", "idle"} {
					if o := oldest(state); o != nil && now.Sub(o.since) >= restTime {
						victim = o
					}
				}
				full := limits.Total > 0 && len(in) >= limits.Total
				e := &entry{state: "fresh", since: now}
				c, err := b.Open(now, func() { e.shut = true })
				if (err != nil) != (full && victim == nil) {
					t.Fatalf("open with %d of %d: %v", len(in), limits.Total, err)
				}
				if err != nil {
					continue
				}
				e.c = c
				if full {
					if !victim.shut {
						t.Fatal("another one has given way than the longest idle")
					}
					gone(victim)
				}
				in = append(in, e)
			case len(in) == 0:
			default:
				e := in[rapid.IntRange(0, len(in)-1).Draw(t, "i")]
				switch op {
				case 1:
					e.c.Idle(now)
					e.state, e.since = "idle", now
				case 2:
					e.c.Busy()
					e.state = "busy"
				case 3:
					e.c.Close()
					e.c.Close() // only the first counts
					gone(e)
				default:
					client := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 2).Draw(t, "client"))})
					n := 0
					for _, o := range in {
						if o.client == client {
							n++
						}
					}
					err := e.c.Of(client)
					if full := !e.client.IsValid() && limits.PerClient > 0 && n >= limits.PerClient; (err != nil) != full {
						t.Fatalf("%d of %d of %v: %v", n, limits.PerClient, client, err)
					}
					if err == nil && !e.client.IsValid() {
						e.client = client
					}
				}
			}
			for _, e := range in {
				if e.shut {
					t.Fatal("one has given way with no need")
				}
			}
			idle := 0
			for _, e := range in {
				if e.state == "idle" {
					idle++
				}
			}
			if s := b.Stats(); s.Open != len(in) || s.Idle != idle {
				t.Fatalf("stats %+v, want %d open, %d idle", s, len(in), idle)
			}
		}
		for _, e := range in {
			e.c.Close()
		}
		if s := b.Stats(); s.Open != 0 || s.Idle != 0 || len(b.clients) != 0 {
			t.Fatalf("at rest: %+v, %v", s, b.clients)
		}
	})
}

// A connection that was just used does not give way to a new one, but does to a request
// under way.
func TestJustUsed(t *testing.T) {
	b := NewConns(ConnLimits{Total: 1})
	now, shut := time.Unix(1000, 0), false
	c, err := b.Open(now, func() { shut = true })
	if err != nil {
		t.Fatal(err)
	}
	c.Busy()
	now = now.Add(time.Minute)
	c.Idle(now)
	now = now.Add(restTime - 1)
	if _, err := b.Open(now, nil); err == nil || b.GiveWay(now) || shut {
		t.Fatal("a connection that was just used has given way to a new one")
	}
	if !b.Yield(now) || !shut {
		t.Error("a connection that does nothing has not given way to a request")
	}
	if b.Yield(now) {
		t.Error("it has given way twice")
	}
}

func TestClient(t *testing.T) {
	p, err := ParseProxies([]string{"10.0.0.0/8", " 192.0.2.1", "2001:db8::/32"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"203.0.113.9", nil, "203.0.113.9"},
		{"203.0.113.9", []string{"1.1.1.1"}, "203.0.113.9"}, // whoever says that is not trusted
		{"10.1.1.1", nil, "10.1.1.1"},
		{"::ffff:10.1.1.1", []string{"198.51.100.7"}, "198.51.100.7"},
		{"10.1.1.1", []string{"1.1.1.1, 198.51.100.7"}, "198.51.100.7"}, // the client's own claim is left of it
		{"10.1.1.1", []string{"1.1.1.1", "198.51.100.7, 192.0.2.1"}, "198.51.100.7"},
		{"10.1.1.1", []string{"10.2.2.2"}, "10.2.2.2"},
		{"10.1.1.1", []string{"198.51.100.7:4711"}, "198.51.100.7"},
		{"10.1.1.1", []string{"[2001:db9::1]:4711"}, "2001:db9::1"},
		{"2001:db8::5", []string{"2001:db9::1"}, "2001:db9::1"},
		{"10.1.1.1", []string{"198.51.100.7, unknown"}, "10.1.1.1"},
		{"10.1.1.1", []string{"198.51.100.7, , 10.3.3.3"}, "10.3.3.3"},
	} {
		if got := p.Client(netip.MustParseAddr(test.peer).Unmap(), test.forwarded); got != netip.MustParseAddr(test.want) {
			t.Errorf("%s, %q: %v, want %s", test.peer, test.forwarded, got, test.want)
		}
	}
	if _, err := ParseProxies([]string{"load-balancer"}); err == nil {
		t.Error("a name is taken for a network")
	}
}

// An IPv6 client is the network that it was given.
func TestClientsNetwork(t *testing.T) {
	b := NewConns(ConnLimits{PerClient: 1})
	done, err := b.Request(netip.MustParseAddr("2001:db8:0:1::1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Request(netip.MustParseAddr("2001:db8:0:1::2")); err == nil {
		t.Error("another address of the same /64 is another client")
	}
	if _, err := b.Request(netip.MustParseAddr("2001:db8:0:2::1")); err != nil {
		t.Error(err)
	}
	done()
	if _, err := b.Request(netip.MustParseAddr("2001:db8:0:1::2")); err != nil {
		t.Error(err)
	}
}

// BenchmarkConns is what the book costs a request on a kept connection.
func BenchmarkConns(b *testing.B) {
	book := NewConns(ConnLimits{Total: 1 << 20})
	for range 1000 {
		c, err := book.Open(time.Time{}, func() {})
		if err != nil {
			b.Fatal(err)
		}
		c.Idle(time.Time{})
	}
	c, err := book.Open(time.Time{}, func() {})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.Busy()
		c.Idle(time.Time{})
	}
}
