package promptkey

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"weir/internal/dialect"
	"weir/internal/dialect/anthropic"
	"weir/internal/dialect/openai"
	"weir/internal/dialect/responses"
	"weir/internal/fleet/kvindex"
)

// endpoints have each shape's bodies.
var endpoints = [...]dialect.Endpoint{
	Unknown: openai.Other, Chat: openai.Chat, Completions: openai.Completions, Messages: anthropic.Messages,
	Responses: responses.Endpoint{}, Inputs: openai.Other, Pairs: openai.Other,
}

func keyOf(tb tester, shape Shape, body string) (Key, bool) {
	tb.Helper()
	return new(Reader).Read(nil, kvindex.Root(1, "m"), shape, headOf(tb, endpoints[shape], []byte(body)))
}

// common is how many blocks two chains begin with alike. What follows has nothing in
// common.
func common(tb tester, a, b []kvindex.Block) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	for _, block := range a[n:] {
		if slices.Contains(b, block) {
			tb.Fatalf("the chains part at block %d and share one after it", n)
		}
	}
	return n
}

// long is a text of some blocks.
var long = strings.Repeat("All work and no play makes Jack a dull boy. ", 30)

// TestAlike spells prompts in two ways that no template could tell apart.
func TestAlike(t *testing.T) {
	for _, tt := range []struct {
		name  string
		shape Shape
		a, b  string
	}{
		{"fields that change no prompt", Chat,
			`{"model":"m","messages":[{"role":"user","content":"L"}]}`,
			`{"temperature":1.5,"model":"m","seed":7,"metadata":{"a":["b"]},"stream":true,"user":"u","messages":[{"content":"L","role":"user"}],"max_tokens":5,"response_format":{"type":"json_object"},"tool_choice":"auto","parallel_tool_calls":false}`},
		{"a part of text", Chat,
			`{"model":"m","messages":[{"role":"user","content":"L"}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"text":"L","type":"text","cache_control":{"type":"ephemeral"}}],"name":null}]}`},
		{"an image's URL", Chat,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AB/=","detail":"auto"}},{"type":"text","text":"L"}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"image_url":"data:image\/png;base64,AB\/=","type":"image_url"},{"type":"text","text":"L"}]}]}`},
		{"arguments of the template", Chat,
			`{"model":"m","messages":[{"role":"user","content":"L"}],"chat_template_kwargs":{"enable_thinking":false,"a":{"b":1,"c":[2]}}}`,
			`{"model":"m","chat_template_kwargs":{"a":{"c":[ 2 ],"b":1},"enable_thinking":false,"none":null},"messages":[{"role":"user","content":"L"}]}`},
		{"a tool", Chat,
			`{"model":"m","tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{}},"strict":true}}],"messages":[{"role":"user","content":"L"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"L"}],"tools":[{"function":{"strict":true,"parameters": {"type" : "object","properties":{ }},"description":"d","name":"f","x":null},"type":"function"}]}`},
		{"no tools", Chat,
			`{"model":"m","messages":[{"role":"user","content":"L"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"L","tool_calls":[]}],"tools":[],"chat_template_kwargs":{}}`},
		{"a call's index", Chat,
			`{"model":"m","messages":[{"role":"user","content":"L"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"L"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"L"},{"role":"assistant","tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}","name":"f"},"id":"1"}],"refusal":null,"audio":null,"content":""},{"content":"L","role":"tool","tool_call_id":"1"}]}`},
		{"reasoning by both names", Chat,
			`{"model":"m","messages":[{"role":"assistant","reasoning":"R","content":"L"}]}`,
			`{"model":"m","messages":[{"role":"assistant","reasoning":"R","reasoning_content":"R","content":"L"}]}`},
		{"the line of Claude Code", Messages,
			`{"model":"m","max_tokens":1,"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"L"}]}`,
			`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"L"}]}],"system":[{"text":"x-anthropic-billing-header: cch=2;","type":"text"},{"type":"text","text":"S"}]}`},
		{"a system prompt of nothing", Messages,
			`{"model":"m","max_tokens":1,"system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"}],"messages":[{"role":"user","content":"L"}]}`,
			`{"model":"m","max_tokens":1,"system":[],"messages":[{"role":"user","content":"L"}]}`},
		{"a thinking budget", Messages,
			`{"model":"m","max_tokens":1,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"L"},{"role":"assistant","content":[{"type":"thinking","thinking":"T","signature":"s"},{"type":"text","text":"L"}]}]}`,
			`{"model":"m","max_tokens":1,"thinking":{"budget_tokens":2048,"type":"enabled"},"messages":[{"role":"user","content":"L"},{"role":"assistant","content":[{"signature":"","type":"thinking","thinking":"T"},{"type":"text","text":"L"}]}]}`},
		{"an answer's items", Responses,
			`{"model":"m","instructions":"S","input":[{"role":"user","content":"L"},{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"L","annotations":[],"logprobs":[]}]},{"role":"user","content":"x"}]}`,
			`{"model":"m","instructions":"S","store":false,"input":[{"role":"user","content":[{"type":"input_text","text":"L"}]},{"role":"assistant","content":"L"},{"type":"message","role":"user","content":"x"}]}`},
		{"ids", Completions, `{"model":"m","prompt":[1,2,30]}`, `{"prompt":[ 1, 2 ,30 ],"model":"m","echo":false}`},
		{"inputs", Inputs, `{"model":"m","input":"L"}`, `{"encoding_format":"float","input":["L"],"model":"m"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fill := strings.NewReplacer(`"L"`, `"`+long+`"`)
			a, ok := keyOf(t, tt.shape, fill.Replace(tt.a))
			b, same := keyOf(t, tt.shape, fill.Replace(tt.b))
			if !ok || !same || !slices.Equal(a.Blocks, b.Blocks) || a.Bytes != b.Bytes || a.Media != b.Media {
				t.Errorf("the keys differ: %v of %d bytes, and %v of %d", ok, a.Bytes, same, b.Bytes)
			}
		})
	}
}

// TestUnlike has bodies whose prompts differ, and in how many blocks they may begin alike.
func TestUnlike(t *testing.T) {
	const ask = `{"model":"m","messages":[{"role":"user","content":"L"}]`
	for _, tt := range []struct {
		name  string
		shape Shape
		a, b  string
		most  int
	}{
		{"thinking is off", Chat, ask + `}`, ask + `,"chat_template_kwargs":{"enable_thinking":false}}`, 0},
		{"other arguments", Chat, ask + `,"chat_template_kwargs":{"a":1,"b":2}}`, ask + `,"chat_template_kwargs":{"a":2,"b":1}}`, 0},
		{"effort", Chat, ask + `,"reasoning_effort":"high"}`, ask + `,"reasoning_effort":"low"}`, 0},
		{"a salt", Chat, ask + `}`, ask + `,"cache_salt":"a"}`, 0},
		{"an adapter", Chat, ask + `,"lora_path":"a"}`, ask + `,"lora_path":"b"}`, 0},
		{"tools are left out", Chat, ask + `,"tool_choice":"none"}`, ask + `,"tool_choice":"auto"}`, 0},
		{"the tool that must be called", Chat, ask + `,"tool_choice":{"type":"function","function":{"name":"a"}}}`, ask + `,"tool_choice":{"type":"function","function":{"name":"b"}}}`, 0},
		{"a tool more", Chat, ask + `}`, ask + `,"tools":[{"type":"function","function":{"name":"f"}}]}`, 0},
		{"the order of a tool's parameters", Chat,
			ask + `,"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1,"b":2}}}]}`,
			ask + `,"tools":[{"type":"function","function":{"name":"f","parameters":{"b":2,"a":1}}}]}`, 0},
		{"what else a tool holds", Chat,
			ask + `,"tools":[{"type":"function","function":{"name":"f","strict":true}}]}`,
			ask + `,"tools":[{"type":"function","function":{"name":"f","strict":false}}]}`, 0},
		{"a role", Chat, ask + `}`, `{"model":"m","messages":[{"role":"system","content":"L"}]}`, 0},
		{"a text in two parts", Chat,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"ab"},{"type":"text","text":"L"}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"bL"}]}]}`, 0},
		{"an image", Chat,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},{"type":"text","text":"L"}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAB"}},{"type":"text","text":"L"}]}]}`, 0},
		{"the image's place", Chat,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"L"},{"type":"image_url","image_url":{"url":"data:,"}}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}},{"type":"text","text":"L"}]}]}`, 0},
		{"audio's data", Chat,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}},{"type":"text","text":"L"}]}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}},{"type":"text","text":"L"}]}]}`, 0},
		{"text that looks like a part", Chat,
			`{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":"L"}]}`,
			`{"model":"m","messages":[{"role":"user","content":"a\",\"role\":\"user\",\"content\":\"L"}]}`, 0},
		{"a call's arguments", Chat,
			`{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"user","content":"L"}]}`,
			`{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\":2}"}}]},{"role":"user","content":"L"}]}`, 0},
		{"reasoning that is sent back", Chat,
			`{"model":"m","messages":[{"role":"assistant","content":"a","reasoning_content":"b"},{"role":"user","content":"L"}]}`,
			`{"model":"m","messages":[{"role":"assistant","content":"a"},{"role":"user","content":"L"}]}`, 0},
		{"who it is from", Chat,
			`{"model":"m","messages":[{"role":"user","name":"ann","content":"L"}]}`,
			`{"model":"m","messages":[{"role":"user","name":"bob","content":"L"}]}`, 0},
		{"a message of nothing", Chat,
			`{"model":"m","messages":[{"role":"assistant","content":""},{"role":"user","content":"L"}]}`, ask + `}`, 0},
		{"a tool's result", Messages,
			`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"a"},{"type":"text","text":"L"}]}]}`,
			`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"a","is_error":true},{"type":"text","text":"L"}]}]}`, 0},
		{"a tool's use", Messages,
			`{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]},{"role":"user","content":"L"}]}`,
			`{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":2}}]},{"role":"user","content":"L"}]}`, 0},
		{"the kind of thinking", Messages,
			`{"model":"m","max_tokens":1,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"L"}]}`,
			`{"model":"m","max_tokens":1,"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"L"}]}`, 0},
		{"instructions", Responses, `{"model":"m","instructions":"a","input":"L"}`, `{"model":"m","instructions":"b","input":"L"}`, 0},
		{"effort in its place", Responses, `{"model":"m","reasoning":{"effort":"low"},"input":"L"}`, `{"model":"m","reasoning":{"effort":"high"},"input":"L"}`, 0},
		{"an item of another type", Responses,
			`{"model":"m","input":[{"type":"web_search_call","action":{"query":"a"}},{"role":"user","content":"L"}]}`,
			`{"model":"m","input":[{"type":"web_search_call","action":{"query":"b"}},{"role":"user","content":"L"}]}`, 0},
		{"the end of a text", Completions, `{"model":"m","prompt":"La"}`, `{"model":"m","prompt":"Lb"}`, len(long) / BlockBytes},
		{"a suffix", Completions, `{"model":"m","prompt":"L"}`, `{"model":"m","prompt":"L","suffix":"b"}`, 0},
		{"the query", Pairs, `{"model":"m","query":"a","documents":["L"]}`, `{"model":"m","query":"b","documents":["L"]}`, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fill := strings.NewReplacer(`L`, long)
			a, ok := keyOf(t, tt.shape, fill.Replace(tt.a))
			b, read := keyOf(t, tt.shape, fill.Replace(tt.b))
			if !ok || !read {
				t.Fatal("no key")
			}
			if len(a.Blocks) == 0 || len(b.Blocks) == 0 {
				t.Fatal("no blocks to compare")
			}
			if n := common(t, a.Blocks, b.Blocks); n > tt.most {
				t.Errorf("the chains have %d blocks in common", n)
			}
		})
	}
}

