package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/idstream"
	"weir/internal/engine/vllmserver"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/trace"
)

// both are servers with one endpoint and with two.
func both() map[string]*server {
	of := func(generate bool) *server {
		srv := &server{model: "m", generate: generate, adapters: map[string]bool{"tuned": true}, carries: carries | infer.CarriesPriority}
		if generate {
			srv.carries |= infer.CarriesMedia
		}
		return srv
	}
	return map[string]*server{vllmserver.CompletionsPath: of(false), vllmserver.GeneratePath: of(true)}
}

// write writes a request as Generate does, to the endpoint that it chooses.
func (srv *server) write(req *infer.Request) ([]byte, *infer.Error) {
	generate, bad := srv.generates(req)
	if bad != nil {
		return nil, bad
	}
	return srv.appendRequest(nil, req, generate)
}

// Every field of a request is carried or refused by name, at both endpoints.
func TestFields(t *testing.T) {
	servers := both()
	enginetest.Fields(t, "../../../docs/engines.md", "vllm", servers[vllmserver.GeneratePath].write)
	enginetest.Fields(t, "../../../docs/engines.md", "vllm", func(req *infer.Request) ([]byte, *infer.Error) {
		if len(req.Media) > 0 { // which the other endpoint alone takes
			if _, bad := servers[vllmserver.CompletionsPath].write(req); bad == nil || bad.Lacks != infer.CarriesImage || !bad.Retryable {
				t.Errorf("media: %v", bad)
			}
			return servers[vllmserver.GeneratePath].write(req)
		}
		return servers[vllmserver.CompletionsPath].write(req)
	})
}

// The fields that are written are those of vLLM's schema, under its names and without others,
// because vLLM ignores fields that it does not know.
func TestRequests(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	k, seed, priority, top := 0, int64(7), int64(-3), 2
	req := &infer.Request{
		ID: "r1", Model: "tuned", Prompt: []uint32{1, 2}, MaxTokens: 9, MinTokens: 3, IgnoreEOS: true, StopIDs: []uint32{5}, Priority: &priority, Logprobs: &top,
		Sampling: infer.Sampling{Temperature: f(0.5), TopP: f(0.9), TopK: &k, Seed: &seed, MinP: f(0.1), PresencePenalty: f(1), FrequencyPenalty: f(-1), RepetitionPenalty: f(1.5), LogitBias: []infer.Bias{{ID: 4, Value: -100}, {ID: 5, Value: 2}}},
		Guide:    &infer.Guide{Kind: infer.GuideChoice, Choices: []string{"a", "\"b"}},
	}
	const params = `"max_tokens":9,"min_tokens":3,"ignore_eos":true,"stop_token_ids":[5],"temperature":0.5,"top_p":0.9,"top_k":-1,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.5,"logit_bias":{"4":-100,"5":2},"seed":7,"logprobs":%d,"structured_outputs":{"choice":["a","\"b"]}`
	for path, want := range map[string]string{
		vllmserver.CompletionsPath: `{"request_id":"r1","model":"tuned","priority":-3,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"return_token_ids":true,"prompt":[1,2],"return_tokens_as_token_ids":true,` + fmt.Sprintf(params, 2) + `}`,
		vllmserver.GeneratePath:    `{"request_id":"r1","model":"tuned","priority":-3,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"token_ids":[1,2],"sampling_params":{` + fmt.Sprintf(params, 3) + `}}`,
	} {
		got, bad := both()[path].appendRequest(nil, req, path == vllmserver.GeneratePath)
		if bad != nil || string(got) != want || !json.Valid(got) {
			t.Errorf("%s: %v\n%s\n%s", path, bad, got, want)
		}
	}
	req.Model, req.Media, req.ToContext, req.Logprobs = "else", []infer.Media{{Kind: infer.MediaImage, URL: "https://a/b.png"}, {Kind: infer.MediaAudio, Type: "audio/wav", Data: []byte("UklG")}}, true, nil
	got, bad := both()[vllmserver.GeneratePath].write(req)
	if bad != nil || !bytes.Contains(got, []byte(`"model":"m",`)) || !bytes.Contains(got, []byte(`"max_tokens":null,`)) ||
		!bytes.Contains(got, []byte(`"content_parts":[{"type":"image_url","url":"https://a/b.png"},{"type":"audio_url","url":"data:audio/wav;base64,UklG"}],"sampling_params"`)) || !json.Valid(got) {
		t.Errorf("%s, %v", got, bad)
	}
}

