package load

import (
	"context"
	"io"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"
)

// A request goes to both engines as it is, with where they meet, and is the decode engine's
// answer. A prefill half that fails has it failed, and one that does not end is broken off
// with it.
func TestHalves(t *testing.T) {
	vocab := vocabulary(t)
	whole := (&native{words: answer(t, vocab, answerLen), cuts: slices.Repeat([]int{1}, answerLen), last: byLength, end: []string{"[DONE]"}}).wire()
	const refused = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	for _, c := range []struct {
		name            string
		prefill, decode string // "": it never answers
		outcome         Outcome
		kind            Kind
	}{
		{"both whole", whole, whole, Complete, ""},
		{"prefill refuses", refused, whole, Errored, KindPrefill},
		{"prefill breaks off", whole[:len(whole)/2], whole, Errored, KindPrefill},
		{"decode refuses", "", refused, Errored, "status_500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bodies := make(chan map[string]any, 2)
			var asked sync.WaitGroup // an answer may break off the other half before it is sent
			asked.Add(2)
			engine := func(says string) string {
				return serve(t, func(_ int, body map[string]any, conn *net.TCPConn) {
					bodies <- body
					asked.Done()
					asked.Wait()
					if _, err := io.WriteString(conn, says); err != nil {
						t.Error(err)
					}
					if says == "" {
						_, _ = io.Copy(io.Discard, conn) // until it is closed
					}
				})
			}
			_, s := once(t, context.Background(), Plan{URL: engine(c.decode), API: Generate, OutputTokens: answerLen, Verify: vocab,
				Halves: &Halves{Prefill: engine(c.prefill), Host: "10.0.0.1", Port: 8998}})
			if s.Outcome != c.outcome || s.Kind != c.kind {
				t.Errorf("%v %s: %s", s.Outcome, s.Kind, s.Detail)
			}
			one, other := <-bodies, <-bodies
			if room, ok := one["bootstrap_room"].(float64); !reflect.DeepEqual(one, other) || one["bootstrap_host"] != "10.0.0.1" || one["bootstrap_port"] != 8998.0 || !ok || room <= 0 {
				t.Errorf("the engines were asked %v and %v", one, other)
			}
		})
	}
}
