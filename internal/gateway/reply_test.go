package gateway

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"

	"pgregory.net/rapid"

	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/model/outputparse"
	"weir/models"
)

// askTools is a request's fields with two tools.
const askTools = `,"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}},` +
	`{"type":"function","function":{"name":"now"}}]`

// said gives the ids that a text is encoded as.
func said(t testing.TB, text string) []uint32 {
	t.Helper()
	ids, err := simModel().Encode(text, false)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// told is an answer put together from its chunks, or its message.
type told struct {
	reasoning, content string
	calls              []string // name, arguments
	ids                []string
	finish             string
}

func (s *story) told(t testing.TB) told {
	t.Helper()
	var out told
	for _, o := range s.events {
		for _, c := range o.Choices {
			out.reasoning += c.Delta.Reasoning
			out.content += c.Delta.Content
			for _, call := range c.Delta.Calls {
				if call.ID != "" {
					if call.Index != len(out.calls) || call.Type != "function" || call.Function.Arguments != "" {
						t.Errorf("call %+v begins after %d calls", call, len(out.calls))
					}
					out.calls = append(out.calls, call.Function.Name+" ")
					out.ids = append(out.ids, call.ID)
					continue
				}
				if call.Index != len(out.calls)-1 || call.Type != "" || call.Function.Name != "" {
					t.Fatalf("call %+v goes on after %d calls", call, len(out.calls))
				}
				out.calls[call.Index] += call.Function.Arguments
			}
			if c.FinishReason != nil {
				out.finish = *c.FinishReason
			}
		}
	}
	return out
}

func (o *object) told() told {
	c := o.Choices[0]
	out := told{reasoning: c.Message.Reasoning, content: c.Message.Content, finish: *c.FinishReason}
	for _, call := range c.Message.Calls {
		out.calls = append(out.calls, call.Function.Name+" "+call.Function.Arguments)
		out.ids = append(out.ids, call.ID)
	}
	return out
}

// same compares what is not made up anew for each answer.
func (t told) same(o told) bool {
	return t.reasoning == o.reasoning && t.content == o.content && t.finish == o.finish && slices.Equal(t.calls, o.calls)
}

const weatherCall = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"😀\\\"\"}}\n</tool_call>"

// replies are answers of a model and what the client is to be told of them.
var replies = []struct {
	name, fields, text string
	reason             infer.Reason
	want               told
}{
	{"thinks, says and calls", askTools, "<think>\nI should look.\n</think>\n\nLet me see.\n" + weatherCall + "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", infer.ReasonStop,
		told{reasoning: "I should look.", content: "Let me see.", calls: []string{`get_weather {"city": "Zürich \"😀\""}`, "now {}"}, finish: "tool_calls"}},
	{"cut in a call", askTools, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zü", infer.ReasonLength,
		told{calls: []string{`get_weather {"city": "Zü`}, finish: "length"}},
	{"no call after all", askTools, "a <tool_call> b <", infer.ReasonStop, told{content: "a <tool_call> b <", finish: "stop"}},
	{"stop strings outside of the content", askTools + `,"stop":["rich","tool","hi"]`, "<think>\nwhich\n</think>\n\nLet me look.\n" + weatherCall, infer.ReasonStop,
		told{reasoning: "which", content: "Let me look.", calls: []string{`get_weather {"city": "Zürich \"😀\""}`}, finish: "tool_calls"}},
	{"a stop string behind them", askTools + `,"stop":["rich","hi"]`, "<think>\nwhich\n</think>\n\n" + weatherCall + "\nNow this.", infer.ReasonStop,
		told{reasoning: "which", content: "Now t", calls: []string{`get_weather {"city": "Zürich \"😀\""}`}, finish: "tool_calls"}},
	{"stop strings of line breaks", askTools + `,"stop":["\n\n"]`, "<think>\na\n\nb\n</think>\n\nOne.\n\nTwo.", infer.ReasonStop,
		told{reasoning: "a\n\nb", content: "One.", finish: "stop"}},
	{"a call that the model did not end", askTools, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zü", infer.ReasonStop,
		told{calls: []string{`get_weather {"city": "Zü`}, finish: "stop"}},
	{"a tool that is none", askTools, "<tool_call>\n{\"name\": \"rm\", \"arguments\": {}}\n</tool_call>", infer.ReasonStop,
		told{content: "<tool_call>\n{\"name\": \"rm\", \"arguments\": {}}\n</tool_call>", finish: "stop"}},
	{"tools that may not be called", askTools + `,"tool_choice":"none"`, weatherCall, infer.ReasonStop, told{content: weatherCall, finish: "stop"}},
	{"no tools", ``, "<think>why</think>" + weatherCall, infer.ReasonStop, told{reasoning: "why", content: weatherCall, finish: "stop"}},
	{"nothing but reasoning", ``, "<think>\nwhy", infer.ReasonLength, told{reasoning: "why", finish: "length"}},
	{"one call of two", askTools + `,"parallel_tool_calls":false`, weatherCall + "\n" + weatherCall, infer.ReasonStop,
		told{calls: []string{`get_weather {"city": "Zürich \"😀\""}`}, finish: "tool_calls"}},
	{"plain", ``, "just words", infer.ReasonStop, told{content: "just words", finish: "stop"}},
}

// For each way in which the engine's tokens may come, streamed or whole.
func TestReplies(t *testing.T) {
	for _, test := range replies {
		t.Run(test.name, func(t *testing.T) {
			ids := said(t, test.text)
			for _, size := range []int{1, 3, len(ids)} {
				e := &tokenEngine{name: "a"}
				inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
					c := b.post(chatPath, askStream(test.fields))
					sendReply(e.call(t, 1), ids, size, test.reason)
					if got := c.story().told(t); !got.same(test.want) {
						t.Errorf("streamed by %d: %+v, want %+v", size, got, test.want)
					}
					c = b.post(chatPath, askChat(test.fields))
					sendReply(e.call(t, 2), ids, size, test.reason)
					if got := c.whole().told(); !got.same(test.want) {
						t.Errorf("whole by %d: %+v, want %+v", size, got, test.want)
					}
				})
			}
		})
	}
}

