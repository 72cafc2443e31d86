package sglang

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// object is an event, or a whole answer, as a caller reads it.
type object struct {
	Text   *string   `json:"text"`
	Index  *int      `json:"index"`
	IDs    []uint32  `json:"output_ids"`
	Prompt *[]uint32 `json:"prompt_token_ids"`
	Meta   struct {
		ID         string          `json:"id"`
		Finish     json.RawMessage `json:"finish_reason"`
		Prompt     int             `json:"prompt_tokens"`
		Completion int             `json:"completion_tokens"`
		Cached     *int            `json:"cached_tokens"`
		Latency    float64         `json:"e2e_latency"`
	} `json:"meta_info"`
}

func read(t interface{ Fatalf(string, ...any) }, data string) (o object) {
	if err := json.Unmarshal([]byte(data), &o); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return o
}

// events reads a stream; done says that its end marker came.
func events(t interface{ Fatalf(string, ...any) }, stream string) (list []object, done bool) {
	if stream == "" {
		return nil, false
	}
	for e := range strings.SplitSeq(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(e, "data: ")
		switch {
		case !ok || done:
			t.Fatalf("no event, or one after the end: %q", e)
		case data == "[DONE]":
			done = true
		default:
			list = append(list, read(t, data))
		}
	}
	return list, done
}

func encoder(t interface{ Fatalf(string, ...any) }, body string, o dialect.AnswerOptions) dialect.Encoder {
	r, err := decode(body, infer.CarriesAll)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return r.Encoder(o)
}

