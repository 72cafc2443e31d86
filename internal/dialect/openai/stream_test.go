package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/wire/sse"
)

func TestStream(t *testing.T) {
	for _, test := range []struct {
		name    string
		options streamOptions
		want    []string
	}{
		{"chat", streamOptions{endpoint: Chat, AnswerOptions: dialect.AnswerOptions{ID: "1", Created: 1700000000, Model: `a/"b"`}}, []string{
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"a/\"b\"","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"a/\"b\"","choices":[{"index":0,"delta":{"content":"héllo \"wörld\"\n"},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"a/\"b\"","choices":[{"index":12,"delta":{"content":"x"},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"a/\"b\"","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}`,
			`[DONE]`,
		}},
		{"completions with usage", streamOptions{endpoint: Completions, includeUsage: true, AnswerOptions: dialect.AnswerOptions{ID: "2", Created: 5, Model: "m"}}, []string{
			`{"id":"cmpl-2","object":"text_completion","created":5,"model":"m","choices":[{"index":0,"text":"héllo \"wörld\"\n","logprobs":null,"finish_reason":null}],"usage":null}`,
			`{"id":"cmpl-2","object":"text_completion","created":5,"model":"m","choices":[{"index":12,"text":"x","logprobs":null,"finish_reason":null}],"usage":null}`,
			`{"id":"cmpl-2","object":"text_completion","created":5,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}],"usage":null}`,
			`{"id":"cmpl-2","object":"text_completion","created":5,"model":"m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}}`,
			`[DONE]`,
		}},
	} {
		s := newStream(test.options)
		out := s.AppendStart(nil, 0)
		out = s.AppendText(out, 0, []byte("héllo \"wörld\"\n"))
		out = s.AppendText(out, 12, []byte("x"))
		out = s.AppendFinish(out, 0, dialect.Finish{Reason: infer.ReasonLength})
		out = s.AppendEnd(out, infer.Usage{PromptTokens: 3, CompletionTokens: 4})
		if diff := cmp.Diff(test.want, dataOf(t, out)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

// With continuous usage each chunk has that of its choice so far, as vLLM writes it, and
// the last one all.
func TestContinuousUsage(t *testing.T) {
	generated := map[int]int{}
	for _, endpoint := range []Endpoint{Chat, Completions} {
		s := newStream(streamOptions{endpoint: endpoint, includeUsage: true, countAlong: true, AnswerOptions: dialect.AnswerOptions{
			ID: "1", Model: "m", PromptIDs: []uint32{1, 2, 3}, Generated: func(choice int) int { return generated[choice] },
			PromptOf: func(choice int) []uint32 { return make([]uint32, 3+choice) },
		}})
		generated[0], generated[1] = 1, 2
		out := s.AppendStart(nil, 0)
		out = s.AppendText(out, 0, []byte("a"))
		out = s.AppendText(out, 1, []byte("b"))
		generated[0] = 4
		if endpoint == Chat {
			out = s.CloseDelta(s.AppendDelta(s.OpenDelta(out, 1, dialect.DeltaReasoning, 0), []byte("r")))
			out = s.AppendCall(out, 0, 0, "i", "f")
			out = s.CloseDelta(s.AppendDelta(s.OpenDelta(out, 0, dialect.DeltaArguments, 0), []byte("{}")))
		}
		out = s.AppendTokens(out, 0, []byte("t"), dialect.Tokens{IDs: []uint32{5}})
		generated[0] = 5
		out = s.AppendFinish(out, 0, dialect.Finish{Reason: infer.ReasonStop})
		out = s.AppendEnd(out, infer.Usage{PromptTokens: 3, CompletionTokens: 7})
		var got []string
		for _, data := range dataOf(t, out) {
			if i := strings.Index(data, `"usage":`); i > 0 {
				var c struct {
					Usage struct {
						Prompt     int `json:"prompt_tokens"`
						Completion int `json:"completion_tokens"`
						Total      int `json:"total_tokens"`
					}
				}
				if err := json.Unmarshal([]byte(data), &c); err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprint(c.Usage.Prompt, " ", c.Usage.Completion, " ", c.Usage.Total))
			} else {
				got = append(got, data)
			}
		}
		want := []string{"3 0 3", "3 1 4", "3 2 5", "3 2 5", "3 4 7", "3 4 7", "3 4 7", "3 5 8", "3 7 10", "[DONE]"}
		if endpoint == Completions {
			want = []string{"3 1 4", "4 2 6", "3 4 7", "3 5 8", "3 7 10", "[DONE]"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v: %s", endpoint, diff)
		}
	}
	s := newStream(streamOptions{endpoint: Chat, includeUsage: true, countAlong: true, AnswerOptions: dialect.AnswerOptions{PromptIDs: []uint32{1}, Generated: func(int) int { return 2 }}})
	const chunk = `data: {"id":"chatcmpl-","object":"chat.completion.chunk","created":0,"model":"","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}` + "\n\n"
	if got := string(s.AppendText(nil, 0, []byte("a"))); got != chunk {
		t.Errorf("%s", got)
	}
	room := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { s.AppendText(room, 0, []byte("a")) }); n != 0 {
		t.Errorf("a chunk with its usage allocates %v times", n)
	}
}

// dataOf takes events apart and checks that each is JSON or the marker, and
// that the last one is whole.
func dataOf(t *testing.T, stream []byte) (data []string) {
	t.Helper()
	var p sse.Parser
	p.Feed(stream)
	for ev, ok := p.Next(); ok; ev, ok = p.Next() {
		if string(ev.Data) != sse.DoneMarker && !json.Valid(ev.Data) {
			t.Errorf("%q is not JSON", ev.Data)
		}
		data = append(data, string(ev.Data))
	}
	if p.Partial() || p.Err() != nil {
		t.Errorf("%q is not whole: %v", stream, p.Err())
	}
	return data
}

func TestUnknownCachedTokens(t *testing.T) {
	s := newStream(streamOptions{endpoint: Completions, includeUsage: true, AnswerOptions: dialect.AnswerOptions{ID: "1", Model: "m"}})
	want := []string{`{"id":"cmpl-1","object":"text_completion","created":0,"model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`, "[DONE]"}
	got := dataOf(t, s.AppendEnd(nil, infer.Usage{PromptTokens: 1, CompletionTokens: 2, CachedTokens: -1}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestResponse(t *testing.T) {
	usage := infer.Usage{PromptTokens: 3, CompletionTokens: 4, CachedTokens: 2}
	const details = `"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}}}`
	for endpoint, want := range map[Endpoint]string{
		Chat:        `{"id":"chatcmpl-1","object":"chat.completion","created":5,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a\tb","refusal":null},"logprobs":null,"finish_reason":"stop"}],` + details,
		Completions: `{"id":"cmpl-1","object":"text_completion","created":5,"model":"m","choices":[{"index":0,"text":"a\tb","logprobs":null,"finish_reason":"stop"}],` + details,
	} {
		o := streamOptions{endpoint: endpoint, includeUsage: true, AnswerOptions: dialect.AnswerOptions{ID: "1", Created: 5, Model: "m"}}
		got := wholeOf(o, &choice{text: []byte("a\tb")}, infer.ReasonStop, usage)
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%v: %s", endpoint, diff)
		}
		if !json.Valid(got) {
			t.Errorf("%s is not JSON", got)
		}
	}
}

// wholeOf appends an answer with one choice, of which the encoder is told all.
func wholeOf(o streamOptions, c *choice, reason infer.Reason, u infer.Usage) []byte {
	var e dialect.Encoder = &whole{streamOptions: o}
	out := e.AppendStart(nil, 0)
	delta := func(d dialect.Delta, call int, text []byte) {
		out = e.OpenDelta(out, 0, d, call)
		out = e.AppendDelta(out, text)
		out = e.CloseDelta(out)
	}
	delta(dialect.DeltaReasoning, 0, c.reasoning)
	if o.tokenIDs {
		out = e.AppendTokens(out, 0, c.text, dialect.Tokens{IDs: c.ids})
	} else {
		out = e.AppendText(out, 0, c.text)
	}
	for i, call := range c.calls {
		out = e.AppendCall(out, 0, i, call.id, call.name)
		delta(dialect.DeltaArguments, i, call.arguments)
	}
	out = e.AppendFinish(out, 0, dialect.Finish{Reason: reason})
	return e.AppendEnd(out, u)
}

// A chat's deltas other than content, and a message that has them.
func TestCallsAndReasoning(t *testing.T) {
	s := newStream(streamOptions{endpoint: Chat, AnswerOptions: dialect.AnswerOptions{ID: "1", Model: "m"}})
	delta := func(out []byte, choice int, d dialect.Delta, call int, parts ...string) []byte {
		out = s.OpenDelta(out, choice, d, call)
		for _, part := range parts {
			out = s.AppendDelta(out, []byte(part))
		}
		return s.CloseDelta(out)
	}
	out := delta(nil, 0, dialect.DeltaReasoning, 0, "a\n", "\"b\"")
	out = delta(out, 2, dialect.DeltaContent, 0, "c")
	out = s.AppendCall(out, 0, 1, `call_"1"`, "get weather")
	out = delta(out, 0, dialect.DeltaArguments, 1, `{"city":`, `"é`)
	out = s.AppendFinish(out, 0, dialect.Finish{Reason: infer.ReasonToolCalls})
	const head = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":`
	const tail = `,"logprobs":null,"finish_reason":null}]}`
	want := []string{
		head + `0,"delta":{"reasoning_content":"a\n\"b\""}` + tail,
		head + `2,"delta":{"content":"c"}` + tail,
		head + `0,"delta":{"tool_calls":[{"index":1,"id":"call_\"1\"","type":"function","function":{"name":"get weather","arguments":""}}]}` + tail,
		head + `0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"city\":\"é"}}]}` + tail,
		head + `0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}`,
	}
	if diff := cmp.Diff(want, dataOf(t, out)); diff != "" {
		t.Error(diff)
	}

	o := streamOptions{endpoint: Chat, AnswerOptions: dialect.AnswerOptions{ID: "1", Model: "m"}}
	for _, test := range []struct {
		answer choice
		want   string
	}{
		{choice{text: []byte("a"), reasoning: []byte("b\n")}, `{"role":"assistant","content":"a","reasoning_content":"b\n","refusal":null}`},
		{choice{reasoning: []byte("b")}, `{"role":"assistant","content":"","reasoning_content":"b","refusal":null}`},
		{choice{calls: []toolCall{{"i", "f", []byte(`{"a": 1}`)}, {"j", "g", nil}}},
			`{"role":"assistant","content":null,"tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},{"id":"j","type":"function","function":{"name":"g","arguments":""}}],"refusal":null}`},
		{choice{text: []byte("a"), calls: []toolCall{{"i", "f", nil}}},
			`{"role":"assistant","content":"a","tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":""}}],"refusal":null}`},
	} {
		got := wholeOf(o, &test.answer, infer.ReasonToolCalls, infer.Usage{CachedTokens: -1})
		want := `{"id":"chatcmpl-1","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,"message":` + test.want +
			`,"logprobs":null,"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}`
		if diff := cmp.Diff(want, string(got)); diff != "" || !json.Valid(got) {
			t.Error(diff)
		}
	}
}

func TestModels(t *testing.T) {
	models := []ModelInfo{{ID: "a\"", Created: 5, OwnedBy: "weir"}, {ID: "b", OwnedBy: "weir", MaxModelLen: 4096}, {ID: "c", OwnedBy: "weir", Parent: "b"}}
	want := `{"object":"list","data":[` +
		`{"id":"a\"","object":"model","created":5,"owned_by":"weir"},` +
		`{"id":"b","object":"model","created":0,"owned_by":"weir","max_model_len":4096},` +
		`{"id":"c","object":"model","created":0,"owned_by":"weir","parent":"b"}]}`
	if got := string(AppendModels(nil, models)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got, want := string(AppendModels(nil, nil)), `{"object":"list","data":[]}`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func FuzzText(f *testing.F) {
	for _, text := range []string{
		"", "plain", "exactly8", `"\`, "1234567\"", "12345678\\", "\x00\x1f\x20\x7f\x80", "\b\f\n\r\t", "héllo 世界 😀",
		"bad \xff\xc3( \xed\xa0\x80", "<>&\u2028\uFFFD", "\x1f\x20\x20\x20\x20\x20\x20\x21",
	} {
		f.Add(text, 0)
	}
	s := newStream(streamOptions{endpoint: Chat, AnswerOptions: dialect.AnswerOptions{ID: "1", Model: "m"}})
	f.Fuzz(func(t *testing.T, text string, choice int) {
		data := dataOf(t, s.AppendText(nil, choice, []byte(text)))
		var chunk struct {
			Choices []struct {
				Index int
				Delta struct{ Content string }
			}
		}
		if err := json.Unmarshal([]byte(data[0]), &chunk); err != nil {
			t.Fatal(err)
		}
		// Each byte that is not UTF-8 becomes one U+FFFD.
		if got, want := chunk.Choices[0].Delta.Content, string([]rune(text)); got != want || chunk.Choices[0].Index != choice {
			t.Fatalf("%q, index %d, want %q, index %d", got, chunk.Choices[0].Index, want, choice)
		}
		if !strings.Contains(data[0], string(dialect.AppendEscaped(nil, []byte(text)))) {
			t.Fatalf("%q is not in %q", text, data[0])
		}
	})
}

func TestChunkAllocatesNothing(t *testing.T) {
	s := newStream(streamOptions{endpoint: Chat, includeUsage: true, AnswerOptions: dialect.AnswerOptions{ID: "1", Model: "m"}})
	buf := make([]byte, 0, 4096)
	text := []byte("tök\"n")
	n := testing.AllocsPerRun(100, func() {
		b := s.AppendStart(buf, 1)
		b = s.AppendText(b, 0, text)
		b = s.AppendText(b, 1, text)
		b = s.AppendFinish(b, 1, dialect.Finish{Reason: infer.ReasonStop})
		s.AppendEnd(b, infer.Usage{PromptTokens: 1})
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// With their ids, chunks hold what vLLM's do: the prompt's once, the output's with
// their text.
func TestStreamTokenIDs(t *testing.T) {
	type chunkChoice struct {
		Text   string
		Delta  struct{ Content string }
		Tokens []uint32 `json:"token_ids"`
		Prompt []uint32 `json:"prompt_token_ids"`
	}
	type chunk struct {
		Choices []chunkChoice
		Prompt  []uint32 `json:"prompt_token_ids"`
		Usage   *struct{}
	}
	for _, endpoint := range []Endpoint{Chat, Completions} {
		for _, usage := range []bool{false, true} {
			s := newStream(streamOptions{endpoint: endpoint, includeUsage: usage, tokenIDs: true, AnswerOptions: dialect.AnswerOptions{ID: "x", Model: "m", PromptIDs: []uint32{7, 8}}})
			b := s.AppendStart(nil, 0)
			b = s.AppendTokens(b, 0, []byte("é\""), dialect.Tokens{IDs: []uint32{1, 2}})
			b = s.AppendTokens(b, 0, nil, dialect.Tokens{IDs: []uint32{4294967295}})
			if endpoint == Chat {
				b = s.AppendTokens(b, 0, nil, dialect.Tokens{IDs: []uint32{3}})
			}
			b = s.AppendFinish(b, 0, dialect.Finish{Reason: infer.ReasonStop})
			var text string
			var tokens, prompt []uint32
			for _, event := range strings.Split(strings.TrimSuffix(string(b), "\n\n"), "\n\n") {
				var c chunk
				if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &c); err != nil {
					t.Fatalf("%s: %v", event, err)
				}
				text += c.Choices[0].Text + c.Choices[0].Delta.Content
				tokens = append(tokens, c.Choices[0].Tokens...)
				prompt = append(append(prompt, c.Prompt...), c.Choices[0].Prompt...)
			}
			want := []uint32{1, 2, 4294967295}
			if endpoint == Chat {
				want = append(want, 3)
			}
			if text != "é\"" || !slices.Equal(tokens, want) || !slices.Equal(prompt, []uint32{7, 8}) {
				t.Errorf("%v: %q %v %v in %s", endpoint, text, tokens, prompt, b)
			}
		}
		whole := wholeOf(streamOptions{endpoint: endpoint, tokenIDs: true, AnswerOptions: dialect.AnswerOptions{ID: "x", Model: "m", PromptIDs: []uint32{7}}},
			&choice{text: []byte("a"), ids: []uint32{1}}, infer.ReasonStop, infer.Usage{CachedTokens: -1})
		var c chunk
		if err := json.Unmarshal(whole, &c); err != nil || !slices.Equal(c.Choices[0].Tokens, []uint32{1}) ||
			!slices.Equal(append(c.Prompt, c.Choices[0].Prompt...), []uint32{7}) {
			t.Errorf("%s: %v", whole, err)
		}
	}
}

// Reasoning is told by the name that was asked for, or by two alike.
func TestReasoningNames(t *testing.T) {
	for want, names := range map[string][]string{
		`"reasoning_content":"a\nb"`:                    nil,
		`"reasoning":"a\nb"`:                            {"reasoning"},
		`"reasoning_content":"a\nb","reasoning":"a\nb"`: {"reasoning_content", "reasoning"},
	} {
		o := streamOptions{endpoint: Chat, AnswerOptions: dialect.AnswerOptions{ID: "1", Model: "m", Reasoning: names}}
		s := newStream(o)
		out := s.OpenDelta([]byte("before"), 0, dialect.DeltaReasoning, 0)
		out = s.CloseDelta(s.AppendDelta(s.AppendDelta(out, []byte("a\n")), []byte("b")))
		got := dataOf(t, out[len("before"):])
		if !strings.Contains(got[0], `"delta":{`+want+`},"logprobs"`) || !json.Valid([]byte(got[0])) {
			t.Errorf("%v: %s", names, got)
		}
		whole := string(wholeOf(o, &choice{text: []byte("c"), reasoning: []byte("a\nb")}, infer.ReasonStop, infer.Usage{}))
		if !strings.Contains(whole, `"content":"c",`+want+`,"refusal":null`) || !json.Valid([]byte(whole)) {
			t.Errorf("%v: %s", names, whole)
		}
	}
}
