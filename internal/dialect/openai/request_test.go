package openai

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir/internal/dialect"
	"weir/internal/dialect/dialecttest"
	"weir/internal/infer"
)

// decode reads a body for an engine kind named "weir".
func decode(endpoint Endpoint, body string) (*dialect.Request, error) {
	h, err := endpoint.ParseHead([]byte(body))
	if err != nil {
		return nil, err
	}
	return endpoint.Request(h, "weir", 0)
}

// decodeFor decodes for a wire that carries so much.
func decodeFor(carries infer.Carries, endpoint Endpoint, body string) (*dialect.Request, error) {
	h, err := endpoint.ParseHead([]byte(body))
	if err != nil {
		return nil, err
	}
	return endpoint.Request(h, "able", carries)
}

// chatBody and completionBody put fields beside what each endpoint requires.
func chatBody(fields string) string {
	return `{"model":"m","messages":[{"role":"user","content":"hi"}]` + comma(fields) + `}`
}

func completionBody(fields string) string { return `{"model":"m","prompt":"hi"` + comma(fields) + `}` }

func comma(fields string) string {
	if fields == "" {
		return ""
	}
	return "," + fields
}

func ptr[T any](v T) *T { return &v }

func TestRequestAccepts(t *testing.T) {
	const messages = `[{"role":"user","content":"hi"}]`
	chat := dialect.Request{Model: "m", Messages: []byte(messages), AddGenerationPrompt: true, Fields: &dialect.FieldNames{Prompt: "messages", MaxTokens: "max_tokens", MinTokens: "min_tokens", Effort: "reasoning_effort", StopIDs: "stop_token_ids", LogitBias: "logit_bias", Seed: "seed", Choices: "n", Logprobs: "top_logprobs"}, CallPrefix: "call_"}
	completion := dialect.Request{Model: "m", Prompt: "hi", MaxTokens: 16, Fields: &dialect.FieldNames{Prompt: "prompt", MaxTokens: "max_tokens", MinTokens: "min_tokens", Effort: "reasoning_effort", StopIDs: "stop_token_ids", LogitBias: "logit_bias", Seed: "seed", Choices: "n", Logprobs: "logprobs"}, CallPrefix: "call_"}
	for _, test := range []struct {
		endpoint Endpoint
		body     string
		want     func(chat, completion dialect.Request) dialect.Request
	}{
		{Chat, chatBody(""), func(r, _ dialect.Request) dialect.Request { return r }},
		{Completions, completionBody(""), func(_, r dialect.Request) dialect.Request { return r }},
		{Chat, chatBody(`"max_tokens":5,"max_completion_tokens":5.0,"min_tokens":5,"temperature":0,"top_p":1,"top_k":0,"seed":-9223372036854775808`),
			func(r, _ dialect.Request) dialect.Request {
				r.MaxTokens, r.MinTokens = 5, 5
				r.Sampling = infer.Sampling{Temperature: ptr(0.0), TopP: ptr(1.0), TopK: ptr(-1), Seed: ptr(int64(-1 << 63))}
				return r
			}},
		{Chat, chatBody(`"max_completion_tokens":2147483647,"temperature":2,"top_p":1e-9,"top_k":40,"seed":9007199254740993`),
			func(r, _ dialect.Request) dialect.Request {
				r.MaxTokens = 1<<31 - 1
				r.Sampling = infer.Sampling{Temperature: ptr(2.0), TopP: ptr(1e-9), TopK: ptr(40), Seed: ptr(int64(9007199254740993))}
				return r
			}},
		{Completions, completionBody(`"stop":"a\nb","stop_token_ids":[0, 4294967295 ],"ignore_eos":true`),
			func(_, r dialect.Request) dialect.Request {
				r.Stop, r.StopIDs, r.IgnoreEOS = []string{"a\nb"}, []uint32{0, 1<<32 - 1}, true
				return r
			}},
		{Completions, completionBody(`"stop":["a","\ud83d\ude00"],"stop_token_ids":[]`),
			func(_, r dialect.Request) dialect.Request {
				r.Stop, r.StopIDs = []string{"a", "😀"}, []uint32{}
				return r
			}},
		{Completions, completionBody(`"stop":[],"max_tokens":null,"min_tokens":null,"temperature":null,"top_p":null,"top_k":null,"seed":null,"stop_token_ids":null,"ignore_eos":null,"stream":null,"stream_options":null`),
			func(_, r dialect.Request) dialect.Request { return r }},
		{Chat, chatBody(`"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false,"continuous_usage_stats":null}`),
			func(r, _ dialect.Request) dialect.Request { r.Stream = true; return r }},
		{Chat, chatBody(`"chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false`),
			func(r, _ dialect.Request) dialect.Request {
				r.ChatTemplateKwargs, r.AddGenerationPrompt = []byte(`{"enable_thinking":false}`), false
				return r
			}},
		{Chat, chatBody(`"continue_final_message":true`),
			func(r, _ dialect.Request) dialect.Request {
				r.ContinueFinalMessage, r.AddGenerationPrompt = true, false
				return r
			}},
		{Completions, `{"model":"m","prompt":["h\u0069"]}`, func(_, r dialect.Request) dialect.Request { return r }},
		{Completions, `{"model":"m","prompt":[ 1 ,2,4294967295]}`,
			func(_, r dialect.Request) dialect.Request {
				r.Prompt, r.PromptIDs = "", []uint32{1, 2, 1<<32 - 1}
				return r
			}},
		{Completions, "{\"model\":\"m\",\"prompt\":[\n[0]\r\n]}",
			func(_, r dialect.Request) dialect.Request { r.Prompt, r.PromptIDs = "", []uint32{0}; return r }},
	} {
		got, err := decode(test.endpoint, test.body)
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		if got.Encoder == nil {
			t.Errorf("%s: no encoder", test.body)
		}
		got.Encoder = nil // functions do not compare
		if diff := cmp.Diff(test.want(chat, completion), *got, cmpopts.IgnoreUnexported(dialect.Request{})); diff != "" {
			t.Errorf("%s: %s", test.body, diff)
		}
	}
}

