package load

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// native is an answer of SGLang's /generate taken apart, for a test to damage.
type native struct {
	words []string
	cuts  []int // words in each event
	whole bool  // events hold all so far
	last  string
	end   []string // after the last event with text
}

func (n *native) events() []string {
	var out []string
	at := 0
	for i, k := range n.cuts {
		from := at
		at += k
		if n.whole {
			from = 0
		}
		reason := "null"
		if i == len(n.cuts)-1 {
			reason = n.last
		}
		text, err := json.Marshal(strings.Join(n.words[from:at], ""))
		if err != nil {
			panic(err)
		}
		ids := strings.TrimSuffix(strings.Repeat("7,", at-from), ",")
		stamps := ""
		if i == 0 {
			stamps = `,"response_sent_to_client_ts":1700000003.25`
		}
		if i == len(n.cuts)-1 {
			stamps += `,"request_received_ts":1700000001.5,"response_sent_to_client_ts":1700000009,"request_finished_ts":1700000004e0`
		}
		out = append(out, fmt.Sprintf(`{"text":%s,"output_ids":[%s],"meta_info":{"id":"r","finish_reason":%s,"prompt_tokens":9,"completion_tokens":%d,"cached_tokens":4,"queue_time":0.25,"forward_entry_time":1700000002.0%s}}`,
			text, ids, reason, at, stamps))
	}
	return append(out, n.end...)
}

func (n *native) wire() string {
	var frames []string
	for _, e := range n.events() {
		frames = append(frames, "data: "+e+"\n\n")
	}
	return streamHead + chunked(frames) + lastChunk
}

const byLength = `{"type":"length","length":12}`

// However an answer is cut into events, and whichever of its two forms it has,
// it is complete, with its words, its counts and its times.
func TestNativeStream(t *testing.T) {
	vocab := vocabulary(t)
	words := answer(t, vocab, answerLen)
	rapid.Check(t, func(t *rapid.T) {
		n := &native{words: words, whole: rapid.Bool().Draw(t, "whole"), last: byLength, end: []string{"[DONE]"}}
		for left := answerLen; left > 0; {
			k := rapid.IntRange(0, min(left, 4)).Draw(t, "k")
			n.cuts = append(n.cuts, k)
			left -= k
		}
		s := nativeSample(n.wire(), &Plan{API: Generate, OutputTokens: answerLen, Verify: vocab})
		if s.Outcome != Complete || s.Tokens != answerLen || s.PromptTokens != 9 || s.CachedTokens != 4 || s.FinishReason != "length" {
			t.Fatalf("%v %q %s: %+v", s.Outcome, s.Kind, s.Detail, s)
		}
		want := ServerTimes{Received: 1700000001.5, ForwardEntry: 1700000002, QueueTime: 0.25, ResponseSent: 1700000003.25, Finished: 1700000004}
		if len(n.cuts) == 1 {
			want.ResponseSent = 1700000003.25
		}
		if s.Server != want {
			t.Fatalf("%+v, want %+v", s.Server, want)
		}
		with := len(n.cuts) - len(slices.DeleteFunc(slices.Clone(n.cuts), func(k int) bool { return k > 0 }))
		if s.TextEvents != with || len(s.gaps) != with-1 {
			t.Fatalf("%d events with text and %d gaps of %v", s.TextEvents, len(s.gaps), n.cuts)
		}
	})
}

// nativeSample judges an answer off a connection in memory.
func nativeSample(wire string, p *Plan) Sample {
	p.URL, p.Requests = "http://x", 1
	if _, err := p.normalize(); err != nil {
		panic(err)
	}
	x := newExchange(p, &client{}, p.Verify)
	x.sample.reset(0, 0)
	x.judge.reset()
	cn := memoryConn(strings.NewReader(wire))
	x.begin(context.Background(), cn)
	x.converse(cn)
	return x.sample
}

