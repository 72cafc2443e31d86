package simserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/sim"
	"weir/internal/sim/simserver/catalog"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/pool"
)

const chat = "/v1/chat/completions"

func TestChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		for _, stream := range []bool{false, true} {
			body := fmt.Sprintf(`{"model":"weir-sim","messages":[{"role":"user","content":"hello"}],"max_tokens":40,
			"ignore_eos":true,"temperature":0.7,"tools":null,"made_up":{"x":[1]},"stream":%v,"stream_options":{"include_usage":true}}`, stream)
			a, err := b.post(context.Background(), chat, body)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := b.verify(a.text[0]); err != nil || n != 40 {
				t.Errorf("stream %v: %d words, %v", stream, n, err)
			}
			want := usage{PromptTokens: len("user:hello") + 1, CompletionTokens: 40, TotalTokens: len("user:hello") + 41}
			if a.usage == nil || *a.usage != want || a.reason[0] != "length" {
				t.Errorf("stream %v: usage %+v, reason %q", stream, a.usage, a.reason)
			}
			if stream && (!a.terminated || a.events != 40) {
				t.Errorf("%d events of 40, terminated %v", a.events, a.terminated)
			}
		}
		if s := b.state(); s.Received != 2 || s.Finished != 2 || s.Running != 0 || s.GeneratedTokens != 80 {
			t.Errorf("state %+v", s)
		}
	})
}

// An output that ends by itself counts its end id and does not show it.
func TestEndIsCountedAndNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{MeanTokens: 5}})
		a, err := b.post(context.Background(), chat, `{"messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true},"min_tokens":3}`)
		if err != nil {
			t.Fatal(err)
		}
		n, err := b.verify(a.text[0])
		if err != nil || a.reason[0] != "stop" || a.usage.CompletionTokens != n+1 || n < 3 || a.events != n {
			t.Errorf("%d words, %v, reason %q, usage %+v, %d events", n, err, a.reason[0], a.usage, a.events)
		}
	})
}

func TestCompletionsPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		whole, err := b.post(context.Background(), "/v1/completions", `{"prompt":"abc","max_tokens":20,"ignore_eos":true}`)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := b.verify(whole.text[0]); n != 20 || err != nil {
			t.Fatalf("%d words, %v", n, err)
		}
		// The same prompt as ids, and a continuation, say the same.
		half := whole.text[0][:4*8]
		tok := newToyTokenizer()
		ids, _ := tok.Encode("abc"+half, false)
		list, _ := json.Marshal(ids)
		rest, err := b.post(context.Background(), "/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":12,"ignore_eos":true,"stream":true}`, list))
		if err != nil {
			t.Fatal(err)
		}
		if half+rest.text[0] != whole.text[0] {
			t.Errorf("a continuation says %q, want the end of %q", rest.text[0], whole.text[0])
		}
		// Lists of prompts, and several choices of each, which differ.
		for _, prompt := range []string{`["abc","xyz"]`, `[[97,98,99],[120,121,122]]`} {
			many, err := b.post(context.Background(), "/v1/completions", `{"prompt":`+prompt+`,"max_tokens":20,"ignore_eos":true,"n":2,"stream":true,"stream_options":{"include_usage":true}}`)
			if err != nil {
				t.Fatal(err)
			}
			if len(many.text) != 4 || many.text[0] != whole.text[0] || many.text[0] == many.text[1] || many.usage.CompletionTokens != 80 || many.usage.PromptTokens != 6 {
				t.Errorf("%s: %+v", prompt, many)
			}
			for i, text := range many.text {
				if n, err := b.verify(text); n != 20 || err != nil || many.reason[i] != "length" {
					t.Errorf("%s, choice %d: %d words, %v, %q", prompt, i, n, err, many.reason[i])
				}
			}
		}
	})
}

func TestStopStrings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		whole, err := b.post(context.Background(), chat, `{"messages":[],"max_tokens":30,"ignore_eos":true}`)
		if err == nil && whole.status != http.StatusBadRequest {
			t.Errorf("no messages: %+v", whole)
		}
		const ask = `{"messages":[{"role":"user","content":"stop"}],"max_tokens":30,"ignore_eos":true,"stream_options":{"include_usage":true}`
		whole, err = b.post(context.Background(), chat, ask+`}`)
		if err != nil {
			t.Fatal(err)
		}
		// A stop string that spans the tenth and the eleventh word.
		at := 4*10 - 2
		stop := whole.text[0][at : at+4]
		for _, stream := range []bool{false, true} {
			a, err := b.post(context.Background(), chat, fmt.Sprintf(`%s,"stop":["zzzzzz",%q],"stream":%v}`, ask, stop, stream))
			if err != nil {
				t.Fatal(err)
			}
			if want := whole.text[0][:strings.Index(whole.text[0], stop)]; a.text[0] != want || a.reason[0] != "stop" || a.usage.CompletionTokens != 11 {
				t.Errorf("stream %v: %q, want %q; reason %q, usage %+v", stream, a.text[0], want, a.reason[0], a.usage)
			}
		}
		b.settle("rest", func(s engine.State) bool { return s.Running == 0 && s.Finished == 3 && s.Aborted == 0 })
	})
}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{ContextLength: 50}})
		const msg = `"messages":[{"role":"user","content":"hello"}]`
		for name, x := range map[string]struct {
			path, body  string
			status      int
			code, param string
		}{
			"syntax":         {chat, `{"messages":`, 400, "", ""},
			"type":           {chat, `{` + msg + `,"max_tokens":"many"}`, 400, "", ""},
			"no messages":    {chat, `{}`, 400, "", "messages"},
			"bad messages":   {chat, `{"messages":[3]}`, 400, "", "messages"},
			"limit":          {chat, `{` + msg + `,"max_tokens":0}`, 400, "", "max_tokens"},
			"other limit":    {chat, `{` + msg + `,"max_completion_tokens":-1}`, 400, "", "max_completion_tokens"},
			"n":              {chat, `{` + msg + `,"n":0}`, 400, "", "n"},
			"stop":           {chat, `{` + msg + `,"stop":[""]}`, 400, "", "stop"},
			"stop type":      {chat, `{` + msg + `,"stop":3}`, 400, "", "stop"},
			"model":          {chat, `{` + msg + `,"model":"other"}`, 404, "model_not_found", "model"},
			"context":        {chat, `{` + msg + `,"max_tokens":45}`, 400, "context_length_exceeded", "max_tokens"},
			"long prompt":    {"/v1/completions", `{"prompt":"` + strings.Repeat("x", 60) + `"}`, 400, "context_length_exceeded", "prompt"},
			"no prompt":      {"/v1/completions", `{}`, 400, "", "prompt"},
			"empty prompt":   {"/v1/completions", `{"prompt":""}`, 400, "", "prompt"},
			"mixed prompt":   {"/v1/completions", `{"prompt":["a",true]}`, 400, "", "prompt[1]"},
			"unknown id":     {"/v1/completions", `{"prompt":[1,99999]}`, 400, "", "prompt"},
			"tokenizer":      {"/v1/completions", `{"prompt":"\u0000"}`, 400, "", "prompt"},
			"no path":        {"/v1/nothing", `{}`, 404, "", ""},
			"no input":       {"/v1/embeddings", `{}`, 400, "", "input"},
			"bad format":     {"/v1/embeddings", `{"input":"a","encoding_format":"hex"}`, 400, "", "encoding_format"},
			"bad dimensions": {"/v1/embeddings", `{"input":"a","dimensions":0}`, 400, "", "dimensions"},
		} {
			a, err := b.post(context.Background(), x.path, x.body)
			if err != nil || a.status != x.status || a.errorCode != x.code || a.errorParam != x.param || a.errorMessage == "" {
				t.Errorf("%s: %+v, %v", name, a, err)
			}
		}
		if s := b.state(); s.Received != s.Rejected || s.Received == 0 {
			t.Errorf("state %+v", s)
		}
	})
}

func TestModelsAndEmbeddings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		get := func(path string, status int, into any) {
			t.Helper()
			resp, err := b.client.Get(b.openai + path)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != status {
				t.Errorf("%s: %s", path, resp.Status)
			}
			if into != nil {
				if err := json.UnmarshalRead(resp.Body, into); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
		var list struct{ Data []catalog.ModelCard }
		get("/v1/models", 200, &list)
		var card catalog.ModelCard
		get("/v1/models/weir-sim", 200, &card)
		get("/v1/models/other", 404, nil)
		get("/health", 200, nil)
		if card.ID != "weir-sim" {
			t.Errorf("card %+v", card)
		}
		embed := func(body string) (a pool.EmbeddingsAnswer) {
			t.Helper()
			resp, err := b.client.Post(b.openai+"/v1/embeddings", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if err := json.UnmarshalRead(resp.Body, &a); err != nil {
				t.Fatal(err)
			}
			return a
		}
		two := embed(`{"model":"weir-sim","input":["abc","xyz"],"dimensions":8}`)
		one := embed(`{"input":[97,98,99],"dimensions":8}`)
		if len(two.Data) != 2 || len(one.Data) != 1 || one.Usage.PromptTokens != 3 || len(one.Data[0].Embedding.([]any)) != 8 {
			t.Fatalf("%+v, %+v", two, one)
		}
		if fmt.Sprint(two.Data[0].Embedding) != fmt.Sprint(one.Data[0].Embedding) || fmt.Sprint(two.Data[0].Embedding) == fmt.Sprint(two.Data[1].Embedding) {
			t.Error("a vector must be a function of its input")
		}
	})
}

func TestHangUpAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{})
		for _, stream := range []bool{true, false} {
			before := b.e.State()
			ctx, cancel := context.WithCancel(context.Background())
			gone := make(chan error, 1)
			go func() {
				_, err := b.post(ctx, chat, fmt.Sprintf(`{"messages":[{"role":"user","content":"x"}],"ignore_eos":true,"stream":%v}`, stream))
				gone <- err
			}()
			b.settle("tokens", func(s engine.State) bool { return s.GeneratedTokens > before.GeneratedTokens+5 })
			cancel()
			if err := <-gone; err == nil {
				t.Error("the request ended by itself")
			}
			b.settle("the abort", func(s engine.State) bool { return s.Running == 0 && s.Aborted == before.Aborted+1 })
		}
	})
}

func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, Options{Sim: sim.Options{MaxRunning: 1, MaxQueued: 1}})
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				b.post(ctx, chat, `{"messages":[{"role":"user","content":"x"}],"ignore_eos":true}`)
			})
			b.settle("a request", func(s engine.State) bool { return s.Running == 1 && s.Waiting == i })
		}
		a, err := b.post(context.Background(), chat, `{"messages":[{"role":"user","content":"x"}]}`)
		if err != nil || a.status != http.StatusServiceUnavailable || a.errorMessage == "" {
			t.Errorf("%+v, %v", a, err)
		}
		cancel()
		wg.Wait()
		b.settle("rest", func(s engine.State) bool {
			return s.Running+s.Waiting == 0 && s.Received == 3 && s.Aborted == 2 && s.Rejected == 1
		})
	})
}

// Many streams at once, each word verified.
func TestManyStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 64
		b := start(t, Options{})
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				a, err := b.post(context.Background(), chat, fmt.Sprintf(`{"messages":[{"role":"user","content":"%d"}],"max_tokens":50,"ignore_eos":true,"stream":true}`, i))
				if err != nil || !a.terminated {
					t.Errorf("stream %d: %v", i, err)
					return
				}
				if words, err := b.verify(a.text[0]); words != 50 || err != nil {
					t.Errorf("stream %d: %d words, %v", i, words, err)
				}
			})
		}
		wg.Wait()
		if s := b.state(); s.Finished != n || s.GeneratedTokens != n*50 || s.Running != 0 {
			t.Errorf("state %+v", s)
		}
	})
}

// A stream that is under way when the engine ends is broken, not ended.
func TestShutdownBreaksStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tok := newToyTokenizer()
		outer := start(t, Options{}) // for its words
		e, err := New(Options{Tokenizer: tok, goTimers: true, Sim: sim.Options{Words: outer.words, Cost: sim.Constant{Prefill: time.Millisecond, Decode: time.Millisecond}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		l := outer.listen("ends:80")
		var wg sync.WaitGroup
		wg.Go(func() { e.Run(ctx) })
		wg.Go(func() {
			if err := e.ServeOpenAI(ctx, l); err != nil {
				t.Error(err)
			}
		})
		b := &bench{t: t, e: e, words: outer.words, openai: "http://" + l.Addr().String(), client: outer.client}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			a, err := b.post(context.Background(), chat, `{"messages":[{"role":"user","content":"x"}],"stream":true}`)
			if err == nil || a.terminated {
				t.Errorf("the stream ended as if complete: %v", err)
			}
		}()
		b.settle("tokens", func(s engine.State) bool { return s.GeneratedTokens > 5 })
		cancel()
		wg.Wait()
		<-ended
	})
}
