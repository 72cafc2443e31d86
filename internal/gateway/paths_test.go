package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"weir/internal/dialect/allow"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
)

// Every answer carries the request's id, whatever it answers.
func TestPaths(t *testing.T) {
	e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
	inBubble(t, Options{}, []any{e, r}, func(t *testing.T, b *bench) {
		for _, test := range []struct {
			method, path, body string
			status             int
			allow              string
			want               []string
		}{
			{"GET", "/v1/models", "", 200, "", []string{"weir-sim", "relayed"}},
			{"GET", "/v1/models/weir-sim", "", 200, "", []string{"weir-sim", "131072"}},
			{"GET", "/v1/models/no/such", "", 404, "", []string{"no/such", "weir-sim"}},
			{"GET", "/", "", 404, "", []string{"/v1/"}},
			{"GET", "/v2/chat", "", 404, "", []string{"/v2/chat"}},
			{"GET", "/v1/chat/completions", "", 405, "POST", []string{"GET", "POST"}},
			{"DELETE", "/v1/completions", "", 405, "POST", []string{"DELETE"}},
			{"PUT", "/v1/embeddings", "", 405, "POST", []string{"PUT"}},
			{"GET", "/v1/responses", "", 405, "POST", []string{"/v1/responses does not take GET"}},
			{"DELETE", "/v1/responses", "", 405, "POST", []string{"use POST"}},
			{"POST", "/v1/responses/resp_1/cancel", "", 404, "", []string{"weir keeps no answers"}},
			{"GET", "/generate", "", 405, "POST, PUT", []string{"use POST"}},
			{"POST", "/v1/chat/completions/", askChat(``), 404, "", []string{"did you mean /v1/chat/completions?"}},
			{"POST", "/v1/v1/chat/completions", askChat(``), 404, "", []string{"did you mean /v1/chat/completions?", "Leave /v1 out of the base URL"}},
			{"POST", "/v1/v1/messages/", askChat(``), 404, "", []string{"did you mean /v1/messages?", "Leave /v1 out"}},
			{"GET", "/v1/v1/models", "", 404, "", []string{"did you mean /v1/models?", "Leave /v1 out"}},
			{"GET", "/metrics", "", 404, "", []string{"the admin listener (--admin-listen) has it"}},
			{"GET", "/readyz", "", 404, "", []string{"the admin listener (--admin-listen) has it"}},
			{"GET", "/v1/models/", "", 404, "", []string{"did you mean /v1/models?"}},
			{"GET", "/v1/messages/", "", 404, "", []string{"did you mean /v1/messages?"}},
			{"GET", "/v1/nothing-here", "", 404, "", []string{"/v1/nothing-here"}},
			{"POST", "/v1/nothing-here", askChat(``), 404, "", []string{"weir serves nothing at /v1/nothing-here", "--relay-path"}},
			{"POST", "/v1/messages/batches", "{}", 404, "", []string{`{"type":"error","error":{"type":"not_found_error"`, "/v1/messages/batches"}},
			{"GET", "/v1/messages/batches/7/results", "", 404, "", []string{`{"type":"error","error":{"type":"not_found_error"`}},
			{"POST", "/v1/load_lora_adapter", askChat(``), 404, "", []string{"--relay-path"}},
			{"POST", "/v1/embeddings", askChat(``), 404, "", []string{"/v1/embeddings"}},
		} {
			c := b.dial(0)
			c.send(test.method, test.path, test.body)
			asksEngines := strings.HasPrefix(test.path, "/v1/") && !strings.HasPrefix(test.path, "/v1/models") && !strings.HasSuffix(test.path, "/cancel") || test.path == "/generate"
			switch posted := test.method == "POST"; {
			case asksEngines && !posted:
				b.sent[c.id]++ // refused on the request path, with a record
			case posted && !asksEngines:
				b.sent[c.id]--
			}
			a := c.answer()
			if a.status != test.status || !a.whole || a.header.Get("Allow") != test.allow {
				t.Errorf("%s %s: status %d, Allow %q, body %s", test.method, test.path, a.status, a.header.Get("Allow"), a.body)
			}
			if got := a.header.Get("X-Request-Id"); got != c.id {
				t.Errorf("%s %s: X-Request-Id %q", test.method, test.path, got)
			}
			if !json.Valid(a.body) {
				t.Errorf("%s %s: body %q is no JSON", test.method, test.path, a.body)
			}
			wantParts(t, string(a.body), test.want...)
		}
	})
}