// Each fault of an answer is distinguished, in both forms.
func TestNativeVerdict(t *testing.T) {
	vocab := vocabulary(t)
	words := answer(t, vocab, answerLen)
	each := slices.Repeat([]int{1}, answerLen)
	done := []string{"[DONE]"}
	for _, c := range []struct {
		name    string
		n       native
		outcome Outcome
		kind    Kind
	}{
		{"an abort", native{words: words, cuts: each, last: `{"type":"abort","message":"out of memory","status_code":503}`, end: done}, Errored, KindErrorEvent},
		{"an error before any output", native{words: words, end: []string{`{"error":{"message":"too long","code":400}}`, "[DONE]"}}, Errored, KindErrorEvent},
		{"no end marker", native{words: words, cuts: each, last: byLength}, Errored, KindNoDone},
		{"no finish_reason", native{words: words, cuts: each, last: "null", end: done}, Corrupt, KindNoFinish},
		{"garbage", native{words: words, cuts: each, last: byLength, end: []string{"{", "[DONE]"}}, Errored, KindBadEvent},
		{"neither answer nor error", native{words: words, cuts: each, last: byLength, end: []string{`{"text":"x"}`, "[DONE]"}}, Errored, KindBadEvent},
		{"a word lost", native{words: slices.Concat(words[:4], words[5:], words[:1]), cuts: each, last: byLength, end: done}, Corrupt, KindOrder},
		{"fewer words than asked", native{words: words, cuts: each[:answerLen-2], last: byLength, end: done}, Corrupt, KindLost},
	} {
		for _, whole := range []bool{false, true} {
			c.n.whole = whole
			s := nativeSample(c.n.wire(), &Plan{API: Generate, OutputTokens: answerLen, Verify: vocab})
			if s.Outcome != c.outcome || s.Kind != c.kind {
				t.Errorf("%s, whole %v: %v %q (%s)", c.name, whole, s.Outcome, s.Kind, s.Detail)
			}
		}
	}
	// An answer that takes back what it had said.
	n := native{words: words, cuts: each, whole: true, last: byLength, end: done}
	wire := strings.Replace(n.wire(), words[0]+words[1]+words[2], words[0]+words[3]+words[2], 1)
	if s := nativeSample(wire, &Plan{API: Generate, OutputTokens: answerLen}); s.Kind != KindText || !strings.Contains(s.Detail, "took back") {
		t.Errorf("%v %q (%s)", s.Outcome, s.Kind, s.Detail)
	}
}

// The request has SGLang's shape, with sampling parameters where they belong
// and ids of one width.
func TestNativeRequest(t *testing.T) {
	for _, noStream := range []bool{false, true} {
		p := Plan{URL: "http://h:1/base/v1", API: Generate, Requests: 1, InputTokens: 5, NoStream: noStream, RequestID: "run",
			Body: map[string]any{"ignore_eos": true, "priority": 3}}
		if !noStream {
			p.OutputTokens = 7
		}
		target, err := p.normalize()
		if err != nil {
			t.Fatal(err)
		}
		m, err := newMessage(&p, target, "")
		if err != nil {
			t.Fatal(err)
		}
		if m.prompts, err = newPrompts(&p); err != nil {
			t.Fatal(err)
		}
		wire, _ := m.render(nil, &ask{index: 42, input: p.InputTokens, output: p.OutputTokens})
		req, body := parseRequest(t, string(wire))
		var got struct {
			RID      string `json:"rid"`
			Text     string
			Stream   bool
			Priority int
			Sampling map[string]any `json:"sampling_params"`
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		if got.RID != "run-00000042" || got.RID != m.id(42) || req.Header.Get("X-Request-Id") != got.RID || req.URL.Path != "/base/generate" {
			t.Errorf("ids %q and %q, path %s", got.RID, req.Header.Get("X-Request-Id"), req.URL.Path)
		}
		wantMax := any(7.0)
		if noStream {
			wantMax = nil
		}
		if len(strings.Fields(got.Text)) != 5 || got.Stream == noStream || got.Priority != 3 || got.Sampling["ignore_eos"] != true || got.Sampling["max_new_tokens"] != wantMax {
			t.Errorf("body %s", body)
		}
	}
}

// FuzzNative holds that what a server sends cannot break the reading of it, and
// that what is read is never more than was sent.
func FuzzNative(f *testing.F) {
	n := native{words: []string{" a", " b"}, cuts: []int{1, 1}, last: byLength}
	for _, e := range n.events() {
		f.Add([]byte(e), []byte(e))
	}
	f.Add([]byte(`{"error":"x"}`), []byte(`{"meta_info":{"finish_reason":{"type":"abort"}}}`))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		var r nativeReply
		var c chunk
		for _, data := range [][]byte{one, two, one} {
			if r.parse(data, &c) != nil {
				continue
			}
			if !json.Valid(data) {
				t.Errorf("taken as JSON: %q", data)
			}
			if len(c.text) > len(data) || len(r.said) > len(one)*2+len(two) {
				t.Errorf("%d and %d bytes of text in %q", len(c.text), len(r.said), data)
			}
		}
	})
}
