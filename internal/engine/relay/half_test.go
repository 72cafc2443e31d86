package relay

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/engine"
	"weir/internal/infer"
)

// An SGLang that serves halves says which, and where they meet, and is probed by halves
// that have no other.
func TestHalves(t *testing.T) {
	for mode, want := range map[string]engine.Facts{
		"null":    {Role: infer.RoleBoth},
		"prefill": {Role: infer.RolePrefill, Meets: engine.Meets{Way: engine.ByRoom, Host: "127.0.0.1", Port: 7, Ranks: 2}},
		"decode":  {Role: infer.RoleDecode, Meets: engine.Meets{Way: engine.ByRoom}},
	} {
		t.Run(mode, func(t *testing.T) {
			probed := make(chan string, 1)
			p := play(t, func(_ int, w *wire) {
				for r, body := w.request(); r != nil; r, body = w.request() {
					switch r.URL.Path {
					case "/v1/models":
						w.send(models(`{"data":[{"id":"m","owned_by":"sglang"}]}`))
					case "/server_info":
						w.send(models(`{"version":"0.5.23","skip_tokenizer_init":false,"disaggregation_bootstrap_port":7,"dp_size":2,"disaggregation_mode":"` + mode + `"}`))
					case "/v1/completions":
						probed <- string(body)
						w.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
					default:
						w.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
					}
				}
			})
			e := p.engine(Options{})
			s := next(t, run(t, e))
			got := engine.Facts{Role: s.Facts.Role, Meets: s.Facts.Meets}
			if diff := cmp.Diff(want, got); diff != "" || !s.Ready || !s.Facts.RoleSaid {
				t.Errorf("%+v: %s", s, diff)
			}
			if err := e.Probe(bounded(t), engine.Probe{Rank: -1, Path: "/v1/completions"}); err != nil {
				t.Error(err)
			}
			body := `{"bootstrap_host":"2.2.2.2","bootstrap_port":7,"bootstrap_room":0,"max_tokens":1,"prompt":"x"}`
			if mode == "null" {
				body = `{"max_tokens":1,"prompt":"x"}`
			}
			if got := <-probed; got != body {
				t.Errorf("probed by %s, want %s", got, body)
			}
		})
	}
}
