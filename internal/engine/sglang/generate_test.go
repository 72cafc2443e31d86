package sglang

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/internal/dialect"
	"weir/internal/dialect/sglang"
	"weir/internal/engine/enginetest"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/wire/sse"
)

// The requests of this adapter are read by the gateway's own /generate without losing anything, so
// the two can be chained.
func TestRequestsChain(t *testing.T) {
	endpoint := sglang.New(sglang.Options{})
	rapid.Check(t, func(t *rapid.T) {
		float := func(low, high float64) *float64 {
			if v := rapid.Float64Range(low, high).Draw(t, "number"); rapid.Bool().Draw(t, "given") {
				return &v
			}
			return nil
		}
		r := &infer.Request{
			ID: "0123456789abcdef", Model: "m", Prompt: rapid.SliceOfN(rapid.Uint32(), 1, 50).Draw(t, "prompt"),
			MaxTokens: rapid.IntRange(1, 1<<20).Draw(t, "max"), IgnoreEOS: rapid.Bool().Draw(t, "ignore"),
			Sampling: infer.Sampling{
				Temperature: float(0, 10), TopP: float(0.001, 1), MinP: float(0, 1), PresencePenalty: float(-2, 2),
				FrequencyPenalty: float(-2, 2), RepetitionPenalty: float(0.01, 2),
			},
		}
		r.MinTokens = rapid.IntRange(0, r.MaxTokens).Draw(t, "min")
		if ids := rapid.SliceOfN(rapid.Uint32(), 0, 5).Draw(t, "stops"); len(ids) > 0 {
			r.StopIDs = ids
		}
		if rapid.Bool().Draw(t, "seeded") {
			seed := rapid.Int64().Draw(t, "seed")
			r.Sampling.Seed = &seed
		}
		if rapid.Bool().Draw(t, "top_k") {
			k := rapid.SampledFrom([]int{-1, 1, 50, 1 << 30}).Draw(t, "k")
			r.Sampling.TopK = &k
		}
		for _, id := range rapid.SliceOfNDistinct(rapid.Uint32Range(0, 1<<20), 0, 4, rapid.ID).Draw(t, "biased") {
			r.Sampling.LogitBias = append(r.Sampling.LogitBias, infer.Bias{ID: id, Value: rapid.Float64Range(-100, 100).Draw(t, "bias")})
		}
		slices.SortFunc(r.Sampling.LogitBias, func(a, b infer.Bias) int { return int(a.ID) - int(b.ID) })
		switch rapid.IntRange(0, 4).Draw(t, "guide") {
		case 1:
			r.Guide = &infer.Guide{Kind: infer.GuideJSONSchema, Text: `{"type":"object","title":"\"é\n"}`}
		case 2:
			r.Guide = &infer.Guide{Kind: infer.GuideRegex, Text: `a\d+"`}
		case 3:
			r.Guide = &infer.Guide{Kind: infer.GuideGrammar, Text: "root ::= \"x\""}
		case 4:
			r.Guide = &infer.Guide{Kind: infer.GuideStructuralTag, Text: `{"structures":[]}`}
		}
		if rapid.Bool().Draw(t, "media") {
			r.Media = []infer.Media{{Kind: infer.MediaImage, URL: "https://a.example/x.png"}, {Kind: infer.MediaImage, Type: "image/bmp", Data: []byte("Qk0=")}}
			r.ToContext = rapid.Bool().Draw(t, "to context")
		}
		body, bad := serverOf(infer.CarriesAll).appendRequest(nil, r, -1)
		if bad != nil {
			t.Fatal(bad)
		}
		h, err := endpoint.ParseHead(body)
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		got, err := endpoint.Request(h, "weir", infer.CarriesAll)
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		back := &infer.Request{
			ID: h.RequestID, Model: "m", Prompt: got.PromptIDs, MaxTokens: got.MaxTokens, MinTokens: got.MinTokens, IgnoreEOS: got.IgnoreEOS,
			StopIDs: got.StopIDs, Sampling: got.Sampling, Guide: got.Guide, Media: got.Media,
		}
		if r.ToContext && got.MaxTokens == 0 {
			back.MaxTokens, back.ToContext = r.MaxTokens, true // which the other finds for itself
		}
		if diff := cmp.Diff(r, back); diff != "" {
			t.Fatalf("%s\n%s", body, diff)
		}
		if !got.Stream {
			t.Fatalf("not streamed: %s", body)
		}
	})
}

