package gateway

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"weak"

	"weir/internal/infer"
	"weir/models"
)

// Buffers that a very large delta needed are dropped with its turn: the worker, which lives as long
// as the process, keeps little, and so does the stream, which may wait for long.
func TestLargeDeltaIsNotKept(t *testing.T) {
	words()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		defer r.close()
		r.ask(chatPath, askStream(`,"max_tokens":100000,"logprobs":true,"top_logprobs":4`), 64<<20)
		ids := make([]uint32, 50_000)
		for i := range ids {
			ids[i] = words()[0]
		}
		scored := func(ids []uint32) *infer.Logprobs {
			n := len(ids)
			return &infer.Logprobs{Own: make([]float32, n), TopIDs: make([]uint32, 4*n), Top: make([]float32, 4*n)}
		}
		c := r.call(0)
		c.sink.Offer(&infer.Delta{Attempt: c.attempt, IDs: ids[:1], Total: 1, Logprobs: scored(ids[:1])})
		r.settle() // and the stream has left net/http
		c.sink.Offer(&infer.Delta{Attempt: c.attempt, IDs: ids[1:], Total: len(ids), Logprobs: scored(ids[1:])})
		r.settle()
		got, _ := r.read(64 << 20)
		if !r.left.Load() || len(got) < 4<<20 || !strings.Contains(string(got), text(words()[0])) {
			t.Fatalf("the client has %d bytes", len(got))
		}
	})
}

// The ids of a prompt are let go of with the first output, when no other engine can be
// asked any more: a stream of a long prompt would hold little else.
func TestPromptIsNotKept(t *testing.T) {
	words()
	long := strings.Repeat("some more ", 400)
	for path, body := range map[string]string{
		chatPath:        `"messages":[{"role":"user","content":"` + long + `"}]`,
		completionsPath: `"prompt":"` + long + `"`,
		"/v1/messages":  `"max_tokens":9,"messages":[{"role":"user","content":"` + long + `"}]`,
		"/v1/responses": `"input":"` + long + `"`,
	} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Options{})
				defer r.close()
				r.ask(path, `{"model":"`+models.SimName+`","stream":true,`+body+`}`, 1<<20)
				c := r.call(0)
				ids := weak.Make(&c.req.Prompt[0])
				c.req = nil
				runtime.GC()
				if ids.Value() == nil {
					t.Fatal("the ids are gone before the first output")
				}
				c.sink.Offer(&infer.Delta{Attempt: c.attempt, IDs: words()[:1], Total: 1})
				r.settle()
				if !r.left.Load() {
					t.Fatal("the stream has not begun")
				}
				runtime.GC()
				if ids.Value() != nil {
					t.Error("the stream holds the prompt's ids")
				}
			})
		})
	}
}
