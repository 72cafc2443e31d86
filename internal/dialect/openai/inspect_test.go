package openai

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/wire/sse"
)

// bom is a byte order mark.
const bom = "\xEF\xBB\xBF"

// tokenEvent is an event as most are, as vLLM writes it.
const tokenEvent = `{"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"meta-llama/Llama-3.1-8B","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}`

// verdict is what an Inspector said of a stream: how many of its bytes may go
// on, and why not all.
type verdict struct {
	good    int
	fault   string
	failed  bool
	split   bool // the splitter saw the end marker last
	prompt  int
	choices int
}

// inspect shows a stream to an Inspector as a relay would.
func inspect(t testing.TB, in Inspector, limit int, chunks [][]byte) verdict {
	t.Helper()
	s := sse.Splitter{Max: limit}
	var held []byte
	var v verdict
	for _, chunk := range chunks {
		held = append(held, chunk...)
		r := s.Feed(chunk)
		good, err := in.Events(held[:r.Len])
		if good < 0 || good > r.Len || err == nil && good != r.Len {
			t.Fatalf("good %d of %d, error %v", good, r.Len, err)
		}
		v.good += good
		v.split = r.Done
		if err != nil {
			var e *infer.Error
			if !errors.As(err, &e) || e.Code != infer.CodeIntegrity || e.Message == "" || e.Cause == nil {
				t.Fatalf("error %#v", err)
			}
			v.fault = e.Message
			break
		}
		held = held[r.Len:]
	}
	v.failed = in.Failed()
	if u, ok := in.Usage(); ok {
		v.prompt = u.PromptTokens
	}
	v.choices = in.finished.count
	return v
}

func data(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString("data: " + e + "\n\n")
	}
	return b.String()
}

const (
	done   = "[DONE]"
	text0  = `{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`
	text1  = `{"choices":[{"index":1,"delta":{"content":"b"},"finish_reason":null}]}`
	stop0  = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	stop1  = `{"choices":[{"index":1,"text":"","finish_reason":"length"}]}`
	usage  = `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}`
	failed = `{"error":{"message":"out of memory","code":500}}`
)

