package answer

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/dialect/openai"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/model/outputparse"
)

const call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>"

// feed gives an answer the ids of each choice cut at the places given, and what comes
// out. A choice is stopped when the answer asks for it.
func feed(a *Tokens, ids [][]uint32, finish func(choice int) *infer.Finish, cut func(left int) int) (out []byte, stops []Stop, last bool) {
	var s Scratch
	stopped := make([]bool, len(ids))
	over := make([]bool, len(ids))
	for {
		var cells []stream.Cell
		for i := range ids {
			if over[i] || stopped[i] {
				continue
			}
			k := cut(len(ids[i]))
			c := stream.Cell{Choice: uint32(i), IDs: bytesOf(ids[i][:k])}
			if ids[i] = ids[i][k:]; len(ids[i]) == 0 {
				c.Finish, over[i] = finish(i), true
			}
			cells = append(cells, c)
		}
		if len(cells) == 0 {
			return out, stops, last
		}
		p := a.Next(&Input{Cells: cells}, &s, noStages{})
		if p.Err != nil {
			panic(p.Err)
		}
		out = append(out, p.Out...)
		for _, stop := range p.Stops {
			stopped[stop.Choice] = true
			stops = append(stops, stop)
		}
		if p.Last {
			last = true
		}
	}
}

// bytesOf is a copy: an answer may write to its cells.
func bytesOf(ids []uint32) []uint32 { return append([]uint32(nil), ids...) }

func ended(int) *infer.Finish {
	return &infer.Finish{Reason: infer.ReasonStop, PromptTokens: -1, CachedTokens: -1}
}

// However deltas merge, an answer that is no stream is the same, byte for byte: its
// text, its calls, its reasons and its usage.
func TestHoweverMerged(t *testing.T) {
	parts := []string{"Low dams ", "日本", "😀 é", "\n", "a < b", "<tool_call>\n{\"na", "STOP", call, "<think>", "</think>", "\n\n"}
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 3).Draw(rt, "n")
		ids := make([][]uint32, n)
		for i := range ids {
			text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 6).Draw(rt, "parts"), "")
			var err error
			if ids[i], err = encodeText(text); err != nil {
				rt.Fatal(err)
			}
			if rapid.Bool().Draw(rt, "ends by id") {
				ids[i] = append(ids[i], testModel().EOS[0])
			}
		}
		fields := fmt.Sprintf(`,"n":%d`, n)
		if rapid.Bool().Draw(rt, "stop string") {
			fields += `,"stop":["STOP","a < ","\n\n"]`
		}
		if rapid.Bool().Draw(rt, "min_tokens") {
			fields += `,"min_tokens":4,"max_tokens":1000`
		}
		o := TokensOptions{Choices: n}
		if rapid.Bool().Draw(rt, "tools") {
			o.Format = &outputparse.Options{Format: testFormat, Calls: true}
		}
		run := func(cut func(int) int) (out []byte, stops []Stop) {
			copied := make([][]uint32, n)
			for i := range ids {
				copied[i] = bytesOf(ids[i])
			}
			out, stops, last := feed(chatAnswer(t, fields, o), copied, ended, cut)
			if !last {
				rt.Fatalf("the answer is not whole: %s", out)
			}
			return out, stops
		}
		want, _ := run(func(left int) int { return left })
		got, stops := run(func(left int) int {
			if left == 0 {
				return 0
			}
			return rapid.IntRange(1, left).Draw(rt, "cut")
		})
		if !bytes.Equal(got, want) {
			rt.Fatalf("merged otherwise:\n%s\n%s", got, want)
		}
		for i, s := range stops {
			for _, other := range stops[:i] {
				if s.Choice == other.Choice {
					rt.Fatalf("choice %d is stopped twice", s.Choice)
				}
			}
		}
	})
}

