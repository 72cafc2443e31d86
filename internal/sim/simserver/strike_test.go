package simserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine/plane/planepb"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
)

// raw posts a request on a connection of its own and gives what comes back,
// piece by piece as it is read, each with its time.
func (b *bench) raw(path, body string) (pieces []string, at []time.Time) {
	b.t.Helper()
	c, err := b.connect(b.t.Context(), "tcp", strings.TrimPrefix(b.openai, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	buf := make([]byte, 1<<16)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			pieces, at = append(pieces, string(buf[:n])), append(at, time.Now())
		}
		if err == io.EOF {
			return pieces, at
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
}

// chunks takes a raw answer's body apart into its HTTP chunks.
func chunks(t *testing.T, answer string) (all []string) {
	t.Helper()
	_, rest, ok := strings.Cut(answer, "\r\n\r\n")
	if !ok {
		t.Fatalf("no body in %q", answer)
	}
	for {
		line, more, ok := strings.Cut(rest, "\r\n")
		n, err := strconv.ParseInt(line, 16, 32)
		if !ok || err != nil || len(more) < int(n)+2 {
			t.Fatalf("bad chunk in %.80q", rest)
		}
		if n == 0 {
			return all
		}
		all, rest = append(all, more[:n]), more[n+2:]
	}
}

func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		b.faults("throttle,delay=2500ms")
		for _, url := range []string{b.openai + chat, b.vllm + chat, b.sglang + chat, b.sglang + "/generate", b.vllm + "/v1/completions"} {
			resp, err := b.client.Post(url, "application/json", strings.NewReader(`{"text":"x","prompt":"x","messages":[{"role":"user","content":"x"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "3" || !bytes.Contains(body, []byte(`"rate_limit_exceeded"`)) {
				t.Errorf("%s: %s, Retry-After %q: %s", url, resp.Status, resp.Header.Get("Retry-After"), body)
			}
		}
		g := b.dial(1, 0)
		if err := g.submit(1, 5); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("plane: %v", err)
		}
		b.faults()
		if err := g.submit(1, 5); err != nil {
			t.Errorf("plane, afterwards: %v", err)
		}
		g.until(1)
		b.settle("rest", func(s engine.State) bool {
			return s.Rejected == 6 && s.Received == s.Finished+s.Rejected && s.Running == 0
		})
	})
}

// An engine that gives a request up says so in its wire's own words, after 200
// where the answer is a stream.
func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		b.faults("abort,after=7")
		for _, url := range []string{b.openai + chat, b.vllm + chat, b.sglang + chat} {
			a, err := b.post(context.Background(), url, ask+`,"stream":true}`)
			n, wrong := b.verify(a.text[0])
			if err != nil || a.status != 200 || !a.terminated || n != 7 || wrong != nil || a.errorMessage != "aborted by fault" || a.errorCode != "500" || a.usage != nil {
				t.Errorf("%s: %+v, %v, %v", url, a, err, wrong)
			}
			if a, err = b.post(context.Background(), url, ask+`}`); err != nil || a.status != 500 || len(a.text) != 0 {
				t.Errorf("%s, not streamed: %+v, %v", url, a, err)
			}
		}
		got := b.generate(`{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":20,"ignore_eos":true},"stream":true}`)
		last := got.last()
		if f := last.Meta.FinishReason; f == nil || f.Type != "abort" || f.StatusCode == nil || *f.StatusCode != 500 || last.Meta.CompletionTokens != 7 || len(last.OutputIDs) != 1 {
			t.Errorf("generate: %+v", last)
		}
		g := b.dial(1, 0)
		for slot := range uint32(3) {
			if err := g.submit(slot, 20); err != nil {
				t.Fatal(err)
			}
		}
		for len(g.finish) < 3 {
			if err := g.recv(); err != nil {
				t.Fatal(err)
			}
		}
		for slot, f := range g.finish {
			if f.Reason != planepb.Finish_REASON_ERROR || f.Message == "" || len(g.ids[slot]) != 7 || g.verify(slot) != nil {
				t.Errorf("plane: %v after %d ids", f, len(g.ids[slot]))
			}
		}
		// The slots are free again, and the session goes on.
		b.faults()
		clear(g.finish)
		clear(g.ids)
		for slot := range uint32(3) {
			if err := g.submit(slot, 20); err != nil {
				t.Fatal(err)
			}
		}
		g.until(3)
		b.settle("rest", func(s engine.State) bool {
			return s.Running == 0 && s.Aborted == 10 && s.Finished == 3 && s.Received == s.Finished+s.Aborted+s.Rejected
		})
	})
}

func TestSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		whole := func(answer []string) []string { return chunks(t, strings.Join(answer, "")) }
		body := ask + `,"stream":true}`
		b.faults("split,after=7,at=9")
		pieces, _ := b.raw(chat, body)
		got := whole(pieces)
		// The role, seven tokens, the eighth in two, twelve more, usage and [DONE].
		var at int
		for i, c := range got {
			if len(c) == 9 {
				at = i
			}
		}
		if at == 0 || !strings.HasPrefix(got[at], "data: {") || !strings.HasSuffix(got[at+1], "}\n\n") || strings.HasPrefix(got[at+1], "data:") {
			t.Errorf("chunks %.60q", got)
		}
		b.faults("split,after=7,delay=1us")
		pieces, _ = b.raw(chat, body)
		single := 0
		for _, c := range whole(pieces) {
			if len(c) == 1 {
				single++
			}
		}
		if single < 100 {
			t.Errorf("%d chunks of a byte", single)
		}
		b.faults("split")
		a, err := b.post(context.Background(), chat, ask+`}`)
		if n, wrong := b.verify(a.text[0]); err != nil || n != 20 || wrong != nil {
			t.Errorf("not streamed: %+v, %v", a, err)
		}
		for _, url := range []string{b.vllm + chat, b.sglang + chat} {
			a, err := b.post(context.Background(), url, body)
			if n, wrong := b.verify(a.text[0]); err != nil || n != 20 || wrong != nil || !a.terminated {
				t.Errorf("%s: %+v, %v", url, a, err)
			}
		}
		for _, fault := range []string{"split,after=7,at=9", "split,after=7,delay=1us"} {
			b.faults(fault)
			g := b.dial(uint64(len(fault)), 0)
			if err := g.submit(1, 20); err != nil {
				t.Fatal(err)
			}
			g.until(1)
			if err := g.verify(1); err != nil || b.e.State().Faults[0].Times != 1 {
				t.Errorf("plane, %s: %v", fault, err)
			}
			g.cancel()
		}
	})
}

func TestDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		b.faults("drip,after=15,bytes=64,delay=2ms")
		pieces, at := b.raw(chat, ask+`,"stream":true}`)
		text := strings.Join(pieces, "")
		slow := len(text) - strings.Index(text, "data: ")
		// Five events of some 200 bytes and the end, 64 bytes at a time.
		if !strings.HasSuffix(text, "0\r\n\r\n") || len(pieces) < 20 || at[len(at)-1].Sub(at[0]) < 30*time.Millisecond {
			t.Errorf("%d bytes in %d pieces over %v", slow, len(pieces), at[len(at)-1].Sub(at[0]))
		}
		r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(r.Body); err != nil || !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) {
			t.Errorf("%v: %.100q", err, body)
		}
		// A later request on the same connection is not struck by it.
		b.faults("drip,nth=1,bytes=64,delay=500ms")
		for i := range 2 {
			began := time.Now()
			if a, err := b.post(context.Background(), chat, ask+`}`); err != nil || a.reason[0] != "length" {
				t.Errorf("%+v, %v", a, err)
			}
			if took := time.Since(began); (took > 1500*time.Millisecond) != (i == 0) {
				t.Errorf("request %d took %v", i+1, took)
			}
		}
		b.faults("drip,after=3,bytes=64,delay=1ms")
		g := b.dial(1, 0)
		began := time.Now()
		if err := g.submit(1, 20); err != nil {
			t.Fatal(err)
		}
		g.until(1)
		if err := g.verify(1); err != nil || time.Since(began) < 20*time.Millisecond {
			t.Errorf("plane: %v after %v", err, time.Since(began))
		}
	})
}