// inspected are whole streams, each with the rule that it keeps or breaks: the
// bytes that may go on, and a part of the fault's words, empty when all is well.
var inspected = []struct {
	name  string
	n     int
	good  string
	rest  string
	fault string
}{
	{"complete", 1, data(text0, text0, stop0, usage, done), "", ""},
	{"as an engine writes it", 1, data(tokenEvent, strings.Replace(tokenEvent, `finish_reason":null`, `finish_reason":"stop"`, 1), done), "", ""},
	{"CRLF", 1, strings.ReplaceAll(data(text0, stop0, done), "\n", "\r\n"), "", ""},
	{"CR", 1, strings.ReplaceAll(data(text0, stop0, done), "\n", "\r"), "", ""},
	{"mixed line ends", 1, "data: " + text0 + "\r\n\rdata: " + stop0 + "\n\r\ndata: [DONE]\r\n\n", "", ""},
	{"byte order mark", 1, bom + data(stop0, done), "", ""},
	{"comments, ids, names, retries", 1, ": hello\n\nid: 1\nevent: x\nretry: 5\ndata: " + text0 + "\n: inside\n\n" + data(stop0) + "event: none\n\n" + data(done) + ": bye\n\n\n\n", "", ""},
	{"no space after the colon", 1, "data:" + text0 + "\n\ndata:" + stop0 + "\n\ndata:[DONE]\n\n", "", ""},
	{"white space around", 1, data("  "+text0+"  ", "\t"+stop0, done), "", ""},
	{"over several lines", 1, "data: {\"choices\":\ndata: [{\"index\":0,\ndata: \"finish_reason\":\"stop\"}]\ndata:}\n\n" + data(done), "", ""},
	{"keep-alive", 1, "data:\n\ndata: \n\ndata\n\n" + data(stop0, done), "", ""},
	{"not ended", 1, data(text0), "", ""},
	{"nothing", 1, "", "", ""},

	{"garbage", 1, data(text0), data("{garbage}", stop0, done), "event 2 of the engine's stream is neither JSON nor the end marker, from byte 1"},
	{"cut JSON", 1, data(text0), data(text0[:20], stop0, done), "event 2 of the engine's stream is neither JSON"},
	{"JSON and more", 1, data(text0), data(text0+"x", done), "event 2 of the engine's stream is neither JSON"},
	{"two objects", 1, "", data(text0+text0, done), "event 1 of the engine's stream is neither JSON"},
	{"a line that is not data", 1, "", "data: {\"a\":1\n}\n\n", "event 1 of the engine's stream is neither JSON"},
	{"string", 1, "", data(`"text"`), "is a string where an object belongs"},
	{"array", 1, "", data(`[]`), "is an array where an object belongs"},
	{"null", 1, "", data(`null`), "is null where an object belongs"},
	{"nearly the marker", 1, data(stop0), data("[DONE] "), "is neither JSON nor the end marker"},
	{"comment before garbage", 1, data(text0), ": x\n" + data("!"), "event 2 "},
	{"too deep", 1, "", data(strings.Repeat(`{"a":`, 600) + "1" + strings.Repeat("}", 600)), "event 1 "},

	{"done without finish", 1, data(text0), data(done), "event 2 of the engine's stream is [DONE], but choice 0 has no finish_reason"},
	{"done at once", 1, "", data(done), "choice 0 has no finish_reason"},
	{"done with one of two", 2, data(text0, text1, stop0), data(done), "choice 1 has no finish_reason"},
	{"both of two", 2, data(text0, text1, stop0, text1, stop1, usage, done), "", ""},
	{"both in one event", 2, data(`{"choices":[{"index":0,"finish_reason":"stop"},{"index":1,"finish_reason":"stop"}]}`, done), "", ""},
	{"empty finish_reason is none", 1, data(strings.Replace(stop0, "stop", "", 1)), data(done), "no finish_reason"},
	{"spaced finish_reason", 1, data(`{"choices":[{"index":0, "finish_reason" :  "stop"}]}`, done), "", ""},
	{"escaped finish_reason", 1, data(`{"choices":[{"index":0,"finish\u005freason":"stop"}]}`, done), "", ""},
	{"escaped choices", 1, data(`{"\u0063hoices":[{"index":0,"finish_reason":"stop"}]}`, done), "", ""},
	{"no index is choice 0", 1, data(`{"choices":[{"finish_reason":"stop"}]}`, done), "", ""},
	{"finish_reason in a text", 1, data(`{"choices":[{"index":0,"text":"\"finish_reason\":\"stop\""}]}`), data(done), "no finish_reason"},
	{"finish_reason elsewhere", 1, data(`{"x":{"finish_reason":"stop"}}`), data(done), "no finish_reason"},
	{"finish_reason a number", 1, "", data(`{"choices":[{"index":0,"finish_reason":1}]}`), "a number for finish_reason"},

	{"text after finish", 1, data(stop0), data(text0, done), "event 2 of the engine's stream has output for choice 0 after its finish_reason"},
	{"completion text after finish", 2, data(stop1), data(`{"choices":[{"index":1,"text":"b"}]}`), "output for choice 1"},
	{"tool call after finish", 1, data(stop0), data(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}`), "output for choice 0"},
	{"text of both after one finish", 2, data(stop0), data(`{"choices":[{"index":1,"text":"b"},{"index":0,"text":"a"}]}`), "output for choice 0"},
	{"text of one without index after its finish", 2, data(stop0), data(`{"choices":[{"index":1,"text":"b"},{"text":"a"}]}`), "output for choice 0"},
	{"second finish", 1, data(stop0, stop0, done), "", ""},
	{"output with a second finish", 1, data(stop0), data(`{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}`), "output for choice 0"},
	{"empty delta after finish", 1, data(stop0, `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, done), "", ""},
	{"the last text with the finish", 1, data(`{"choices":[{"index":0,"text":"end","finish_reason":"stop"}]}`, done), "", ""},

	{"object after done", 1, data(stop0, done), data(usage), "event 3 of the engine's stream comes after [DONE]"},
	{"second done", 1, data(stop0, done, done), "", ""},
	{"object after a second done", 1, data(stop0, done, done), data(usage), "comes after [DONE]"},
	{"keep-alive after done", 1, data(stop0, done), "data:\n\n", "comes after [DONE]"},
	{"garbage after done", 1, data(stop0, done), data("!"), "comes after [DONE]"},

	{"index too high", 1, data(text0), data(text1), "event 2 of the engine's stream has choice 1 of 1"},
	{"index far too high", 3, "", data(`{"choices":[{"index":99999999999,"text":"a"}]}`), "has choice 99999999999 of 3"},
	{"negative index", 1, "", data(`{"choices":[{"index":-1,"text":"a"}]}`), "index is no number of a choice"},
	{"fractional index", 1, "", data(`{"choices":[{"index":0.5,"text":"a"}]}`), "index is no number of a choice"},
	{"choices no array", 1, "", data(`{"choices":5,"usage":{}}`), "has a number for choices"},
	{"choice no object", 1, "", data(`{"choices":[5],"usage":{}}`), "has a number for a choice"},
	{"delta no object", 1, "", data(`{"choices":[{"delta":"x","finish_reason":"stop"}]}`), "has a string for delta"},
	{"choices null", 1, data(`{"choices":null,"usage":{}}`), "", ""},

	{"engine's own error", 1, data(text0, failed, done), "", ""},
	{"error without done", 1, data(text0, failed), "", ""},
	{"older error", 1, data(`{"object":"error","message":"no"}`, done), "", ""},
	{"error in words", 1, data(`{"error":"no"}`, done), "", ""},
	{"no error", 1, data(`{"error":null,"choices":[]}`), data(done), "no finish_reason"},
	{"garbage after an error", 1, data(failed), data("!"), "neither JSON"},

	{"usage null", 1, data(`{"usage":null,"choices":[]}`, stop0, done), "", ""},
	{"usage wrong total", 1, "", data(`{"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":8}}`), "a usage of 7 and 2 tokens, 8 in all"},
	{"usage negative", 1, "", data(`{"usage":{"prompt_tokens":-7}}`), "whose prompt_tokens is no count"},
	{"usage fractional", 1, "", data(`{"usage":{"completion_tokens":1.5}}`), "whose completion_tokens is no count"},
	{"usage a word", 1, "", data(`{"usage":{"total_tokens":"9"}}`), "whose total_tokens is no count"},
	{"usage huge", 1, "", data(`{"usage":{"total_tokens":99999999999999999999}}`), "whose total_tokens is no count"},
	{"usage in part", 1, data(`{"usage":{"prompt_tokens":7,"completion_tokens":null,"total_tokens":9}}`), "", ""},
	{"usage twice", 1, data(`{"usage":{"prompt_tokens":7,"prompt_tokens":8,"completion_tokens":1}}`), "", ""},
	{"usage no object", 1, "", data(`{"usage":9}`), "has a number for usage"},

	{"unknown number of choices", 0, data(text0, text1, stop1, stop0, done), "", ""},
	{"unknown number, one open", 0, data(text0, text1, stop1), data(done), "choice 0 has no finish_reason"},
	{"unknown number, none seen", 0, data(`{"choices":[]}`), data(done), "no choice has a finish_reason"},
	{"unknown number, high", 0, data(`{"choices":[{"index":130,"text":"a"}]}`), data(done), "choice 130 has no finish_reason"},
	{"unknown number, too high", 0, "", data(`{"choices":[{"index":65536,"text":"a"}]}`), "has choice 65536 of 65536"},
}