// An endpoint that weir does not know passes to a relay where the operator says so.
func TestUnknownEndpointIsRelayed(t *testing.T) {
	r := &relayEngine{name: "r"}
	paths, err := allow.RelayPaths([]string{"/v1/nothing-here", "/elsewhere/"})
	if err != nil {
		t.Fatal(err)
	}
	inBubble(t, Options{Prepare: prepare.Options{Allow: allow.Rules{Paths: paths}}}, []any{r}, func(t *testing.T, b *bench) {
		c := b.post("/v1/nothing-here", `{"model":"relayed","input":[]}`)
		f := r.forward(t, 1)
		f.send("data: {}\n\n") // a stream without the chat's end marker is whole
		f.end()
		if a := c.answer(); a.status != 200 || !a.whole {
			t.Errorf("status %d, whole %v", a.status, a.whole)
		}
		b.wantRecord(c, "finished", "")
		c = b.post("/elsewhere/a", `{"model":"relayed"}`)
		f = r.forward(t, 2)
		f.end()
		c.answer()
	})
}

// A path that is another's spelling to somebody is refused, whatever it spells.
func TestSpeltPaths(t *testing.T) {
	r := &relayEngine{name: "r"}
	paths, err := allow.RelayPaths([]string{"/v1/"})
	if err != nil {
		t.Fatal(err)
	}
	inBubble(t, Options{Prepare: prepare.Options{Allow: allow.Rules{Paths: paths}}}, []any{r}, func(t *testing.T, b *bench) {
		for _, path := range []string{"/v1/%2e%2e/server_info", "/v1/..%2f..%2fabort_request", "/v1/chat%2Fcompletions", "/v1/a%5Cb", "/v1/%00", "/v1/a%0d%0ab", "/v1/%252e%252e/x", "/v1/a;b/..;c/d"} {
			c := b.post(path, `{"model":"relayed","messages":[]}`)
			if a := c.answer(); a.status != 400 || !strings.Contains(string(a.body), "write the path plainly") {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
		c := b.post("/v1/a;b/%C3%A9", `{"model":"relayed"}`)
		f := r.forward(t, 1)
		f.end()
		c.answer()
	})
}

// Reservations follow the request: refused at the limit, let in when it ends.
func TestLimits(t *testing.T) {
	e := &tokenEngine{name: "a"}
	opts := Options{}
	opts.Prepare.Limits.Requests = 1
	inBubble(t, opts, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		call := e.call(t, 1)
		d := b.post(chatPath, askStream(``))
		if err := d.refusal(429); err.code() != "rate_limit_exceeded" {
			t.Errorf("error %+v", err)
		}
		if d.answer().header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		b.wantRecord(d, "rejected", "overloaded")
		call.end(infer.ReasonStop)
		c.wantWhole("", "stop")
		f := b.post(chatPath, askStream(``))
		e.call(t, 2).end(infer.ReasonStop)
		f.wantWhole("", "stop")
		b.g.Drain()
		g := b.post(chatPath, askStream(``))
		g.refusal(503)
		b.wantRecord(g, "rejected", "unavailable")
	})
}

// An id that the model does not have is refused wherever a request names it, by that
// place, before an engine hears of it.
func TestForeignIDs(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		for _, test := range []struct{ path, body, param string }{
			{chatPath, askChat(`,"stop_token_ids":[7,32768]`), "stop_token_ids"},
			{chatPath, askChat(`,"logit_bias":{"7":1,"4294967295":1}`), "logit_bias.4294967295"},
			{completionsPath, `{"model":"weir-sim","prompt":[1,32768]}`, "prompt"},
			{completionsPath, `{"model":"weir-sim","prompt":[[1],[2,32768]]}`, "prompt[1]"},
			{"/generate", `{"model":"weir-sim","text":"a","sampling_params":{"stop_token_ids":[32768]}}`, "sampling_params.stop_token_ids"},
			{"/generate", `{"model":"weir-sim","text":"a","sampling_params":{"logit_bias":{"32768":1}}}`, "sampling_params.logit_bias.32768"},
		} {
			c := b.post(test.path, test.body)
			a := c.answer()
			if a.status != 400 {
				t.Errorf("%s: status %d, %s", test.body, a.status, a.body)
			}
			wantParts(t, string(a.body), `"param":"`+test.param+`"`, "0 to 32767")
		}
	})
}