// The options of the answer in a body reach the encoder.
func TestRequestEncoder(t *testing.T) {
	for body, want := range map[string]string{
		chatBody(``):              `"object":"chat.completion",`,
		chatBody(`"stream":true`): "data: [DONE]\n\n",
		chatBody(`"stream":true,"stream_options":{"include_usage":true}`): `"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}`,
		chatBody(`"return_token_ids":true`):                               `"prompt_token_ids":[7],`,
	} {
		r, err := decode(Chat, body)
		if err != nil {
			t.Fatal(err)
		}
		e := r.Encoder(dialect.AnswerOptions{ID: "1", Model: "m", PromptIDs: []uint32{7}})
		out := e.AppendStart(nil, 0)
		out = e.AppendText(out, 0, []byte("a"))
		out = e.AppendFinish(out, 0, dialect.Finish{Reason: infer.ReasonStop})
		out = e.AppendEnd(out, infer.Usage{PromptTokens: 1, CompletionTokens: 2, CachedTokens: -1})
		if !strings.Contains(string(out), want) {
			t.Errorf("%s: %s has no %s", body, out, want)
		}
	}
}

func TestMessagesAccepted(t *testing.T) {
	for _, messages := range []string{
		`[{"content":"x","role":"system"},{"role":"developer","content":""},{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"t\u0065xt"}],"name":"ann"}]`,
		`[{"role":"assistant"},{"role":"assistant","content":null}]`,
		`[{"role":"user","content":[]},{"role":"assistant","content":[ ]},{"role":"tool","tool_call_id":"1","content":[]}]`,
		`[{"role":"assistant","content":null,"refusal":"no"},{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}]`,
		`[{"role":"assistant","content":"x","refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":null,"reasoning_content":"why","reasoning":null}]`,
		`[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"4"}]`,
		`[{"role":"assistant","function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"4"}]`,
		"[\n { \"r\\u006fle\" : \"user\" , \"content\" : \"\\ud83d\\ude00 \\u0000\" } ]",
	} {
		r, err := decode(Chat, `{"model":"m","messages":`+messages+`}`)
		if err != nil {
			t.Errorf("%s: %v", messages, err)
		} else if string(r.Messages) != messages {
			t.Errorf("%s became %s", messages, r.Messages)
		}
	}
}

func TestMessagesRefused(t *testing.T) {
	for _, test := range []struct {
		messages string
		code     infer.Code
		param    string
		message  string
	}{
		{`null`, infer.CodeInvalid, "messages", "messages must be an array of messages, found null"},
		{`"hi"`, infer.CodeInvalid, "messages", "messages must be an array of messages, found a string"},
		{`[]`, infer.CodeInvalid, "messages", "messages is empty; send at least one message"},
		{`["hi"]`, infer.CodeInvalid, "messages[0]", "messages[0] must be an object, found a string"},
		{`[{"role":"user","content":"a"},7]`, infer.CodeInvalid, "messages[1]", "messages[1] must be an object, found a number"},
		{`[{"content":"a"}]`, infer.CodeInvalid, "messages[0].role", "messages[0].role is required"},
		{`[{"role":null,"content":"a"}]`, infer.CodeInvalid, "messages[0].role", "messages[0].role must be a string, found null"},
		{`[{"role":"bot","content":"a"}]`, infer.CodeInvalid, "messages[0].role", `messages[0].role must be system, user, assistant, tool, developer or function, found "bot"`},
		{`[{"role":"text","content":"a"}]`, infer.CodeInvalid, "messages[0].role", `messages[0].role must be system, user, assistant, tool, developer or function, found "text"`},
		{`[{"role":"user"}]`, infer.CodeInvalid, "messages[0].content", "messages[0].content is required"},
		{`[{"role":"user","content":null}]`, infer.CodeInvalid, "messages[0].content", "messages[0].content must be a string or an array of parts, found null; only an assistant message may have none"},
		{`[{"role":"user","content":{}}]`, infer.CodeInvalid, "messages[0].content", "messages[0].content must be a string or an array of parts, found an object"},
		{`[{"role":"user","content":3}]`, infer.CodeInvalid, "messages[0].content", "messages[0].content must be a string or an array of parts, found a number"},
		{`[{"role":"user","content":["a"]}]`, infer.CodeInvalid, "messages[0].content[0]", "messages[0].content[0] must be an object, found a string"},
		{`[{"role":"user","content":[{"text":"a"}]}]`, infer.CodeInvalid, "messages[0].content[0].type", "messages[0].content[0].type is required"},
		{`[{"role":"user","content":[{"type":1,"text":"a"}]}]`, infer.CodeInvalid, "messages[0].content[0].type", "messages[0].content[0].type must be a string, found a number"},
		{`[{"role":"user","content":[{"type":"text","text":"a"},{"image_url":{"url":"x"},"type":"image_url"}]}]`, infer.CodeUnsupported, "messages[0].content[1].type", `messages[0].content[1].type "image_url" is not supported by engine kind "weir" for this model: image input needs an engine that reads it itself and a model that understands it, behind kind sglang, or behind kind openai, which gets every part as it is`},
		{`[{"role":"user","content":[{"type":"text"}]}]`, infer.CodeInvalid, "messages[0].content[0].text", "messages[0].content[0].text is required"},
		{`[{"role":"user","content":[{"type":"text","text":null}]}]`, infer.CodeInvalid, "messages[0].content[0].text", "messages[0].content[0].text must be a string, found null"},
		{`[{"role":"user","content":[{"type":"text","text":"a","cache_control":{}}]}]`, infer.CodeUnsupported, "messages[0].content[0].cache_control", `messages[0].content[0].cache_control is not supported by engine kind "weir"; leave it out`},
		{`[{"role":"user","content":"a","weight":0}]`, infer.CodeUnsupported, "messages[0].weight", `messages[0].weight is not supported by engine kind "weir"; leave it out`},
		{`[{"role":"user","content":"a","refusal":"no"}]`, infer.CodeInvalid, "messages[0].refusal", `messages[0].refusal belongs in an assistant message, found in a user message`},
		{`[{"role":"user","content":[{"type":"refusal"}]}]`, infer.CodeInvalid, "messages[0].content[0].refusal", `messages[0].content[0].refusal is required`},
		{`[{"role":"user","content":"a","name":1}]`, infer.CodeInvalid, "messages[0].name", "messages[0].name must be a string, found a number"},
		{`[{"role":"assistant","tool_calls":[{},1]}]`, infer.CodeInvalid, "messages[0].tool_calls[1]", "messages[0].tool_calls[1] must be an object, found a number"},
		{`[{"role":"assistant","tool_calls":{}}]`, infer.CodeInvalid, "messages[0].tool_calls", "messages[0].tool_calls must be an array, found an object"},
		{`[{"role":"assistant","function_call":"f"}]`, infer.CodeInvalid, "messages[0].function_call", "messages[0].function_call must be an object, found a string"},
		{`[{"role":"user","content":"a","tool_calls":[]}]`, infer.CodeInvalid, "messages[0].tool_calls", "messages[0].tool_calls belongs in an assistant message, found in a user message"},
		{`[{"role":"user","role":"user","content":"a"}]`, infer.CodeInvalid, "messages[0].role", "messages[0].role is given twice; give it once"},
		{`[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]`, infer.CodeInvalid, "messages[0].content[0].text", "messages[0].content[0].text is given twice; give it once"},
		{`[{"role":"user","content":"a"},{"role":"user","content":"\ud83d!"}]`, infer.CodeInvalid, "messages[1].content", "messages[1].content holds half a surrogate pair; both halves are needed"},
	} {
		_, err := decode(Chat, `{"model":"m","messages":`+test.messages+`}`)
		t.Run(test.messages, func(t *testing.T) { wantError(t, err, test.code, test.param, test.message) })
	}
}