// TestNoKey has bodies of which nobody but the engine knows the prompt.
func TestNoKey(t *testing.T) {
	for _, tt := range []struct {
		shape Shape
		body  string
	}{
		{Chat, `{"model":"m"}`},
		{Chat, `{"model":"m","messages":[]}`},
		{Chat, `{"model":"m","messages":["a"]}`},
		{Chat, `{"model":"m","messages":{"role":"user"}}`},
		{Chat, `{"model":"m","messages":[{"role":"user","content":"a"}],"tools":["a"]}`},
		{Completions, `{"model":"m","prompt":[1,-2]}`},
		{Completions, `{"model":"m","prompt":[]}`},
		{Completions, `{"model":"m","prompt":7}`},
		{Responses, `{"model":"m","input":"a","previous_response_id":"r"}`},
		{Responses, `{"model":"m","input":[{"type":"item_reference","id":"a"}]}`},
		{Responses, `{"model":"m","prompt":{"id":"p"},"input":"a"}`},
		{Pairs, `{"model":"m","query":"a"}`},
		{Unknown, `{"model":"m","prompt":"a"}`},
	} {
		if k, ok := keyOf(t, tt.shape, tt.body); ok || k.Blocks != nil || k.Bytes != 0 {
			t.Errorf("%s has the key %+v", tt.body, k)
		}
	}
}

