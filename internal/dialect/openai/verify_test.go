package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/wire/sse"
)

// asked is what of ids and usage a stream is asked for.
type asked struct{ ids, usage, each bool }

// genOutput is an output of an engine, from which its stream follows.
type genOutput struct {
	engine      infer.Verify
	endpoint    Endpoint
	choices     int
	steps       []genStep
	prompt      []int
	fingerprint string
}

// genStep is what an engine has of a choice at once.
type genStep struct {
	choice  int
	ids     []int
	text    string
	quiet   bool   // its parser says nothing of it yet
	reason  string // the choice's end
	matched int    // the id that ended it, 0: none
}

func list(ids []int) string {
	b, _ := json.Marshal(ids)
	if ids == nil {
		return "[]"
	}
	return string(b)
}

// stream writes the output's stream as vLLM 0.33 (chat_completion/serving.py,
// completion/serving.py) and SGLang 0.5.23 (serving_completions.py) do.
func (o *genOutput) stream(a asked) string {
	var b strings.Builder
	if o.engine == infer.VerifyVLLM {
		a.each = a.each && a.usage
	}
	head := `data: {"id":"x","object":"o","created":1,"model":"m","choices":[`
	usage := func(n int) string {
		return fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`, len(o.prompt), len(o.prompt)+n, n)
	}
	idsOr := func(ids []int, otherwise string) string {
		if a.ids {
			return list(ids)
		}
		return otherwise
	}
	count, began := make([]int, o.choices), make([]bool, o.choices)
	chat := o.endpoint == Chat
	if chat {
		for i := range o.choices {
			fmt.Fprintf(&b, `%s{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`, head, i)
			if a.each {
				fmt.Fprintf(&b, `,"usage":%s`, usage(0))
			}
			fmt.Fprintf(&b, `,"prompt_token_ids":%s,"prompt_text":null}`+"\n\n", idsOr(o.prompt, "null"))
		}
	}
	total := 0
	for _, s := range o.steps {
		count[s.choice] += len(s.ids)
		total += len(s.ids)
		given := s.ids
		reason := "null"
		if s.reason != "" {
			reason = `"` + s.reason + `"`
		}
		switch {
		case o.engine == infer.VerifySGLang:
			matched := "null"
			if s.matched > 0 {
				matched = fmt.Sprint(s.matched)
				count[s.choice]++
				total++
			}
			fmt.Fprintf(&b, `%s{"index":%d,"text":%q,"logprobs":null,"finish_reason":%s,"matched_stop":%s`, head, s.choice, s.text, reason, matched)
			if a.ids {
				fmt.Fprintf(&b, `,"token_ids":%s`, list(given))
				if !began[s.choice] {
					fmt.Fprintf(&b, `,"prompt_token_ids":%s`, list(o.prompt))
				}
			}
			if b.WriteString(`}],"usage":`); a.each {
				b.WriteString(usage(count[s.choice]))
			} else {
				b.WriteString("null")
			}
			b.WriteString("}\n\n")
			began[s.choice] = true
			continue
		case chat && s.quiet && s.reason == "" && !a.ids:
			continue
		}
		stop := "null"
		if s.matched > 0 {
			stop = fmt.Sprint(s.matched)
			given = append(given[:len(given):len(given)], s.matched)
			count[s.choice]++
			total++
		}
		if chat {
			delta := fmt.Sprintf(`{"content":%q}`, s.text)
			if s.quiet {
				delta = "{}"
			}
			fmt.Fprintf(&b, `%s{"index":%d,"delta":%s,"logprobs":null,"finish_reason":%s`, head, s.choice, delta, reason)
			if s.reason != "" {
				fmt.Fprintf(&b, `,"stop_reason":%s`, stop)
			}
			fmt.Fprintf(&b, `,"token_ids":%s}]`, idsOr(given, "null"))
		} else {
			prompt := "null"
			if !began[s.choice] {
				prompt = idsOr(o.prompt, "null")
			}
			fmt.Fprintf(&b, `%s{"index":%d,"text":%q,"logprobs":null,"finish_reason":%s,"stop_reason":%s,"prompt_token_ids":%s,"token_ids":%s}]`,
				head, s.choice, s.text, reason, stop, prompt, idsOr(given, "null"))
		}
		began[s.choice] = true
		if a.each {
			fmt.Fprintf(&b, `,"usage":%s`, usage(count[s.choice]))
		}
		if s.reason != "" && !a.usage && o.fingerprint != "" {
			fmt.Fprintf(&b, `,"system_fingerprint":%q`, o.fingerprint)
		}
		b.WriteString(`,"kv_transfer_params":null}` + "\n\n")
	}
	if a.usage {
		b.WriteString(head + `],"usage":` + usage(total))
		if o.fingerprint != "" {
			fmt.Fprintf(&b, `,"system_fingerprint":%q`, o.fingerprint)
		}
		b.WriteString("}\n\n")
	}
	return b.String() + "data: [DONE]\n\n"
}

// drawOutput draws an output.
func drawOutput(t *rapid.T) *genOutput {
	o := &genOutput{engine: infer.VerifyVLLM, endpoint: Completions, choices: rapid.IntRange(1, 3).Draw(t, "choices"), prompt: []int{1, 2, 3}}
	switch rapid.IntRange(0, 2).Draw(t, "wire") {
	case 0:
		o.engine = infer.VerifySGLang
	case 1:
		o.endpoint = Chat
	}
	if o.engine == infer.VerifyVLLM && rapid.Bool().Draw(t, "fingerprint") {
		o.fingerprint = "vllm-1"
	}
	ids := rapid.SliceOfN(rapid.IntRange(10, 99999), 1, 4)
	for range rapid.IntRange(0, 6).Draw(t, "steps") {
		o.steps = append(o.steps, genStep{
			choice: rapid.IntRange(0, o.choices-1).Draw(t, "choice"), ids: ids.Draw(t, "ids"),
			text: rapid.SampledFrom([]string{"a", "", `"token_ids":[1]`, "é\n", "}"}).Draw(t, "text"), quiet: rapid.Bool().Draw(t, "quiet"),
		})
	}
	for i := range o.choices {
		end := genStep{choice: i, ids: rapid.SliceOfN(rapid.IntRange(10, 99999), 0, 2).Draw(t, "last"), reason: "length"}
		if rapid.Bool().Draw(t, "stops") {
			end.reason, end.matched = "stop", 7
		}
		o.steps = append(o.steps, end)
	}
	return o
}

// ask returns the body of a caller that asks for so much.
func (o *genOutput) ask(a asked) string {
	return fmt.Sprintf(`{"model":"m","stream":true,"n":%d,"prompt":"x","stream_options":{"include_usage":%t,"continuous_usage_stats":%t,"other":1.0},"return_token_ids":%t}`,
		o.choices, a.usage, a.each, a.ids)
}

func verifierOf(t interface{ Fatalf(string, ...any) }, e Endpoint, engine infer.Verify, body string) (*dialect.Asked, dialect.Verifier, string) {
	h, err := e.ParseHead([]byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return e.Verify(h, engine)
}

// verify shows a stream to a verifier, cut anywhere.
func verify(v dialect.Verifier, stream string, cut func(left int) int) (out string, err error) {
	s := sse.Splitter{Max: 1 << 20}
	var held, dst []byte
	for rest := stream; len(rest) > 0; {
		n := cut(len(rest))
		held = append(held, rest[:n]...)
		r := s.Feed([]byte(rest[:n]))
		rest = rest[n:]
		if dst, _, err = v.Events(dst[:0], held[:r.Len]); err != nil {
			return out + string(dst), err
		}
		out += string(dst)
		held = held[r.Len:]
	}
	return out + string(v.Rest(nil)), nil
}

// A caller gets the bytes that it would have got if weir had asked for nothing, and the
// stream is verified; with an event lost, it is a failure.
func TestVerify(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawOutput(t)
		a := asked{rapid.Bool().Draw(t, "wants ids"), rapid.Bool().Draw(t, "wants usage"), rapid.Bool().Draw(t, "wants each")}
		body, v, why := verifierOf(t, o.endpoint, o.engine, o.ask(a))
		if v == nil {
			if o.engine != infer.VerifyVLLM || a.usage || o.choices == 1 {
				t.Fatalf("not verified: %s", why)
			}
			return
		}
		var sent struct {
			IDs     bool `json:"return_token_ids"`
			Options struct {
				Usage bool    `json:"include_usage"`
				Each  bool    `json:"continuous_usage_stats"`
				Other float64 `json:"other"`
			} `json:"stream_options"`
		}
		if err := json.Unmarshal(body.Splice("m"), &sent); err != nil || !sent.IDs || !sent.Options.Each || sent.Options.Other != 1 {
			t.Fatalf("asked %s: %v", body.Splice("m"), err)
		}
		stream := o.stream(asked{true, sent.Options.Usage, true})
		cut := func(left int) int { return rapid.IntRange(1, left).Draw(t, "cut") }
		got, err := verify(v, stream, cut)
		if want := o.stream(a); err != nil || got != want {
			t.Fatalf("%v\n%s\nwant\n%s\nof\n%s", err, got, want, stream)
		}
		some := 0
		for _, s := range o.steps {
			some += len(s.ids)
		}
		if ok, why := v.Verified(); !ok && some > 0 {
			t.Fatalf("not verified: %s", why)
		}

		// An event with ids is lost.
		events := strings.SplitAfter(stream, "\n\n")
		at := rapid.IntRange(0, len(events)-1).Draw(t, "lost")
		if !strings.Contains(events[at], `"token_ids":[`) || strings.Contains(events[at], `"token_ids":[]`) || !strings.Contains(events[at], `"finish_reason":null`) {
			return // a choice's end is the Inspector's to miss
		}
		lost := strings.Join(append(events[:at:at], events[at+1:]...), "")
		_, v, _ = verifierOf(t, o.endpoint, o.engine, o.ask(a))
		if _, err = verify(v, lost, cut); err == nil {
			if ok, _ := v.Verified(); ok {
				t.Fatalf("%q is lost from\n%s\nand it is verified", events[at], stream)
			}
		}
	})
}

// The streams that are not verified, and the reasons.
func TestUnverified(t *testing.T) {
	for _, c := range []struct {
		e      Endpoint
		engine infer.Verify
		fields string
		why    string
	}{
		{Chat, infer.VerifySGLang, ``, unverifiedEndpoint},
		{Other, infer.VerifyVLLM, ``, unverifiedEndpoint},
		{Completions, infer.VerifyVLLM, `,"echo":true`, unverifiedRequest},
		{Completions, infer.VerifyVLLM, `,"echo":false`, ""},
		{Chat, infer.VerifyVLLM, `,"include_reasoning":false`, unverifiedRequest},
		{Chat, infer.VerifyVLLM, `,"include_reasoning":null`, ""},
		{Chat, infer.VerifyVLLM, `,"n":2`, unverifiedRequest},
		{Chat, infer.VerifyVLLM, `,"n":2,"stream_options":{"include_usage":true}`, ""},
		{Completions, infer.VerifySGLang, `,"n":2`, ""},
		{Completions, infer.VerifyVLLM, `,"prompt":["a","b"]`, unverifiedRequest},
		{Chat, infer.VerifyVLLM, `,"return_token_ids":false,"return_token_ids":true`, unverifiedRequest},
		{Chat, infer.VerifyVLLM, `,"user":"` + strings.Repeat("x", maxVerified) + `"`, unverifiedRequest},
	} {
		_, v, why := verifierOf(t, c.e, c.engine, `{"model":"m","stream":true`+c.fields+`}`)
		if why != c.why || (v != nil) != (why == "") {
			t.Errorf("%v of %v, %.60s: %q, want %q", c.e, c.engine, c.fields, why, c.why)
		}
	}
	for name, c := range map[string]struct{ stream, why string }{
		"an engine that knows nothing of ids": {data(`{"choices":[{"index":0,"text":"a","finish_reason":null}],"usage":{"completion_tokens":1}}`,
			`{"choices":[{"index":0,"text":"","finish_reason":"stop"}],"usage":{"completion_tokens":1}}`, done), unverifiedIDs},
		"nor of usage":           {data(`{"choices":[{"index":0,"text":"a"}]}`, done), unverifiedIDs},
		"ids without a count":    {data(`{"choices":[{"index":0,"text":"a","token_ids":[1]}]}`, done), unverifiedCount},
		"an event of many lines": {"data: {\"choices\":[{\"index\":0,\ndata: \"token_ids\":[1]}]}\n\n" + data(done), unverifiedEvent},
	} {
		_, v, _ := verifierOf(t, Completions, infer.VerifyVLLM, `{"model":"m","stream":true}`)
		if _, err := verify(v, c.stream, func(left int) int { return left }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if ok, why := v.Verified(); ok || why != c.why {
			t.Errorf("%s: %v, %q", name, ok, why)
		}
	}
}

// An error in the counts names the event.
func TestVerifyFaults(t *testing.T) {
	for name, c := range map[string]struct {
		engine infer.Verify
		stream string
		flaw   infer.Flaw
	}{
		"less than counted": {infer.VerifyVLLM, data(`{"choices":[{"index":0,"token_ids":[1]}],"usage":{"completion_tokens":2}}`), flawTotal},
		"more than counted": {infer.VerifyVLLM, data(`{"choices":[{"index":0,"token_ids":[1,2,3]}],"usage":{"completion_tokens":2}}`), flawTotal},
		"in all":            {infer.VerifyVLLM, data(`{"choices":[{"index":0,"token_ids":[1]}]}`, `{"choices":[],"usage":{"completion_tokens":2}}`), flawTotal},
		"another last id":   {infer.VerifyVLLM, data(`{"choices":[{"index":0,"token_ids":[1,2],"finish_reason":"stop","stop_reason":1}],"usage":{"completion_tokens":2}}`), flawStop},
		"two are trimmed":   {infer.VerifySGLang, data(`{"choices":[{"index":0,"token_ids":[1],"finish_reason":"stop","matched_stop":7}],"usage":{"completion_tokens":3}}`), flawTotal},
	} {
		_, v, _ := verifierOf(t, Completions, c.engine, `{"model":"m","stream":true}`)
		first := data(`{"choices":[{"index":0,"token_ids":[]}],"usage":{"completion_tokens":0}}`)
		out, err := verify(v, first+c.stream, func(left int) int { return left })
		e := infer.AsError(err)
		if e == nil || e.Code != infer.CodeIntegrity || e.Cause != c.flaw || !strings.Contains(e.Message, "the engine's stream") || strings.Contains(out, "token_ids\":[") {
			t.Errorf("%s: %v, after %s", name, err, out)
		}
	}
}

// Nothing is allocated for a token.
func TestVerifyAllocatesNothing(t *testing.T) {
	_, v, _ := verifierOf(t, Chat, infer.VerifyVLLM, `{"model":"m","stream":true}`)
	var dst []byte
	n := 0
	if got := testing.AllocsPerRun(1000, func() {
		n++
		event := eventOf(n)
		var err error
		if dst, _, err = v.Events(dst[:0], event); err != nil {
			t.Fatal(err)
		}
	}); got > 0 {
		t.Errorf("%v allocations a token", got)
	}
}

var verifyEvents [2000][]byte

// eventOf is the n-th token of a chat.
func eventOf(n int) []byte {
	if verifyEvents[0] == nil {
		for i := range verifyEvents {
			verifyEvents[i] = []byte(data(fmt.Sprintf(`{"id":"x","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null,"token_ids":[%d]}],"usage":{"prompt_tokens":3,"completion_tokens":%d,"total_tokens":%d}}`, i+1, i, i+3)))
		}
	}
	return verifyEvents[n]
}