func TestFieldsRefused(t *testing.T) {
	const invalid, unsupported = infer.CodeInvalid, infer.CodeUnsupported
	seventeen := "[" + strings.TrimSuffix(strings.Repeat(`"a",`, 17), ",") + "]"
	for _, test := range []struct {
		fields  string
		code    infer.Code
		param   string
		message string
	}{
		{`"temperature":"hot"`, invalid, "temperature", "temperature must be a number, found a string"},
		{`"temperature":2.01`, invalid, "temperature", "temperature must be between 0 and 2, found 2.01"},
		{`"temperature":-0.1`, invalid, "temperature", "temperature must be between 0 and 2, found -0.1"},
		{`"temperature":1e999`, invalid, "temperature", "temperature must be between 0 and 2, found 1e999"},
		{`"top_p":0`, invalid, "top_p", "top_p must be above 0 and at most 1, found 0"},
		{`"top_p":1.1`, invalid, "top_p", "top_p must be above 0 and at most 1, found 1.1"},
		{`"top_k":-2`, invalid, "top_k", "top_k must be between -1 and 2147483647, found -2"},
		{`"top_k":1.5`, invalid, "top_k", "top_k must be an integer, found 1.5"},
		{`"seed":9223372036854775808`, invalid, "seed", "seed must be between -9223372036854775808 and 9223372036854775807, found 9223372036854775808"},
		{`"seed":true`, invalid, "seed", "seed must be an integer, found a boolean"},
		{`"max_tokens":0`, invalid, "max_tokens", "max_tokens must be between 1 and 2147483647, found 0"},
		{`"max_tokens":-5`, invalid, "max_tokens", "max_tokens must be between 1 and 2147483647, found -5"},
		{`"max_tokens":1e12`, invalid, "max_tokens", "max_tokens must be between 1 and 2147483647, found 1e12"},
		{`"max_tokens":10000000000000000000000000000000000000000`, invalid, "max_tokens", "max_tokens must be between 1 and 2147483647, found 10000000000000000000000000000000..."},
		{`"max_tokens":"5"`, invalid, "max_tokens", "max_tokens must be an integer, found a string"},
		{`"max_tokens":5,"max_tokens":5`, invalid, "max_tokens", "max_tokens is given twice; give it once"},
		{`"max_tokens":5,"min_tokens":6`, invalid, "min_tokens", "min_tokens is 6, above the limit of 5 tokens"},
		{`"min_tokens":-1`, invalid, "min_tokens", "min_tokens must be between 0 and 2147483647, found -1"},
		{`"ignore_eos":1`, invalid, "ignore_eos", "ignore_eos must be true or false, found a number"},
		{`"stop":5`, invalid, "stop", "stop must be a string or an array of strings, found a number"},
		{`"stop":""`, invalid, "stop", "stop is empty; every text would end at once"},
		{`"stop":["a",""]`, invalid, "stop[1]", "stop[1] is empty; every text would end at once"},
		{`"stop":["a",null]`, invalid, "stop[1]", "stop[1] must be a string, found null"},
		{`"stop":["\udc00"]`, invalid, "stop[0]", "stop[0] holds half a surrogate pair; both halves are needed"},
		{`"stop":"` + strings.Repeat("a", 1025) + `"`, invalid, "stop", "stop has 1025 bytes; a stop string may have 1024; send a shorter one"},
		{`"stop":["a","` + strings.Repeat("é", 513) + `"]`, invalid, "stop[1]", "stop[1] has 1026 bytes; a stop string may have 1024; send a shorter one"},
		{`"stop":` + seventeen, invalid, "stop", "stop may hold at most 16 strings"},
		{`"stop_token_ids":5`, invalid, "stop_token_ids", "stop_token_ids must be an array of token ids, found a number"},
		{`"stop_token_ids":[1,-1]`, invalid, "stop_token_ids[1]", "stop_token_ids[1] must be a token id (an integer from 0 to 4294967295), found -1"},
		{`"stop_token_ids":[` + strings.Repeat("1,", 1024) + `1]`, invalid, "stop_token_ids", "stop_token_ids may hold at most 1024 ids, found 1025"},
		{`"stream_options":{}`, invalid, "stream_options", "stream_options needs stream to be true"},
		{`"stream":true,"stream_options":{"include_usage":true,"include_usage":false}`, invalid, "stream_options.include_usage", "stream_options.include_usage is given twice; give it once"},
		{`"stream":true,"stream_options":{"include_usag":true}`, unsupported, "stream_options.include_usag", `stream_options.include_usag is not supported by engine kind "weir"; did you mean include_usage?`},
		{`"stream":true,"stream_options":{"continuous_usage_stats":1}`, invalid, "stream_options.continuous_usage_stats", `stream_options.continuous_usage_stats must be true or false, found a number`},
		{`"stream":true,"stream_options":{"x":null}`, unsupported, "stream_options.x", `stream_options.x is not supported by engine kind "weir"; leave it out`},
		{`"n":129`, invalid, "n", "n must be between 1 and 128, found 129"},
		{`"response_format":{"type":"json_object"}`, unsupported, "response_format", `response_format is not supported by engine kind "weir"; leave it out or send {"type":"text"}`},
		{`"logit_bias":{"5":1}`, unsupported, "logit_bias", `logit_bias is not supported by engine kind "weir"; leave it out or send {}`},
		{`"guided_json":{}`, unsupported, "guided_json", `guided_json is not supported by engine kind "weir"; leave it out`},
		{`"max_token":5`, unsupported, "max_token", `there is no field "max_token" that engine kind "weir" can carry; did you mean max_tokens?`},
		{`"Temperature":1`, unsupported, "Temperature", `there is no field "Temperature" that engine kind "weir" can carry; did you mean temperature?`},
		{`"xyzzy":null`, unsupported, "xyzzy", `there is no field "xyzzy" that engine kind "weir" can carry; leave it out`},
		{`"` + strings.Repeat("é", 100) + `":1`, unsupported, strings.Repeat("é", 32) + "...", `there is no field "` + strings.Repeat("é", 32) + `..." that engine kind "weir" can carry; leave it out`},
	} {
		for endpoint, body := range map[Endpoint]string{Chat: chatBody(test.fields), Completions: completionBody(test.fields)} {
			_, err := decode(endpoint, body)
			t.Run(test.fields, func(t *testing.T) { wantError(t, err, test.code, test.param, test.message) })
		}
	}
}

