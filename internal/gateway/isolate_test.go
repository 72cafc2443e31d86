package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/models"
)

// saltedUnless carries salts at every path but one.
type saltedUnless string

// At implements engine.SaltPaths.
func (but saltedUnless) At(path string) []string {
	if path == string(but) {
		return nil
	}
	return []string{"cache_salt"}
}

// isolated has all models of the bench isolate their callers, and all engines carry salts.
func isolated(b *bench, is tenancy.Isolation) {
	for _, m := range b.g.opts.Snapshot().Models {
		m.Isolation = is
		for _, t := range slices.Concat(m.Targets, m.Prefills) {
			t.Facts.Salts = engine.Salts{Carried: true, Paths: saltedUnless("/v1/messages")}
		}
	}
}

// saltsOf asks a token engine and a relay with the same prompt and gives the salts that arrive.
func saltsOf(t *testing.T, b *bench, e *tokenEngine, r *relayEngine, key, fields string) (ids, relayed string) {
	t.Helper()
	n := len(e.handed())
	c := b.post(chatPath, askChat(fields), "Test-Caller", key)
	call := e.call(t, n+1)
	ids = call.req.CacheSalt
	call.end(infer.ReasonStop)
	c.whole()
	d := b.post(chatPath, `{"model":"relayed","messages":[]`+fields+`}`, "Test-Caller", key)
	f := r.forward(t, len(r.handed()))
	var body struct {
		Salt string `json:"cache_salt"`
	}
	if err := json.Unmarshal(f.req.Body, &body); err != nil {
		t.Fatal(err)
	}
	f.end()
	d.answer()
	return ids, body.Salt
}

// Every engine is handed the salt of the caller's tenant or key, whatever salt the caller has
// sent; the caller's own only divides further.
func TestIsolation(t *testing.T) {
	for _, is := range []tenancy.Isolation{tenancy.ByTenant, tenancy.ByKey} {
		e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
		inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e, r}, func(t *testing.T, b *bench) {
			isolated(b, is)
			victim := &tenancy.Caller{Key: "k1", Tenant: "tenant-k1"}
			for _, c := range []struct{ key, fields, own string }{
				{"k1", ``, ""}, {"k1", `,"cache_salt":null`, ""}, {"k2", ``, ""}, {"k1", `,"cache_salt":"mine"`, "mine"}, {"k2", `,"cache\u005fsalt":"m\u0069ne"`, "mine"},
				{"k2", fmt.Sprintf(`,"cache_salt":%q`, is.Salt(victim, "relayed", "")), is.Salt(victim, "relayed", "")},
			} {
				who := &tenancy.Caller{Key: c.key, Tenant: "tenant-" + c.key}
				ids, relayed := saltsOf(t, b, e, r, c.key, c.fields)
				if want := is.Salt(who, models.SimName, c.own); ids != want {
					t.Errorf("%v, %s%s: by ids %q, want %q", is, c.key, c.fields, ids, want)
				}
				if want := is.Salt(who, "relayed", c.own); relayed != want {
					t.Errorf("%v, %s%s: relayed %q, want %q", is, c.key, c.fields, relayed, want)
				}
			}
			if a := b.post("/v1/messages", `{"model":"relayed","max_tokens":1,"messages":[{"role":"user","content":"a"}]}`, "Test-Caller", "k1").answer(); a.status != 400 || !strings.Contains(string(a.body), "/v1/messages") {
				t.Errorf("at a path without salts: %d %s", a.status, a.body)
			}
		})
	}
}

