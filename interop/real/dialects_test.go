//go:build interop_engines

package real

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"weir/test/e2e/harness"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/events.txt anew")

const (
	messagesPath  = "/v1/messages"
	responsesPath = "/v1/responses"
)

// say is a turn that makes the engine say a text (scripted.py).
func say(text string) string { return "say:" + base64.StdEncoding.EncodeToString([]byte(text)) + "." }

// dialectFleet is vLLM with parsers, behind its own server, which weir relays, and
// dialling in to weir.
type dialectFleet struct {
	server *harness.Process
	wire   *recorder // between the relay and the server
	relay  gateway
	ways   []way // vLLM itself, relay, vllm-core
}

// withoutPrefix is the model's folder with a tokenizer that puts nothing before a text:
// vLLM's /v1/responses has it put <|bos|> before a prompt whose template has written
// one, and then nothing of it can be compared.
func withoutPrefix(t *testing.T) string {
	to := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(to, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(to, "tokenizer.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || len(members["post_processor"]) == 0 {
		t.Fatalf("%s: %v", file, err)
	}
	members["post_processor"] = json.RawMessage("null")
	if text, err = json.Marshal(members); err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func newDialectFleet(t *testing.T) *dialectFleet {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	folder := withoutPrefix(t)
	env := []string{"PYTHONPATH=" + here}
	port, handshake := freePort(t), freePort(t)
	f := new(dialectFleet)
	script := []string{"--logits-processors", "scripted:Scripted"}
	f.server = vllmOf(t, folder, env, append(script, "--port", port, "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
		"--reasoning-parser", "deepseek_v3", "--enable-prompt-tokens-details")...)
	headless := vllmOf(t, folder, env, append(script, "--headless", "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", handshake)...)
	direct := "127.0.0.1:" + port
	f.wire = record(t, direct)
	f.relay = serve(t, "--engine", "openai=http://"+f.wire.address)
	core := serve(t, "--engine", "vllm-core=tcp://127.0.0.1:"+handshake+",model=tiny", "--model", "tiny="+folder+",reasoning-parser=think")
	f.relay.ready(true, f.server)
	core.ready(true, headless)
	f.ways = []way{{"vLLM itself", "http://" + direct, "tiny"}, {"relay", f.relay.URL, "tiny"}, {"vllm-core", core.URL, "tiny"}}
	return f
}

// recorder passes connections on to an address and keeps what comes back.
type recorder struct {
	address string

	mu    sync.Mutex
	taken []*bytes.Buffer // of each connection
}

func record(t *testing.T, to string) *recorder {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r := &recorder{address: l.Addr().String()}
	go func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				down.Close()
				continue
			}
			kept := new(bytes.Buffer)
			r.mu.Lock()
			r.taken = append(r.taken, kept)
			r.mu.Unlock()
			go func() {
				_, _ = io.Copy(up, down)
				_ = up.(*net.TCPConn).CloseWrite()
			}()
			go func() {
				keep := writer(func(b []byte) {
					r.mu.Lock()
					defer r.mu.Unlock()
					kept.Write(b)
				})
				_, _ = io.Copy(io.MultiWriter(keep, down), up) // kept before anybody has it
				down.Close()
				up.Close()
			}()
		}
	}()
	return r
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// bodies are those of all responses so far that are whole.
func (r *recorder) bodies() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kept := range r.taken {
		for in := bufio.NewReader(bytes.NewReader(kept.Bytes())); ; {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				break
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				break
			}
			all = append(all, string(body))
		}
	}
	return all
}

// said is an answer of one of the two APIs, streamed or not, in one form.
type said struct {
	Items            []string // reasoning, text, calls, in order
	Stop             string
	Prompt, Output   int
	Reasoning        int      // tokens; -1 where the API does not say
	Scores           []scored // of the text's tokens
	Events           []string // types, a run of one type as one; none where not streamed
	Status           int
	Complete, Failed bool
	raw              string
	fields           map[string]map[string]bool // of each type of event or object, the paths of its members
}

