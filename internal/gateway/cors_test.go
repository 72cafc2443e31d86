package gateway

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/gateway/front"
	"weir/internal/infer"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
)

// A script of an allowed page is let through and can read what came of it, refusals and
// streams included; any other page's browser is told nothing that would let it.
func TestCrossOrigin(t *testing.T) {
	const mine, other = "https://chat.example", "https://evil.example"
	listed, err := front.ParseOrigins([]string{mine, "http://localhost:3000"})
	if err != nil {
		t.Fatal(err)
	}
	every, err := front.ParseOrigins([]string{"any"})
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []struct {
		name            string
		origins         front.Origins
		allowed, others string // Access-Control-Allow-Origin to mine, and to other
		credentials     string
		vary            bool
	}{
		{"off", front.Origins{}, "", "", "", false},
		{"listed", listed, mine, "", "true", true},
		{"any", every, "*", "*", "", false},
	} {
		e := &tokenEngine{name: "a"}
		inBubble(t, Options{Front: front.Options{CORS: mode.origins}}, []any{e}, func(t *testing.T, b *bench) {
			check := func(what string, a *received, status int, origin string) {
				t.Helper()
				want, credentials := mode.allowed, mode.credentials
				switch origin {
				case other:
					if want = mode.others; want == "" {
						credentials = ""
					}
				case "":
					if want, credentials = mode.allowed, ""; mode.name == "listed" || mode.name == "any" {
						want = ""
					}
				}
				if a.status != status || a.header.Get("Access-Control-Allow-Origin") != want || a.header.Get("Access-Control-Allow-Credentials") != credentials {
					t.Errorf("%s, %s, from %q: status %d, head %v", mode.name, what, origin, a.status, a.header)
				}
				if exposes := a.header.Get("Access-Control-Expose-Headers"); what != "preflight" && (exposes != "") != (want != "") {
					t.Errorf("%s, %s, from %q: exposes %q", mode.name, what, origin, exposes)
				}
				if varies := slices.Contains(a.header.Values("Vary"), "Origin"); varies != mode.vary {
					t.Errorf("%s, %s, from %q: Vary %q", mode.name, what, origin, a.header.Values("Vary"))
				}
				if a.header.Get("X-Request-Id") == "" {
					t.Errorf("%s, %s, from %q: no id", mode.name, what, origin)
				}
			}
			n := 0
			for _, origin := range []string{mine, other, ""} {
				var from []string
				if origin != "" {
					from = []string{"Origin", origin}
					c := b.dial(0)
					c.send("OPTIONS", chatPath, "", append(from, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type,x-stainless-os")...)
					a, status := c.answer(), http.StatusNoContent
					if mode.allowed == "" || origin == other && mode.others == "" {
						if status = http.StatusForbidden; !strings.Contains(string(a.body), "--cors "+origin) {
							t.Errorf("%s: %q", mode.name, a.body)
						}
					} else if a.header.Get("Access-Control-Allow-Headers") != "authorization,content-type,x-stainless-os" || !strings.Contains(a.header.Get("Access-Control-Allow-Methods"), "POST") || a.header.Get("Access-Control-Max-Age") == "" {
						t.Errorf("%s: preflight %v", mode.name, a.header)
					}
					check("preflight", a, status, origin)
				}
				c := b.dial(0)
				c.send("GET", "/v1/models", "", from...)
				check("models", c.answer(), 200, origin)
				c = b.dial(0)
				c.send("GET", "/elsewhere", "", from...)
				check("nothing there", c.answer(), 404, origin)
				check("refused", b.post(chatPath, `{"model":"none"}`, from...).answer(), 404, origin)

				c = b.post(chatPath, askStream(""), from...)
				n++
				call := e.call(t, n)
				time.Sleep(time.Second)
				ids := idsOf(t, " one two", tokenizer.EncodeOptions{})
				call.sink.Offer(&infer.Delta{Attempt: call.attempt, IDs: ids, Total: len(ids), Received: trace.Now()})
				call.total = len(ids)
				call.end(infer.ReasonStop)
				a := c.answer()
				if check("stream", a, 200, origin); !strings.HasSuffix(string(a.body), "data: [DONE]\n\n") {
					t.Errorf("%s: %q", mode.name, a.body)
				}
			}
		})
	}
}

// OPTIONS says which methods a path takes, whoever asks.
func TestOptions(t *testing.T) {
	inBubble(t, Options{}, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
		for path, want := range map[string]string{
			chatPath:               "POST, OPTIONS",
			messagesPath:           "POST, OPTIONS",
			"/generate":            "POST, PUT, OPTIONS",
			"/v1/models":           "GET, OPTIONS",
			"/v1/models/weir-sim":  "GET, OPTIONS",
			"/v1/responses/resp_1": "GET, DELETE, OPTIONS",
			"/v1/audio/speech":     "POST, OPTIONS",
			"/health":              "GET, OPTIONS",
			"/v1/nothing-here":     "",
			"/v1/v1/models":        "",
			"/elsewhere":           "",
		} {
			c := b.dial(0)
			c.send("OPTIONS", path, "")
			a, status := c.answer(), http.StatusNoContent
			if want == "" {
				status = http.StatusNotFound
			}
			if a.status != status || a.header.Get("Allow") != want || !a.whole || a.header.Get("X-Request-Id") == "" {
				t.Errorf("%s: %d %v %s", path, a.status, a.header, a.body)
			}
		}
	})
}