func TestInspector(t *testing.T) {
	for _, c := range inspected {
		t.Run(c.name, func(t *testing.T) {
			stream := c.good + c.rest
			v := inspect(t, newInspector(c.n), 0, [][]byte{[]byte(stream)})
			if v.good != len(c.good) || (v.fault == "") != (c.fault == "") || !strings.Contains(v.fault, c.fault) {
				t.Fatalf("%q good, fault %q; want %q, %q", stream[:v.good], v.fault, c.good, c.fault)
			}
		})
	}
}

// An end that released engines send twice passes, and Odd tells of it.
func TestInspectorOdd(t *testing.T) {
	for stream, want := range map[string]string{
		data(text0, stop0, usage, done):       "",
		data(text0, stop0, stop0, done):       "finished_twice",
		data(stop0, done, done, done):         "done_twice",
		data(stop0, stop0, done) + data(done): "finished_twice done_twice",
		data(`{"usage":{"prompt_tokens":7.0,"completion_tokens":2.0,"total_tokens":9.0}}`, stop0, done): "",
	} {
		in := newInspector(1)
		if good, err := in.Events([]byte(stream)); err != nil || good != len(stream) || !in.Done() {
			t.Errorf("%q: %d good, %v", stream, good, err)
		}
		if got := strings.Join(in.Odd().Words(), " "); got != want {
			t.Errorf("%q: %q, want %q", stream, got, want)
		}
	}
}