func TestEndpointFieldsRefused(t *testing.T) {
	const invalid, unsupported = infer.CodeInvalid, infer.CodeUnsupported
	for _, test := range []struct {
		endpoint Endpoint
		body     string
		code     infer.Code
		param    string
		message  string
	}{
		{Chat, `{"model":"m"}`, invalid, "messages", "messages is required: send an array with at least one message"},
		{Chat, chatBody(`"max_tokens":5,"max_completion_tokens":6`), invalid, "max_completion_tokens", "max_completion_tokens is 6 and max_tokens is 5; give one of them"},
		{Chat, chatBody(`"max_completion_tokens":0`), invalid, "max_completion_tokens", "max_completion_tokens must be between 1 and 2147483647, found 0"},
		{Chat, chatBody(`"tools":{}`), invalid, "tools", `tools must be an array of tools, found an object`},
		{Chat, chatBody(`"tools":[1]`), invalid, "tools[0]", `tools[0] must be an object, found a number`},
		{Chat, chatBody(`"tools":[{}]`), invalid, "tools[0].type", `tools[0].type is required: send "function"`},
		{Chat, chatBody(`"tools":[{"type":"web_search"}]`), unsupported, "tools[0].type", `tools[0].type "web_search" is not supported by engine kind "weir"; only tools of type "function" are`},
		{Chat, chatBody(`"tools":[{"type":"functon"}]`), unsupported, "tools[0].type", `tools[0].type "functon" is not supported by engine kind "weir"; did you mean function?`},
		{Chat, chatBody(`"tools":[{"type":"function","function":{"name":"f"},"strict":true}]`), unsupported, "tools[0].strict", `tools[0].strict is not supported by engine kind "weir"; leave it out`},
		{Chat, chatBody(`"tools":[{"type":"function","function":{"name":"f","paramters":{}}}]`), unsupported, "tools[0].function.paramters", `tools[0].function.paramters is not supported by engine kind "weir"; did you mean parameters?`},
		{Chat, chatBody(`"tool_choice":{"type":"custom","custom":{"name":"f"}}`), unsupported, "tool_choice.type", `tool_choice.type "custom" forces a tool that engine kind "weir" cannot run; name a function, or send auto`},
		{Chat, chatBody(`"tool_choice":{"type":"functions"}`), invalid, "tool_choice.type", `tool_choice.type must be "function" or "allowed_tools", found "functions"`},
		{Chat, chatBody(`"tool_choice":{"type":"allowed_tools"}`), invalid, "tool_choice.allowed_tools", `tool_choice.allowed_tools must be an object with mode and tools`},
		{Chat, chatBody(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"none","tools":[]}}`), invalid, "tool_choice.allowed_tools.mode", `tool_choice.allowed_tools.mode must be "auto" or "required", found "none"`},
		{Chat, chatBody(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]}}`), invalid, "tool_choice.allowed_tools.tools[0]", `tool_choice.allowed_tools.tools[0] is "g", which is not in tools`},
		{Chat, chatBody(`"tools":[{"type":"function"}]`), invalid, "tools[0].function", `tools[0].function is required`},
		{Chat, chatBody(`"tools":[{"type":"function","function":{}}]`), invalid, "tools[0].function.name", `tools[0].function.name is required`},
		{Chat, chatBody(`"tools":[{"type":"function","function":{"name":"a b"}}]`), invalid, "tools[0].function.name", `tools[0].function.name is "a b"; a name has 1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes`},
		{Chat, chatBody(`"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]`), invalid, "tools[0].function.parameters", `tools[0].function.parameters must be a JSON Schema, which is an object, found an array`},
		{Chat, chatBody(`"tools":[{"type":"function","function":{"name":"f","strict":1}}]`), invalid, "tools[0].function.strict", `tools[0].function.strict must be true or false, found a number`},
		{Chat, chatBody(`"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]`), invalid, "tools[1].function.name", `tools[1].function.name "f" is the name of two tools`},
		{Chat, chatBody(`"tools":[{"type":"function","function":{"name":"f","name":"g"}}]`), invalid, "tools[0].function.name", `tools[0].function.name is given twice; give it once`},
		{Chat, chatBody(`"tool_choice":"required"`), unsupported, "tool_choice", `tool_choice: that a tool is called cannot be forced on engine kind "weir"; send "auto", or "none"`},
		{Chat, chatBody(`"tool_choice":{"type":"function","function":{"name":"f"}}`), unsupported, "tool_choice", `tool_choice: that a tool is called cannot be forced on engine kind "weir"; send "auto", or "none"`},
		{Chat, chatBody(`"tool_choice":"any"`), invalid, "tool_choice", `tool_choice must be "auto", "none", "required" or an object that names a tool, found "any"`},
		{Chat, chatBody(`"parallel_tool_calls":1`), invalid, "parallel_tool_calls", `parallel_tool_calls must be true or false, found a number`},
		{Chat, chatBody(`"logprobs":true`), unsupported, "logprobs", `logprobs is not supported by engine kind "weir"; leave it out or send false`},
		{Chat, chatBody(`"prompt":"x"`), unsupported, "prompt", "prompt is a field of /v1/completions, not of /v1/chat/completions; leave it out"},
		{Chat, chatBody(`"chat_template_kwargs":[]`), invalid, "chat_template_kwargs", "chat_template_kwargs must be an object, found an array"},
		{Chat, chatBody(`"chat_template_kwargs":{"a":{"b":1,"b":1}}`), invalid, "chat_template_kwargs.a.b", "chat_template_kwargs.a.b is given twice; give it once"},
		{Chat, chatBody(`"add_generation_prompt":"no"`), invalid, "add_generation_prompt", "add_generation_prompt must be true or false, found a string"},
		{Chat, chatBody(`"add_generation_prompt":true,"continue_final_message":true`), invalid, "continue_final_message", "continue_final_message and add_generation_prompt cannot both be true"},
		{Completions, `{"model":"m"}`, invalid, "prompt", "prompt is required: send a string or an array of token ids"},
		{Completions, completionBody(`"n":2,"best_of":3`), unsupported, "best_of", `best_of is 3 and n is 2; engine kind "weir" gives all that it makes: leave best_of out`},
		{Completions, completionBody(`"best_of":2`), unsupported, "best_of", `best_of is 2 and n is 1; engine kind "weir" gives all that it makes: leave best_of out`},
		{Completions, `{"model":"m","prompt":["a","b"],"n":65}`, invalid, "n", "n is 65 for each of 2 prompts, 130 choices; a request may have at most 128"},
		{Chat, chatBody(`"best_of":1`), unsupported, "best_of", "best_of is a field of /v1/completions, not of /v1/chat/completions; leave it out"},
		{Chat, chatBody(`"logprobs":true`), unsupported, "logprobs", `logprobs is not supported by engine kind "weir"; leave it out or send false`},
		{Chat, chatBody(`"top_logprobs":1`), unsupported, "top_logprobs", `top_logprobs is not supported by engine kind "weir"; leave it out or send 0`},
		{Completions, completionBody(`"logprobs":0`), unsupported, "logprobs", `logprobs is not supported by engine kind "weir"; leave it out`},
		{Completions, completionBody(`"max_completion_tokens":5`), unsupported, "max_completion_tokens", "max_completion_tokens is a field of /v1/chat/completions, not of /v1/completions; leave it out"},
		{Other, `{"model":"m"}`, unsupported, "", `engine kind "weir" serves /v1/chat/completions and /v1/completions only`},
	} {
		_, err := decode(test.endpoint, test.body)
		t.Run(test.body, func(t *testing.T) { wantError(t, err, test.code, test.param, test.message) })
	}
}