func TestGoldens(t *testing.T) {
	timing := func() dialect.Timing {
		return dialect.Timing{Duration: 0.25, Received: 100.5, Dispatched: 100.6, FirstSent: 100.7, Ended: 100.75, Queue: 0.01, Started: 100.62}
	}
	for _, c := range []struct {
		name, body, want string
		finish           dialect.Finish
		fail             *infer.Error
	}{
		{
			name: "cumulative", body: `{"text":"a","stream":true,"rid":"mine"}`, finish: dialect.Finish{Reason: infer.ReasonLength, Tokens: 3},
			want: `data: {"text":"A \"b","output_ids":[7,8],"meta_info":{"id":"mine","finish_reason":null,"prompt_tokens":2,"completion_tokens":2}}

data: {"text":"A \"b\nc","output_ids":[7,8,9],"meta_info":{"id":"mine","finish_reason":null,"prompt_tokens":2,"completion_tokens":3}}

data: {"text":"A \"b\ncd","output_ids":[7,8,9],"meta_info":{"id":"mine","finish_reason":{"type":"length","length":3},"prompt_tokens":2,"completion_tokens":3,"cached_tokens":1}}

data: [DONE]

`},
		{
			name: "incremental", body: `{"text":"a","stream":true,"incremental_streaming_output":true,"return_prompt_token_ids":true}`,
			finish: dialect.Finish{Reason: infer.ReasonStop, Tokens: 4, ByID: true, StopID: 2},
			want: `data: {"text":"A \"b","prompt_token_ids":[4,5],"output_ids":[7,8],"meta_info":{"id":"id","finish_reason":null,"prompt_tokens":2,"completion_tokens":2}}

data: {"text":"\nc","output_ids":[9],"meta_info":{"id":"id","finish_reason":null,"prompt_tokens":2,"completion_tokens":3}}

data: {"text":"d","output_ids":[],"meta_info":{"id":"id","finish_reason":{"type":"stop","matched":2},"prompt_tokens":2,"completion_tokens":4,"cached_tokens":1}}

data: [DONE]

`},
		{
			name: "ids alone", body: `{"text":"a","stream":true,"skip_tokenizer_init":true,"incremental_streaming_output":true,"sampling_params":{"stream_interval":9}}`,
			finish: dialect.Finish{Reason: infer.ReasonStop, Tokens: 3},
			want: `data: {"output_ids":[7,8],"meta_info":{"id":"id","finish_reason":null,"prompt_tokens":2,"completion_tokens":2}}

data: {"output_ids":[9],"meta_info":{"id":"id","finish_reason":{"type":"stop","matched":null},"prompt_tokens":2,"completion_tokens":3,"cached_tokens":1}}

data: [DONE]

`},
		{
			name: "whole", body: `{"text":"a"}`, finish: dialect.Finish{Reason: infer.ReasonStop, Tokens: 3, Stop: "\"e"},
			want: `{"text":"A \"b\ncd","output_ids":[7,8,9],"meta_info":{"id":"id","finish_reason":{"type":"stop","matched":"\"e"},"prompt_tokens":2,"completion_tokens":3,"cached_tokens":1}}`,
		},
		{
			name: "list", body: `{"text":["a"],"return_prompt_token_ids":true}`, finish: dialect.Finish{Reason: infer.ReasonStop, Tokens: 3},
			want: `[{"text":"A \"b\ncd","index":0,"prompt_token_ids":[4,5],"output_ids":[7,8,9],"meta_info":{"id":"id_0","finish_reason":{"type":"stop","matched":null},"prompt_tokens":2,"completion_tokens":3,"cached_tokens":1}}]`,
		},
		{
			name: "nothing to generate", body: `{"text":"a","sampling_params":{"max_new_tokens":0}}`, finish: dialect.Finish{Reason: infer.ReasonLength, Tokens: 1},
			want: `{"text":"","output_ids":[],"meta_info":{"id":"id","finish_reason":{"type":"length","length":0},"prompt_tokens":2,"completion_tokens":0,"cached_tokens":1}}`,
		},
		{
			name: "cut", body: `{"text":"a","stream":true,"incremental_streaming_output":true,"sampling_params":{"stream_interval":2}}`,
			fail: &infer.Error{Code: infer.CodeEngine, Message: "the engine failed", Engine: "e"},
			want: `data: {"text":"A \"b","output_ids":[7,8],"meta_info":{"id":"id","finish_reason":null,"prompt_tokens":2,"completion_tokens":2}}

data: {"text":"\ncd","output_ids":[9],"meta_info":{"id":"id","finish_reason":{"type":"abort","message":"the engine failed","status_code":502,"err_type":"engine_error"},"prompt_tokens":2,"completion_tokens":3}}

`},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := encoder(t, c.body, dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{4, 5}})
			b := a.AppendStart(nil, 0)
			b = a.AppendTokens(b, 0, []byte(`A "b`), dialect.Tokens{IDs: []uint32{7, 8}})
			b = a.AppendTokens(b, 0, []byte("\nc"), dialect.Tokens{IDs: []uint32{9}})
			b = a.AppendTokens(b, 0, []byte("d"), dialect.Tokens{})
			if c.fail != nil {
				b = a.AppendError(b, c.fail)
			} else {
				b = a.AppendFinish(b, 0, c.finish)
				b = a.AppendEnd(b, infer.Usage{PromptTokens: 2, CompletionTokens: c.finish.Tokens, CachedTokens: 1})
			}
			if string(b) != c.want {
				t.Errorf("got\n%s\nwant\n%s", b, c.want)
			}
		})
	}
	a := encoder(t, `{"text":"a"}`, dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{4, 5}, Timing: timing})
	b := a.AppendEnd(a.AppendFinish(a.AppendStart(nil, 0), 0, dialect.Finish{Reason: infer.ReasonLength, Tokens: 1}), infer.Usage{CachedTokens: -1})
	const want = `{"text":"","output_ids":[],"meta_info":{"id":"id","finish_reason":{"type":"length","length":1},"prompt_tokens":2,"completion_tokens":1,` +
		`"e2e_latency":0.250000,"request_received_ts":100.500000,"api_server_dispatch_finish_ts":100.600000,"queue_time":0.010000,` +
		`"forward_entry_time":100.620000,"response_sent_to_client_ts":100.700000,"request_finished_ts":100.750000}}`
	if string(b) != want {
		t.Errorf("got\n%s\nwant\n%s", b, want)
	}
}

