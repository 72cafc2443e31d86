package gateway

import (
	"context"
	"testing"

	"weir/internal/engine"
	"weir/internal/gateway/attempt"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/models"
)

// Contradictory output of an engine ends the stream with an error, and aborts the engine's request.
func TestIntegrity(t *testing.T) {
	for _, test := range []struct {
		name string
		play func(c *call)
		want []string
	}{
		{"counts more than it sent", func(c *call) { c.raw(words()[1:2], 3, nil) }, []string{"3", "2"}},
		{"counts less", func(c *call) { c.raw(words()[1:3], 2, nil) }, []string{"2", "3"}},
		{"counts backwards", func(c *call) { c.raw(nil, 0, nil) }, []string{"0", "1"}},
		{"more than was asked for", func(c *call) { c.offer(words()[1:6], nil) }, []string{"6", "5"}},
		{"an end that does not add up", func(c *call) { c.raw(nil, 2, ending(infer.ReasonStop)) }, []string{"2", "1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
			inBubble(t, Options{Attempt: attempt.Options{Continue: attempt.Continuing{Off: true}}}, []any{a, z}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, askStream(`,"max_tokens":5`))
				call := a.call(t, 1)
				call.send(words()[0])
				test.play(call)
				s := c.wantBroken(text(words()[0]), "integrity_error")
				wantParts(t, s.err.Message, test.want...)
				if !call.aborted() {
					t.Error("the engine works on")
				}
				z.call(t, 0)
				wantLegs(t, b.wantRecord(c, "failed", "integrity"), "a integrity")
				if faults := b.metric("weir_engine_faults_total"); len(faults) != 1 || faults[0].labels["engine"] != "a" || faults[0].labels["code"] != "integrity" {
					t.Errorf("faults %v", faults)
				}
			})
		})
	}
}

// Ids after the end that arrive with it are no whole answer either.
func TestIDsAfterTheEnd(t *testing.T) {
	a := &tokenEngine{name: "a", accept: func(_ context.Context, c *call) error {
		c.offer(words()[:1], ending(infer.ReasonStop))
		c.offer(words()[1:2], nil)
		return nil
	}}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		if e := c.refusal(502); e.code() != "integrity_error" {
			t.Errorf("error %+v", e)
		}
		b.wantRecord(c, "failed", "integrity")
	})
}

// A panic costs the one request it happens in: before the first byte it is a
// 500, after it a broken stream, and there is one record either way.
func TestPanic(t *testing.T) {
	boom := func() { panic("scripted panic") }
	t.Run("in dispatch", func(t *testing.T) {
		a := &tokenEngine{name: "a", accept: func(context.Context, *call) error { boom(); return nil }}
		inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, askStream(``))
			if e := c.refusal(500); e.code() != "internal_error" || e.Message != "internal error" {
				t.Errorf("error %+v", e)
			}
			b.wantRecord(c, "failed", "internal")
			// The connection and the gateway serve on.
			a.accept = nil
			defer func() { a.accept = func(context.Context, *call) error { boom(); return nil } }()
			c.send("POST", chatPath, askStream(``))
			a.call(t, 2).end(infer.ReasonStop, words()[0])
			c.wantWhole(text(words()[0]), "stop")
		})
	})
	t.Run("in the middle of a stream", func(t *testing.T) {
		r := &relayEngine{name: "r", reply: func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
			resp := f.events()
			resp.Body = &panicBody{forward: f}
			return resp, nil
		}}
		inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, relayBody)
			f := r.forward(t, 1)
			f.send("data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
			f.send("panic")
			c.wantBroken("a", "internal_error")
			if !f.abandoned() {
				t.Error("the engine's answer was left open")
			}
			b.wantRecord(c, "failed", "internal")
		})
	})
	t.Run("in the pool", func(t *testing.T) {
		a := &tokenEngine{name: "a"}
		inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
			torn := *simModel().Model
			torn.Tokenizer = nil
			b.g.opts.Prepare.Models = map[string]*model.Folder{models.SimName: {Model: &torn, Templates: simModel().Templates}}
			c := b.post(chatPath, askStream(``))
			c.refusal(500)
			b.wantRecord(c, "failed", "internal")
			b.g.opts.Prepare.Models = map[string]*model.Folder{models.SimName: simModel()}
			d := b.post(chatPath, askStream(``))
			a.call(t, 1).end(infer.ReasonStop, words()[0])
			d.wantWhole(text(words()[0]), "stop")
		})
	})
}

// panicBody panics where the engine's bytes are "panic".
type panicBody struct{ *forward }

func (p *panicBody) Read(b []byte) (int, error) {
	n, err := p.forward.Read(b)
	if string(b[:n]) == "panic" {
		panic("scripted panic")
	}
	return n, err
}

func (p *panicBody) TryRead(b []byte) (int, bool, error) {
	n, drained, err := p.forward.TryRead(b)
	if string(b[:n]) == "panic" {
		panic("scripted panic")
	}
	return n, drained, err
}
