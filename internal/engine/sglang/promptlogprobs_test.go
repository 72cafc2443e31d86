package sglang

import (
	"slices"
	"strings"
	"testing"

	"weir/internal/engine/enginetest"
	"weir/internal/infer"
)

// promptMeta is what a server tells of the ids 5, 6 and 7 of a prompt, from the first one on.
const (
	promptMeta    = `"input_token_logprobs":[[null,5,null],[-0.5,6,null],[-1.25,7,null]]`
	promptTopMeta = `,"input_top_logprobs":[null,[[-0.25,9,null],[-0.5,6,null]],[[-1.25,7,null],[-2,8,null]]]`
)

// askScores asks for the log probabilities of a prompt of three ids too.
func askScores(b *enginetest.Bench, from, top int) *enginetest.Call {
	req := b.Request(4)
	req.Prompt, req.Logprobs, req.LogprobsFrom = []uint32{5, 6, 7}, &top, &from
	c := b.GoWith(b.Ctx, req)
	if b.Wait(c); c.Err != nil {
		b.T.Fatal(c.Err)
	}
	return c
}

// The log probabilities of a prompt come with the first ids, once, whatever the form of the
// chunks, each of which repeats them.
func TestPromptLogprobs(t *testing.T) {
	for _, f := range []form{cumulative, incremental} {
		for _, c := range []struct {
			name, meta string
			from, top  int
			want       infer.PromptLogprobs
		}{
			{"of all", promptMeta, 0, 0, infer.PromptLogprobs{IDs: []uint32{5, 6, 7}, Logprobs: infer.Logprobs{Own: []float32{-0.5, -1.25}}}},
			{"of some", `"input_token_logprobs":[[null,6,null],[-1.25,7,null]]`, 1, 0, infer.PromptLogprobs{IDs: []uint32{6, 7}, Logprobs: infer.Logprobs{Own: []float32{-1.25}}}},
			{"of the last", `"input_token_logprobs":[[null,7,null]]`, 2, 0, infer.PromptLogprobs{IDs: []uint32{7}}},
			{"with alternatives", promptMeta + promptTopMeta, 0, 2, infer.PromptLogprobs{IDs: []uint32{5, 6, 7},
				Logprobs: infer.Logprobs{Own: []float32{-0.5, -1.25}, TopIDs: []uint32{9, 6, 7, 8}, Top: []float32{-0.25, -0.5, -1.25, -2}}}},
			{"spaced", strings.ReplaceAll(promptMeta, ",", ", "), 0, 0, infer.PromptLogprobs{IDs: []uint32{5, 6, 7}, Logprobs: infer.Logprobs{Own: []float32{-0.5, -1.25}}}},
			{"with texts", strings.ReplaceAll(promptMeta, `6,null`, `6,"a]}"`), 0, 0, infer.PromptLogprobs{IDs: []uint32{5, 6, 7}, Logprobs: infer.Logprobs{Own: []float32{-0.5, -1.25}}}},
		} {
			t.Run(f.String()+" "+c.name, func(t *testing.T) {
				p := newPeer(t, f)
				p.promptMeta = c.meta
				b := enginetest.Start(t, enginetest.Rig{Engine: New(p.options()), Peer: p, Alone: true, Panics: &p.panics})
				call := askScores(b, c.from, c.top)
				p.Step(enginetest.Out{ID: call.Request.ID, IDs: []uint32{11, 12}, Logprobs: scoresOf(c.top, 11, 12)})
				p.Step(enginetest.Out{ID: call.Request.ID, IDs: []uint32{13}, Logprobs: scoresOf(c.top, 13), Finish: infer.ReasonLength})
				b.WantFinish(call, infer.ReasonLength)
				if faults := call.Sink.Faults(); len(faults) > 0 {
					t.Error(faults)
				}
				got := call.Sink.Logprobs().Prompt
				if got == nil || !slices.Equal(got.IDs, c.want.IDs) || !slices.Equal(got.Own, c.want.Own) || !slices.Equal(got.Top, c.want.Top) || !slices.Equal(got.TopIDs, c.want.TopIDs) {
					t.Errorf("%+v, want %+v", got, c.want)
				}
			})
		}
	}
}

// Log probabilities that are not those of the prompt that was sent end the stream.
func TestPromptLogprobsWrong(t *testing.T) {
	for name, meta := range map[string]string{
		"none":                      `"input_token_logprobs":[]`,
		"null":                      `"input_token_logprobs":null`,
		"too few":                   `"input_token_logprobs":[[null,6,null],[-1.25,7,null]]`,
		"of other ids":              strings.ReplaceAll(promptMeta, "6", "8"),
		"of another first":          strings.ReplaceAll(promptMeta, "5,", "8,"),
		"no numbers":                strings.ReplaceAll(promptMeta, "-0.5", `[]`),
		"no alternatives":           promptMeta,
		"alternatives of too few":   promptMeta + `,"input_top_logprobs":[null,[[-0.25,9,null],[-0.5,6,null]]]`,
		"alternatives of the first": promptMeta + strings.Replace(promptTopMeta, "null", "[[-1,2,null],[-1,3,null]]", 1),
	} {
		t.Run(name, func(t *testing.T) {
			top := 0
			if strings.Contains(name, "alternatives") {
				top = 2
			}
			p := newPeer(t, cumulative)
			p.promptMeta = meta
			b := enginetest.Start(t, enginetest.Rig{Engine: New(p.options()), Peer: p, Alone: true, Panics: &p.panics})
			call := askScores(b, 0, top)
			p.Step(enginetest.Out{ID: call.Request.ID, IDs: []uint32{11}, Logprobs: scoresOf(top, 11)})
			if f := b.WantFinish(call, infer.ReasonError); f.Err.Code != infer.CodeIntegrity {
				t.Errorf("%+v", f.Err)
			}
		})
	}
}

// scoresOf makes up log probabilities of ids.
func scoresOf(top int, ids ...uint32) *infer.Logprobs {
	l := new(infer.Logprobs)
	for _, id := range ids {
		l.Own = append(l.Own, -1)
		for range top {
			l.TopIDs, l.Top = append(l.TopIDs, id), append(l.Top, -1)
		}
	}
	return l
}