// trimmed is without white space around texts, which weir's parsers leave out.
func (s said) trimmed() said {
	s.Items = slices.Clone(s.Items)
	for i, it := range s.Items {
		kind, text, _ := strings.Cut(it, ": ")
		s.Items[i] = kind + ": " + strings.TrimSpace(text)
	}
	return s
}

// note adds the paths of a value's members to those of a type.
func (s *said) note(kind, path string, v any) {
	if s.fields[kind] == nil {
		s.fields[kind] = map[string]bool{}
	}
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			// The content of a schema or of a call's arguments comes from the caller or the model.
			at := strings.TrimPrefix(path+"."+name, ".")
			s.fields[kind][at] = true
			if name != "parameters" && name != "input" {
				s.note(kind, at, value)
			}
		}
	case []any:
		for _, value := range v {
			s.note(kind, path+"[]", value)
		}
	}
}

// say sends a request and reads the answer to its end, or its cut.
func (w way) say(t *testing.T, ctx context.Context, path string, body fields) said {
	t.Helper()
	resp, err := w.post(ctx, path, body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	s := said{Status: resp.StatusCode, raw: string(raw), fields: map[string]map[string]bool{}, Reasoning: -1}
	if s.Status != 200 {
		return s
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		s.Complete = true
		s.object(t, raw)
		return s
	}
	blocks := map[int]map[string]any{}
	for block := range strings.SplitSeq(strings.TrimSpace(s.raw), "\n\n") {
		_, data, _ := strings.Cut("\n"+block, "\ndata: ")
		var e map[string]any
		if data == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%s: %v: %q", w.name, err, block)
		}
		kind, _ := e["type"].(string)
		if len(s.Events) == 0 || s.Events[len(s.Events)-1] != kind {
			s.Events = append(s.Events, kind)
		}
		if object, ok := e["response"]; ok {
			s.note("answer", "", object)
		} else {
			s.note(kind, "", e)
		}
		index, _ := e["index"].(float64)
		switch at := blocks[int(index)]; kind {
		case "error", "response.failed":
			s.Failed = true
		case "content_block_start":
			blocks[int(index)] = e["content_block"].(map[string]any)
		case "content_block_delta":
			d := e["delta"].(map[string]any)
			for from, to := range map[string]string{"text": "text", "thinking": "thinking", "partial_json": "json"} {
				if text, ok := d[from].(string); ok {
					before, _ := at[to].(string)
					at[to] = before + text
				}
			}
		case "message_delta":
			s.Stop = stopOf(e["delta"].(map[string]any))
			s.usage(e["usage"].(map[string]any))
		case "message_stop":
			s.Complete = true
			for _, i := range slices.Sorted(maps.Keys(blocks)) {
				s.block(t, blocks[i])
			}
		case "response.completed", "response.incomplete":
			s.Complete = true
			object, _ := json.Marshal(e["response"])
			s.object(t, object)
		}
	}
	return s
}

func stopOf(m map[string]any) string {
	return strings.TrimSuffix(fmt.Sprint(m["stop_reason"], " ", m["stop_sequence"]), " <nil>")
}

func (s *said) usage(u map[string]any) {
	count := func(name string) int {
		n, _ := u[name].(float64)
		return int(n)
	}
	s.Prompt = count("input_tokens") + count("cache_read_input_tokens") + count("cache_creation_input_tokens")
	s.Output = count("output_tokens")
	if d, ok := u["output_tokens_details"].(map[string]any); ok {
		n, _ := d["reasoning_tokens"].(float64)
		s.Reasoning = int(n)
	}
}

