package main

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// goroutines is how many the gateway has.
func (g *gateway) goroutines() int { return int(metric(g.t, g.admin, "go_goroutines")) }

// 4096 streams hang up at one instant: every one is cancelled, every engine
// request aborted, and nothing is left behind.
func TestHangUpOfAll(t *testing.T) {
	streams := 4096
	if raceEnabled {
		streams = 512 // the detector makes each ten times as dear
	}
	for _, path := range []string{"plane", "relay"} {
		t.Run(path, func(t *testing.T) {
			s := startSim(t, "--cost", "constant", "--decode-cost", "1s", "--max-running-requests", "8192")
			spec := "openai=" + s.openai
			if path == "plane" {
				spec = "weir=" + s.plane
			}
			g := startGateway(t, "serve", "--engine", spec)
			before := g.goroutines()
			body := `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":50000,"messages":[{"role":"user","content":"go on"}]}`
			request := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			conns := make([]net.Conn, 0, streams)
			defer func() {
				for _, c := range conns {
					c.Close()
				}
			}()
			for range streams {
				conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, conn)
				if _, err := conn.Write([]byte(request)); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "all running", func() bool { return engineState(t, s.admin).Running == streams })
			during := g.goroutines()

			start := time.Now()
			for _, c := range conns {
				c.Close()
			}
			closed := time.Since(start)
			eventually(t, "free", func() bool {
				st := engineState(t, s.admin)
				return st.Running == 0 && st.Waiting == 0
			})
			t.Logf("%d hang-ups in %v; the engine had none running %v after the first", streams, closed, time.Since(start))
			if ended := g.balanced(); ended["cancelled"] != streams || ended["received"] != streams {
				t.Errorf("ended %v, want %d cancelled", ended, streams)
			}
			if st := engineState(t, s.admin); st.Aborted != streams || st.Received != streams {
				t.Errorf("engine state %+v, want %d aborted", st, streams)
			}
			// A few are the admin listener's and the engine connection's.
			eventually(t, "back to the goroutines it had", func() bool { return g.goroutines() <= before+16 })
			t.Logf("goroutines: %d before, %d with %d streams, %d after", before, during, streams, g.goroutines())
			g.interrupt()
		})
	}
}