func TestInspectorRemembers(t *testing.T) {
	v := inspect(t, newInspector(1), 0, [][]byte{[]byte(data(text0, stop0, usage, failed, done))})
	if !v.failed || v.prompt != 7 || !v.split || v.fault != "" {
		t.Errorf("%+v", v)
	}
	in := newInspector(1)
	if _, err := in.Events([]byte(data(usage, `{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}`))); err != nil {
		t.Fatal(err)
	}
	if u, ok := in.Usage(); !ok || u != (infer.Usage{PromptTokens: 3, CachedTokens: 2}) {
		t.Errorf("%+v, %v", u, ok)
	}
	v = inspect(t, newInspector(1), 0, [][]byte{[]byte(data(text0, stop0, done))})
	if v.failed || v.prompt != 0 {
		t.Errorf("%+v", v)
	}
}

// cuts returns a stream cut at every pair of places, or at every place when it is
// long or the test shall be short, and byte by byte.
func cuts(stream string) [][][]byte {
	b := []byte(stream)
	single := make([][]byte, len(b))
	for i := range b {
		single[i] = b[i : i+1]
	}
	all := [][][]byte{{b}, single}
	if len(b) > 150 || testing.Short() {
		for i := range b {
			all = append(all, [][]byte{b[:i], b[i:]})
		}
		return all
	}
	for i := 0; i <= len(b); i++ {
		for j := i; j <= len(b); j++ {
			all = append(all, [][]byte{b[:i], b[i:j], b[j:]})
		}
	}
	return all
}

func TestInspectorCuts(t *testing.T) {
	for _, c := range inspected {
		stream := c.good + c.rest
		want := inspect(t, newInspector(c.n), 0, [][]byte{[]byte(stream)})
		for _, chunks := range cuts(stream) {
			got := inspect(t, newInspector(c.n), 0, chunks)
			if want.fault != "" {
				// The splitter may have seen more or less of the bytes after a fault.
				got.split = want.split
			}
			if got != want {
				t.Fatalf("%s: %q gives %+v, want %+v", c.name, chunks, got, want)
			}
		}
	}
}

// An event too large to hold passes unseen, whatever is in it and wherever it
// is cut; what is around it is judged.
func TestInspectorOversized(t *testing.T) {
	const limit = 100
	big := `data: {"choices":[{"index":0,"text":"` + strings.Repeat("x", 300) + `"}]}`
	for _, end := range []string{"\n", "\r\n", "\r"} {
		for _, c := range []struct {
			stream string
			events int // the one at fault, 0: none
		}{
			{big + end + end + "data: [DONE]" + end + end, 0},
			{"data: {}" + end + end + big + "garbage" + end + "data: more" + end + ": x" + end + end + "data: [DONE]" + end + end, 0},
			{big + end + end + "data: {}" + end + end + "data: !" + end + end, 3},
			// It turns out too large at a line end, and one byte before.
			{"data: " + strings.Repeat("x", limit-6) + end + "data: " + strings.Repeat("more", 20) + end + end + "data: [DONE]" + end + end, 0},
			{"data: " + strings.Repeat("x", limit-5) + end + "data: " + strings.Repeat("more", 20) + end + end + "data: [DONE]" + end + end, 0},
			{"data: !" + end + end + big + end + end, 1},
		} {
			b := []byte(c.stream)
			for size := 1; size < 60; size++ {
				var chunks [][]byte
				for rest := b; len(rest) > 0; {
					n := min(size, len(rest))
					chunks = append(chunks, rest[:n])
					rest = rest[n:]
				}
				v := inspect(t, newInspector(1), limit, chunks)
				want, good := "", len(b)
				if c.events > 0 {
					want, good = fmt.Sprintf("event %d ", c.events), strings.Index(c.stream, "data: !")
				}
				if (v.fault == "") != (want == "") || !strings.HasPrefix(v.fault, want) || v.good != good {
					t.Fatalf("%q in chunks of %d: %+v, want %d, %q", c.stream, size, v, good, want)
				}
			}
		}
	}
}