// Wherever an answer ends within a call, no API calls the call complete, streamed or whole,
// unless its arguments are.
func TestUnfinishedCalls(t *testing.T) {
	tools := `,"tools":[{"name":"get_weather",%s{"type":"object"}}]`
	apis := []struct{ path, body, broken, complete string }{
		{chatPath, askChat(askTools), `"finish_reason":"stop"`, `"finish_reason":"tool_calls"`},
		{messagesPath, askMessage(fmt.Sprintf(tools, `"input_schema":`)), `"stop_reason":"end_turn"`, `"stop_reason":"tool_use"`},
		{"/v1/responses", `{"model":"` + models.SimName + `","input":"Hello"` + fmt.Sprintf(tools, `"type":"function","parameters":`) + `}`,
			`"type":"function_call","status":"incomplete"`, `"type":"function_call","status":"completed"`},
	}
	const begin = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
	ids, bare := said(t, weatherCall), len(said(t, begin))
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		n := 0
		for _, api := range apis {
			for _, stream := range []string{"", `"stream":true,`} {
				for end := bare + 2; end <= len(ids); end++ {
					n++
					c := b.post(api.path, strings.Replace(api.body, "{", "{"+stream, 1))
					e.call(t, n).end(infer.ReasonStop, ids[:end]...)
					text := simModel().Tokenizer.Decode(ids[:end], false)
					want, other := api.broken, api.complete
					if strings.Contains(text, "}") { // the arguments are an object without others
						want, other = other, want
					}
					if got := string(c.answer().body); !strings.Contains(got, want) || strings.Contains(got, other) {
						t.Errorf("%s %s: %q: %s", api.path, stream, text, got)
					}
				}
			}
		}
	})
}

