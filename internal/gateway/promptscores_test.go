package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/models"
)

// scoredCouple are engines whose halves meet by room and tell the log probabilities of prompts.
func scoredCouple() (p, d *tokenEngine) {
	p, d = couple(engine.ByRoom)
	for _, e := range []*tokenEngine{p, d} {
		e.facts = &engine.Facts{Carries: infer.CarriesAll, Role: e.role, Meets: e.meets}
	}
	return p, d
}

// told pushes ids with their log probabilities, and with those of the prompt where it has any.
func (c *call) told(prompt *infer.PromptLogprobs, finish *infer.Finish, ids ...uint32) {
	c.mu.Lock()
	c.total += len(ids)
	total := c.total
	c.mu.Unlock()
	l := scoreOf(0, ids)
	l.Prompt = prompt
	c.sink.Offer(&infer.Delta{Attempt: c.attempt, IDs: ids, Total: total, Received: trace.Now(), Logprobs: l, Finish: finish})
	synctest.Wait()
}

// scoresOfPrompt makes up those of a prompt.
func scoresOfPrompt(c *call) *infer.PromptLogprobs {
	ids := c.req.Prompt[*c.req.LogprobsFrom:]
	return &infer.PromptLogprobs{IDs: ids, Logprobs: *scoreOf(0, ids[1:])}
}

func askScored(fields string) string {
	return `{"model":"` + models.SimName + `","input_ids":[11,12,13],"return_logprob":true,"logprob_start_len":1` + fields + `}`
}

// what three ids' log probabilities from the second on are.
const scoredPrompt = `"input_token_logprobs":[[null,12,null],[-0.0126953125,13,null]]`

// The answer of a pair begins with the log probabilities of the prompt, which the prefill half
// tells, however much later than the decode half's first output.
func TestPairTellsPromptScores(t *testing.T) {
	for _, fields := range []string{``, `,"stream":true`, `,"stream":true,"incremental_streaming_output":true`} {
		p, d := scoredCouple()
		inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
			w := words()
			c := b.post("/generate", askScored(fields))
			prefill, decode := p.call(t, 1), d.call(t, 1)
			decode.told(nil, nil, w[0])
			time.Sleep(5 * time.Second)
			decode.told(nil, nil, w[1])
			if got := c.story(); len(got.body) > 0 {
				t.Errorf("the client has %s before the prefill half has told of the prompt", got.body)
			}
			prefill.told(scoresOfPrompt(prefill), ending(infer.ReasonLength), w[9])
			decode.told(nil, ending(infer.ReasonLength), w[2])
			a := c.answer()
			if a.status != 200 || !strings.Contains(string(a.body), scoredPrompt) || strings.Contains(fields, "stream") && !strings.HasSuffix(string(a.body), "data: [DONE]\n\n") {
				t.Errorf("%d %s", a.status, a.body)
			}
			if strings.Contains(fields, "stream") {
				first, _, _ := strings.Cut(string(a.body), "\n\n")
				if !strings.Contains(first, scoredPrompt) {
					t.Errorf("its first event is %s", first)
				}
			}
			wantLegs(t, b.wantRecord(c, "finished", ""), "p finished", "d finished")
		})
	}
}

// While the decode half's output waits, a failure of either half ends the request at once, and
// the prefill half's bound holds.
func TestPairWithoutPromptScores(t *testing.T) {
	for _, test := range []struct {
		name   string
		play   func(prefill, decode *call)
		status int
		took   time.Duration
		p, d   string
	}{
		{"the prefill half fails", func(prefill, _ *call) { prefill.fail(infer.CodeEngine, true) }, 502, 0, "p engine", "d cancelled"},
		{"the decode half fails", func(_, decode *call) { decode.fail(infer.CodeEngine, true) }, 502, 0, "p cancelled", "d engine"},
		{"the prefill half never answers", func(_, _ *call) {}, 504, time.Minute, "p deadline", "d cancelled"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, d := scoredCouple()
			inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
				began := time.Now()
				c := b.post("/generate", askScored(`,"stream":true`))
				prefill, decode := p.call(t, 1), d.call(t, 1)
				decode.told(nil, nil, words()[0])
				test.play(prefill, decode)
				time.Sleep(test.took)
				synctest.Wait()
				if a := c.answer(); a.status != test.status {
					t.Errorf("%d %s", a.status, a.body)
				}
				if took := time.Since(began); took != test.took {
					t.Errorf("it took %v", took)
				}
				wantLegs(t, b.record(c), test.p, test.d)
			})
		})
	}
}

// An engine that serves requests whole tells both itself.
func TestPromptScores(t *testing.T) {
	e := &tokenEngine{name: "a", facts: &engine.Facts{Carries: infer.CarriesAll}}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		for _, n := range []string{"1", "2"} {
			c := b.post("/generate", askScored(`,"sampling_params":{"n":`+n+`}`))
			for _, call := range e.handed()[len(e.handed())-int(n[0]-'0'):] {
				call.told(scoresOfPrompt(call), ending(infer.ReasonLength), words()[0])
			}
			if a := c.answer(); a.status != 200 || strings.Count(string(a.body), scoredPrompt) != int(n[0]-'0') {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
	})
}

// Scores of a prompt must be asked for within bounds, for tokens that exist. An engine that does
// not report them is asked for nothing.
func TestPromptScoresRefused(t *testing.T) {
	able, plain := &tokenEngine{name: "a", facts: &engine.Facts{Carries: infer.CarriesAll}}, &tokenEngine{name: "b", facts: &engine.Facts{Carries: infer.CarriesAll &^ infer.CarriesPromptLogprobs}}
	for _, c := range []struct {
		e      *tokenEngine
		fields string
		want   string
	}{
		{able, `"input_ids":[11,12,13],"logprob_start_len":3`, "input_ids has 3 tokens, so that it may be at most 2"},
		{able, `"input_ids":[[11,12,13],[11]],"logprob_start_len":1`, "input_ids[1] has 1 tokens, so that it may be at most 0"},
		{able, `"input_ids":[` + list(20_000, "7") + `],"logprob_start_len":0,"top_logprobs_num":20`, "420000 log probabilities of input_ids"},
		{able, `"input_ids":[` + list(2_000, "7") + `],"logprob_start_len":0,"top_logprobs_num":20,"sampling_params":{"n":128,"max_new_tokens":1}`, "5376000 or more"},
		{plain, `"input_ids":[11,12,13],"logprob_start_len":0`, "is not supported by engine kind"},
	} {
		inBubble(t, Options{}, []any{c.e}, func(t *testing.T, b *bench) {
			a := b.post("/generate", `{"model":"`+models.SimName+`","return_logprob":true,`+c.fields+`}`).answer()
			if a.status != 400 || !strings.Contains(string(a.body), `"param":"logprob_start_len"`) || !strings.Contains(string(a.body), c.want) {
				t.Errorf("%.80s: %d %s", c.fields, a.status, a.body)
			}
		})
	}
}