// block reads a content block of a message, or an item of a response.
func (s *said) block(t *testing.T, b map[string]any) {
	arguments := func(v any) string {
		if text, ok := v.(string); ok {
			var value any
			if json.Unmarshal([]byte(text), &value) != nil {
				return text
			}
			v = value
		}
		text, _ := json.Marshal(v)
		return string(text)
	}
	parts := func(name string) (text string) {
		list, _ := b[name].([]any)
		for _, p := range list {
			one, _ := p.(map[string]any)["text"].(string)
			text += one
			raw, _ := json.Marshal(p.(map[string]any)["logprobs"])
			var scores []scored
			var entries []struct {
				Token   string
				Bytes   []int
				Logprob float64
				Top     []struct {
					Token   string
					Bytes   []int
					Logprob float64
				} `json:"top_logprobs"`
			}
			if err := json.Unmarshal(raw, &entries); err != nil {
				t.Errorf("%s: %v", raw, err)
			}
			bytesOf := func(values []int) (b []byte) {
				for _, v := range values {
					b = append(b, byte(v))
				}
				return b
			}
			for _, e := range entries {
				one := scored{Token: e.Token, Bytes: bytesOf(e.Bytes), Logprob: e.Logprob}
				for _, top := range e.Top {
					one.Top = append(one.Top, scored{Token: top.Token, Bytes: bytesOf(top.Bytes), Logprob: top.Logprob})
				}
				scores = append(scores, one)
			}
			s.Scores = append(s.Scores, scores...)
		}
		return text
	}
	switch b["type"] {
	case "text":
		s.Items = append(s.Items, "text: "+b["text"].(string))
	case "thinking":
		s.Items = append(s.Items, "reasoning: "+b["thinking"].(string))
	case "tool_use":
		input := b["input"]
		if text, ok := b["json"]; ok {
			input = text
		}
		s.Items = append(s.Items, "call: "+b["name"].(string)+" "+arguments(input))
	case "message":
		s.Items = append(s.Items, "text: "+parts("content"))
	case "reasoning":
		s.Items = append(s.Items, "reasoning: "+parts("content"))
	case "function_call":
		s.Items = append(s.Items, "call: "+b["name"].(string)+" "+arguments(b["arguments"]))
	default:
		t.Errorf("an item of type %v", b["type"])
	}
}

// object reads a whole answer.
func (s *said) object(t *testing.T, raw []byte) {
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	s.note("answer", "", o)
	list, _ := o["content"].([]any)
	s.Stop = stopOf(o)
	if o["object"] == "response" {
		list, _ = o["output"].([]any)
		s.Stop = fmt.Sprint(o["status"])
		if d, ok := o["incomplete_details"].(map[string]any); ok {
			s.Stop += fmt.Sprint(" ", d["reason"])
		}
	}
	for _, it := range list {
		s.block(t, it.(map[string]any))
	}
	if u, ok := o["usage"].(map[string]any); ok {
		s.usage(u)
	}
}

var (
	cityTool  = fields{"type": "object", "properties": fields{"n": fields{"type": "integer", "minimum": 1, "maximum": 9}}, "required": []string{"n"}, "additionalProperties": false}
	weather   = []fields{{"name": "weather", "description": "Tells it.", "input_schema": cityTool}, {"name": "now", "description": "The hour.", "input_schema": fields{"type": "object", "properties": fields{}}}}
	functions = []fields{{"type": "function", "name": "weather", "description": "Tells it.", "parameters": cityTool}, {"type": "function", "name": "now", "description": "The hour.", "parameters": fields{"type": "object", "properties": fields{}}}}
	thinking  = fields{"chat_template_kwargs": fields{"enable_thinking": true}}
)

const call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"n\": 5}}\n</tool_call>"

