package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/trace"
	"weir/models"
)

// responseItem is an item of an answer of /v1/responses, without its id.
type responseItem struct {
	Type, Name, Arguments string
	Content               []responsePart
}

type responsePart struct {
	Text     string
	Logprobs []responseEntry
}

type responseEntry struct {
	Token   string
	Bytes   []int
	Logprob float64
	Top     []responseEntry `json:"top_logprobs"`
}

// responseItems gives the items of an answer, streamed or not. What the deltas of a
// stream add up to must be what its end says.
func responseItems(body []byte) ([]responseItem, error) {
	var last struct{ Output []responseItem }
	if !strings.HasPrefix(string(body), "event: ") {
		err := json.Unmarshal(body, &last)
		return last.Output, err
	}
	deltas := map[int]*responsePart{}
	for block := range strings.SplitSeq(strings.TrimSuffix(string(body), "\n\n"), "\n\n") {
		_, data, _ := strings.Cut(block, "\ndata: ")
		var e struct {
			Type, Delta string
			Index       int `json:"output_index"`
			Logprobs    []responseEntry
			Response    struct{ Output []responseItem }
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return nil, fmt.Errorf("%w: %s", err, block)
		}
		if e.Type == "response.output_text.delta" {
			if deltas[e.Index] == nil {
				deltas[e.Index] = new(responsePart)
			}
			deltas[e.Index].Text += e.Delta
			deltas[e.Index].Logprobs = append(deltas[e.Index].Logprobs, e.Logprobs...)
		}
		last.Output = e.Response.Output
	}
	for i, d := range deltas {
		if i >= len(last.Output) || len(last.Output[i].Content) != 1 || last.Output[i].Content[0].Text != d.Text ||
			fmt.Sprint(last.Output[i].Content[0].Logprobs) != fmt.Sprint(d.Logprobs) {
			return nil, fmt.Errorf("the deltas of item %d are %+v, the answer is %+v", i, d, last.Output)
		}
	}
	return last.Output, nil
}

// In /v1/responses each token of a text has its entry, and no other token has one, whatever comes
// between the texts, however output is merged, streamed or whole.
func TestLogprobsOfContent(t *testing.T) {
	m := simModel()
	parts := []string{"Low dams ", "日本", "😀 é", "\n", " ", "a < b", "<tool_call>\n{\"na", "<think>", "STOP", weatherCall, weatherCall + "\n"}
	const tools = `,"tools":[{"type":"function","name":"get_weather","parameters":{"type":"object"}}]`
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 6).Draw(rt, "parts"), "")
		if rapid.Bool().Draw(rt, "thinks") {
			text = "<think>\nWell, reasons.\n</think>\n\n" + text
		}
		ids := said(t, text)
		if rapid.Bool().Draw(rt, "ends by id") {
			ids = append(ids, m.EOS[0])
		}
		if len(ids) == 0 {
			return
		}
		top := rapid.IntRange(0, 2).Draw(rt, "top")
		fields := fmt.Sprintf(`,"input":"hi","max_output_tokens":500,"include":["message.output_text.logprobs"],"top_logprobs":%d`, top)
		stops := rapid.Bool().Draw(rt, "stop string")
		if stops {
			fields += `,"stop":["STOP"]`
		}
		withTools := rapid.Bool().Draw(rt, "tools")
		if withTools {
			fields += tools
		}
		cuts := rapid.SliceOfN(rapid.IntRange(1, 9), 16, 16).Draw(rt, "deltas of")
		waits := rapid.SliceOfN(rapid.Bool(), 16, 16).Draw(rt, "taken")
		var failed error
		e := &tokenEngine{name: "a"}
		answer := func(b *bench, n int, stream bool) []responseItem {
			c := b.post("/v1/responses", fmt.Sprintf(`{"model":%q,"stream":%t%s}`, models.SimName, stream, fields))
			call := e.call(t, n)
			for rest, total := ids, 0; len(rest) > 0 && !call.aborted(); {
				k := min(cuts[0], len(rest))
				cuts = append(cuts[1:], cuts[0])
				total += k
				d := &infer.Delta{Attempt: call.attempt, IDs: rest[:k], Total: total, Received: trace.Now(), Logprobs: scoreOf(top, rest[:k])}
				if rest = rest[k:]; len(rest) == 0 {
					d.Finish = ending(infer.ReasonStop)
				}
				call.sink.Offer(d)
				if waits = append(waits[1:], waits[0]); waits[0] {
					synctest.Wait()
				}
			}
			synctest.Wait()
			a := c.answer()
			items, err := responseItems(a.body)
			if a.status != 200 || !a.whole || err != nil {
				failed = fmt.Errorf("status %d, whole %v, %v: %s", a.status, a.whole, err, a.body)
			}
			return items
		}
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			n := len(e.handed())
			whole := answer(b, n+1, false)
			streamed := answer(b, n+2, true)
			if failed != nil {
				return
			}
			if diff := cmp.Diff(whole, streamed); diff != "" {
				failed = fmt.Errorf("whole and streamed differ: %s", diff)
			}
			for _, it := range whole {
				if it.Type != "message" {
					if len(it.Content) > 0 && len(it.Content[0].Logprobs) > 0 {
						failed = fmt.Errorf("entries of %+v", it)
					}
					continue
				}
				var spoken []byte
				for _, entry := range it.Content[0].Logprobs {
					if len(entry.Top) != top || entry.Logprob > 0 {
						failed = fmt.Errorf("entry %+v", entry)
					}
					if entry.Token == string(m.Text(m.EOS[0])) {
						continue
					}
					for _, c := range entry.Bytes {
						spoken = append(spoken, byte(c))
					}
				}
				// Around a marker white space is syntax, and a stop string may end
				// within a token.
				want, got := strings.TrimSpace(it.Content[0].Text), strings.TrimSpace(string(spoken))
				if want != got && !(stops && strings.HasPrefix(got, want)) {
					failed = fmt.Errorf("%q has the entries of %q", want, got)
				}
			}
		})
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

// The place of each token: markers have no entry, nor has reasoning; an end id has one if text
// comes before it.
func TestPlacesOfTokens(t *testing.T) {
	for _, test := range []struct {
		text string
		want [][]string // the tokens of each message
	}{
		{"Low dams<|im_end|>", [][]string{{"Low", " d", "ams", "<|im_end|>"}}},
		{"<think>\nso\n</think>\n\nyes<|im_end|>", [][]string{{"yes", "<|im_end|>"}}},
		{"yes\n" + weatherCall + "<|im_end|>", [][]string{{"yes"}}},
		{"<|im_end|>", nil},
	} {
		e := &tokenEngine{name: "a"}
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			c := b.post("/v1/responses", `{"model":"`+models.SimName+`","input":"hi","include":["message.output_text.logprobs"],`+
				`"tools":[{"type":"function","name":"get_weather","parameters":{"type":"object"}}]}`)
			call := e.call(t, 1)
			ids := said(t, test.text)
			call.sink.Offer(&infer.Delta{Attempt: call.attempt, IDs: ids, Total: len(ids), Received: trace.Now(), Logprobs: scoreOf(0, ids), Finish: ending(infer.ReasonStop)})
			items, err := responseItems(c.answer().body)
			if err != nil {
				t.Fatal(err)
			}
			var got [][]string
			for _, it := range items {
				if it.Type == "message" {
					var tokens []string
					for _, entry := range it.Content[0].Logprobs {
						tokens = append(tokens, entry.Token)
					}
					got = append(got, tokens)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%q: %s", test.text, diff)
			}
		})
	}
}
