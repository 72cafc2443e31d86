package main

import (
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// narrow makes of a socket, for net.Dialer, one of a client that cannot take much
// unread: its receive buffer is the smallest, and so are its segments, by which the
// kernel sizes the sender's buffer. Otherwise megabytes pass before a write has to
// wait.
func narrow(_, _ string, c syscall.RawConn) (err error) {
	outer := c.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 2048); err == nil {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 536)
		}
	})
	if outer != nil {
		return outer
	}
	return err
}

// dialNarrow connects to a gateway by narrow.
func dialNarrow(t *testing.T, g *gateway) net.Conn {
	t.Helper()
	d := net.Dialer{Control: narrow}
	conn, err := d.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// steady gives a figure once it has not changed for a while.
func steady(t *testing.T, what string, figure func() float64) float64 {
	t.Helper()
	last, same := figure(), 0
	eventually(t, what, func() bool {
		now := figure()
		if same++; now != last {
			same = 0
		}
		last = now
		return same >= 25
	})
	return last
}

// What a stream holds of the gateway's memory while nothing comes from its
// engine, and while its client does not read and its engine has said all that
// the request's bound lets it (plane), or as much as there is room for on the
// way (relay). The bounds are generous; the figures are printed, and those of a
// quiet machine are in docs/status.md.
func TestMemoryOfStreams(t *testing.T) {
	beside(t, heavy)
	const tokens = 20_000
	idle, stalled := 2000, 200
	if raceEnabled {
		idle, stalled = 200, 20
	}
	resident := func(g *gateway) float64 { return metric(t, g.admin, "process_resident_memory_bytes") }
	ask := func(conn net.Conn, bound int) {
		body := fmt.Sprintf(`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":"go on"}]}`, bound)
		postRaw(t, conn, body)
	}
	for _, path := range []string{"plane", "relay"} {
		for _, kind := range []string{"idle", "stalled"} {
			t.Run(path+" "+kind, func(t *testing.T) {
				args := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "200us", "--max-running-requests", "4096"}
				n := stalled
				if kind == "idle" {
					args, n = append(args, "--fault", "stall,after=1"), idle
				}
				s := startSim(t, args...)
				g := startGateway(t, "serve", "--engine", s.spec(path), "--write-timeout", "5m")
				g.t = t
				// One of each, so that what is made once is there.
				ask(dialNarrow(t, g), tokens)
				eventually(t, "streaming", func() bool { return metric(t, g.admin, "weir_output_writes_total") > 0 })
				before := resident(g)
				for range n {
					ask(dialNarrow(t, g), tokens)
				}
				eventually(t, "all there", func() bool { return metric(t, g.admin, "weir_requests_in_flight") == float64(n+1) })
				if kind == "stalled" && path == "plane" {
					// All has been said, and waits for clients.
					eventually(t, "done", func() bool { return engineState(t, s.admin).Running == 0 })
				} else {
					steady(t, "as much as there is room for", func() float64 { return metric(t, g.admin, "weir_output_bytes_total") })
				}
				if live := metric(t, g.admin, "weir_requests_in_flight"); live != float64(n+1) {
					t.Fatalf("%v streams, want %d", live, n+1)
				}
				each := (resident(g) - before) / float64(n)
				t.Logf("%d %s streams: %.1f KB resident each, %.1f goroutines each", n, kind, each/1e3, float64(g.goroutines())/float64(n))
				limit := 200e3 // ids of a stalled plane stream are 4 bytes each, and twice that in a heap between collections
				if kind == "stalled" && path == "plane" {
					limit += 4 * 4 * tokens
				}
				if each > limit && !raceEnabled {
					t.Errorf("%.0f bytes each, want at most %.0f", each, limit)
				}
				_ = g.cmd.Process.Kill() // its streams would be drained for long
				<-g.exited
				eventually(t, "free", func() bool { st := engineState(t, s.admin); return st.Running == 0 })
			})
		}
	}
}