// TestDialects has one conversation in the words of three dialects: an engine makes one
// prompt of it.
func TestDialects(t *testing.T) {
	fill := strings.NewReplacer(`"L"`, `"`+long+`"`)
	chat, _ := keyOf(t, Chat, fill.Replace(`{"model":"m","tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],"messages":[{"role":"system","content":"S"},{"role":"user","content":"L"},{"role":"assistant","reasoning_content":"R","content":"T","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"L"},{"role":"user","content":"L"}]}`))
	resp, _ := keyOf(t, Responses, fill.Replace(`{"model":"m","instructions":"S","tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"}}],"input":[{"role":"user","content":"L"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"R"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"T"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"L"},{"role":"user","content":"L"}]}`))
	if len(chat.Blocks) == 0 || !slices.Equal(chat.Blocks, resp.Blocks) || chat.Bytes != resp.Bytes {
		t.Errorf("a chat of %d bytes is a response of %d, with %d blocks in common", chat.Bytes, resp.Bytes, common(t, chat.Blocks, resp.Blocks))
	}
	chat, _ = keyOf(t, Chat, fill.Replace(`{"model":"m","messages":[{"role":"system","content":"S"},{"role":"user","content":"L"},{"role":"assistant","content":"T"},{"role":"tool","tool_call_id":"1","content":"L"},{"role":"user","content":"L"},{"role":"tool","tool_call_id":"2","content":"L"},{"role":"assistant","content":"T"}]}`))
	claude, _ := keyOf(t, Messages, fill.Replace(`{"model":"m","max_tokens":1,"system":"S","messages":[{"role":"user","content":"L"},{"role":"assistant","content":[{"type":"text","text":"T"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"L"}]},{"type":"text","text":"L"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"2","content":"L"}]},{"role":"assistant","content":"T"}]}`))
	if !slices.Equal(chat.Blocks, claude.Blocks) || chat.Bytes != claude.Bytes {
		t.Errorf("a chat of %d bytes are messages of %d, with %d blocks in common", chat.Bytes, claude.Bytes, common(t, chat.Blocks, claude.Blocks))
	}
}

