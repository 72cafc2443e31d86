package relay

import (
	"strings"
	"testing"
	"time"

	"weir/internal/engine"
)

// An engine of vLLM's that is asked for it says how its halves of requests meet by what it
// answers to one; once, and again when it has been away. One that does not is not ready.
func TestMeets(t *testing.T) {
	const list, ask = `{"data":[{"id":"m","owned_by":"vllm"}]}`, `{"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false},"max_tokens":1,"model":"m","prompt":"x"}`
	answer := func(id string) string {
		return models(`{"choices":[],"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"` + id +
			`","remote_request_id":"r","remote_host":"h","remote_port":5600,"tp_size":2,"transfer_mode":"push"}}`)
	}
	bodies := make(chan string, 16)
	lists, answers := make(chan string, 16), make(chan string, 16)
	p := play(t, func(_ int, w *wire) {
		for r, body := w.request(); r != nil; r, body = w.request() {
			switch r.URL.Path {
			case "/v1/models":
				select {
				case a := <-lists:
					w.send(a)
				default:
					w.send(models(list))
				}
			case "/v1/completions":
				bodies <- string(body)
				w.send(<-answers)
			default:
				w.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
			}
		}
	})
	answers <- models(`{"choices":[],"kv_transfer_params":null}`)
	answers <- answer("one")
	states := run(t, p.engine(Options{AskHalves: true, ProbeInterval: time.Millisecond}))
	if s := next(t, states); s.Ready || s.Err == nil || !strings.Contains(s.Err.Error(), "--kv-transfer-config") {
		t.Errorf("without a connector: %+v", s)
	}
	want := engine.Meets{Way: engine.ByPush, Host: "h", Port: 5600, EngineID: "one", TP: 2, Whole: true}
	if s := next(t, states); !s.Ready || s.Facts.Meets != want || s.Facts.RoleSaid {
		t.Errorf("%+v", s)
	}
	for range 2 {
		if got := <-bodies; got != ask {
			t.Errorf("asked %s", got)
		}
	}
	// It has been away, and is another now.
	answers <- answer("two")
	lists <- "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
	want.EngineID = "two"
	if s := next(t, states); !s.Ready || s.Facts.Meets != want {
		t.Errorf("%+v", s)
	}
	if got := <-bodies; got != ask || len(bodies) > 0 {
		t.Errorf("asked %s, and %d times more", got, len(bodies))
	}
}

// A decode engine of vLLM's with MooncakeConnector ends when it is asked for a prefill half, and
// shows its connector by its metrics from 0.33 on: a decode engine is asked only where its metrics
// are NIXL's, and a prefill engine, which survives, where they are not Mooncake's.
func TestWhoIsAsked(t *testing.T) {
	const mooncake, nixl = "vllm:mooncake_bytes_transferred_sum{engine=\"0\"} 0\n", "vllm:nixl_num_failed_transfers_total{engine=\"0\"} 0\n"
	for name, c := range map[string]struct {
		metrics string
		decodes bool
		asked   bool
		says    string
	}{
		"decode, Mooncake":      {mooncake, true, false, "MooncakeConnector"},
		"prefill, Mooncake":     {mooncake, false, false, "MooncakeConnector"},
		"decode, Mooncake 0.32": {"", true, false, "add handover=pull"},
		"decode, no metrics":    {"-", true, false, "add handover=pull"},
		"decode, NIXL":          {nixl, true, true, ""},
		"prefill":               {"", false, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan string, 16)
			p := play(t, func(_ int, w *wire) {
				for r, body := w.request(); r != nil; r, body = w.request() {
					switch {
					case r.URL.Path == "/v1/models":
						w.send(models(`{"data":[{"id":"m","owned_by":"vllm"}]}`))
					case r.URL.Path == "/metrics" && c.metrics != "-":
						w.send(models("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n" + c.metrics))
					case r.URL.Path == "/v1/completions":
						asked <- string(body)
						w.send(models(`{"choices":[],"kv_transfer_params":` + handedOver + `}`))
					default:
						w.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
					}
				}
			})
			states := run(t, p.engine(Options{AskHalves: true, Decodes: c.decodes, ProbeInterval: time.Millisecond}))
			if s := next(t, states); s.Ready != c.asked || s.Err != nil && !strings.Contains(s.Err.Error(), c.says) || !c.asked && s.Err == nil {
				t.Errorf("%+v", s)
			}
			if c.asked != (len(asked) > 0) {
				t.Errorf("asked %d times", len(asked))
			}
		})
	}
}

const handedOver = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"P","remote_request_id":"r","remote_host":"h","remote_port":5600,"tp_size":2,"transfer_mode":"pull"}`
