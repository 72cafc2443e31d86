package gateway

import (
	"errors"
	"net/http"
	"testing"

	"weir/internal/fleet/admission"
	"weir/internal/fleet/balance"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
)

// Where a request would go is said for token engines and relays, as its record would say
// it, and nothing comes of it: no engine hears of it, nothing is counted or held, and the
// next request has the turn that it would have had. What would be refused is an error.
func TestExplain(t *testing.T) {
	engines := []any{&tokenEngine{name: "a"}, &tokenEngine{name: "b"}, &relayEngine{name: "r"}}
	opts := Options{Prepare: prepare.Options{Limits: admission.Limits{Requests: 1}}}
	inOneWay(t, opts, engines, func(t *testing.T, b *bench) {
		snap := b.snapshot.Load()
		for _, m := range snap.Models {
			m.Policy = new(balance.RoundRobin)
		}
		header := http.Header{"Content-Type": {"application/json"}}
		ask := func(path, body string) (string, *infer.Error) {
			r, waiting, err := b.g.Explain(t.Context(), path, header, []byte(body))
			if err != nil {
				e, _ := errors.AsType[*infer.Error](err)
				if e == nil {
					t.Fatal(err)
				}
				return "", e
			}
			if waiting == nil || waiting.Waits {
				t.Errorf("with nobody there it would wait: %+v", waiting)
			}
			c := &r.Attempts[0].Choice
			if r.Model == "" || c.Length <= 0 || len(c.Best) == 0 || c.Why != "turn" || c.Best[c.Chosen].Engine != r.Attempts[0].Legs[0].Engine || c.Best[c.Chosen].Prefill <= 0 || c.Cached != -1 {
				t.Errorf("%+v", r.Attempts)
			}
			return r.Attempts[0].Legs[0].Engine, nil
		}
		const chat = `{"model":"weir-sim","messages":[{"role":"user","content":"where?"}]}`
		for range 3 { // more than may be in flight
			for _, test := range []struct{ path, body, engine string }{
				{"/v1/chat/completions", chat, "a"},
				{"/v1/completions", `{"model":"weir-sim","prompt":[1,2,3]}`, "a"},
				{"/v1/chat/completions", `{"model":"relayed","messages":[{"role":"user","content":"where?"}]}`, "r"},
			} {
				if engine, e := ask(test.path, test.body); engine != test.engine || e != nil {
					t.Errorf("%s would go to %q, %v", test.body, engine, e)
				}
			}
		}
		for _, test := range []struct {
			path, body string
			code       infer.Code
		}{
			{"/v1/chat/completions", `{"model":"none","messages":[]}`, infer.CodeNotFound},
			{"/v1/chat/completions", `{"model":"weir-sim"`, infer.CodeInvalid},
			{"/v1/nothing", chat, infer.CodeNotFound},
			{"/tokenize", `{"model":"weir-sim","prompt":"a"}`, infer.CodeInvalid},
			{"/v1/messages/count_tokens", `{"model":"weir-sim","messages":[{"role":"user","content":"a"}]}`, infer.CodeInvalid},
		} {
			if engine, e := ask(test.path, test.body); e == nil || e.Code != test.code {
				t.Errorf("%s %.60s would go to %q: %v", test.path, test.body, engine, e)
			}
		}
		header.Set("Content-Type", "text/plain")
		if _, e := ask("/v1/chat/completions", chat); e == nil || e.Code != infer.CodeMediaType {
			t.Errorf("as text: %v", e)
		}
		if n := b.sum("weir_requests_received_total"); n != 0 {
			t.Errorf("%v requests are counted", n)
		}
		for _, m := range snap.Models {
			for _, target := range m.Targets {
				if n := target.Books.Rank.InFlight(); n != 0 {
					t.Errorf("%d requests are booked at %s", n, target.Label)
				}
			}
		}
	})
}

// Whether a request would wait, behind how many and for what is said as the queue is then, and
// so is why it would be refused; nothing of it is counted.
func TestExplainWaiting(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	header := func(more ...string) http.Header {
		h := http.Header{"Content-Type": {"application/json"}}
		for i := 0; i < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		return h
	}
	for _, policy := range []balance.Policy{new(balance.Cost), new(balance.RoundRobin)} {
		inBubble(t, Options{Place: PlaceOptions{Queue: place.Queueing{Requests: 3}}}, []any{a}, func(t *testing.T, b *bench) {
			for _, m := range b.snapshot.Load().Models {
				m.Policy = policy
			}
			outlook := func(want place.Waiting) {
				t.Helper()
				r, got, err := b.g.Explain(t.Context(), chatPath, header(), []byte(askStream(``)))
				if err != nil || got == nil || *got != want || r.Attempts[0].Choice.Best[0].Engine != "a" {
					t.Errorf("it would wait as in %+v, %v; want %+v", got, err, want)
				}
			}
			refused := func(reason string, more ...string) {
				t.Helper()
				_, _, err := b.g.Explain(t.Context(), chatPath, header(more...), []byte(askStream(``)))
				if e, ok := errors.AsType[*infer.Error](err); !ok || e.Code != infer.CodeOverloaded || e.Reason != reason {
					t.Errorf("%v; want that it would be refused for %s", err, reason)
				}
			}
			outlook(place.Waiting{})
			var all []*caller
			for n := range 3 {
				all = append(all, b.post(chatPath, askStream(``)))
				outlook(place.Waiting{Waits: true, Behind: n})
			}
			refused("timeout", "X-Request-Timeout", "0")
			all = append(all, b.post(chatPath, askStream(``)))
			refused("queue_full")
			if n := b.sum("weir_queue_refused_total"); n != 0 {
				t.Errorf("%v refusals are counted", n)
			}
			if n := b.sum("weir_queue_requests"); n != 3 || a.count() != 1 {
				t.Errorf("%v wait and %d were handed over, want 3 and 1", n, a.count())
			}
			for n := range all {
				serve(t, a, n+1)
			}
			for _, c := range all {
				c.wantWhole(text(words()[0]), "stop")
			}
			outlook(place.Waiting{})
			a.mu.Lock()
			a.calls = nil
			a.mu.Unlock()
		})
	}
	inBubble(t, Options{Place: PlaceOptions{Queue: place.Queueing{Off: true}}}, []any{a}, func(t *testing.T, b *bench) {
		if _, got, err := b.g.Explain(t.Context(), chatPath, header(), []byte(askStream(``))); got != nil || err != nil {
			t.Errorf("with the queue off it would wait as in %+v, %v", got, err)
		}
	})
}