// TestSeveral counts what is computed for several prompts: all of them, and the first
// has blocks.
func TestSeveral(t *testing.T) {
	fill := strings.NewReplacer("L", long)
	one, _ := keyOf(t, Completions, fill.Replace(`{"model":"m","prompt":"L"}`))
	three, _ := keyOf(t, Completions, fill.Replace(`{"model":"m","prompt":["L","L","L"]}`))
	if !slices.Equal(one.Blocks, three.Blocks) || three.Bytes != 3*one.Bytes {
		t.Errorf("one has %d bytes and %d blocks, three have %d and %d", one.Bytes, len(one.Blocks), three.Bytes, len(three.Blocks))
	}
	pairs, ok := keyOf(t, Pairs, `{"model":"m","query":"0123456789","documents":["abc","defg"]}`)
	if want := 2*10 + 1 + 3 + 4; !ok || pairs.Bytes != want {
		t.Errorf("two pairs have %d bytes, want %d", pairs.Bytes, want)
	}
}

// TestMedia counts media for more than their digests, however large they are.
func TestMedia(t *testing.T) {
	k, ok := keyOf(t, Chat, fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},{"type":"file","file":{"file_data":"%s"}},{"type":"text","text":"a"}]}]}`, strings.Repeat("A", 1<<20), strings.Repeat("B", 1<<10)))
	if !ok || k.Media != 2 || k.Bytes < 2*mediaBytes || k.Bytes > 2*mediaBytes+100 {
		t.Errorf("%+v", k)
	}
}

// TestBounded has a body whose canonical text is much longer than itself.
func TestBounded(t *testing.T) {
	part := `{"type":"a"}`
	n := 2 * MaxBlocks * BlockBytes / mediaBytes
	k, ok := keyOf(t, Chat, `{"model":"m","messages":[{"role":"user","content":[`+strings.Repeat(part+",", n)+part+`]}]}`)
	if !ok || len(k.Blocks) != MaxBlocks || k.Bytes < 2*MaxBlocks*BlockBytes {
		t.Errorf("%d blocks, %d bytes", len(k.Blocks), k.Bytes)
	}
}

// TestString holds what strings spell against the decoder.
func TestString(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOf(rapid.SampledFrom([]string{"a", "bcdefghijklmnop", "é", "漢字", "😀", `\n`, `\"`, `\\`, `\/`, `\u0041`, `\u00e9`, `\uD83D\uDE00`, `\t\r\b\f`, `\u0000`, "0123456"})).Draw(t, "pieces")
		raw := `"` + strings.Join(pieces, "") + `"`
		want, err := jsontext.AppendUnquote(nil, raw)
		if err != nil {
			t.Fatal(err)
		}
		var got text
		got.begin(1, nil, MaxBlocks)
		got.string(inside([]byte(raw)))
		if got.bytes() != len(want) {
			t.Fatalf("%s has %d bytes, want %d", raw, got.bytes(), len(want))
		}
		whole := len(want) / BlockBytes * BlockBytes
		if string(got.block[:got.n]) != string(want[whole:]) {
			t.Fatalf("%s ends with %q", raw, got.block[:got.n])
		}
		prev := kvindex.Block(1)
		for i := range whole / BlockBytes {
			if prev = prev.Next(want[i*BlockBytes:][:BlockBytes]); prev != got.blocks[i] {
				t.Fatalf("block %d of %s differs", i, raw)
			}
		}
	})
}

// TestHalves keeps halves of surrogate pairs apart.
func TestHalves(t *testing.T) {
	a, _ := keyOf(t, Completions, `{"model":"m","prompt":"\ud800`+long+`"}`)
	b, _ := keyOf(t, Completions, `{"model":"m","prompt":"\udc00`+long+`"}`)
	if common(t, a.Blocks, b.Blocks) != 0 || len(a.Blocks) == 0 {
		t.Error("two halves are the same")
	}
}