// sendReply says an answer in deltas of some ids, until it is told to stop.
func sendReply(c *call, ids []uint32, size int, reason infer.Reason) {
	for len(ids) > size && !c.aborted() {
		c.send(ids[:size]...)
		ids = ids[size:]
	}
	if !c.aborted() {
		c.end(reason, ids...)
	}
}

// The engine is told to stop when the one call that is wanted is whole, and not
// before.
func TestSingleCallStopsTheEngine(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(askTools+`,"parallel_tool_calls":false,"stream_options":{"include_usage":true}`))
		call := e.call(t, 1)
		ids := said(t, `<tool_call>{"name": "now", "arguments": {}`)
		for i, id := range ids {
			if call.aborted() {
				t.Fatalf("aborted before token %d of %d", i, len(ids))
			}
			call.send(id)
		}
		if !call.aborted() {
			t.Error("the engine goes on after the call")
		}
		if s := c.story(); !s.done || s.usage == nil || s.usage.Completion != len(ids) || s.finish != "tool_calls" {
			t.Errorf("done %v, usage %+v, finish %q", s.done, s.usage, s.finish)
		}
		b.wantRecord(c, "finished", "")
	})
}

// Each call has an id of its own, in the form that the model's template takes.
func TestCallIDs(t *testing.T) {
	seen := map[string]bool{}
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(askTools))
		e.call(t, 1).end(infer.ReasonStop, said(t, weatherCall+weatherCall)...)
		for _, id := range c.story().told(t).ids {
			if seen[id] || !regexp.MustCompile(`^call_[0-9a-f]{28}$`).MatchString(id) {
				t.Errorf("id %q", id)
			}
			seen[id] = true
		}
	})
	if len(seen) != 2*len(ways) {
		t.Errorf("%d ids", len(seen))
	}
}

// The tools are in the prompt where they may be called, and only there.
func TestToolsReachTheTemplate(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		for i, fields := range []string{askTools, askTools + `,"tool_choice":"none"`, ``} {
			b.post(chatPath, askChat(fields))
			call := e.call(t, i+1)
			prompt := simModel().Tokenizer.Decode(call.req.Prompt, false)
			if got, want := strings.Contains(prompt, `"name": "get_weather"`), i == 0; got != want {
				t.Errorf("%s: prompt %q", fields, prompt)
			}
			call.end(infer.ReasonStop)
		}
	})
}

// folder is a model folder with some changes.
func folder(t testing.TB, change map[string]func(string) string) fs.FS {
	t.Helper()
	out := fstest.MapFS{}
	err := fs.WalkDir(models.Sim(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(models.Sim(), path)
		if f := change[path]; f != nil {
			data = []byte(f(string(data)))
		}
		out[path] = &fstest.MapFile{Data: data}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Where a format's markers are special tokens, its parser gets them and the
// client does not; other special tokens stay out of the text.
func TestMarkersThatAreSpecialTokens(t *testing.T) {
	special := func(s string) string {
		for _, marker := range []string{"<think>", "</think>", "<tool_call>", "</tool_call>"} {
			from := `"content":"` + marker + `","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false`
			if !strings.Contains(s, from) {
				t.Fatalf("the tokenizer has changed: no %s", from)
			}
			s = strings.Replace(s, from, strings.Replace(from, `"special":false`, `"special":true`, 1), 1)
		}
		return s
	}
	m, err := model.Load(folder(t, map[string]func(string) string{"tokenizer.json": special}))
	if err != nil {
		t.Fatal(err)
	}
	ids := said(t, "<think>why</think><|im_start|>Look.<|im_end|>"+weatherCall)
	for _, test := range []struct {
		fields string
		want   told
	}{
		{askTools, told{reasoning: "why", content: "Look.", calls: []string{`get_weather {"city": "Zürich \"😀\""}`}, finish: "tool_calls"}},
		{``, told{reasoning: "why", content: "Look." + strings.TrimSuffix(strings.TrimPrefix(weatherCall, "<tool_call>"), "</tool_call>"), finish: "stop"}},
	} {
		e := &tokenEngine{name: "a"}
		inBubble(t, Options{Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: m}}}, []any{e}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, askStream(test.fields))
			e.call(t, 1).end(infer.ReasonStop, ids...)
			if got := c.story().told(t); !got.same(test.want) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

// A model whose template and vocabulary show no syntax of calls takes no tools,
// unless it is told one.
func TestModelWithoutASyntaxOfCalls(t *testing.T) {
	m, err := model.Load(folder(t, map[string]func(string) string{
		"chat_template.jinja": func(string) string { return "{{ tools|tojson }}{% for m in messages %}{{ m.content }}{% endfor %}" },
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Format.Tools() + " " + m.Format.Reasoning(); got != " think" {
		t.Errorf("format %q", got)
	}
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: m}}}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askChat(askTools))
		if err := c.refusal(400); err.Param == nil || *err.Param != "tools" || !strings.Contains(err.Message, "tool-parser") {
			t.Errorf("%+v", err)
		}
		c = b.post(chatPath, askChat(askTools+`,"tool_choice":"none"`))
		e.call(t, 1).end(infer.ReasonStop, said(t, "fine")...)
		if got := c.whole().told(); got.content != "fine" {
			t.Errorf("%+v", got)
		}
	})
}

