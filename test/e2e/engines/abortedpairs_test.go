package engines

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// A client that hangs up while its prompt is computed frees both engines, whichever release of
// SGLang they are. Up to 0.5.12 the prefill engine computes the prompt to its end and hands it
// over, so that the decode half is aborted after that. From 0.5.21 on the decode engine keeps
// the pages itself, so that both halves are aborted at once. No KV comes into pages that others
// have by then; in the control, which aborts both at once, it does.
func TestPairsAbortedByRelease(t *testing.T) {
	harness.Beside(t, harness.Light)
	const computes = 3 * time.Second
	for _, wire := range []string{"sglang", "relay to sglang"} {
		for release, atOnce := range map[string]bool{"0.5.12": false, "0.5.23": true} {
			t.Run(wire+" "+release, func(t *testing.T) {
				own := []string{"--sglang-version", release}
				c := startCoupleOf(t, wire, slices.Concat(own, []string{"--prefill-cost", computes.String()}), own)
				const n = 4
				c.hangUp(t, n)
				hung := time.Now()
				c.decode.rests(t)
				if took := time.Since(hung); atOnce && took > computes/2 {
					t.Errorf("the decode engine was free after %v, want at once", took)
				}
				c.free(t)
				if s := c.decode.left(t); s.Owed != 0 || s.Overwritten != 0 || s.Aborted != n {
					t.Errorf("the decode engine has %+v", s)
				}
				c.control(t)
				if s := c.decode.left(t); (s.Overwritten == 0) != atOnce || s.Owed != 0 {
					t.Errorf("after the control the decode engine has %+v", s)
				}
				c.end()
			})
		}
	}
}

// left is what an engine counts of aborted halves.
type left struct{ Owed, Overwritten, Received, Aborted int }

func (h half) left(t *testing.T) (s left) {
	t.Helper()
	if err := json.Unmarshal(harness.Get(t, h.url+"/admin/state").Body, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// hangUp sends n requests through the gateway, and hangs up while the prefill engine computes
// their prompts.
func (c *couple) hangUp(t *testing.T, n int) {
	t.Helper()
	prefills := c.prefill.left(t).Received
	var conns []net.Conn
	for i := range n {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		body := fmt.Sprintf(`{"model":"weir-sim","prompt":"Number %d once upon a time","max_tokens":99,"ignore_eos":true,"stream":true}`, i)
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	harness.Eventually(t, "the prompts are computed", func() bool {
		var s struct{ Running, Received int }
		return json.Unmarshal(harness.Get(t, c.prefill.url+"/admin/state").Body, &s) == nil && s.Running > 0 && s.Received >= prefills+n
	}, c.prefill.Process)
	for _, conn := range conns {
		conn.Close()
	}
}

// control sends both halves of a request to the engines, and aborts both while its prompt is
// computed.
func (c *couple) control(t *testing.T) {
	t.Helper()
	body := fmt.Sprintf(`{"rid":"control","text":"The control of all","sampling_params":{"max_new_tokens":99,"ignore_eos":true},"bootstrap_host":"127.0.0.1","bootstrap_port":%s,"bootstrap_room":7}`, c.prefill.other)
	var halves sync.WaitGroup
	for _, h := range []half{c.prefill, c.decode} {
		halves.Go(func() { harness.Post(t, h.url+"/generate", body) })
	}
	harness.Eventually(t, "the control's prompt is computed", func() bool {
		var s struct{ Running int }
		return json.Unmarshal(harness.Get(t, c.prefill.url+"/admin/state").Body, &s) == nil && s.Running > 0
	}, c.prefill.Process)
	for _, h := range []half{c.prefill, c.decode} {
		harness.Post(t, h.url+"/abort_request", `{"rid":"control"}`)
	}
	halves.Wait()
	c.prefill.rests(t)
	c.decode.rests(t)
}