// dialectCases are the same requests in both APIs; turns are of a user, unless one says
// otherwise.
var dialectCases = []struct {
	name                string
	messages, responses fields                   // nil: the API has no such request
	judge               func(theirs, ours *said) // makes one what differs by design
}{
	{"said", fields{"messages": user(say("Hello 世界, you. 😀"))}, fields{"input": say("Hello 世界, you. 😀")}, nil},
	{"the model's own", fields{"messages": user("Hello, 世界"), "max_tokens": 24}, fields{"input": "Hello, 世界", "max_output_tokens": 24}, nil},
	{"instructions and turns", fields{"system": "Be brief.", "messages": []fields{{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": say("Well.")}}},
		fields{"instructions": "Be brief.", "input": []fields{{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": say("Well.")}}}, nil},
	{"parts", fields{"messages": []fields{{"role": "user", "content": []fields{{"type": "text", "text": "one"}, {"type": "text", "text": say("Two.")}}}}},
		fields{"input": []fields{{"role": "user", "content": []fields{{"type": "input_text", "text": "one"}, {"type": "input_text", "text": say("Two.")}}}}}, nil},
	{"stop sequence", fields{"messages": user(say("Hello 世界, you.")), "stop_sequences": []string{"界,"}}, nil, nil},
	{"call", fields{"messages": user(say("So:\n" + call)), "tools": weather}, fields{"input": say("So:\n" + call), "tools": functions}, nil},
	{"two calls", fields{"messages": user(say(call + "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>")), "tools": weather},
		fields{"input": say(call + "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"), "tools": functions}, nil},
	{"tool loop", fields{"messages": []fields{{"role": "user", "content": "How is it?"},
		{"role": "assistant", "content": []fields{{"type": "text", "text": "So:"}, {"type": "tool_use", "id": "c1", "name": "weather", "input": fields{"n": 5}}}},
		{"role": "user", "content": []fields{{"type": "tool_result", "tool_use_id": "c1", "content": say("Sunny.")}}}}, "tools": weather},
		fields{"input": []fields{{"role": "user", "content": "How is it?"}, {"role": "assistant", "content": "So:"},
			{"type": "function_call", "call_id": "c1", "name": "weather", "arguments": `{"n": 5}`},
			{"type": "function_call_output", "call_id": "c1", "output": say("Sunny.")}}, "tools": functions}, nil},
	{"thinks", fields{"messages": user(say("<think>\nI look.\n</think>\n\nYes."))}.with(thinking), fields{"input": say("<think>\nI look.\n</think>\n\nYes.")}.with(thinking), nil},
	{"thinks and calls", fields{"messages": user(say("<think>I look.</think>" + call)), "tools": weather}.with(thinking),
		fields{"input": say("<think>I look.</think>" + call), "tools": functions}.with(thinking), nil},
	{"cut while thinking", fields{"messages": user(say("<think>I look for a long while.</think>Yes.")), "max_tokens": 4}.with(thinking),
		fields{"input": say("<think>I look for a long while.</think>Yes."), "max_output_tokens": 4}.with(thinking), nil},
	{"cut in a call", fields{"messages": user(say(call)), "tools": weather, "max_tokens": 12}, fields{"input": say(call), "tools": functions, "max_output_tokens": 12}, cutCall},
	{"forced by name", fields{"messages": user("How?"), "tools": weather, "tool_choice": fields{"type": "tool", "name": "weather"}},
		fields{"input": "How?", "tools": functions, "tool_choice": fields{"type": "function", "name": "weather"}}, forced},
	{"forced", fields{"messages": user("How?"), "tools": weather[:1], "tool_choice": fields{"type": "any"}}, fields{"input": "How?", "tools": functions[:1], "tool_choice": "required"}, forced},
	{"document", fields{"messages": user("How?"), "output_config": fields{"format": fields{"type": "json_schema", "schema": cityTool}}},
		fields{"input": "How?", "text": fields{"format": fields{"type": "json_schema", "name": "d", "schema": cityTool}}}, nil},
	{"log probabilities", nil, fields{"input": "Hello, 世界", "max_output_tokens": 12, "top_logprobs": 2, "include": []string{"message.output_text.logprobs"}}, nil},
}

// cutCall: streamed, vLLM tells of the call that it has begun; whole, it says its text,
// as weir does in both.
func cutCall(theirs, ours *said) {
	if len(theirs.Events) > 0 {
		theirs.Items, theirs.Events = ours.Items, ours.Events
	}
}

// forced: vLLM has the model write any JSON for arguments, and any number of calls, and
// refuses a whole message whose arguments are no object. weir has it keep to the schema
// of one call.
func forced(theirs, ours *said) {
	if len(ours.Items) == 1 && regexp.MustCompile(`^call: weather \{"n":[1-9]\}$`).MatchString(ours.Items[0]) && (theirs.Status != 200 || theirs.Prompt == ours.Prompt) {
		*theirs = *ours
	}
}

func user(text string) []fields { return []fields{{"role": "user", "content": text}} }

// weir's answers in these APIs over vLLM's engine core equal those of vLLM's own server, and
// relayed answers do not differ by a byte. The differences in events and their members are listed
// in testdata/events.txt and judged in docs/engines.md.
func TestVLLMDialects(t *testing.T) {
	f := newDialectFleet(t)
	t.Run("answers", f.answers)
	t.Run("count_tokens", f.counts)
	t.Run("bytes", f.untouched)
	t.Run("server killed", f.killed)
}

func (f *dialectFleet) answers(t *testing.T) {
	ctx := harness.Context(t)
	ours, theirs := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, test := range dialectCases {
		for path, body := range map[string]fields{messagesPath: test.messages, responsesPath: test.responses} {
			if body == nil {
				continue
			}
			limit := map[string]string{messagesPath: "max_tokens", responsesPath: "max_output_tokens"}[path]
			body = fields{"temperature": 0, limit: 200}.with(body)
			var whole said
			for _, stream := range []bool{false, true} {
				at := fmt.Sprintf("%s%s, streamed %v", test.name, path, stream)
				var want said
				for i, w := range f.ways {
					got := w.say(t, ctx, path, body.with(fields{"stream": stream}))
					if (got.Status != 200 || !got.Complete || got.Failed) && (w.name == "vllm-core" || test.judge == nil) {
						t.Errorf("%s: %s: %.500s", at, w.name, got.raw)
						continue
					}
					switch {
					case i == 0:
						want = got
						gather(theirs, path, &got)
						continue
					case w.name == "relay":
						if diff := difference(want, got); diff != "" && got.Status == 200 {
							t.Errorf("%s: vLLM and its relay: %s", at, diff)
						}
						continue
					}
					gather(ours, path, &got)
					if stream {
						one, other := whole, got
						one.Events, other.Events = nil, nil
						if diff := difference(one, other); diff != "" {
							t.Errorf("%s: weir whole and streamed: %s", at, diff)
						}
					}
					whole = got
					a, b := want.trimmed(), got.trimmed()
					a.Events, b.Events = told(a), told(b)
					if b.Reasoning == a.Reasoning+1 {
						a.Reasoning++ // weir counts the marker before it
					}
					if test.judge != nil {
						test.judge(&a, &b)
					}
					if diff := difference(a, b); diff != "" {
						t.Errorf("%s: vLLM (-) and weir (+): %s", at, diff)
					}
				}
			}
		}
	}
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(union(ours, theirs))) {
		for _, at := range slices.Sorted(maps.Keys(union(ours[kind], theirs[kind]))) {
			if ours[kind][at] != theirs[kind][at] {
				fmt.Fprintf(&b, "%s %s: %s alone\n", kind, at, map[bool]string{true: "weir", false: "vLLM"}[ours[kind][at]])
			}
		}
	}
	file := filepath.Join("testdata", "events.txt")
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, _ := os.ReadFile(file)
	if diff := cmp.Diff(string(text), b.String()); diff != "" {
		t.Errorf("%s (-want +got): %s", file, diff)
	}
}

// told is the types of a stream's events but for what differs by design: weir pings at
// the beginning, and ends an answer that is not complete by response.incomplete, as
// OpenAI does, where vLLM says response.completed.
func told(s said) []string {
	events := slices.DeleteFunc(slices.Clone(s.Events), func(kind string) bool { return kind == "ping" })
	if last := len(events) - 1; last >= 0 && events[last] == "response.incomplete" {
		events[last] = "response.completed"
	}
	return events
}

func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return all
}

func gather(all map[string]map[string]bool, path string, s *said) {
	for kind, paths := range s.fields {
		key := path + " " + kind
		all[key] = union(all[key], paths)
	}
}

func difference(a, b said) string {
	if len(a.Scores) != len(b.Scores) {
		return fmt.Sprintf("%d tokens are scored, and %d", len(a.Scores), len(b.Scores))
	}
	for i := range a.Scores {
		if !a.Scores[i].close(b.Scores[i]) {
			return fmt.Sprintf("token %d: %+v against %+v", i, a.Scores[i], b.Scores[i])
		}
	}
	for _, s := range []*said{&a, &b} {
		s.Scores, s.raw, s.fields = nil, "", nil
	}
	return cmp.Diff(a, b, cmp.AllowUnexported(said{}))
}

// counts: the same count, which is that of the prompt.
func (f *dialectFleet) counts(t *testing.T) {
	ctx := harness.Context(t)
	for _, test := range dialectCases {
		if test.messages == nil {
			continue
		}
		body := maps.Clone(test.messages)
		maps.DeleteFunc(body, func(name string, _ any) bool { return name == "max_tokens" || name == "stop_sequences" })
		var want float64
		for i, w := range f.ways {
			resp, err := w.post(ctx, messagesPath+"/count_tokens", body)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Tokens float64 `json:"input_tokens"`
			}
			err = json.NewDecoder(resp.Body).Decode(&got)
			resp.Body.Close()
			if i == 0 {
				want = got.Tokens
			}
			if err != nil || got.Tokens != want || math.IsNaN(want) || want == 0 {
				t.Errorf("%s: %s: status %d, %v tokens, want %v (%v)", test.name, w.name, resp.StatusCode, got.Tokens, want, err)
			}
		}
	}
}

// untouched: every answer that came through the relay is one that the server wrote,
// and no stream of it was found wanting.
func (f *dialectFleet) untouched(t *testing.T) {
	ctx := harness.Context(t)
	asked := 0
	for _, test := range dialectCases {
		for path, body := range map[string]fields{messagesPath: test.messages, responsesPath: test.responses} {
			for _, stream := range []bool{false, true} {
				if body == nil {
					continue
				}
				limit := map[string]string{messagesPath: "max_tokens", responsesPath: "max_output_tokens"}[path]
				got := f.ways[1].say(t, ctx, path, fields{limit: 64}.with(body).with(fields{"stream": stream}))
				if asked++; !slices.Contains(f.wire.bodies(), got.raw) {
					t.Errorf("%s%s, streamed %v: the server wrote no such answer: %.300q", test.name, path, stream, got.raw)
				}
			}
		}
	}
	if n, ok := metric(f.relay.Admin, "weir_integrity_failures_total"); ok && n > 0 {
		t.Errorf("%v streams of vLLM's were found wanting", n)
	}
	t.Logf("%d answers", asked)
}

// killed: a stream of either API whose server dies ends with an error event, and
// without its end.
func (f *dialectFleet) killed(t *testing.T) {
	ctx := harness.Context(t)
	var begun, ended sync.WaitGroup
	for path, body := range map[string]fields{
		messagesPath:  {"messages": user("Hello"), "max_tokens": 3000},
		responsesPath: {"input": "Hello", "max_output_tokens": 3000},
	} {
		begun.Add(1)
		ended.Go(func() {
			once := sync.OnceFunc(begun.Done)
			defer once()
			resp, err := f.ways[1].post(ctx, path, body.with(fields{"stream": true, "temperature": 0}))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var all strings.Builder
			in := bufio.NewReader(resp.Body)
			for {
				line, err := in.ReadString('\n')
				if all.WriteString(line); strings.Count(all.String(), "\ndata:") > 8 {
					once()
				}
				if err != nil {
					text := all.String()
					if err == io.EOF || !strings.Contains(text, "event: error\n") || strings.Contains(text, "message_stop") || strings.Contains(text, "response.completed") {
						t.Errorf("%s: %v after %q", path, err, text[max(0, len(text)-400):])
					}
					return
				}
			}
		})
	}
	begun.Wait()
	f.server.Kill()
	ended.Wait()
}