// relayed is an answer of a relay to a chat.
func relayed(t testing.TB, o RelayedOptions) *Relayed {
	t.Helper()
	head, err := openai.Chat.ParseHead([]byte(`{"model":"m","stream":true,"messages":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	o.Endpoint, o.Engine = openai.Chat, "r"
	if o.Status == 0 {
		o.Status = 200
	}
	if o.Events && o.Status < 400 {
		o.Inspector = openai.Chat.NewInspector(head)
	}
	return NewRelayed(o)
}

// However an engine's bytes are read, what passes is the same: all of them, or with
// something wrong the whole events before it; and so is what is said of the end.
func TestHoweverRead(t *testing.T) {
	const token = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
	parts := []string{token, token, ": ping\n\n", "data: {\"choices\":[]}\r\n\r\n", "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"delta\":{}}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n", "data: [DONE]\n\n", "data: {\"usage\" : {\"input_tokens\":4,\"cache_read_input_tokens\":3}}\n\n", "data: {\"ch", "data: nonsense\n\n"}
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 8).Draw(rt, "parts"), "")
		o := RelayedOptions{Events: rapid.Bool().Draw(rt, "events"), Framed: rapid.Bool().Draw(rt, "framed"), Declared: -1}
		if !o.Events {
			o.Declared = int64(rapid.SampledFrom([]int{-1, 0, len(text), len(text) + 1, len(text) / 2}).Draw(rt, "declared"))
			o.Framed = o.Framed || o.Declared >= 0
		}
		end := io.EOF
		if rapid.Bool().Draw(rt, "breaks") {
			end = &infer.Error{Code: infer.CodeEngine, Message: "broken"}
		}
		run := func(cut func(int) int) (passed string, last bool, err string, usage infer.Usage) {
			a := relayed(t, o)
			for rest := text; ; {
				var s Scratch // another one each time: an answer keeps nothing in it
				in := Input{Err: end}
				if len(rest) > 0 {
					in = Input{N: copy(a.Room(&s), rest[:cut(len(rest))])}
					rest = rest[in.N:]
				}
				p := a.Next(&in, &s, noStages{})
				passed += string(p.Out)
				if p.Last || p.Err != nil {
					usage, _ = a.Usage()
					if p.Err != nil {
						err = p.Err.Error()
					}
					return passed, p.Last, err, usage
				}
			}
		}
		whole, last, err, usage := run(func(left int) int { return left })
		got, gotLast, gotErr, gotUsage := run(func(left int) int { return rapid.IntRange(1, left).Draw(rt, "cut") })
		if o.Declared >= 0 && int64(len(text)) > o.Declared { // how much passes before it is found depends on the reads
			got, whole, gotUsage, usage = "", "", infer.Usage{}, infer.Usage{}
		}
		if got != whole || gotLast != last || gotErr != err || gotUsage != usage {
			rt.Fatalf("read otherwise: %q, %t, %s, %+v; want %q, %t, %s, %+v", got, gotLast, gotErr, gotUsage, whole, last, err, usage)
		}
		if o.Declared >= 0 && end == io.EOF && last != (int64(len(text)) == o.Declared) {
			rt.Fatalf("%d bytes of %d that are declared, and last is %t", len(text), o.Declared, last)
		}
		if !o.Framed && last && !(o.Events && strings.Contains(text, "[DONE]")) {
			rt.Fatalf("%q is taken for whole, and nothing in it shows that", text)
		}
		if !strings.HasPrefix(text, got) || last && o.Declared < 0 && got != text {
			rt.Fatalf("%q has become %q, last %t", text, got, last)
		}
	})
}

// BenchmarkRead is an event of one token from an engine's socket to the client's.
func BenchmarkRead(b *testing.B) {
	event := []byte("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"}}]}\n\n")
	a := relayed(b, RelayedOptions{Events: true, Declared: -1})
	var s Scratch
	b.ReportAllocs()
	for b.Loop() {
		n := copy(a.Room(&s), event)
		if p := a.Next(&Input{N: n}, &s, noStages{}); p.Err != nil || len(p.Out) != n {
			b.Fatal(p.Err)
		}
	}
}

// However deltas merge, an answer that ends with its first call ends at the token that ends
// the call: its counts, its reason and its calls are the same, streamed or not, whatever the
// engine sent behind it, and wherever the engine ended.
func TestHoweverMergedCallsEnd(t *testing.T) {
	parts := []string{"Low dams ", "<think>", "</think>", "日本", "STOP", call, call, "</tool_call>\n", "{\"a\": 1}", "\n\n"}
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 1, 8).Draw(rt, "parts"), "")
		ids, err := encodeText(text)
		if err != nil {
			rt.Fatal(err)
		}
		if rapid.Bool().Draw(rt, "ends by id") {
			ids = append(ids, testModel().EOS[0])
		}
		fields := rapid.SampledFrom([]string{"", `,"stop":["STOP"]`, `,"stop":["tool"]`}).Draw(rt, "stop")
		o := TokensOptions{Format: &outputparse.Options{Format: testFormat, Calls: true, Single: true}}
		if rapid.Bool().Draw(rt, "forced") {
			o.Format.ForcedTool = "f"
		}
		late := rapid.Bool().Draw(rt, "late") // the end comes behind all ids
		counts := rapid.Bool().Draw(rt, "counts")
		reason := rapid.SampledFrom([]infer.Reason{infer.ReasonStop, infer.ReasonLength}).Draw(rt, "reason")
		run := func(streamed bool, cut func(int) int) (out string, u infer.Usage, stops int) {
			a := chatAnswer(t, fmt.Sprintf(`,"stream":%t%s`, streamed, fields), o)
			if counts {
				a.choices[0].reasoning = newReasoningCount(*o.Format)
			}
			var s Scratch
			finish := infer.Finish{Reason: reason, PromptTokens: -1, CachedTokens: -1}
			for rest, last := bytesOf(ids), false; !last; {
				var c stream.Cell
				if len(rest) > 0 {
					c.IDs = rest[:cut(len(rest))]
					rest = rest[len(c.IDs):]
				}
				if len(rest) == 0 && (len(c.IDs) == 0 || !late) {
					c.Finish = &finish
				}
				p := a.Next(&Input{Cells: []stream.Cell{c}}, &s, noStages{})
				if p.Err != nil {
					rt.Fatal(p.Err)
				}
				out, stops, last = out+string(p.Out), stops+len(p.Stops), p.Last
			}
			u, _ = a.Usage()
			return out, u, stops
		}
		one := func(int) int { return 1 }
		some := func(left int) int { return rapid.IntRange(1, left).Draw(rt, "cut") }
		want, usage, _ := run(false, func(left int) int { return left })
		for _, cut := range []func(int) int{one, some} {
			got, u, stops := run(false, cut)
			if got != want || u != usage || stops > 1 {
				rt.Fatalf("%q: merged otherwise: %d stops, %+v, want %+v\n%s\n%s", text, stops, u, usage, got, want)
			}
		}
		reasons := func(out string) string {
			return out[strings.Index(out, `"finish_reason":"`)+1:][:len(`finish_reason":"length`)]
		}
		for _, cut := range []func(int) int{func(left int) int { return left }, one, some} {
			if got, u, _ := run(true, cut); u != usage || reasons(got) != reasons(want) {
				rt.Fatalf("%q: streamed: %+v, want %+v\n%s\n%s", text, u, usage, got, want)
			}
		}
	})
}