// Where nobody has asked for the isolation, an engine and a path that read no salt are given
// requests without one. A caller's own salt is not dropped there: it is refused.
func TestLenientIsolation(t *testing.T) {
	e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e, r}, func(t *testing.T, b *bench) {
		isolated(b, tenancy.ByTenant)
		who := &tenancy.Caller{Key: "k1", Tenant: "tenant-k1"}
		for _, m := range b.g.opts.Snapshot().Models {
			m.Lenient = true
		}
		ids, relayed := saltsOf(t, b, e, r, "k1", "")
		if ids != tenancy.ByTenant.Salt(who, models.SimName, "") || relayed != tenancy.ByTenant.Salt(who, "relayed", "") {
			t.Errorf("engines that read salts are given %q and %q", ids, relayed)
		}
		c := b.post("/v1/messages", `{"model":"relayed","max_tokens":1,"messages":[{"role":"user","content":"a"}]}`, "Test-Caller", "k1")
		if f := r.forward(t, len(r.handed())); strings.Contains(string(f.req.Body), "salt") {
			t.Errorf("at a path without salts: %s", f.req.Body)
		} else {
			f.end()
		}
		c.answer()
		const own = `{"model":"relayed","max_tokens":1,"messages":[{"role":"user","content":"a"}],"cache_salt":"mine"}`
		if a := b.post("/v1/messages", own, "Test-Caller", "k1").answer(); a.status != 400 || !strings.Contains(string(a.body), "/v1/messages") {
			t.Errorf("a salt of one's own at a path without salts: %d %s", a.status, a.body)
		}
		for _, m := range b.g.opts.Snapshot().Models {
			for _, at := range m.Targets {
				at.Facts.Salts = engine.Salts{Why: "has none"}
			}
		}
		if ids, relayed := saltsOf(t, b, e, r, "k1", ""); ids != "" || relayed != "" {
			t.Errorf("engines without salts are given %q and %q", ids, relayed)
		}
	})
}

// Both halves of a pair have the caller's one salt, by ids and relayed.
func TestIsolationOfPairs(t *testing.T) {
	who := &tenancy.Caller{Key: "k1", Tenant: "tenant-k1"}
	inRelayPairs(t, Options{Prepare: prepare.Options{Callers: byHeader}}, nil, func(t *testing.T, b *bench, p, d *relayEngine) {
		isolated(b, tenancy.ByTenant)
		c := b.post(chatPath, `{"model":"relayed","messages":[{"role":"user","content":"hi"}],"cache_salt":"mine","stream":true}`, "Test-Caller", "k1")
		prefill := p.forward(t, 1)
		if p.meets.Way == engine.ByPull {
			prefill.replies("200", prefillAnswer)
		}
		decode := d.forward(t, 1)
		want := `"cache_salt":"` + tenancy.ByTenant.Salt(who, "relayed", "mine") + `"`
		for _, body := range [][]byte{prefill.req.Body, decode.req.Body} {
			if n := strings.Count(string(body), want); n != 1 || strings.Contains(string(body), "mine") {
				t.Errorf("%s has %s %d times", body, want, n)
			}
		}
		if decode.send(relayToken); p.meets.Way != engine.ByPull {
			prefill.replies("200", prefillAnswer)
		}
		decode.send(relayEnd)
		decode.end()
		c.answer()
	})
	inPairs(t, Options{Prepare: prepare.Options{Callers: byHeader}}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
		isolated(b, tenancy.ByTenant)
		c := b.post(chatPath, askStream(``), "Test-Caller", "k1")
		prefill := p.call(t, 1)
		prefill.prefilled()
		decode := d.call(t, 1)
		want := tenancy.ByTenant.Salt(who, models.SimName, "")
		if a, z := prefill.req.CacheSalt, decode.req.CacheSalt; a != want || z != want {
			t.Errorf("the halves have the salts %q and %q, want %q", a, z, want)
		}
		decode.end(infer.ReasonStop)
		c.answer()
	})
}