// FuzzVerifier: no stream panics, and of one that is not asked about nothing is lost.
func FuzzVerifier(f *testing.F) {
	f.Add(data(`{"choices":[{"index":0,"token_ids":[1],"finish_reason":"stop"}],"usage":{"completion_tokens":1}}`, `{"choices":[],"usage":{"completion_tokens":1},"system_fingerprint":"x"}`, done), true)
	f.Fuzz(func(t *testing.T, stream string, chat bool) {
		e := Completions
		if chat {
			e = Chat
		}
		for _, engine := range []infer.Verify{infer.VerifyVLLM, infer.VerifySGLang} {
			_, v, _ := verifierOf(t, e, engine, `{"model":"m","stream":true,"return_token_ids":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
			if v == nil {
				continue
			}
			out, err := verify(v, stream, func(int) int { return 1 })
			if err == nil && !strings.HasPrefix(stream, out) {
				t.Fatalf("%q has become %q", stream, out)
			}
		}
	})
}

// BenchmarkVerify is a token's event verified, with what it is inspected for beside it.
func BenchmarkVerify(b *testing.B) {
	b.Run("inspect", func(b *testing.B) {
		in := newInspector(1)
		for n := 0; b.Loop(); n++ {
			if _, err := in.Events(eventOf(n%1000 + 1)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("verify", func(b *testing.B) {
		h, err := Chat.ParseHead([]byte(`{"model":"m","stream":true}`))
		if err != nil {
			b.Fatal(err)
		}
		var dst []byte
		var v dialect.Verifier
		for n := 0; b.Loop(); n++ {
			if n%1000 == 0 {
				_, v, _ = Chat.Verify(h, infer.VerifyVLLM)
			}
			if dst, _, err = v.Events(dst[:0], eventOf(n%1000+1)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