func TestPromptRefused(t *testing.T) {
	const invalid = infer.CodeInvalid
	for _, test := range []struct {
		prompt  string
		code    infer.Code
		param   string
		message string
	}{
		{`null`, invalid, "prompt", "prompt must be a string or an array of token ids, found null"},
		{`7`, invalid, "prompt", "prompt must be a string or an array of token ids, found a number"},
		{`{}`, invalid, "prompt", "prompt must be a string or an array of token ids, found an object"},
		{`""`, invalid, "prompt", "prompt is empty; there must be at least one token to go on from"},
		{`[]`, invalid, "prompt", "prompt is empty; there must be at least one token to go on from"},
		{`[""]`, invalid, "prompt[0]", "prompt[0] is empty; there must be at least one token to go on from"},
		{`[[ ]]`, invalid, "prompt[0]", "prompt[0] is empty; there must be at least one token to go on from"},
		{`[null]`, invalid, "prompt[0]", "prompt[0] must be a string or an array of token ids, found null"},
		{`["a","b",""]`, invalid, "prompt[2]", "prompt[2] is empty; there must be at least one token to go on from"},
		{`[[1],[]]`, invalid, "prompt[1]", "prompt[1] is empty; there must be at least one token to go on from"},
		{`["a",7]`, invalid, "prompt[1]", "prompt[1] must be a string or an array of token ids, found a number"},
		{`[` + strings.Repeat(`"a",`, 128) + `"b"]`, invalid, "prompt", "prompt may hold at most 128 prompts"},
		{`[1,"a"]`, invalid, "prompt[1]", "prompt[1] must be a token id, found a string"},
		{`[1,[2]]`, invalid, "prompt[1]", "prompt[1] must be a token id, found an array"},
		{`[1.5]`, invalid, "prompt[0]", "prompt[0] must be a token id (an integer from 0 to 4294967295), found 1.5"},
		{`[1e3 ,2]`, invalid, "prompt[0]", "prompt[0] must be a token id (an integer from 0 to 4294967295), found 1e3"},
		{`[0,4294967296]`, invalid, "prompt[1]", "prompt[1] must be a token id (an integer from 0 to 4294967295), found 4294967296"},
		{`[[3,-1]]`, invalid, "prompt[0][1]", "prompt[0][1] must be a token id (an integer from 0 to 4294967295), found -1"},
		{`"\ud800"`, invalid, "prompt", "prompt holds half a surrogate pair; both halves are needed"},
	} {
		_, err := decode(Completions, `{"model":"m","prompt":`+test.prompt+`}`)
		t.Run(test.prompt, func(t *testing.T) { wantError(t, err, test.code, test.param, test.message) })
	}
}