// The model's own sampling defaults go where the server does not take them from its folder.
func TestDefaults(t *testing.T) {
	v := 0.6
	for path, srv := range both() {
		srv.defaults = engine.Defaults{Temperature: &v}
		b, bad := srv.write(&infer.Request{ID: "a", Prompt: []uint32{1}, MaxTokens: 1})
		if got := bytes.Contains(b, []byte(`"temperature":0.6`)); bad != nil || got != (path == vllmserver.GeneratePath) {
			t.Errorf("%s: %s, %v", path, b, bad)
		}
	}
}

// A request goes to the endpoint that carries it.
func TestEndpoint(t *testing.T) {
	zero, five := 0, 5
	whole := &infer.Guide{Kind: infer.GuideJSONSchema, Text: "{}", Whole: true, Reasoning: infer.OwnReasoning}
	for _, c := range []struct {
		name     string
		req      infer.Request
		generate bool
	}{
		{"ids", infer.Request{}, true},
		{"log probabilities alone", infer.Request{Logprobs: &zero}, true},
		{"alternatives", infer.Request{Logprobs: &five}, false},
		{"media", infer.Request{Logprobs: &five, Media: make([]infer.Media, 1)}, true},
		{"a guide for all of the answer", infer.Request{Logprobs: &five, Guide: whole}, true},
	} {
		servers := both()
		if got, bad := servers[vllmserver.GeneratePath].generates(&c.req); bad != nil || got != c.generate {
			t.Errorf("%s: %t, %v", c.name, got, bad)
		}
		got, bad := servers[vllmserver.CompletionsPath].generates(&c.req)
		if got || (bad != nil) != (c.req.Guide != nil) || bad != nil && (!bad.Retryable || bad.Lacks != infer.CarriesJSONSchema || !strings.Contains(bad.Message, "--enable-scale-out")) {
			t.Errorf("%s without the other: %t, %v", c.name, got, bad)
		}
	}
	b, bad := both()[vllmserver.GeneratePath].write(&infer.Request{ID: "a", Prompt: []uint32{1}, MaxTokens: 1, Guide: whole})
	if bad != nil || !bytes.Contains(b, []byte(`"reasoning_ended":true`)) {
		t.Errorf("%s, %v", b, bad)
	}
}

// A value that vLLM would take for something else is refused by name.
func TestRefused(t *testing.T) {
	minus := -1
	for want, set := range map[string]func(r *infer.Request){
		"logit_bias": func(r *infer.Request) { r.Sampling.LogitBias = []infer.Bias{{ID: 1, Value: 101}} },
		"logprobs":   func(r *infer.Request) { r.Logprobs = &minus },
		"max_tokens": func(r *infer.Request) { r.MaxTokens = 0 },
		"min_tokens": func(r *infer.Request) { r.MinTokens = 9 },
	} {
		for path, srv := range both() {
			r := &infer.Request{ID: "a", Prompt: []uint32{1}, MaxTokens: 8}
			set(r)
			if _, bad := srv.write(r); bad == nil || bad.Param != want {
				t.Errorf("%s at %s: %v", want, path, bad)
			}
		}
	}
}