// However the output is cut into deltas, a stream of either kind tells what the
// whole answer tells, every event's count is that of the ids told so far, and
// what came before a failure is told exactly too.
func TestStreamsTellTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type delta struct {
			text string
			ids  []uint32
		}
		deltas := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) delta {
			return delta{rapid.StringOfN(rapid.Rune(), 0, 5, -1).Draw(t, "text"), rapid.SliceOfN(rapid.Uint32(), 0, 9).Draw(t, "ids")}
		}), 0, 40).Draw(t, "deltas")
		noText := rapid.Bool().Draw(t, "ids alone")
		interval := rapid.IntRange(1, 12).Draw(t, "interval")
		incremental := rapid.Bool().Draw(t, "incremental")
		fails := rapid.Bool().Draw(t, "fails")
		var text string
		var ids []uint32
		for _, d := range deltas {
			text, ids = text+d.text, append(ids, d.ids...)
		}
		body := fmt.Sprintf(`{"text":"a","stream":true,"skip_tokenizer_init":%v,"incremental_streaming_output":%v,"sampling_params":{"stream_interval":%d}}`,
			noText, incremental, interval)
		a := encoder(t, body, dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{1}})
		b := a.AppendStart(nil, 0)
		for i, d := range deltas {
			b = a.AppendTokens(b, 0, []byte(d.text), dialect.Tokens{IDs: d.ids, Last: i == len(deltas)-1 && rapid.Bool().Draw(t, "last")})
		}
		if fails {
			b = a.AppendError(b, &infer.Error{Code: infer.CodeIntegrity, Message: "m"})
		} else {
			b = a.AppendFinish(b, 0, dialect.Finish{Reason: infer.ReasonLength, Tokens: len(ids)})
			b = a.AppendEnd(b, infer.Usage{CachedTokens: -1})
		}
		list, done := events(t, string(b))
		if done == fails || len(list) == 0 {
			t.Fatalf("done is %v after %d events", done, len(list))
		}
		var gotText string
		var gotIDs []uint32
		for i, e := range list {
			if noText != (e.Text == nil) {
				t.Fatalf("event %d: text is %v", i, e.Text)
			}
			if e.Text == nil {
				e.Text = new(string)
			}
			if incremental {
				gotText, gotIDs = gotText+*e.Text, append(gotIDs, e.IDs...)
			} else {
				if !strings.HasPrefix(*e.Text, gotText) || len(e.IDs) < len(gotIDs) || !slices.Equal(e.IDs[:len(gotIDs)], gotIDs) {
					t.Fatalf("event %d takes back what was said", i)
				}
				gotText, gotIDs = *e.Text, e.IDs
			}
			if e.Meta.Completion != len(gotIDs) {
				t.Fatalf("event %d counts %d after %d ids", i, e.Meta.Completion, len(gotIDs))
			}
			last := i == len(list)-1
			if (string(e.Meta.Finish) == "null") == last {
				t.Fatalf("event %d of %d: %s", i, len(list), e.Meta.Finish)
			}
			if last && fails != bytes.Contains(e.Meta.Finish, []byte(`"abort"`)) {
				t.Fatalf("the last event: %s", e.Meta.Finish)
			}
		}
		if !noText && gotText != text || !slices.Equal(gotIDs, ids) {
			t.Fatalf("%q and %v, want %q and %v", gotText, gotIDs, text, ids)
		}
	})
}

// A cumulative stream stays within its bound: some 256 times what it tells.
func TestCumulativeBound(t *testing.T) {
	a := encoder(t, `{"text":"a","stream":true}`, dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{1}})
	other := encoder(t, `{"text":"a","stream":true,"incremental_streaming_output":true}`, dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{1}})
	rng := rand.New(rand.NewPCG(1, 2))
	const tokens = 32_000
	total, events, longest, incremental := 0, 0, 0, 0
	var b []byte
	for range tokens {
		delta := dialect.Tokens{IDs: []uint32{rng.Uint32N(150_000)}}
		b = other.AppendTokens(b[:0], 0, []byte("word "), delta)
		incremental += len(b)
		b = a.AppendTokens(b[:0], 0, []byte("word "), delta)
		total += len(b)
		if longest = max(longest, len(b)); len(b) > 0 {
			events++
		}
	}
	if total > repeats*longest*5/4 || events > 3000 {
		t.Errorf("%d bytes in %d events, the longest of %d", total, events, longest)
	}
	t.Logf("%d tokens: %d events, %.1f MB; incrementally %.1f MB", tokens, events, float64(total)/1e6, float64(incremental)/1e6)
}

// Several choices are told apart by their index.
func TestChoices(t *testing.T) {
	for _, stream := range []bool{false, true} {
		prompts := [][]uint32{{1}, {2, 3}}
		a := encoder(t, fmt.Sprintf(`{"text":["a","b"],"stream":%v,"incremental_streaming_output":true}`, stream),
			dialect.AnswerOptions{ID: "id", PromptIDs: prompts[0], PromptOf: func(i int) []uint32 { return prompts[i] }})
		b := a.AppendStart(a.AppendStart(nil, 0), 1)
		b = a.AppendTokens(b, 1, []byte("B"), dialect.Tokens{IDs: []uint32{2}})
		b = a.AppendFinish(b, 1, dialect.Finish{Reason: infer.ReasonLength, Tokens: 1})
		b = a.AppendTokens(b, 0, []byte("A"), dialect.Tokens{IDs: []uint32{1}})
		b = a.AppendFinish(b, 0, dialect.Finish{Reason: infer.ReasonLength, Tokens: 1})
		b = a.AppendEnd(b, infer.Usage{CachedTokens: 3})
		var list []object
		if !stream {
			if err := json.Unmarshal(b, &list); err != nil {
				t.Fatal(err)
			}
		} else if all, done := events(t, string(b)); !done {
			t.Fatal("no end marker")
		} else {
			list = all
		}
		said := [2]string{}
		ends := [2]int{}
		for _, e := range list {
			said[*e.Index] += *e.Text
			if e.Meta.ID != fmt.Sprintf("id_%d", *e.Index) || e.Meta.Prompt != len(prompts[*e.Index]) {
				t.Errorf("%+v", e.Meta)
			}
			if string(e.Meta.Finish) != "null" {
				ends[*e.Index]++
			}
		}
		if said != [2]string{"A", "B"} || ends != [2]int{1, 1} {
			t.Errorf("stream %v: %v, %v ends in %s", stream, said, ends, b)
		}
	}
}

