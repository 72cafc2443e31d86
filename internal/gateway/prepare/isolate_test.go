package prepare

import (
	"slices"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/engine"
	"weir/internal/fleet/route"
	"weir/internal/gateway/record"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// weir's own caches are divided in the same way as the engines' caches: the index of blocks, the
// ids of earlier texts, sessions.
func TestIsolationOfOwnCaches(t *testing.T) {
	of := func(is tenancy.Isolation, key string) (root, division uint64) {
		q := &preparing{Prepared: new(Prepared), in: Input{Caller: &tenancy.Caller{Key: key, Tenant: key}, Endpoint: openai.Chat, Path: "/v1/chat/completions"}}
		q.to.Model = &route.Model{Name: "m", Isolation: is}
		var err error
		if q.Head, err = openai.Chat.ParseHead([]byte(`{"model":"m","messages":[]}`)); err == nil {
			err = q.isolate()
		}
		if err != nil {
			t.Fatal(err)
		}
		return uint64(q.modelRoot()), q.division()
	}
	shared, none := of(tenancy.Shared, "k1")
	if again, _ := of(tenancy.Shared, "k2"); again != shared || none != 0 || shared != uint64(route.Root("m", "", "")) {
		t.Error("callers who are not isolated have roots of their own")
	}
	r1, d1 := of(tenancy.ByTenant, "k1")
	r2, d2 := of(tenancy.ByTenant, "k2")
	if r1 == r2 || r1 == shared || d1 == d2 || d1 == 0 {
		t.Errorf("roots %x, %x, %x, divisions %x, %x", shared, r1, r2, d1, d2)
	}
}

// A body into which a salt is put has it once, whatever way it is read, and every other field
// byte for byte as it came.
func FuzzIsolate(f *testing.F) {
	for _, s := range []string{`{}`, `{"model":"m"}`, `{ "cache_salt" : "a" , "x" : [1, {"cache_salt":2}] } `, `{"cache\u005fsalt":null,"a":"}"}`, "{\"a\":1,\n\"cache_salt\":\"\\u0000\"}", `{"cache_salt":"a","cache_salt":"b"}`} {
		f.Add([]byte(s), "tenant")
	}
	f.Fuzz(func(t *testing.T, body []byte, tenant string) {
		head, err := openai.Chat.ParseHead(body)
		if err != nil {
			return
		}
		p := &preparing{Prepared: &Prepared{Head: head}, in: Input{Caller: &tenancy.Caller{Tenant: tenant}, Endpoint: openai.Chat, Record: &record.Request{Record: new(trace.Record)}}}
		p.to.Model = &route.Model{Name: "m", Isolation: tenancy.ByTenant}
		if err := p.isolate(); err != nil {
			return
		}
		e := &route.Engine{Facts: engine.Facts{Salts: engine.Salts{Carried: true, Paths: saltedEverywhere{}}}}
		out := p.Salted(nil, e, "/v1/chat/completions").Splice(head.Model)
		after, err := openai.Chat.ParseHead(out)
		if err != nil {
			t.Fatalf("%q became %q: %v", body, out, err)
		}
		others := func(h *dialect.Head) (all []string) {
			for _, at := range h.Fields {
				if at.Name != "cache_salt" {
					all = append(all, at.Name+string(h.Body[at.Start:at.End]))
				}
			}
			return all
		}
		if !slices.Equal(others(head), others(after)) {
			t.Fatalf("%q became %q", body, out)
		}
		salts := 0
		for _, at := range after.Fields {
			if at.Name == "cache_salt" {
				salts++
				if got := string(out[at.Start:at.End]); got != `"`+p.salt+`"` {
					t.Fatalf("%q became %q, with the salt %s", body, out, got)
				}
			}
		}
		if salts != 1 {
			t.Fatalf("%q became %q, with %d salts", body, out, salts)
		}
	})
}

// saltedEverywhere carries salts at every path.
type saltedEverywhere struct{}

// At implements engine.SaltPaths.
func (saltedEverywhere) At(string) []string { return []string{"cache_salt"} }
