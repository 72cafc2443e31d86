package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"weir/internal/gateway/attempt"
	"weir/internal/infer"
	"weir/internal/model/tokenizer"
	"weir/internal/trace"
	"weir/models"
)

// scored are the log probabilities that an answer states of its tokens, read back
// as what the engine said.
type scored struct {
	tokens []string
	values []float64
	texts  [][]string
	// For completions.
	offsets []int
}

type chatEntry struct {
	Token   string
	Logprob float64
	Bytes   []byte
	Top     []struct {
		Token   string
		Logprob float64
	} `json:"top_logprobs"`
}

// UnmarshalJSON reads bytes as a list of numbers, which is not how Go writes them.
func (e *chatEntry) UnmarshalJSON(b []byte) error {
	var raw struct {
		Token   string
		Logprob float64
		Bytes   []int
		Top     []struct {
			Token   string
			Logprob float64
		} `json:"top_logprobs"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	e.Token, e.Logprob, e.Top = raw.Token, raw.Logprob, raw.Top
	for _, c := range raw.Bytes {
		e.Bytes = append(e.Bytes, byte(c))
	}
	return nil
}

// toldChoice is what a choice was told, in chunks or at once.
type toldChoice struct {
	text, reasoning, bytes string
	finish                 string
	entries                []chatEntry
	columns                scored
	ids, prompt            []uint32
	chunks                 int
}

// choicesOf reads an answer's choices: a stream's by their index.
func choicesOf(t testing.TB, body []byte, n int) []toldChoice {
	t.Helper()
	out := make([]toldChoice, n)
	docs := [][]byte{body}
	if strings.HasPrefix(string(body), "data: ") {
		docs = nil
		for event := range strings.SplitSeq(string(body), "\n\n") {
			if data, ok := strings.CutPrefix(event, "data: "); ok && data != "[DONE]" {
				docs = append(docs, []byte(data))
			}
		}
	}
	for _, doc := range docs {
		var o struct {
			Choices []struct {
				callerChoice
				Logprobs *struct {
					Content []chatEntry
					Tokens  []string
					Values  []float64            `json:"token_logprobs"`
					Tops    []map[string]float64 `json:"top_logprobs"`
					Offsets []int                `json:"text_offset"`
				}
				IDs    []uint32 `json:"token_ids"`
				Prompt []uint32 `json:"prompt_token_ids"`
			}
		}
		if err := json.Unmarshal(doc, &o); err != nil {
			t.Fatalf("%v: %s", err, doc)
		}
		for _, c := range o.Choices {
			if c.Index >= n {
				t.Fatalf("choice %d of %d", c.Index, n)
			}
			to := &out[c.Index]
			if to.finish != "" {
				t.Fatalf("choice %d goes on after its end: %s", c.Index, doc)
			}
			to.chunks++
			to.text += c.Text + c.Delta.Content + c.Message.Content
			to.reasoning += c.Delta.Reasoning + c.Message.Reasoning
			to.ids, to.prompt = append(to.ids, c.IDs...), append(to.prompt, c.Prompt...)
			if c.FinishReason != nil {
				to.finish = *c.FinishReason
			}
			l := c.Logprobs
			if l == nil {
				continue
			}
			to.entries = append(to.entries, l.Content...)
			for _, e := range l.Content {
				to.bytes += string(e.Bytes)
			}
			s := &to.columns
			s.tokens, s.values, s.offsets = append(s.tokens, l.Tokens...), append(s.values, l.Values...), append(s.offsets, l.Offsets...)
			for _, m := range l.Tops {
				var texts []string
				for k := range m {
					texts = append(texts, k)
				}
				slices.Sort(texts)
				s.texts = append(s.texts, texts)
			}
		}
	}
	return out
}

// callsOf gives the generations of a request by the choices that they are of.
func (e *tokenEngine) callsOf(t testing.TB, n int) []*call {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.calls) != n {
		t.Fatalf("engine %s was handed %d requests, want %d", e.name, len(e.calls), n)
	}
	out := make([]*call, n)
	for _, c := range e.calls {
		i := uint32(0)
		if s, ok := c.sink.(*attempt.ChoiceSink); ok {
			i = s.Choice
		}
		out[i] = c
	}
	return out
}

// n choices are n generations on one engine, each with an id and a seed of its own
// and under one reservation; they come interleaved, and the answer ends with the
// last of them.
func TestChoices(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			e := &tokenEngine{name: "a"}
			opts := Options{}
			opts.Prepare.Limits.Requests = 1
			inBubble(t, opts, []any{e}, func(t *testing.T, b *bench) {
				w := words()
				c := b.post(chatPath, askChat(fmt.Sprintf(`,"stream":%t,"n":3,"seed":7,"max_tokens":9`, stream)))
				calls := e.callsOf(t, 3)
				seen := map[string]bool{}
				for i, call := range calls {
					if r := call.req; seen[r.ID] || *r.Sampling.Seed != 7+int64(i) || r.MaxTokens != 9 || !slices.Equal(r.Prompt, calls[0].req.Prompt) {
						t.Errorf("choice %d: %+v", i, r)
					}
					seen[call.req.ID] = true
				}
				if f := b.post(chatPath, askChat(``)).refusal(429); f.code() == "" {
					t.Errorf("a second request was let in: %+v", f)
				}
				calls[2].send(w[20])
				calls[0].send(w[0:2]...)
				calls[1].send(w[10])
				calls[2].end(infer.ReasonStop, w[21])
				calls[1].end(infer.ReasonLength, w[11], w[12])
				if a := c.answer(); a.whole || strings.Contains(string(a.body), "[DONE]") {
					t.Fatalf("the answer is whole before its last choice: %s", a.body)
				}
				f := ending(infer.ReasonStop)
				f.CachedTokens = 3
				calls[0].offer(w[2:3], f)
				synctest.Wait()
				a := c.answer()
				got := choicesOf(t, a.body, 3)
				for i, want := range []toldChoice{{text: text(w[0:3]...), finish: "stop"}, {text: text(w[10:13]...), finish: "length"}, {text: text(w[20:22]...), finish: "stop"}} {
					if got[i].text != want.text || got[i].finish != want.finish {
						t.Errorf("choice %d: %+v, want %+v", i, got[i], want)
					}
				}
				if !a.whole || stream && !strings.HasSuffix(string(a.body), "data: [DONE]\n\n") {
					t.Errorf("not whole: %s", a.body)
				}
				prompt := len(calls[0].req.Prompt)
				if r := b.wantRecord(c, "finished", ""); r.Completion != 8 || r.Prompt != prompt {
					t.Errorf("record %+v", r)
				}
				if !stream {
					var o object
					if err := json.Unmarshal(a.body, &o); err != nil || o.Usage.Prompt != prompt || o.Usage.Completion != 8 || o.Usage.Total != prompt+8 || o.Usage.Details != nil {
						t.Errorf("usage %+v, %v", o.Usage, err)
					}
				}
				for i, call := range calls {
					if call.aborted() {
						t.Errorf("choice %d ended by itself and was aborted", i)
					}
				}
			})
		})
	}
}

// Prompts in a list are choices each, in the order of the list; with n, n of each.
func TestPromptList(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		w := words()
		c := b.post(completionsPath, `{"model":"`+models.SimName+`","prompt":["one",[300,301],"three"],"n":2,"max_tokens":4,"return_token_ids":true}`)
		calls := e.callsOf(t, 6)
		for i, call := range calls {
			if i%2 == 1 && !slices.Equal(call.req.Prompt, calls[i-1].req.Prompt) {
				t.Errorf("choice %d has another prompt than the one before", i)
			}
			f := ending(infer.ReasonStop)
			f.CachedTokens = 1 + i%2
			call.offer(w[i:i+1], f)
		}
		if p := calls[2].req.Prompt; !slices.Equal(p, []uint32{300, 301}) {
			t.Errorf("the second prompt is %v", p)
		}
		synctest.Wait()
		a := c.answer()
		prompts := 0
		for i, got := range choicesOf(t, a.body, 6) {
			if got.text != text(w[i]) || !slices.Equal(got.ids, w[i:i+1]) || !slices.Equal(got.prompt, calls[i].req.Prompt) {
				t.Errorf("choice %d: %+v", i, got)
			}
			if i%2 == 0 {
				prompts += len(calls[i].req.Prompt)
			}
		}
		var o object
		if err := json.Unmarshal(a.body, &o); err != nil || o.Usage.Prompt != prompts || o.Usage.Completion != 6 || o.Usage.Details.Cached != 3 {
			t.Errorf("usage %+v, %v; want %d ids of prompts", o.Usage, err, prompts)
		}
		b.wantRecord(c, "finished", "")
	})
	inBubble(t, Options{}, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
		c := b.post(completionsPath, `{"model":"`+models.SimName+`","prompt":[[300],[301,4294967295]],"max_tokens":4}`)
		if f := c.refusal(400); f.Param == nil || *f.Param != "prompt[1]" {
			t.Errorf("%+v", f)
		}
	})
}

// A failure of one choice is a failure of all: the others are aborted, and the client gets an
// error, or another engine takes all of them if nothing has been sent.
func TestChoiceFails(t *testing.T) {
	t.Run("after output", func(t *testing.T) {
		e := &tokenEngine{name: "a"}
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			w := words()
			c := b.post(chatPath, askStream(`,"n":3`))
			calls := e.callsOf(t, 3)
			calls[0].send(w[0])
			calls[2].end(infer.ReasonStop)
			calls[1].fail(infer.CodeEngine, true)
			s := c.story()
			if s.err == nil || s.err.code() != "engine_error" || s.done || s.whole || !s.closed {
				t.Errorf("error %+v, done %t, whole %t, closed %t", s.err, s.done, s.whole, s.closed)
			}
			if !calls[0].aborted() || calls[2].aborted() {
				t.Errorf("aborted: %t and %t, want those that had not ended", calls[0].aborted(), calls[2].aborted())
			}
			b.wantRecord(c, "failed", "engine")
		})
	})
	t.Run("before output", func(t *testing.T) {
		a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
		inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
			w := words()
			c := b.post(chatPath, askChat(`,"n":2`))
			first := a.callsOf(t, 2)
			first[0].end(infer.ReasonStop, w[5]) // whole, and thrown away with its attempt
			first[1].fail(infer.CodeEngine, true)
			second := z.callsOf(t, 2)
			first[0].raw(w[6:7], 2, nil)
			second[0].end(infer.ReasonStop, w[0])
			second[1].end(infer.ReasonStop, w[1])
			got := choicesOf(t, c.answer().body, 2)
			if got[0].text != text(w[0]) || got[1].text != text(w[1]) {
				t.Errorf("%+v", got)
			}
			wantLegs(t, b.wantRecord(c, "finished", ""), "a engine", "z finished")
		})
	})
	t.Run("refused", func(t *testing.T) {
		e := &tokenEngine{name: "a"}
		n := 0
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			e.accept = refuse(infer.CodeInvalid, false)
			c := b.post(chatPath, askChat(`,"n":4`))
			c.refusal(400)
			n = len(e.calls)
			b.wantRecord(c, "rejected", "invalid")
		})
		if n != 4 {
			t.Errorf("%d hand-overs", n)
		}
	})
	t.Run("does not add up", func(t *testing.T) {
		e := &tokenEngine{name: "a"}
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			w := words()
			c := b.post(chatPath, askStream(`,"n":2`))
			calls := e.callsOf(t, 2)
			calls[0].end(infer.ReasonStop, w[0])
			calls[1].raw(w[1:2], 5, nil)
			synctest.Wait()
			if s := c.story(); s.err == nil || s.err.code() != "integrity_error" || s.done {
				t.Errorf("%+v", s.err)
			}
			b.wantRecord(c, "failed", "integrity")
		})
	})
	t.Run("hang-up", func(t *testing.T) {
		e := &tokenEngine{name: "a"}
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, askStream(`,"n":3`))
			calls := e.callsOf(t, 3)
			calls[1].send(words()[0])
			c.hangUp()
			for i, call := range calls {
				if !call.aborted() {
					t.Errorf("choice %d goes on without a client", i)
				}
			}
			b.wantRecord(c, "cancelled", "cancelled")
		})
	})
}

// A stop string ends its own choice, in the middle of a delta, and no other.
func TestStopStringOfOneChoice(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		w := words()
		stop := text(w[3])
		c := b.post(chatPath, askStream(fmt.Sprintf(`,"n":2,"stop":[%q]`, stop)))
		calls := e.callsOf(t, 2)
		calls[0].send(w[0], w[3], w[1])
		calls[0].send(w[2]) // what was under way
		if !calls[0].aborted() || calls[1].aborted() {
			t.Errorf("aborted: %t, %t; want the first alone", calls[0].aborted(), calls[1].aborted())
		}
		calls[1].send(w[1])
		calls[0].end(infer.ReasonAbort)
		calls[1].end(infer.ReasonStop, w[2])
		a := c.answer()
		got := choicesOf(t, a.body, 2)
		if got[0].text != text(w[0]) || got[1].text != text(w[1], w[2]) || got[0].finish != "stop" || !a.whole {
			t.Errorf("%+v, whole %t", got, a.whole)
		}
		if r := b.wantRecord(c, "finished", ""); r.Completion != 4 {
			t.Errorf("%d ids count", r.Completion)
		}
	})
}

// scoreOf makes up log probabilities that say which id they are of.
func scoreOf(top int, ids []uint32) *infer.Logprobs {
	l := new(infer.Logprobs)
	for _, id := range ids {
		l.Own = append(l.Own, -float32(id)/1024)
		for k := range top {
			l.TopIDs, l.Top = append(l.TopIDs, id+uint32(k)), append(l.Top, -float32(id)/1024-float32(k))
		}
	}
	return l
}

// However output is cut into deltas, and whatever is held back of its text: each
// token that counts has one entry, in its order, with its own text and bytes, of
// both endpoints, streamed and whole, up to the token that completed a stop string.
func TestLogprobs(t *testing.T) {
	m := simModel()
	var ids []uint32
	for id := range uint32(m.VocabSize) {
		if m.Tokenizer.Known(id) {
			ids = append(ids, id)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		top := rapid.IntRange(0, 3).Draw(rt, "top")
		n := rapid.IntRange(1, 2).Draw(rt, "n")
		chat := rapid.Bool().Draw(rt, "chat")
		stream := rapid.Bool().Draw(rt, "stream")
		said := make([][]uint32, n)
		for i := range said {
			// Parts of runes and special ids among them.
			said[i] = rapid.SliceOfN(rapid.SampledFrom(ids), 1, 12).Draw(rt, "ids")
		}
		stop := ""
		if rapid.Bool().Draw(rt, "stop") {
			full := m.Tokenizer.Decode(said[0], true)
			if at := strings.LastIndexFunc(full, func(r rune) bool { return r > ' ' && r < 127 && r != '"' && r != '\\' }); at >= 0 {
				stop = full[at : at+1]
			}
		}
		cuts := rapid.SliceOfN(rapid.IntRange(1, 5), 32, 32).Draw(rt, "deltas of")
		waits := rapid.SliceOfN(rapid.Bool(), 32, 32).Draw(rt, "taken")
		var failed error
		e := &tokenEngine{name: "a"}
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			fail := func(format string, args ...any) {
				if failed == nil {
					failed = fmt.Errorf(format, args...)
				}
			}
			fields := fmt.Sprintf(`,"stream":%t,"n":%d,"max_tokens":100,"return_token_ids":true`, stream, n)
			if stop != "" {
				fields += fmt.Sprintf(`,"stop":%q`, stop)
			}
			var c *caller
			if chat {
				c = b.post(chatPath, askChat(fields+fmt.Sprintf(`,"logprobs":true,"top_logprobs":%d`, top)))
			} else {
				c = b.post(completionsPath, askText(fields+fmt.Sprintf(`,"logprobs":%d`, top)))
			}
			for i, call := range e.callsOf(t, n) {
				if got := call.req.Logprobs; got == nil || *got != top {
					fail("the engine is asked for %v alternatives", got)
				}
				for rest := said[i]; len(rest) > 0; {
					k := min(cuts[0], len(rest))
					cuts = append(cuts[1:], cuts[0])
					part := rest[:k]
					rest = rest[k:]
					call.mu.Lock()
					call.total += k
					total := call.total
					call.mu.Unlock()
					d := &infer.Delta{Attempt: call.attempt, IDs: part, Total: total, Received: trace.Now(), Logprobs: scoreOf(top, part)}
					if len(rest) == 0 {
						d.Finish = ending(infer.ReasonLength)
					}
					call.sink.Offer(d)
					waits = append(waits[1:], waits[0])
					if waits[0] {
						synctest.Wait()
					}
				}
			}
			synctest.Wait()
			a := c.answer()
			if !a.whole || a.status != 200 {
				fail("status %d: %s", a.status, a.body)
				return
			}
			for i, got := range choicesOf(t, a.body, n) {
				// The ids that count are told on their own; entries are theirs.
				if len(got.ids) > len(said[i]) || !slices.Equal(got.ids, said[i][:len(got.ids)]) || stop == "" && len(got.ids) != len(said[i]) {
					fail("choice %d: ids %v of %v", i, got.ids, said[i])
					return
				}
				want := scoreOf(top, got.ids)
				offset := 0
				for k, id := range got.ids {
					bytes := m.Tokenizer.TokenBytes(id)
					if chat {
						if len(got.entries) != len(got.ids) {
							fail("choice %d: %d entries for %d ids", i, len(got.entries), len(got.ids))
							return
						}
						x := got.entries[k]
						if float32(x.Logprob) != want.Own[k] || string(x.Bytes) != string(bytes) || len(x.Top) != top {
							fail("entry %+v of id %d", x, id)
							return
						}
						for j := range top {
							if float32(x.Top[j].Logprob) != want.Top[k*top+j] {
								fail("entry %+v, alternative %d of id %d", x, j, id)
							}
						}
						continue
					}
					s := &got.columns
					if len(s.tokens) != len(got.ids) || len(s.values) != len(got.ids) || len(s.texts) != len(got.ids) || len(s.offsets) != len(got.ids) {
						fail("choice %d: %+v for %d ids", i, s, len(got.ids))
						return
					}
					if float32(s.values[k]) != want.Own[k] || s.offsets[k] != offset || len(s.texts[k]) == 0 || !slices.Contains(s.texts[k], s.tokens[k]) {
						fail("choice %d, token %d: %q %v at %d (want %d), alternatives %q", i, k, s.tokens[k], s.values[k], s.offsets[k], offset, s.texts[k])
					}
					if !m.Tokenizer.Special(id) {
						for _, c := range bytes {
							if c&0xc0 != 0x80 {
								offset++
							}
						}
					}
				}
			}
		})
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

// With reasoning, every token has its entry all the same, reasoning's too.
func TestLogprobsOfReasoning(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		ids, err := simModel().Tokenizer.NewEncoder().Encode(t.Context(), nil, "<think>\nso\n</think>\n\nyes", tokenizer.EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c := b.post(chatPath, askStream(`,"logprobs":true`))
		call := e.call(t, 1)
		for i := range ids {
			f := (*infer.Finish)(nil)
			if i == len(ids)-1 {
				f = ending(infer.ReasonStop)
			}
			call.sink.Offer(&infer.Delta{Attempt: call.attempt, IDs: ids[i : i+1], Total: i + 1, Received: trace.Now(), Logprobs: scoreOf(0, ids[i:i+1]), Finish: f})
			synctest.Wait()
		}
		got := choicesOf(t, c.answer().body, 1)[0]
		if len(got.entries) != len(ids) || !strings.Contains(got.reasoning, "so") || !strings.HasPrefix(got.text, "yes") {
			t.Errorf("%d entries for %d ids; reasoning %q, text %q", len(got.entries), len(ids), got.reasoning, got.text)
		}
	})
}

// Where an engine sends none, or for another number of ids, the answer ends with
// an integrity error.
func TestLogprobsMissing(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(`,"logprobs":true`))
		e.call(t, 1).send(words()[0])
		if f := c.refusal(502); f.code() != "integrity_error" {
			t.Errorf("%+v", f)
		}
	})
}