// A retry begins the answer anew: nothing of the first attempt is in it.
func TestReplyAfterARetry(t *testing.T) {
	a, other := &tokenEngine{name: "a"}, &tokenEngine{name: "b"}
	inBubble(t, Options{}, []any{a, other}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askChat(askTools))
		synctest.Wait()
		first, second := a, other
		if len(a.handed()) == 0 {
			first, second = other, a
		}
		call := first.call(t, 1)
		call.send(said(t, "<think>one</think>two"+weatherCall)...)
		call.fail(infer.CodeUnavailable, true)
		second.call(t, 1).end(infer.ReasonStop, said(t, weatherCall)...)
		want := told{calls: []string{`get_weather {"city": "Zürich \"😀\""}`}, finish: "tool_calls"}
		if got := c.whole().told(); !got.same(want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestRepliesConcatenate: however tokens merge into deltas, the client is told
// what the parser makes of the whole text.
func TestRepliesConcatenate(t *testing.T) {
	words()
	parts := []string{"<think>", "</think>", "\n", " a", "b ", "<tool_call>", `{"name": "now", "arguments": {"x": [1, "é😀"]}}`, "</tool_call>", weatherCall, "<", "{"}
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 12).Draw(rt, "parts"), "")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 9), 1, 5).Draw(rt, "sizes")
		var want told
		p := outputparse.New(outputparse.Options{Format: simModel().Format, Calls: true})
		for _, e := range p.Append(nil, []byte(text), true) {
			switch e.Kind {
			case outputparse.Content:
				want.content += string(e.Text)
			case outputparse.Reasoning:
				want.reasoning += string(e.Text)
			case outputparse.CallBegin:
				want.calls = append(want.calls, e.Name+" ")
			case outputparse.Arguments:
				want.calls[e.Call] += string(e.Text)
			}
		}
		if want.finish = "stop"; len(want.calls) > 0 {
			want.finish = "tool_calls"
		}
		var got told
		way := rapid.SampledFrom(ways).Draw(rt, "way")
		synctest.Test(t, func(t *testing.T) {
			e := &tokenEngine{name: "a"}
			b := newBench(t, dir, Options{}, []any{e}, way)
			defer b.end()
			c := b.post(chatPath, askStream(askTools))
			call, ids := e.call(t, 1), said(t, text)
			for i := 0; len(ids) > 0; i++ {
				n := min(len(ids), sizes[i%len(sizes)])
				call.offer(ids[:n], nil) // unseen ones merge
				if i%2 == 0 {
					synctest.Wait()
				}
				ids = ids[n:]
			}
			call.end(infer.ReasonStop)
			got = c.story().told(t)
		})
		if !got.same(want) {
			rt.Fatalf("%q: %+v, want %+v", text, got, want)
		}
	})
}