// While the engine pauses nobody hears of it, and every connection lives.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		const pause = 300 * time.Millisecond
		b.faults("pause,after=10,delay=300ms,id=this")
		gaps := make(chan time.Duration, 2)
		for _, id := range []string{"other", "this"} {
			streaming := make(chan struct{})
			begin := sync.OnceFunc(func() { close(streaming) })
			go func() {
				defer begin()
				req, _ := http.NewRequest(http.MethodPost, b.openai+chat, strings.NewReader(strings.Replace(ask, "20", "400", 1)+`,"stream":true}`))
				req.Header.Set("X-Request-Id", id)
				resp, err := b.client.Do(req)
				if err != nil {
					t.Error(err)
					gaps <- 0
					return
				}
				defer resp.Body.Close()
				var longest time.Duration
				last, lines := time.Now(), bufio.NewScanner(resp.Body)
				done := false
				for lines.Scan() {
					begin()
					longest = max(longest, time.Since(last))
					last, done = time.Now(), done || lines.Text() == "data: [DONE]"
				}
				if !done {
					t.Errorf("%s: not whole: %v", id, lines.Err())
				}
				gaps <- longest
			}()
			<-streaming // both are under way when the pause comes
		}
		for range 2 {
			if gap := <-gaps; gap < pause*9/10 {
				t.Errorf("the longest silence is %v", gap)
			}
		}
		b.faults("pause,after=3,delay=300ms,nth=1")
		g := b.dial(1, 0)
		began := time.Now()
		for slot := range uint32(2) {
			if err := g.submit(slot, 60); err != nil {
				t.Fatal(err)
			}
		}
		g.until(2)
		if took := time.Since(began); took < pause*9/10 || g.verify(0) != nil || g.verify(1) != nil {
			t.Errorf("plane: whole after %v", took)
		}
	})
}

// A deaf connection is accepted, and nobody ever reads it.
func TestDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		for _, addr := range []string{b.openai, b.sglang, b.plane} {
			// Not over the admin call, whose connection could be the one.
			if err := b.e.SetFaults([]sim.Fault{{Kind: sim.Deaf, Nth: 1}}); err != nil {
				t.Fatal(err)
			}
			c, err := b.connect(t.Context(), "tcp", strings.TrimPrefix(addr, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.SetDeadline(time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprintf(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: somebody reads: %v", addr, err)
			}
			if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: read %d, %v", addr, n, err)
			}
			c.Close()
		}
		if a, err := b.post(context.Background(), chat, ask+`}`); err != nil || a.reason[0] != "length" {
			t.Errorf("the next connection: %+v, %v", a, err)
		}
	})
}

// Storms of retraction cost time and no token.
func TestRetract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		b.faults("retract,every=5ms,times=3")
		got := b.generate(`{"input_ids":[1,2,3],"sampling_params":{"max_new_tokens":60,"ignore_eos":true},"stream":true}`)
		if last := got.last(); last.Meta.CompletionTokens != 60 || last.Meta.Retractions != 3 || len(last.OutputIDs) != 60 {
			t.Errorf("%+v", last)
		}
		b.faults("retract,every=5ms,times=3")
		g := b.dial(1, 0)
		for slot := range uint32(8) {
			if err := g.submit(slot, 60); err != nil {
				t.Fatal(err)
			}
		}
		g.until(8)
		for slot := range uint32(8) {
			if err := g.verify(slot); err != nil || len(g.ids[slot]) != 60 {
				t.Errorf("slot %d: %d ids, %v", slot, len(g.ids[slot]), err)
			}
		}
		if s := b.state(); s.Retracted < 3+8 || s.Faults[0].Times != 3 || s.Running != 0 {
			t.Errorf("%+v", s)
		}
	})
}