// Bad salts are refused by name; where callers are not isolated, a salt is refused as before.
func TestIsolationBadSalts(t *testing.T) {
	e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
	inOneWay(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e, r}, func(t *testing.T, b *bench) {
		for _, is := range []tenancy.Isolation{tenancy.ByTenant, tenancy.Shared} {
			isolated(b, is)
			for _, c := range []struct{ fields, says string }{
				{`,"cache_salt":1`, "cache_salt must be a string, found a number"}, {`,"cache_salt":["a"]`, "must be a string"}, {`,"cache_salt":""`, "cache_salt is empty"},
				{`,"cache_salt":"` + strings.Repeat("a", 1<<20) + `"`, "it may have at most 1024"}, {`,"cache_salt":"` + strings.Repeat("é", 600) + `"`, "1200 bytes"},
				{`,"cache_salt":"a","cache_salt":"b"`, "twice"}, {`,"extra_key":"a"`, "extra_key"}, {`,"CACHE_SALT":"a"`, ""},
			} {
				for _, model := range []string{models.SimName, "relayed"} {
					a := b.post(chatPath, `{"model":"`+model+`","messages":[{"role":"user","content":"hi"}]`+c.fields+`}`, "Test-Caller", "k1").answer()
					says := c.says
					if is == tenancy.Shared {
						says = ""
					}
					if a.status != 400 || !strings.Contains(string(a.body), says) {
						t.Errorf("%v, %s%.60s: %d %s", is, model, c.fields, a.status, a.body)
					}
				}
			}
		}
		if len(e.handed())+len(r.handed()) != 0 {
			t.Error("an engine was handed a request")
		}
	})
}

// A relayed prompt is known to weir's index for callers who share it, and for nobody else: neither
// the engine that is chosen nor what is predicted tells a tenant of another one's prompts, and no
// field of the answer does.
func TestIsolationOfRelaysIndex(t *testing.T) {
	for is, shares := range map[tenancy.Isolation]bool{tenancy.Shared: true, tenancy.ByTenant: false} {
		reply := func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
			return f.response(http.StatusOK, "Content-Type", "application/json"), nil
		}
		r, s := &relayEngine{name: "r", reply: reply}, &relayEngine{name: "s", reply: reply}
		inOneWay(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{r, s}, func(t *testing.T, b *bench) {
			isolated(b, is)
			b.g.opts.Snapshot().Models["relayed"].Policy = new(balance.Cost)
			ask := func(n int, key string) (engine string, available int, header http.Header) {
				had := len(r.handed())
				at, by := s, len(s.handed())+1
				text := strings.Repeat(fmt.Sprintf("The %dth secret of the house of Usher is kept in its cellar. ", n), 200)
				c := b.post(chatPath, fmt.Sprintf(`{"model":"relayed","messages":[{"role":"user","content":%q}]}`, text), "Test-Caller", key, "X-Weir-Timing", "1")
				synctest.Wait()
				if len(r.handed()) > had {
					at, by = r, had+1
				}
				f := at.forward(t, by)
				f.send(`{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3000,"completion_tokens":1,"total_tokens":3001}}`)
				f.end()
				a := c.answer()
				if a.status != 200 {
					t.Fatalf("%d %s", a.status, a.body)
				}
				a.header.Del("X-Request-Id")
				a.header.Del("Date")
				rec := b.wantRecord(c, "finished", "")
				return at.name, rec.Attempts[0].Choice.Available, a.header
			}
			followed := 0
			const prompts = 24 // an engine by chance is the same for all of them once in millions
			for n := range prompts {
				of, _, _ := ask(n, "victim")
				at, own, _ := ask(n, "victim")
				if at != of || own < 1000 {
					t.Fatalf("%v: the victim's own prompt: at %s and then at %s, of which %d tokens are known", is, of, at, own)
				}
				at, known, header := ask(n, "attacker")
				fresh, none, other := ask(1000+n, "attacker")
				if at == of {
					followed++
				}
				if none > 100 || (known > 1000) != shares || !shares && (known != none || fmt.Sprint(header) != fmt.Sprint(other)) {
					t.Errorf("%v: %d tokens of the victim's prompt are known for another caller (at %s, header %v), of a new one %d (at %s, header %v)", is, known, at, header, none, fresh, other)
				}
			}
			if (followed == prompts) != shares {
				t.Errorf("%v: %d of the other caller's requests went where the victim's had gone", is, followed)
			}
		})
	}
}