// For any stream of well-formed events, reading in full only those that may say something gives the
// same verdict as reading each in full.
func TestInspectorReadsWhatTells(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 3).Draw(t, "n")
		choice := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf(`{%s"delta":{"content":%s},"logprobs":{"content":[{"token":"index"}]},"finish_reason":%s}`,
				rapid.SampledFrom([]string{``, `"index":0,`, `"index":1,`, `"index" : 2 ,`, `"index":70,`, `"index":1e0,`}).Draw(t, "index"),
				rapid.SampledFrom([]string{`""`, `"a"`, `null`, `"\"error\":1"`}).Draw(t, "content"),
				rapid.SampledFrom([]string{`null`, `null`, `null`, `""`, `"stop"`}).Draw(t, "finish"))
		})
		event := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf(`{"object":"chat.completion.chunk","choices":[%s]%s}`,
				strings.Join(rapid.SliceOfN(choice, 0, 2).Draw(t, "choices"), ","),
				rapid.SampledFrom([]string{``, ``, ``, `,"usage":null`, `,"usage":{"total_tokens":1}`, `,"error":null`, `,"error":{"a":1}`,
					`,"timings":[{"index":0}]`}).Draw(t, "more"))
		})
		events := rapid.SliceOfN(event, 0, 8).Draw(t, "events")
		in, full := newInspector(n), newInspector(n)
		for i, e := range append(events, done) {
			if strings.HasPrefix(e, "{") {
				_, err := full.Events([]byte(data(`{"\u0061":0,` + e[1:])))
				_, got := in.Events([]byte(data(e)))
				if fmt.Sprint(got) != fmt.Sprint(err) {
					t.Fatalf("event %d of %q: %v, in full %v", i, events, got, err)
				}
				if err != nil {
					return
				}
				continue
			}
			_, err := full.Events([]byte(data(e)))
			_, got := in.Events([]byte(data(e)))
			if fmt.Sprint(got) != fmt.Sprint(err) {
				t.Fatalf("end of %q: %v, in full %v", events, got, err)
			}
		}
		if in.Failed() != full.Failed() || in.finished.count != full.finished.count {
			t.Fatalf("%+v, in full %+v", in, full)
		}
	})
}