// numbers is a vocabulary whose words are their numbers.
type numbers struct{}

func (numbers) TokenBytes(id uint32) []byte { return fmt.Appendf(nil, "<%d>", id) }
func (numbers) Special(uint32) bool         { return false }

// Log probabilities go with their ids, exactly, in streams of both forms.
func TestLogprobs(t *testing.T) {
	for _, form := range []string{`"stream":false`, `"stream":true`, `"stream":true,"incremental_streaming_output":true`} {
		a := encoder(t, `{"text":"a",`+form+`,"return_logprob":true,"top_logprobs_num":2,"return_text_in_logprobs":true}`,
			dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{1}, Vocabulary: numbers{}})
		b := a.AppendStart(nil, 0)
		b = a.AppendTokens(b, 0, []byte("x"), dialect.Tokens{IDs: []uint32{7, 8}, Logprobs: infer.Logprobs{
			Own: []float32{-0.1, float32(math.Inf(-1))}, TopIDs: []uint32{7, 9, 3, 4}, Top: []float32{-0.1, -2, -0.5, -3}}})
		b = a.AppendTokens(b, 0, []byte("y"), dialect.Tokens{IDs: []uint32{5}, Logprobs: infer.Logprobs{Own: []float32{0}, TopIDs: []uint32{5, 6}, Top: []float32{0, -9}}})
		b = a.AppendFinish(b, 0, dialect.Finish{Reason: infer.ReasonLength, Tokens: 3})
		b = a.AppendEnd(b, infer.Usage{CachedTokens: -1})
		var own, top []json.RawMessage
		take := func(data []byte) {
			var e struct {
				Meta struct {
					Own []json.RawMessage `json:"output_token_logprobs"`
					Top []json.RawMessage `json:"output_top_logprobs"`
				} `json:"meta_info"`
			}
			if err := json.Unmarshal(data, &e); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
			if strings.Contains(form, "incremental") {
				own, top = append(own, e.Meta.Own...), append(top, e.Meta.Top...)
			} else {
				own, top = e.Meta.Own, e.Meta.Top
			}
		}
		if strings.Contains(form, "false") {
			take(b)
		} else {
			for e := range strings.SplitSeq(strings.TrimSuffix(string(b), "data: [DONE]\n\n"), "\n\n") {
				if data, ok := strings.CutPrefix(e, "data: "); ok {
					take([]byte(data))
				}
			}
		}
		const want = `[[-0.1 7 "<7>"] [-9999 8 "<8>"] [0 5 "<5>"]] [[[-0.1 7 "<7>"] [-2 9 "<9>"]] [[-0.5 3 "<3>"] [-3 4 "<4>"]] [[0 5 "<5>"] [-9 6 "<6>"]]]`
		if got := strings.ReplaceAll(fmt.Sprintf("%s %s", own, top), ",", " "); got != want {
			t.Errorf("%s:\n%s\n%s", form, got, want)
		}
	}
}