// TestFieldTable holds the published table against what is done.
func TestFieldTable(t *testing.T) {
	for _, carries := range []infer.Carries{0, infer.CarriesAll} {
		t.Run(carries.String(), func(t *testing.T) { testFieldTable(t, carries) })
	}
}

func testFieldTable(t *testing.T, carries infer.Carries) {
	top := make(map[string]bool)
	for _, f := range Fields() {
		treatment := f.Treatment
		if f.Needs&^carries != 0 {
			treatment = Refused
		}
		if f.Treatment != Refused && f.Note == "" || f.Treatment != Carried && f.Elsewhere == "" || f.On == 0 {
			t.Errorf("%s is not described", f.Name)
		}
		if strings.ContainsAny(f.Name, ".[ ") {
			continue // inside of others: TestLeftOut, TestMessages...
		}
		for endpoint, body := range map[Endpoint]func(string) string{
			Chat: chatBody, Completions: completionBody, Tokenize: chatBody,
			Detokenize: func(fields string) string { return `{"model":"m","tokens":[1]` + comma(fields) + `}` },
		} {
			if f.On&(1<<endpoint) == 0 {
				continue
			}
			key := fmt.Sprint(endpoint, f.Name)
			if top[key] {
				t.Errorf("%s is there twice", key)
			}
			top[key] = true
			var ignored []string
			try := func(value string) error {
				filled := body(fmt.Sprintf("%q:%s", f.Name, value))
				if endpoint.tokenizes() {
					_, err := tokenization(endpoint, filled)
					return err
				}
				r, err := decodeFor(carries, endpoint, filled)
				if ignored = nil; err == nil {
					ignored = r.LeftOut.Ignored()
				}
				return err
			}
			switch treatment {
			case Refused:
				for _, value := range append(f.Defaults, "null") {
					if err := try(value); err != nil {
						t.Errorf("%s: %s: %v", key, value, err)
					}
				}
				var e *infer.Error
				odd := `{"odd":[7]}`
				if f.Name == "n" {
					odd = "7"
				}
				if err := try(odd); !errors.As(err, &e) || e.Code != infer.CodeUnsupported || e.Param != f.Name {
					t.Errorf("%s: %v", key, err)
				}
			case Ignored:
				for _, value := range append([]string{"null", "1", `{"odd":"\ud800"}`}, f.Defaults...) {
					err := try(value)
					named := slices.Contains(ignored, f.Name)
					if asks := value != "null" && !slices.Contains(f.Defaults, value); err != nil || !endpoint.tokenizes() && named != asks {
						t.Errorf("%s: %s: %v, named: %v", key, value, err, named)
					}
				}
			case Carried:
				if f.Name == "model" || f.Name == "messages" || f.Name == "prompt" || f.Name == "tokens" {
					continue
				}
				if err := try("null"); err != nil {
					t.Errorf("%s: null: %v", key, err)
				}
				var e *infer.Error
				if err := try(`[["odd"]]`); !errors.As(err, &e) || e.Code != infer.CodeInvalid || !strings.HasPrefix(e.Param, f.Name) {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
	}
	if len(fields) > dialect.MaxNames {
		t.Errorf("%d fields, room for %d", len(fields), dialect.MaxNames)
	}
	// A neutral value counts by what it means, not by how it is written.
	for _, fields := range []string{`"presence_penalty":-0.0`, `"n":1.0`, "\"response_format\":{ \"type\" :\n\"te\\u0078t\" }", `"logit_bias":{ }`} {
		if _, err := decode(Chat, chatBody(fields)); err != nil {
			t.Errorf("%s: %v", fields, err)
		}
	}
}

// Fields that only some wires carry reach those wires, and an error in one names the field.
func TestSamplingBeyond(t *testing.T) {
	schema := func(text string) *infer.Guide { return &infer.Guide{Kind: infer.GuideJSONSchema, Text: text} }
	for _, test := range []struct {
		fields string
		want   func(r *dialect.Request)
	}{
		{`"min_p":0.1,"presence_penalty":-2,"frequency_penalty":2,"repetition_penalty":1.1`, func(r *dialect.Request) {
			r.Sampling = infer.Sampling{MinP: ptr(0.1), PresencePenalty: ptr(-2.0), FrequencyPenalty: ptr(2.0), RepetitionPenalty: ptr(1.1)}
		}},
		{`"logit_bias":{"7":-100,"3":1.5}`, func(r *dialect.Request) {
			r.Sampling.LogitBias = []infer.Bias{{ID: 3, Value: 1.5}, {ID: 7, Value: -100}}
		}},
		{`"logit_bias":{}`, func(r *dialect.Request) {}},
		{`"response_format":{"type":"text"}`, func(r *dialect.Request) {}},
		{`"response_format":{"type":"text","json_schema":null}`, func(r *dialect.Request) {}},
		{`"response_format":{"type":"json_object"}`, func(r *dialect.Request) { r.Guide = schema(`{"type":"object"}`) }},
		{`"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object", "properties":{}}}}`,
			func(r *dialect.Request) { r.Guide = schema(`{"type":"object", "properties":{}}`) }},
		{`"response_format":{"type":"structural_tag","structures":[],"triggers":[]}`, func(r *dialect.Request) {
			r.Guide = &infer.Guide{Kind: infer.GuideStructuralTag, Text: `{"type":"structural_tag","structures":[],"triggers":[]}`}
		}},
		{`"guided_json":{"a":1}`, func(r *dialect.Request) { r.Guide = schema(`{"a":1}`) }},
		{`"json_schema":"{\"a\":1}"`, func(r *dialect.Request) { r.Guide = schema(`{"a":1}`) }},
		{`"guided_regex":"a+"`, func(r *dialect.Request) { r.Guide = &infer.Guide{Kind: infer.GuideRegex, Text: "a+"} }},
		{`"regex":"a+"`, func(r *dialect.Request) { r.Guide = &infer.Guide{Kind: infer.GuideRegex, Text: "a+"} }},
		{`"ebnf":"root ::= x"`, func(r *dialect.Request) { r.Guide = &infer.Guide{Kind: infer.GuideGrammar, Text: "root ::= x"} }},
		{`"guided_grammar":"root ::= x"`, func(r *dialect.Request) { r.Guide = &infer.Guide{Kind: infer.GuideGrammar, Text: "root ::= x"} }},
		{`"guided_choice":["a","b"]`, func(r *dialect.Request) { r.Guide = &infer.Guide{Kind: infer.GuideChoice, Choices: []string{"a", "b"}} }},
		{`"structured_outputs":{"choice":["a"],"json":null}`, func(r *dialect.Request) { r.Guide = &infer.Guide{Kind: infer.GuideChoice, Choices: []string{"a"}} }},
		{`"structured_outputs":{"json_object":true}`, func(r *dialect.Request) { r.Guide = schema(`{"type":"object"}`) }},
		{`"structured_outputs":{"json_object":false}`, func(r *dialect.Request) {}},
	} {
		for endpoint, body := range map[Endpoint]func(string) string{Chat: chatBody, Completions: completionBody} {
			got, err := decodeFor(infer.CarriesAll, endpoint, body(test.fields))
			if err != nil {
				t.Errorf("%s: %v", test.fields, err)
				continue
			}
			want, err := decodeFor(infer.CarriesAll, endpoint, body(""))
			if err != nil {
				t.Fatal(err)
			}
			test.want(want)
			want.Encoder, got.Encoder = nil, nil // functions do not compare
			if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(dialect.Request{})); diff != "" {
				t.Errorf("%s: %s", test.fields, diff)
			}
		}
	}
	for _, test := range []struct {
		fields  string
		code    infer.Code
		param   string
		message string
	}{
		{`"min_p":2`, infer.CodeInvalid, "min_p", "min_p must be between 0 and 1, found 2"},
		{`"presence_penalty":3`, infer.CodeInvalid, "presence_penalty", "presence_penalty must be between -2 and 2, found 3"},
		{`"repetition_penalty":0`, infer.CodeInvalid, "repetition_penalty", "repetition_penalty must be above 0 and at most 2, found 0"},
		{`"logit_bias":{"x":1}`, infer.CodeInvalid, "logit_bias.x", `logit_bias.x: "x" is not a token id`},
		{`"logit_bias":{"1":101}`, infer.CodeInvalid, "logit_bias.1", "logit_bias.1 must be between -100 and 100, found 101"},
		{`"logit_bias":{"1":1,"01":2}`, infer.CodeInvalid, "logit_bias", "logit_bias names the id 1 twice"},
		{`"response_format":{}`, infer.CodeInvalid, "response_format.type", "response_format.type is required: send text, json_object, json_schema or structural_tag"},
		{`"response_format":{"type":"json_object","schema":{"type":"object"}}`, infer.CodeInvalid, "response_format.schema", "response_format.schema has no place there; send the type json_schema, and the schema in response_format.json_schema.schema"},
		{`"response_format":{"type":"text","json_schema":{"schema":{}}}`, infer.CodeInvalid, "response_format.json_schema", "response_format.json_schema belongs to the type json_schema, and the type is text"},
		{`"response_format":{"type":"text","strict":true}`, infer.CodeUnsupported, "response_format.strict", `response_format.strict is not supported by engine kind "able"; leave it out`},
		{`"response_format":{"type":"xml"}`, infer.CodeInvalid, "response_format.type", `response_format.type is "xml"; it must be text, json_object, json_schema or structural_tag`},
		{`"response_format":{"type":"json_schema"}`, infer.CodeInvalid, "response_format.json_schema", "response_format.json_schema is required with the type json_schema: send an object with a schema"},
		{`"response_format":{"type":"json_schema","json_schema":{"name":"n"}}`, infer.CodeInvalid, "response_format.json_schema.schema", "response_format.json_schema.schema is required: send the JSON schema"},
		{`"response_format":{"type":"json_schema","json_schema":{"schema":{"a":1,"a":2}}}`, infer.CodeInvalid, "response_format.json_schema.schema.a", "response_format.json_schema.schema.a is given twice; give it once"},
		{`"response_format":{"type":"json_schema","json_schema":{"schema":{},"x":1}}`, infer.CodeUnsupported, "response_format.json_schema.x", `response_format.json_schema.x is not supported by engine kind "able"; leave it out`},
		{`"guided_json":"not json"`, infer.CodeInvalid, "guided_json", "guided_json is a string that holds no JSON object; send the schema itself"},
		{`"guided_json":"{"`, infer.CodeInvalid, "guided_json", "guided_json is a string that holds no JSON object; send the schema itself"},
		{`"regex":""`, infer.CodeInvalid, "regex", "regex is empty; leave it out"},
		{`"guided_choice":[]`, infer.CodeInvalid, "guided_choice", "guided_choice is empty; there must be something to choose from"},
		{`"guided_choice":["a",1]`, infer.CodeInvalid, "guided_choice[1]", "guided_choice[1] must be a string, found a number"},
		{`"regex":"a","guided_choice":["a"]`, infer.CodeInvalid, "guided_choice", "regex and guided_choice both constrain the output; give one of them"},
		{`"structured_outputs":{"whitespace_pattern":"x"}`, infer.CodeUnsupported, "structured_outputs.whitespace_pattern", `structured_outputs.whitespace_pattern is not supported by engine kind "able"; leave it out`},
	} {
		_, err := decodeFor(infer.CarriesAll, Chat, chatBody(test.fields))
		t.Run(test.fields, func(t *testing.T) { wantError(t, err, test.code, test.param, test.message) })
	}
	// A wire that carries schemas and no regular expressions.
	_, err := decodeFor(infer.CarriesJSONSchema, Chat, chatBody(`"structured_outputs":{"regex":"a"}`))
	wantError(t, err, infer.CodeUnsupported, "structured_outputs.regex", `structured_outputs.regex is not supported by engine kind "able"; leave it out`)
}

// The choices and log probabilities that a request asks for.
func TestChoices(t *testing.T) {
	one, none := 1, 0
	for _, test := range []struct {
		endpoint Endpoint
		body     string
		n, more  int
		logprobs *int
	}{
		{Chat, chatBody(`"n":3`), 3, 0, nil},
		{Chat, chatBody(`"n":null,"logprobs":false,"top_logprobs":null`), 0, 0, nil},
		{Chat, chatBody(`"logprobs":true`), 0, 0, &none},
		{Chat, chatBody(`"top_logprobs":1,"logprobs":true`), 0, 0, &one},
		{Completions, completionBody(`"n":2,"best_of":2,"logprobs":0`), 2, 0, &none},
		{Completions, completionBody(`"best_of":1,"logprobs":1`), 0, 0, &one},
		{Completions, `{"model":"m","n":2,"prompt":["a",[1,2],"c"]}`, 2, 2, nil},
	} {
		r, err := decodeFor(infer.CarriesLogprobs, test.endpoint, test.body)
		if err != nil {
			t.Errorf("%s: %v", test.body, err)
			continue
		}
		if r.N != test.n || len(r.MorePrompts) != test.more || !reflect.DeepEqual(r.Logprobs, test.logprobs) || r.Tokens != (test.logprobs != nil) {
			t.Errorf("%s: n %d, %d more prompts, logprobs %v, tokens %t", test.body, r.N, len(r.MorePrompts), r.Logprobs, r.Tokens)
		}
	}
	for _, body := range []string{chatBody(`"top_logprobs":1`), chatBody(`"logprobs":true,"top_logprobs":21`), chatBody(`"logprobs":1`)} {
		if _, err := decodeFor(infer.CarriesLogprobs, Chat, body); err == nil {
			t.Errorf("%s is taken", body)
		}
	}
}

// An engine compiles what the output must match, so that has a bound.
func TestGuideIsBounded(t *testing.T) {
	long := strings.Repeat("a", dialect.MaxGuide)
	for field, value := range map[string]string{
		"regex": `"` + long + `a"`, "guided_choice": `["` + long + `","b"]`,
		"response_format": `{"type":"json_schema","json_schema":{"schema":{"const":"` + long + `"}}}`,
	} {
		_, err := decodeFor(infer.CarriesAll, Completions, completionBody(`"`+field+`":`+value))
		if e := infer.AsError(err); e == nil || e.Code != infer.CodeInvalid || !strings.HasPrefix(e.Param, field) || !strings.Contains(e.Message, "it may have 1048576") {
			t.Errorf("%s: %.200v", field, err)
		}
	}
	if _, err := decodeFor(infer.CarriesAll, Completions, completionBody(`"regex":"`+long+`"`)); err != nil {
		t.Errorf("%.200v", err)
	}
}

func TestManual(t *testing.T) {
	rows := Fields()
	for i := range rows {
		rows[i].On >>= Chat // the columns begin with it
	}
	dialecttest.Manual(t, "../../../docs/apis.md", "<!-- openai fields -->", rows, "chat", "completions", "tokenize", "detokenize")
	dialecttest.Manual(t, "../../../docs/apis.md", "<!-- embedding fields -->", EmbeddingFields())
}