func TestHeadChoices(t *testing.T) {
	for body, want := range map[string]int{
		`{"model":"m","prompt":"a"}`:                           1,
		`{"model":"m","prompt":"a","n":3}`:                     3,
		`{"model":"m","prompt":[1,2],"n":2}`:                   2,
		`{"model":"m","prompt":["a","b"]}`:                     0,
		`{"model":"m","prompt":[ [1],[2]],"n":2}`:              0,
		`{"model":"m","prompt":[]}`:                            0,
		`{"model":"m","prompt":null,"prompt_embeds":["YQ=="]}`: 0,
	} {
		h, err := Completions.ParseHead([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := Completions.choices(h); got != want {
			t.Errorf("%s: %d choices, want %d", body, got, want)
		}
	}
	h, err := Chat.ParseHead([]byte(`{"model":"m","messages":[],"n":4,"prompt":["a"]}`))
	if err != nil || Chat.choices(h) != 4 {
		t.Errorf("chat: %d choices, %v", Chat.choices(h), err)
	}
	for endpoint, judged := range map[Endpoint]bool{Chat: true, Completions: true, Other: false, Tokenize: false, Detokenize: false} {
		if got := endpoint.NewInspector(h) != nil; got != judged {
			t.Errorf("%v: judged %v", endpoint, got)
		}
	}
}

func TestChoiceSet(t *testing.T) {
	var s choiceSet
	want := map[int]bool{}
	for _, c := range []int{0, 5, 63, 64, 65, 127, 128, 1000, 5, 64, maxChoices - 1} {
		s.add(c)
		want[c] = true
	}
	for c := range maxChoices {
		if s.has(c) != want[c] {
			t.Fatalf("choice %d: %v", c, s.has(c))
		}
	}
	if s.count != len(want) || s.lacks(nil, maxChoices) != 1 || s.lacks(&s, maxChoices) != -1 {
		t.Errorf("%d in the set, lacks %d", s.count, s.lacks(nil, maxChoices))
	}
}

// FuzzInspector: no stream panics, and the verdict does not depend on where it
// was cut.
func FuzzInspector(f *testing.F) {
	for _, c := range inspected {
		f.Add(c.good+c.rest, c.n, uint64(0x9E3779B97F4A7C15))
	}
	f.Fuzz(func(t *testing.T, stream string, n int, seed uint64) {
		if strings.Contains(strings.TrimPrefix(stream, bom), bom) {
			t.Skip()
		}
		b := []byte(stream)
		var chunks [][]byte
		for rest := b; len(rest) > 0; {
			seed = seed*6364136223846793005 + 1442695040888963407
			size := min(len(rest), 1+int(seed>>58))
			chunks = append(chunks, rest[:size])
			rest = rest[size:]
		}
		n %= 100
		want := inspect(t, newInspector(n), len(stream)+1, [][]byte{b})
		got := inspect(t, newInspector(n), len(stream)+1, chunks)
		if want.fault != "" {
			got.split = want.split
		}
		if got != want {
			t.Fatalf("%q gives %+v, uncut %+v", chunks, got, want)
		}
		inspect(t, newInspector(n), 10, chunks)
	})
}

func TestInspectorAllocs(t *testing.T) {
	// The last one is read in full: its engine states the usage in each event.
	counted := strings.TrimSuffix(tokenEvent, "}") + `,"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}`
	stream := []byte(strings.Repeat(data(tokenEvent), 8) + strings.ReplaceAll(data(tokenEvent), "\n", "\r\n") + ": ping\n\ndata:\n\n" + data(counted))
	in := newInspector(1)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := in.Events(stream); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if u, ok := in.Usage(); !ok || u != (infer.Usage{PromptTokens: 7, CompletionTokens: 2, CachedTokens: 4}) {
		t.Errorf("usage %+v, %t", u, ok)
	}
}

func BenchmarkInspector(b *testing.B) {
	for _, bench := range []struct {
		name  string
		event string
	}{
		{"token", tokenEvent},
		{"token, spaced as Python does", strings.NewReplacer(`":`, `": `, `,"`, `, "`).Replace(tokenEvent)},
		{"token with usage", strings.TrimSuffix(tokenEvent, "}") + `,"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}`},
	} {
		b.Run(bench.name, func(b *testing.B) {
			region := []byte(data(bench.event))
			in := newInspector(1)
			b.SetBytes(int64(len(region)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := in.Events(region); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A region that ends inside an event may end at any byte of it, also between
// CR and LF; the rest belongs to the event all the same.
func TestInspectorOpenRegions(t *testing.T) {
	for _, end := range []string{"\n", "\r\n", "\r"} {
		event := "data: xx" + end + "data: yy" + end + end
		for cut := 1; cut < len(event)-len(end); cut++ {
			in := newInspector(1)
			for _, region := range []string{event[:cut], event[cut:] + data(text0)} {
				if good, err := in.Events([]byte(region)); err != nil || good != len(region) {
					t.Fatalf("%q cut at %d: good %d of %q, %v", event, cut, good, region, err)
				}
			}
			if good, err := in.Events([]byte(data("!"))); err == nil || good != 0 {
				t.Fatalf("%q cut at %d: what follows is not judged", event, cut)
			}
		}
	}
}
