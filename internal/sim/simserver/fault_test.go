package simserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
)

const ask = `{"messages":[{"role":"user","content":"hello"}],"max_tokens":20,"ignore_eos":true,"stream_options":{"include_usage":true}`

// TestFaultsOverHTTP sees every fault once, streamed and not.
func TestFaultsOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		words := func(a answerText) int {
			if len(a.text) == 0 {
				return 0
			}
			n, err := b.verify(a.text[0])
			if err != nil {
				t.Errorf("%v in %q", err, a.text[0])
			}
			return n
		}
		cases := []struct {
			fault string
			check func(stream bool, a answerText, err error) bool
		}{
			{"cut,after=7", func(stream bool, a answerText, err error) bool {
				return errors.Is(err, io.ErrUnexpectedEOF) && !a.terminated && (!stream || words(a) == 7)
			}},
			{"cut", func(_ bool, a answerText, err error) bool {
				return errors.Is(err, io.EOF) && a.status == 0
			}},
			{"reset,after=7", func(stream bool, a answerText, err error) bool {
				return errors.Is(err, syscall.ECONNRESET) && !a.terminated
			}},
			{"truncate,after=7", func(stream bool, a answerText, err error) bool {
				if stream {
					return err == nil && !a.terminated && words(a) == 7 && a.reason[0] == ""
				}
				return err != nil && strings.Contains(err.Error(), "EOF") && a.status == 200 // cut JSON in a clean body
			}},
			{"unavailable", func(_ bool, a answerText, err error) bool {
				return err == nil && a.status == http.StatusServiceUnavailable
			}},
			{"fail", func(_ bool, a answerText, err error) bool {
				return err == nil && a.status == http.StatusInternalServerError
			}},
			{"miscount", func(_ bool, a answerText, err error) bool {
				return err == nil && words(a) == 20 && a.usage.CompletionTokens == 21
			}},
			{"skip,after=7", func(_ bool, a answerText, err error) bool {
				_, wrong := b.verify(a.text[0])
				return err == nil && wrong != nil && len(a.text[0]) == 4*19 && a.usage.CompletionTokens == 20
			}},
			{"repeat,after=7", func(_ bool, a answerText, err error) bool {
				_, wrong := b.verify(a.text[0])
				return err == nil && wrong != nil && len(a.text[0]) == 4*21 && a.usage.CompletionTokens == 20
			}},
			{"slow,delay=60ms", func(_ bool, a answerText, err error) bool {
				return err == nil && words(a) == 20
			}},
		}
		for _, c := range cases {
			for _, stream := range []bool{true, false} {
				b.faults(c.fault)
				began := time.Now()
				body := ask + `}`
				if stream {
					body = ask + `,"stream":true}`
				}
				a, err := b.post(context.Background(), chat, body)
				if !c.check(stream, a, err) {
					t.Errorf("%s, stream %v: %+v, %v", c.fault, stream, a, err)
				}
				if strings.HasPrefix(c.fault, "slow") && time.Since(began) < 60*time.Millisecond {
					t.Errorf("slow answered after %v", time.Since(began))
				}
				if got := b.e.State().Faults; len(got) != 1 || got[0].Times != 1 {
					t.Errorf("%s: struck %+v", c.fault, got)
				}
			}
		}
		b.faults()
		if a, err := b.post(context.Background(), chat, ask+`}`); err != nil || words(a) != 20 {
			t.Errorf("after all faults: %+v, %v", a, err)
		}
		b.settle("rest", func(s engine.State) bool {
			return s.Running+s.Waiting == 0 && s.Received == s.Finished+s.Aborted+s.Rejected
		})
	})
}

// A stalled or hung request ends when the client gives up, not before.
func TestHoldingFaultsOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		for _, c := range []struct {
			fault  string
			tokens uint64
			struck func(before, now engine.State) bool
		}{
			{"stall,after=3", 3, func(before, now engine.State) bool { return now.GeneratedTokens == before.GeneratedTokens+3 }},
			{"hang", 0, func(_, now engine.State) bool { return now.Faults[0].Times == 1 }},
		} {
			b.faults(c.fault)
			before := b.e.State()
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() {
				_, err := b.post(ctx, chat, ask+`,"stream":true}`)
				ended <- err
			}()
			b.settle(c.fault, func(s engine.State) bool { return c.struck(before, s) })
			// Another request is served meanwhile, to its end.
			b.faults()
			if a, err := b.post(context.Background(), chat, ask+`}`); err != nil || a.reason[0] != "length" {
				t.Errorf("%s: beside it: %+v, %v", c.fault, a, err)
			}
			select {
			case err := <-ended:
				t.Errorf("%s: the request ended with %v", c.fault, err)
			default:
			}
			if n := b.e.State().GeneratedTokens - before.GeneratedTokens; n != 20+c.tokens {
				t.Errorf("%s: %d tokens", c.fault, n)
			}
			cancel()
			<-ended
			b.settle("the end of "+c.fault, func(s engine.State) bool {
				return s.Running == 0 && s.Received == s.Finished+s.Aborted+s.Rejected
			})
		}
	})
}

func TestRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := sim.ParseFault("refuse,nth=2")
		if err != nil {
			t.Fatal(err)
		}
		b := start(t, Options{Faults: []sim.Fault{f}})
		addr := strings.TrimPrefix(b.openai, "http://")
		read := func() error {
			c, err := b.connect(t.Context(), "tcp", addr)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte("GET /health HTTP/1.0\r\n\r\n")); err != nil {
				return err
			}
			_, err = io.ReadAll(c)
			return err
		}
		if err := read(); err != nil {
			t.Errorf("the first connection: %v", err)
		}
		// Depending on who is faster, the client's write or its read sees it.
		if err := read(); err == nil {
			t.Error("the second connection was served")
		}
		if err := read(); err != nil {
			t.Errorf("the third connection: %v", err)
		}
	})
}

func TestAimedFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		served := func(content, id string) bool {
			t.Helper()
			a, err := b.post(context.Background(), chat, `{"messages":[{"role":"user","content":"`+content+`"}],"max_tokens":3}`, "X-Request-Id", id)
			if err != nil {
				t.Fatal(err)
			}
			return a.status == http.StatusOK
		}
		b.faults("unavailable,marker=kaboom")
		if !served("calm", "a") || served("a kaboom b", "a") {
			t.Error("a marker must aim")
		}
		b.faults("unavailable,id=conv-1")
		if !served("x", "conv-2") || served("x", "my-conv-1") {
			t.Error("an id must aim")
		}
		b.faults("unavailable,nth=2")
		if !served("x", "") || served("x", "") || !served("x", "") {
			t.Error("an ordinal must aim")
		}
	})
}

func TestAdminRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		b.faults("cut,after=3")
		for _, body := range []string{`{"faults":["kaputt"]}`, `{"faults":`, `{"faults":["cut,rate=7"]}`} {
			a, err := b.post(context.Background(), "/admin/faults", body)
			if err != nil || a.status != http.StatusBadRequest {
				t.Errorf("%s: %+v, %v", body, a, err)
			}
		}
		if got := b.state().Faults; len(got) != 1 || got[0].Fault != "cut,after=3" {
			t.Errorf("a refused call changed the faults to %+v", got)
		}
	})
}

// The admin listener by itself is not touched by faults.
func TestServeAdmin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := sim.ParseFault("refuse")
		b := start(t, Options{Faults: []sim.Fault{f}})
		l := b.listen("admin:80")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- b.e.ServeAdmin(ctx, l) }()
		b.openai = "http://" + l.Addr().String()
		if s := b.state(); s.Name != "sim" || len(s.Faults) != 1 {
			t.Errorf("state %+v", s)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// On real sockets and with the kernel's alarm it is the same engine: all servers
// answer, and a reset is one.
func TestOnLoopback(t *testing.T) {
	b := startOnLoopback(t, Options{})
	for _, base := range []string{b.openai, b.vllm, b.sglang} {
		a, err := b.post(t.Context(), base+chat, ask+`,"stream":true}`)
		if n, wrong := b.verify(a.text[0]); err != nil || n != 20 || wrong != nil || !a.terminated {
			t.Errorf("%s: %+v, %v, %v", base, a, err, wrong)
		}
		b.faults("reset,after=7")
		if a, err := b.post(t.Context(), base+chat, ask+`,"stream":true}`); !errors.Is(err, syscall.ECONNRESET) || a.terminated {
			t.Errorf("%s, reset: %+v, %v", base, a, err)
		}
		b.faults()
	}
	g := b.dial(1, 0)
	if err := g.submit(1, 20); err != nil {
		t.Fatal(err)
	}
	g.until(1)
	if err := g.verify(1); err != nil || len(g.ids[1]) != 20 {
		t.Errorf("plane: %d ids, %v", len(g.ids[1]), err)
	}
	b.settle("rest", func(s engine.State) bool { return s.Running == 0 && s.Steps > 0 })
}