// played gives an answer's bytes by parts to a generation, and what became of it.
func play(t *testing.T, req *infer.Request, generate bool, parts ...[]byte) (*enginetest.Recorder, *infer.Finish) {
	t.Helper()
	e := New(Options{Name: "a", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}, Flags{})
	sink := enginetest.NewRecorder(1)
	if req.Logprobs != nil {
		sink.Scores(*req.Logprobs)
	}
	g := e.newGeneration(req, 1, sink, generate)
	g.Begin(new(lifetime.Context), e.host)
	s := idstream.NewScanner()
	for _, part := range parts {
		if g.Feed(s, bytes.Clone(part), 1) {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it is there, or never will be
	f, err := sink.WaitFinish(ctx)
	if err != nil {
		return sink, nil
	}
	return sink, f
}

// Wherever an answer is cut into parts, it is the same: the echo of the prompt goes by
// however long it is, and whatever the text beside the ids says.
func TestParts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		generate := rapid.Bool().Draw(rt, "generate")
		prompt := rapid.IntRange(1, 300).Draw(rt, "prompt")
		p, q := &peer{}, &played{generate: generate, prompt: prompt}
		var all strings.Builder
		var want []uint32
		if rapid.Bool().Draw(rt, "comment") {
			all.WriteString(": keep-alive\n\n")
		}
		for range rapid.IntRange(1, 5).Draw(rt, "events") {
			ids := rapid.SliceOfN(rapid.Uint32(), 1, 4).Draw(rt, "ids")
			want = append(want, ids...)
			q.told += len(ids)
			event := p.event(q, ids, q.told, nil, "null", "null")
			all.WriteString(strings.Replace(event, "é", rapid.SampledFrom([]string{"é", `\"prompt_token_ids\":[`, `]`, `\\`, `\"prompt_token_ids\":`}).Draw(rt, "text"), 1))
		}
		all.WriteString(p.event(q, nil, q.told, nil, `"stop"`, "null"))
		all.WriteString(p.last(q))
		text := []byte(all.String())
		var parts [][]byte
		for len(text) > 0 {
			n := rapid.IntRange(1, min(len(text), rapid.SampledFrom([]int{3, 40, 4000}).Draw(rt, "size"))).Draw(rt, "cut")
			parts, text = append(parts, text[:n]), text[n:]
		}
		sink, f := play(t, &infer.Request{Prompt: make([]uint32, prompt), MaxTokens: 99}, generate, parts...)
		if f == nil || f.Err != nil || !slices.Equal(sink.IDs(), want) || f.Reason != infer.ReasonStop || f.PromptTokens != prompt || (f.CachedTokens == 1) == generate {
			rt.Fatalf("%+v with %v, want %v", f, sink.IDs(), want)
		}
		if faults := sink.Faults(); len(faults) > 0 {
			rt.Fatal(faults)
		}
	})
}

// The echo of a prompt needs no room and is not looked into, whatever its length.
func TestEchoOfALongPrompt(t *testing.T) {
	const prompt = 40_000
	p, q := &peer{}, &played{prompt: prompt, told: 1}
	event := []byte(p.event(q, []uint32{7}, 1, nil, "null", "null"))
	if len(event) < 250_000 {
		t.Fatalf("%d bytes", len(event))
	}
	var x echo
	left := 0
	for chunk := range slices.Chunk(event, 16<<10) {
		left += len(x.trim(chunk))
	}
	if left > 500 || x.state != echoOver {
		t.Errorf("%d bytes are left of %d", left, len(event))
	}
}