func TestAllocatesNothing(t *testing.T) {
	for _, body := range []string{`{"text":"a","stream":true,"incremental_streaming_output":true}`, `{"text":"a","stream":true}`} {
		a := encoder(t, body, dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{1}}).(*answer)
		ids, text := []uint32{1, 2}, []byte("some text")
		c := a.at(0)
		c.text, c.ids = make([]byte, 0, 1<<20), make([]byte, 0, 1<<20)
		b := make([]byte, 0, 1<<20)
		if n := testing.AllocsPerRun(500, func() { b = a.AppendTokens(b[:0], 0, text, dialect.Tokens{IDs: ids}) }); n > 0 {
			t.Errorf("%s: %v allocations per delta", body, n)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, kind := range []string{"incremental", "cumulative"} {
		b.Run(kind, func(b *testing.B) {
			body := fmt.Sprintf(`{"text":"a","stream":true,"incremental_streaming_output":%v}`, kind == "incremental")
			ids, text := []uint32{12345}, []byte(" word")
			var out []byte
			var a dialect.Encoder
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%1000 == 0 { // an answer of 1,000 tokens
					a = encoder(b, body, dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{1}})
				}
				out = a.AppendTokens(out[:0], 0, text, dialect.Tokens{IDs: ids})
			}
		})
	}
}

// The log probabilities of the prompt are told whole: by each event that repeats the answer so
// far, by the first and the last of those that tell what is new, and where nothing is generated.
func TestPromptLogprobs(t *testing.T) {
	prompt := &infer.PromptLogprobs{IDs: []uint32{4, 5, 6}, Logprobs: infer.Logprobs{Own: []float32{-0.5, float32(math.Inf(-1))}, TopIDs: []uint32{5, 9}, Top: []float32{-0.5, -1}}}
	const (
		own = `"input_token_logprobs":[[null,4,null],[-0.5,5,null],[-9999,6,null]]`
		top = `"input_top_logprobs":[null,[[-0.5,5,null]],[[-1,9,null]]]`
	)
	for _, c := range []struct {
		form string
		says []bool // of its events
	}{
		{``, []bool{true}},
		{`,"sampling_params":{"max_new_tokens":0}`, []bool{true}},
		{`,"stream":true,"sampling_params":{"max_new_tokens":0}`, []bool{true}},
		{`,"stream":true`, []bool{true, true, true}},
		{`,"stream":true,"incremental_streaming_output":true`, []bool{true, false, true}},
	} {
		for _, with := range []string{"0", "1"} {
			a := encoder(t, `{"text":"a","return_logprob":true,"logprob_start_len":0,"top_logprobs_num":`+with+c.form+`}`, dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{4, 5, 6}})
			p := *prompt
			if with == "0" {
				p.Top, p.TopIDs = nil, nil
			}
			told := func(ids []uint32) dialect.Tokens {
				l := infer.Logprobs{Own: make([]float32, len(ids)), Prompt: &p}
				if with == "1" {
					l.Top, l.TopIDs = make([]float32, len(ids)), make([]uint32, len(ids))
				}
				return dialect.Tokens{IDs: ids, Logprobs: l}
			}
			b := a.AppendStart(nil, 0)
			b = a.AppendTokens(b, 0, []byte("x"), told([]uint32{7}))
			b = a.AppendTokens(b, 0, []byte("y"), told([]uint32{8}))
			b = a.AppendFinish(b, 0, dialect.Finish{Reason: infer.ReasonLength, Tokens: 2})
			b = a.AppendEnd(b, infer.Usage{CachedTokens: -1})
			var says []bool
			for e := range strings.SplitSeq(strings.TrimSuffix(string(b), "data: [DONE]\n\n"), "\n\n") {
				if e == "" {
					continue
				}
				read(t, strings.TrimPrefix(e, "data: "))
				if says = append(says, strings.Contains(e, own)); says[len(says)-1] != (with == "1" && strings.Contains(e, top)) && with == "1" {
					t.Errorf("%s: one without the other: %s", c.form, e)
				}
			}
			if !slices.Equal(says, c.says) {
				t.Errorf("%s: %v of its events tell them, want %v:\n%s", c.form, says, c.says, b)
			}
		}
	}
}

// Those of a long prompt count for the bound of a cumulative stream as the answer does.
func TestPromptBound(t *testing.T) {
	a := encoder(t, `{"text":"a","stream":true,"return_logprob":true,"logprob_start_len":0}`, dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{1}})
	const prompt, tokens = 20_000, 4_000
	p := &infer.PromptLogprobs{IDs: make([]uint32, prompt), Logprobs: infer.Logprobs{Own: make([]float32, prompt-1)}}
	total, longest := 0, 0
	var b []byte
	for range tokens {
		b = a.AppendTokens(b[:0], 0, []byte("word "), dialect.Tokens{IDs: []uint32{7}, Logprobs: infer.Logprobs{Own: []float32{-1}, Prompt: p}})
		total, longest = total+len(b), max(longest, len(b))
	}
	if total > longest*tokens/(prompt/repeats)*5/4 {
		t.Errorf("%d bytes, the longest event of %d", total, longest)
	}
}