// This adapter takes in exactly the answers of the gateway's own /generate, in either form and with
// any merging, stop ids and failures included.
func TestAnswersChain(t *testing.T) {
	endpoint := sglang.New(sglang.Options{})
	rapid.Check(t, func(t *rapid.T) {
		const stopID = 99 // no answer goes on behind it
		ids := rapid.Uint32().Filter(func(id uint32) bool { return id != stopID })
		deltas := rapid.SliceOfN(rapid.SliceOfN(ids, 1, 9), 1, 40).Draw(t, "deltas")
		said := rapid.SampledFrom([]form{unknownForm, cumulative, incremental}).Draw(t, "known form")
		streams := said == incremental || said == unknownForm && rapid.Bool().Draw(t, "incremental")
		fails, stopped := rapid.Bool().Draw(t, "fails"), rapid.Bool().Draw(t, "stopped by an id")
		h, err := endpoint.ParseHead(fmt.Appendf(nil, `{"input_ids":[1],"stream":true,"incremental_streaming_output":%v}`, streams))
		if err != nil {
			t.Fatal(err)
		}
		req, err := endpoint.Request(h, "weir", infer.CarriesAll)
		if err != nil {
			t.Fatal(err)
		}
		enc := req.Encoder(dialect.AnswerOptions{ID: "id", PromptIDs: []uint32{1}})
		out := enc.AppendStart(nil, 0)
		var want []uint32
		for _, ids := range deltas {
			want = append(want, ids...)
			out = enc.AppendTokens(out, 0, []byte("\u2028 \"output_ids\":[ ],\"meta_info\":"), dialect.Tokens{IDs: ids})
		}
		count := len(want)
		if fails {
			out = enc.AppendError(out, &infer.Error{Code: infer.CodeOverloaded, Message: "no"})
		} else {
			f := dialect.Finish{Reason: infer.ReasonStop, ByID: stopped, StopID: stopID}
			if stopped {
				count++
			}
			f.Tokens = count
			out = enc.AppendEnd(enc.AppendFinish(out, 0, f), infer.Usage{CachedTokens: -1})
		}
		var got []uint32
		var events sse.Parser
		events.Feed(out)
		s, tally, finish := newScanner(), tally{form: said}, ""
		for ev, ok := events.Next(); ok; ev, ok = events.Next() {
			if string(ev.Data) == sse.DoneMarker {
				finish += " done"
				continue
			}
			var e event
			if err := s.scan(ev.Data, &e); err != nil {
				t.Fatalf("%v: %s", err, ev.Data)
			}
			fresh, unsent, err := tally.take(s, &e)
			if err != nil {
				t.Fatalf("%v: %s", err, ev.Data)
			}
			ids, err := tally.read(s, &e, fresh)
			if err != nil {
				t.Fatalf("%v: %s", err, ev.Data)
			}
			got = append(got, ids...)
			if e.finish != "" {
				finish += e.finish
				if e.finish == "stop" && tally.have+unsent != count {
					t.Fatalf("%d ids and %d unsent of %d", tally.have, unsent, count)
				}
			}
		}
		if !slices.Equal(got, want) || fails != (finish == "abort") || !fails && finish != "stop done" {
			t.Fatalf("%v and %q, want %v", got, finish, want)
		}
	})
}

// A server that counts another prompt than it was given has cut it, which some do in
// silence (--allow-auto-truncate).
func TestPromptThatWasCut(t *testing.T) {
	for _, c := range []struct {
		name         string
		given, count int
		media, fails bool
	}{
		{"whole", 4, 4, false, false},
		{"cut", 4, 3, false, true},
		{"with media", 4, 99, true, false},
		{"not counted", 4, 0, false, false},
	} {
		e := New(Options{Name: "a", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}})
		e.aborts.post = func(context.Context, string) {}
		sink := enginetest.NewRecorder(1)
		req := &infer.Request{Prompt: make([]uint32, c.given), MaxTokens: 9}
		if c.media {
			req.Media = []infer.Media{{}}
		}
		whole := new(lifetime.Context)
		g := e.newGeneration(req, 1, sink, serverOf(infer.CarriesAll))
		g.Begin(whole, e.host)
		last := g.event(newScanner(), fmt.Appendf(nil, `{"output_ids":[7],"meta_info":{"finish_reason":null,"prompt_tokens":%d,"completion_tokens":1,"cached_tokens":0,"response_sent_to_client_ts":1.5}}`, c.count), 1)
		if last != c.fails {
			t.Errorf("%s: last %t", c.name, last)
		}
		if !c.fails {
			whole.End(nil)
			continue
		}
		wait, stop := context.WithTimeout(t.Context(), time.Minute)
		f, err := sink.WaitFinish(wait)
		stop()
		var fault infer.Fault
		if err != nil || !errors.As(f.Err, &fault) || fault.FaultReason() != "prompt_length" || f.Err.Code != infer.CodeIntegrity {
			t.Errorf("%s: %v, %v", c.name, f, err)
		}
		if !f.Err.Retryable {
			t.Errorf("%s: no other engine is asked", c.name)
		}
		whole.End(nil)
		e.aborts.close()
	}
}

// A request that the scheduler gives up comes back as one of a prompt of one token,
// with an id that says nothing: none of it is given out, and its words are the error's.
func TestGivenUp(t *testing.T) {
	e := New(Options{Name: "a", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}})
	for _, form := range []form{cumulative, incremental} {
		sink := enginetest.NewRecorder(1)
		whole := new(lifetime.Context)
		g := e.newGeneration(&infer.Request{Prompt: make([]uint32, 4), MaxTokens: 9}, 1, sink, &server{form: form})
		g.Begin(whole, e.host)
		if !g.event(newScanner(), []byte(`{"text":"","output_ids":[0],"meta_info":{"finish_reason":{"type":"abort","message":"no grammar","status_code":400,"err_type":"BadRequestError"},"prompt_tokens":1,"completion_tokens":1,"cached_tokens":0}}`), 1) {
			t.Error("it goes on")
		}
		wait, stop := context.WithTimeout(t.Context(), time.Minute)
		f, err := sink.WaitFinish(wait)
		stop()
		if err != nil || f.Err == nil || f.Err.Code != infer.CodeInvalid || !strings.Contains(f.Err.Message, "no grammar") || len(sink.IDs()) != 0 || len(sink.Faults()) != 0 {
			t.Errorf("%v: %v, %v, ids %v, %v", form, f, err, sink.IDs(), sink.Faults())
		}
		whole.End(nil)
	}
}