// A contradiction ends the answer with an error that names it.
func TestFlaws(t *testing.T) {
	event := func(index, count, prompt int, ids, finish, stop string) []byte {
		return fmt.Appendf(nil, `data: {"choices":[{"index":%d,"logprobs":null,"finish_reason":%s,"stop_reason":%s,"token_ids":%s}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n", index, finish, stop, ids, prompt, count)
	}
	usage := func(count int) []byte {
		return fmt.Appendf(nil, `data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":%d}}`+"\n\n", count)
	}
	for _, c := range []struct {
		name, reason string
		parts        [][]byte
	}{
		{"a count too high", "total_mismatch", [][]byte{event(0, 2, 2, "[1]", "null", "null")}},
		{"a count too low", "total_mismatch", [][]byte{event(0, 1, 2, "[1,2]", "null", "null")}},
		{"a count that goes back", "count_backwards", [][]byte{event(0, 2, 2, "[1,2]", "null", "null"), event(0, 1, 2, "[]", "null", "null")}},
		{"a repeated event", "total_mismatch", [][]byte{event(0, 1, 2, "[1]", "null", "null"), event(0, 1, 2, "[1]", "null", "null")}},
		{"more than was asked for", "limit", [][]byte{event(0, 4, 2, "[1,2,3,4]", "null", "null")}},
		{"another choice", "choice", [][]byte{event(1, 1, 2, "[1]", "null", "null")}},
		{"another prompt", "prompt_length", [][]byte{event(0, 1, 3, "[1]", "null", "null")}},
		{"no ids", "no_ids", [][]byte{event(0, 1, 2, "null", "null", "null")}},
		{"no count", "no_count", [][]byte{[]byte(`data: {"choices":[{"index":0,"finish_reason":null,"token_ids":[1]}],"usage":null}` + "\n\n")}},
		{"another stop id", "stop_id", [][]byte{event(0, 1, 2, "[1]", `"stop"`, "9")}},
		{"ids behind the end", "after_end", [][]byte{event(0, 1, 2, "[1]", `"stop"`, "null"), event(0, 2, 2, "[2]", "null", "null")}},
		{"another count of all", "total_mismatch", [][]byte{event(0, 1, 2, "[1]", `"stop"`, "null"), usage(2)}},
		{"the count of all before the end", "total_mismatch", [][]byte{event(0, 1, 2, "[1]", "null", "null"), usage(1)}},
		{"an unknown end", "finish_reason", [][]byte{event(0, 1, 2, "[1]", `"repetition"`, "null")}},
		{"no JSON", "bad_event", [][]byte{[]byte("data: {\"choices\":[{\"index\":\n\n")}},
		{"no id", "bad_event", [][]byte{event(0, 1, 2, `["x"]`, `"stop"`, "null")}},
		{"an id that is none", "bad_event", [][]byte{event(0, 1, 2, `[-1]`, "null", "null")}},
	} {
		for _, generate := range []bool{false, true} {
			_, f := play(t, &infer.Request{Prompt: make([]uint32, 2), MaxTokens: 3}, generate, c.parts...)
			var fault infer.Fault
			if f == nil || f.Err == nil || f.Err.Code != infer.CodeIntegrity || !errors.As(f.Err, &fault) || fault.FaultReason() != c.reason || !f.Err.Retryable {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
	}
}

// How an answer may end besides: by an error in the stream, by an engine that gives it up,
// and without what follows its end.
func TestEnds(t *testing.T) {
	const one = `data: {"choices":[{"index":0,"logprobs":null,"finish_reason":%s,"stop_reason":%s,"token_ids":[1]}],"usage":{"prompt_tokens":2,"completion_tokens":1}}` + "\n\n"
	for _, c := range []struct {
		name, text string
		want       infer.Reason
		code       infer.Code // where it fails
	}{
		{"an error of the caller's", `data: {"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}` + "\n\n", infer.ReasonError, infer.CodeInvalid},
		{"no room", `data: {"error":{"message":"full","code":503}}` + "\n\n", infer.ReasonError, infer.CodeOverloaded},
		{"given up", fmt.Sprintf(one, `"abort"`, "null"), infer.ReasonError, infer.CodeUnavailable},
		{"the marker alone", fmt.Sprintf(one, `"length"`, "null") + "data: [DONE]\n\n", infer.ReasonLength, infer.CodeInternal},
		{"a stop id", fmt.Sprintf(one, `"stop"`, "1") + "data: [DONE]\n\n", infer.ReasonStop, infer.CodeInternal},
		{"no reason", fmt.Sprintf(one, "null", "null") + "data: [DONE]\n\n", infer.ReasonError, infer.CodeEngine},
	} {
		_, f := play(t, &infer.Request{Prompt: make([]uint32, 2), MaxTokens: 3}, true, []byte(c.text))
		switch {
		case f == nil || f.Reason != c.want || (f.Err != nil) != (c.want == infer.ReasonError) || f.Err != nil && f.Err.Code != c.code:
			t.Errorf("%s: %+v", c.name, f)
		case c.name == "a stop id" && (!f.ByID || f.StopID != 1):
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}

// The ids that come with the finish reason are offered with the end, whatever lies between the
// two: a stop id that was taken before would be told as text of the answer.
func TestStopIDComesWithItsEnd(t *testing.T) {
	const event = `data: {"choices":[{"index":0,"logprobs":null,"finish_reason":%s,"stop_reason":%s,"token_ids":[%d]}],"usage":{"prompt_tokens":2,"completion_tokens":%d}}` + "\n\n"
	running, ending := fmt.Sprintf(event, "null", "null", 5, 1), fmt.Sprintf(event, `"stop"`, "7", 7, 2)
	for name, last := range map[string]string{
		"the counts": `data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":2}}` + "\n\n",
		"the marker": "data: [DONE]\n\n",
		"a flaw":     `data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":9}}` + "\n\n",
	} {
		e := New(Options{Name: "a", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}, Flags{})
		sink := enginetest.NewRecorder(1)
		g := e.newGeneration(&infer.Request{Prompt: make([]uint32, 2), MaxTokens: 9, StopIDs: []uint32{7}}, 1, sink, true)
		g.Begin(new(lifetime.Context), e.host)
		s := idstream.NewScanner()
		if g.Feed(s, []byte(running+ending), 1) || !slices.Equal(sink.IDs(), []uint32{5}) {
			t.Errorf("%s: %v before the end", name, sink.IDs())
		}
		want := []uint32{5, 7}
		if name == "a flaw" {
			want = want[:1]
		}
		if !g.Feed(s, []byte(last), 2) || !slices.Equal(sink.IDs(), want) || len(sink.Faults()) > 0 {
			t.Errorf("%s: %v at the end, want %v; %v", name, sink.IDs(), want, sink.Faults())
		}
		if f, err := sink.WaitFinish(t.Context()); err != nil || (f.Err != nil) != (name == "a flaw") {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

// The alternatives of a position are the most probable ids, wherever the drawn one stands.
func TestAlternatives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, top := rapid.IntRange(1, 4).Draw(t, "positions"), rapid.IntRange(0, 6).Draw(t, "top")
		generate := rapid.Bool().Draw(t, "generate")
		var want infer.Logprobs
		var ids []uint32
		var completions, content []string
		var own, tokens []string
		for range n {
			// A vocabulary of 9, the most probable first.
			vocab := rapid.Permutation([]uint32{10, 11, 12, 13, 14, 15, 16, 17, 18}).Draw(t, "vocabulary")
			value := func(rank int) float32 {
				if rank == len(vocab)-1 {
					return float32(math.Inf(-1))
				}
				return -float32(rank) / 4
			}
			drawn := rapid.IntRange(0, len(vocab)-1).Draw(t, "drawn")
			ids = append(ids, vocab[drawn])
			want.Own = append(want.Own, value(drawn))
			for k := range top {
				want.TopIDs, want.Top = append(want.TopIDs, vocab[k]), append(want.Top, value(k))
			}
			// The engine's order: the drawn one, then the others.
			ranks := []int{drawn}
			asked := top
			if generate && top > 0 {
				asked++
			}
			for k := range asked {
				if k != drawn {
					ranks = append(ranks, k)
				}
			}
			if generate {
				ranks = ranks[:min(len(ranks), max(asked, 1))]
			}
			text := func(rank int) string { return strconv.FormatFloat(written(value(rank)), 'g', -1, 64) }
			var members, entries []string
			for _, r := range ranks {
				members = append(members, fmt.Sprintf(`"token_id:%d":%s`, vocab[r], text(r)))
				entries = append(entries, fmt.Sprintf(`{"token_id":%d,"logprob":%s,"rank":%d}`, vocab[r], text(r), r+1))
			}
			completions = append(completions, "{"+strings.Join(members, ",")+"}")
			own, tokens = append(own, text(drawn)), append(tokens, fmt.Sprintf(`"token_id:%d"`, vocab[drawn]))
			content = append(content, fmt.Sprintf(`{"token_id":%d,"logprob":%s,"rank":%d,"top_logprobs":[%s]}`, vocab[drawn], text(drawn), drawn+1, strings.Join(entries, ",")))
		}
		said := `{"text_offset":[],"token_logprobs":[` + strings.Join(own, ",") + `],"tokens":[` + strings.Join(tokens, ",") + `],"top_logprobs":[` + strings.Join(completions, ",") + `]}`
		if generate {
			said = `{"content":[` + strings.Join(content, ",") + `]}`
		}
		var c scores
		var got infer.Logprobs
		if err := c.read(idstream.NewScanner(), []byte(said), ids, top, generate, &got); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		if !slices.Equal(got.Own, want.Own) || !slices.Equal(got.TopIDs, want.TopIDs) || !slices.Equal(got.Top, want.Top) {
			t.Fatalf("%v, want %v: %s", got, want, said)
		}
		other := slices.Clone(ids)
		other[rand.IntN(n)] = 99
		if c.read(idstream.NewScanner(), []byte(said), other, top, generate, &got) == nil {
			t.Fatal("those of other ids are taken")
		}
	})
}

// For any bytes of a server, the answer has one end or none yet, and nothing panics.
func FuzzAnswer(f *testing.F) {
	for _, generate := range []bool{false, true} {
		p, q := &peer{}, &played{generate: generate, prompt: 2, told: 2}
		l := &infer.Logprobs{Own: []float32{-1, -2}, TopIDs: []uint32{5, 6, 7, 8}, Top: []float32{-1, -2, -2, -3}}
		f.Add([]byte(p.event(q, []uint32{5, 7}, 2, l, `"stop"`, "7")+p.last(q)), generate, true, uint16(30))
		f.Add([]byte(p.event(q, []uint32{5, 7}, 2, nil, "null", "null")), generate, false, uint16(3))
	}
	f.Add([]byte("data: {\"error\":{\"message\":7,\"code\":\"x\"}}\n\ndata: [DONE]\n\n"), true, false, uint16(1))
	f.Fuzz(func(t *testing.T, text []byte, generate, scored bool, cut uint16) {
		req := &infer.Request{Prompt: make([]uint32, 2), MaxTokens: 64}
		if scored {
			top := 2
			req.Logprobs = &top
		}
		at := min(int(cut), len(text))
		sink, _ := play(t, req, generate, text[:at], text[at:])
		if faults := sink.Faults(); len(faults) > 0 {
			t.Fatal(faults)
		}
	})
}

// An event that is read in place is read as encoding/json reads it, and as the general way does.
func FuzzUsual(f *testing.F) {
	for _, generate := range []bool{false, true} {
		p, q := &peer{}, &played{generate: generate, prompt: 2, began: true}
		f.Add([]byte(strings.TrimPrefix(p.event(q, []uint32{5, 7}, 2, nil, "null", "null"), "data: ")))
	}
	for _, data := range []string{
		`{"choices":[{"index":0,"x":{"token_ids":[1],"finish_reason":null,"logprobs":null}}],"usage":{"completion_tokens":1}}`,
		`{"usage":{"completion_tokens":1,"x":[{"completion_tokens":2}]},"choices":[{"token_ids":[1, 2 ],"token_ids":[ 3]}]}`,
		`{"choices":[{"token_ids":[1]},{"token_ids":[2]}],"usage":{"completion_tokens":01}}`,
		`{"choices":[{"token_ids":[4294967296]}],"usage":{"completion_tokens":-0}}`,
		`{"choices":[{"token_ids":[1e0],"text":"\ud800\u00e9\x"}],"usage":{"completion_tokens":1.0}}`,
		`{"choices":[{"token\u005fids":[1],"token_ids":[]}],"usage":{"completion_tokens":0},"usage":null}`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got := event{completion: -1, prompt: -1, cached: -1}
		if !usual(data, &got) {
			return
		}
		var want struct {
			Choices []map[string]json.RawMessage
			Usage   map[string]json.RawMessage
		}
		var all map[string]json.RawMessage
		if err := json.Unmarshal(data, &all); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if err := errors.Join(json.Unmarshal(all["choices"], &want.Choices), json.Unmarshal(all["usage"], &want.Usage)); err != nil || len(want.Choices) != 1 || all["error"] != nil {
			t.Fatalf("%v: %s", err, data)
		}
		number := func(of map[string]json.RawMessage, name string, n int) int {
			if of[name] != nil {
				if err := json.Unmarshal(of[name], &n); err != nil {
					t.Fatalf("%s: %v: %s", name, err, data)
				}
			}
			return n
		}
		choice := want.Choices[0]
		var ids []uint32
		if err := json.Unmarshal(choice["token_ids"], &ids); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		s := idstream.NewScanner()
		read, err := s.Tail(got.array, got.n)
		if err != nil || !slices.Equal(read, ids) || got.index != number(choice, "index", 0) ||
			got.completion != number(want.Usage, "completion_tokens", -1) || got.prompt != number(want.Usage, "prompt_tokens", -1) {
			t.Fatalf("%+v, %v: %s", got, err, data)
		}
		for _, name := range []string{"finish_reason", "stop_reason", "logprobs"} {
			if v := string(choice[name]); v != "" && v != "null" {
				t.Fatalf("%s is %s: %s", name, v, data)
			}
		}
		general := event{completion: -1, prompt: -1, cached: -1}
		if err := full(s, data, &general); err != nil {
			return // encoding/json takes more, such as a name that comes twice
		}
		if got.array, general.array = nil, nil; !reflect.DeepEqual(got, general) {
			t.Fatalf("%+v and %+v: %s", got, general, data)
		}
	})
}

// A server is asked once what it has, and again when it says another version.
func TestFindsEndpoint(t *testing.T) {
	p := newPeer(t, true)
	e := New(p.options(), Flags{})
	states := make(chan engine.State, 16)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { defer close(ran); e.Run(ctx, func(s engine.State) { states <- s }) }()
	next := func() engine.State {
		select {
		case s := <-states:
			return s
		case <-time.After(enginetest.Patience):
			t.Fatal("no state")
		}
		panic("unreached")
	}
	s := next()
	if !s.Ready || s.Facts.Software != "vLLM 0.32.0 by /inference/v1/generate" || s.Note != "" || len(s.Facts.LoRA) != 1 || s.Facts.LoRA[0].Name != "tuned" || s.Facts.Carries&infer.CarriesImage == 0 {
		t.Errorf("%+v", s)
	}
	if err := e.Probe(t.Context(), engine.Probe{Rank: -1}); err != nil || !slices.Equal(p.probes, []string{"/inference/v1/generate "}) {
		t.Errorf("%v, %v", err, p.probes)
	}
	p.Cut()
	for s.Ready {
		s = next()
	}
	p.mu.Update(func() { p.scaleOut = false })
	p.Restore()
	for !s.Ready {
		s = next()
	}
	if err := e.Probe(t.Context(), engine.Probe{Rank: -1}); err != nil || p.probes[1] != "/v1/completions " {
		t.Errorf("%v, %v", err, p.probes)
	}
	if s.Facts.Software != "vLLM 0.32.0 by /v1/completions" || !strings.Contains(s.Note, "--enable-scale-out") || s.Facts.Carries&infer.CarriesImage != 0 {
		t.Errorf("%+v", s)
	}
	cancel()
	<-ran
}

// An older release is refused in words, a newer one is told of, and one with the endpoint of
// another schema is asked at the other.
func TestReleases(t *testing.T) {
	for version, want := range map[string]struct {
		software, note, fails string
	}{
		"0.11.2":    {"", "", "openai=URL relays it"},
		"0.20.1":    {"vLLM 0.20.1 by /v1/completions", "", ""},
		"0.34.0":    {"vLLM 0.34.0 by /inference/v1/generate", "newer", ""},
		"dev":       {"vLLM dev by /inference/v1/generate", `its version is "dev"`, ""},
		"0.33.0+cu": {"vLLM 0.33.0+cu by /inference/v1/generate", "", ""},
	} {
		p := newPeer(t, true)
		p.pages["/version"] = fmt.Sprintf(`{"version":%q}`, version)
		e := New(p.options(), Flags{})
		facts, err := e.probe(t.Context())
		note := e.server.Load().note
		if facts.Software != want.software || (note == "") != (want.note == "") || !strings.Contains(note, want.note) || (err == nil) != (want.fails == "") || err != nil && !strings.Contains(err.Error(), want.fails) {
			t.Errorf("%s: %q, %q, %v", version, facts.Software, note, err)
		}
		e.client.CloseIdle()
	}
}

// Ranks and where they publish are read where the server tells them, and a request names its
// rank.
func TestRanks(t *testing.T) {
	p := newPeer(t, true)
	p.pages["/metrics"] = "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 2\nvllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"10\"} 1\n"
	p.pages["/kv_event_sources"] = `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","topic":""},"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558","topic":""}}`
	b := enginetest.Start(t, enginetest.Rig{Engine: New(p.options(), Flags{}), Peer: p, Alone: true, Panics: &p.panics})
	facts := b.WaitReady(true).Facts
	if len(facts.Ranks) != 2 || facts.Ranks[1].KVTokens != 160 || facts.Ranks[1].KVEvents.Endpoint != "tcp://*:5558" || facts.SideBySide != 2 {
		t.Errorf("%+v", facts)
	}
	e := b.Rig.Engine.(*Engine)
	if l, ok := e.Load(); !ok || l.Running != 3 {
		t.Errorf("%+v, %t", l, ok)
	}
	if err := e.Probe(t.Context(), engine.Probe{Rank: 1}); err != nil || !slices.Equal(p.probes, []string{"/inference/v1/generate 1"}) {
		t.Errorf("%v, %v", err, p.probes)
	}
	for rank, want := range map[int]string{1: "1", 5: "", -1: ""} {
		req := b.Request(1)
		leg := &trace.Leg{DPRank: rank}
		sink := enginetest.NewRecorder(1)
		if _, err := e.Generate(t.Context(), req, 1, sink, leg); err != nil {
			t.Fatal(err)
		}
		b.Must(p.Arrived(b.Ctx, req.ID))
		p.Step(enginetest.Out{ID: req.ID, IDs: []uint32{1}, Finish: infer.ReasonLength})
		if _, err := sink.WaitFinish(b.Ctx); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		got := p.requests[req.ID].header.Get(rankHeader)
		p.mu.Unlock()
		if got != want || want == "" && leg.DPRank != -1 {
			t.Errorf("rank %d: header %q, leg %d", rank, got, leg.DPRank)
		}
	}
}

// A folder that is not the served model's is named, by the chat and the ids that tell; a
// server that renders nothing is not.
func TestFolder(t *testing.T) {
	p := newPeer(t, true)
	o := p.options()
	o.Additions = func(string) engine.Additions {
		return engine.Additions{Prompts: func(messages, tools []byte) ([]uint32, error) {
			if bytes.Contains(messages, []byte("system")) {
				return nil, errors.New("no system")
			}
			if len(tools) > 0 {
				return []uint32{1, 2, 4, 5}, nil
			}
			return []uint32{1, 2, 3}, nil
		}}
	}
	for page, want := range map[string]string{
		`{"tokens":[1,2,3]}`: "a chat with tools are not those of the model's folder: [3] there and [4,5] here from id 2 of 3 and 4 on",
		`{"tokens":[9]}`:     "ids of a chat are not",
		`{"tokens":[]}`:      "", `[]`: "",
	} {
		p.pages["/tokenize"] = page
		e := New(o, Flags{})
		_, err := e.probe(t.Context())
		if note := e.server.Load().note; err != nil || (note == "") != (want == "") || !strings.Contains(note, want) {
			t.Errorf("%s: %q, %v", page, note, err)
		}
		e.client.CloseIdle()
	}
}

func BenchmarkEvent(b *testing.B) {
	for _, generate := range []bool{false, true} {
		b.Run(fmt.Sprintf("generate=%t", generate), func(b *testing.B) {
			p, q := &peer{}, &played{generate: generate, prompt: 400, began: true}
			data := []byte(strings.TrimSpace(strings.TrimPrefix(p.event(q, []uint32{12345}, 900, nil, "null", "null"), "data: ")))
			s := idstream.NewScanner()
			b.ReportAllocs()
			for b.Loop() {
				var e event
				if err := scan(s, data, &e); err != nil || e.n != 1 {
					b.Fatal(err)
				}
				t := tally{have: 899, limit: 1000}
				if _, err := t.take(s, &e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEcho is what the first event of a prompt of 40,000 ids costs, which comes in 16 KiB
// a read.
func BenchmarkEcho(b *testing.B) {
	p, q := &peer{}, &played{prompt: 40_000}
	event := []byte(p.event(q, []uint32{7}, 1, nil, "null", "null"))
	room := make([]byte, 16<<10)
	b.SetBytes(int64(len(event)))
	for b.Loop() {
		var x echo
		for chunk := range slices.Chunk(event, len(room)) {
			x.trim(room[:copy(room, chunk)])
		}
	}
}

// drop takes deltas and keeps nothing.
type drop struct{}

func (drop) Offer(*infer.Delta) {}

// A token costs no allocation, at either endpoint.
func TestTokenAllocatesNothing(t *testing.T) {
	e := New(Options{Name: "a", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}, Flags{})
	for _, generate := range []bool{false, true} {
		const runs = 50
		p, q := &peer{}, &played{generate: generate, prompt: 2, began: true}
		var events [][]byte
		for n := range uint32(runs + 1) {
			events = append(events, []byte(strings.TrimSpace(strings.TrimPrefix(p.event(q, []uint32{n}, int(n)+1, nil, "null", "null"), "data: "))))
		}
		g := e.newGeneration(&infer.Request{Prompt: make([]uint32, 2), MaxTokens: 999}, 1, drop{}, generate)
		s, next := idstream.NewScanner(), 0
		if n := testing.AllocsPerRun(runs, func() {
			if g.Event(s, events[next], 1) {
				t.Fatalf("%s ends the answer", events[next])
			}
			next++
		}); n != 0 {
			t.Errorf("generate=%t: %v allocations a token", generate, n)
		}
	}
}
