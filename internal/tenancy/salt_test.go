package tenancy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// No two different lists of parts have one salt, however their bytes are divided among the
// parts, and every salt is one that engines accept.
func TestSaltTellsPartsApart(t *testing.T) {
	seen := map[string][]string{}
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("ab\x00/,é")), 0, 3, -1), 0, 5).Draw(t, "parts")
		s := salt(parts...)
		if was, ok := seen[s]; ok && !slices.Equal(was, parts) {
			t.Fatalf("%q and %q have one salt", was, parts)
		}
		seen[s] = slices.Clone(parts)
		if len(s) != 43 || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			t.Fatalf("salt %q", s)
		}
		// The same bytes, divided elsewhere.
		all := strings.Join(parts, "")
		for i := 1; i < len(all); i++ {
			divided := []string{all[:i], all[i:]}
			if !slices.Equal(divided, parts) && salt(divided...) == s {
				t.Fatalf("%q and %q have one salt", divided, parts)
			}
		}
	})
}

// Callers share a salt if and only if they are the same to the isolation, ask for the same
// model and divide no further; and nothing of who they are is in it.
func TestSaltIsolates(t *testing.T) {
	word := rapid.SampledFrom([]string{"", "a", "b", "ab", "wk_secret", "tenant", "key"})
	caller := rapid.Custom(func(t *rapid.T) Caller {
		return Caller{Key: word.Draw(t, "key"), Tenant: word.Draw(t, "tenant"), Band: word.Draw(t, "band"), Share: 1}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := caller.Draw(t, "a"), caller.Draw(t, "b")
		model, other := word.Draw(t, "model"), word.Draw(t, "other model")
		own, otherOwn := word.Draw(t, "own"), word.Draw(t, "other own")
		same := model == other && own == otherOwn && a.Tenant == b.Tenant
		for _, is := range []struct {
			Isolation
			same bool
		}{{Shared, true}, {ByTenant, same}, {ByKey, same && a.Key == b.Key}} {
			s, o := is.Salt(&a, model, own), is.Salt(&b, other, otherOwn)
			if (s == o) != is.same {
				t.Fatalf("%v: %+v %q %q has %s, %+v %q %q has %s", is, a, model, own, s, b, other, otherOwn, o)
			}
			if (s == "") != (is.Isolation == Shared) {
				t.Fatalf("%v: salt %q", is, s)
			}
			for _, part := range []string{a.Key, a.Tenant, own} {
				if len(part) > 4 && strings.Contains(s, part) {
					t.Fatalf("%q is in the salt %q", part, s)
				}
			}
		}
	})
	c := &Caller{Key: "a", Tenant: "t"}
	if ByTenant.Salt(c, "m", "") == ByKey.Salt(&Caller{Tenant: "t"}, "m", "") {
		t.Error("a tenant's salt is that of a key without a name")
	}
}

func TestParseIsolation(t *testing.T) {
	for _, i := range []Isolation{Shared, ByTenant, ByKey} {
		if got, err := ParseIsolation(i.String()); got != i || err != nil {
			t.Errorf("%s: %v, %v", i, got, err)
		}
	}
	for _, bad := range []string{"", "Tenant", "on", "keys"} {
		if _, err := ParseIsolation(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// BenchmarkSalt is what an isolated request pays; one that is not pays nothing.
func BenchmarkSalt(b *testing.B) {
	c := &Caller{Key: "search-1", Tenant: "search"}
	for _, i := range []Isolation{Shared, ByTenant, ByKey} {
		b.Run(i.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				i.Salt(c, "qwen3-32b", "")
			}
		})
	}
}

// The salt of an account's latest request is kept, and taken for nobody else's: neither for
// another model, isolation, tenant or key that has the same account, nor for a salt of one's own.
func TestSaltIsKept(t *testing.T) {
	account := NewAccount(Limits{}, time.Now())
	kept := func(tenant, key string) *Caller { return &Caller{Key: key, Tenant: tenant, Account: account} }
	fresh := func(tenant, key string) *Caller { return &Caller{Key: key, Tenant: tenant} }
	for range 2 {
		for _, is := range []Isolation{Shared, ByTenant, ByKey} {
			for _, model := range []string{"a", "b"} {
				for _, who := range [][2]string{{"t", "k"}, {"t", "l"}, {"u", "k"}} {
					for _, own := range []string{"", "own"} {
						if got, want := is.Salt(kept(who[0], who[1]), model, own), is.Salt(fresh(who[0], who[1]), model, own); got != want {
							t.Fatalf("%v of %v, %s, %q: %q, want %q", is, who, model, own, got, want)
						}
					}
				}
			}
		}
	}
	c := kept("t", "k")
	if n := testing.AllocsPerRun(100, func() { ByTenant.Salt(c, "a", "") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
