package simserver

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
)

// However results are merged on their way to the writer, what a client of each
// HTTP stream puts together is the same, with nothing lost or repeated, and the
// count of each event of /generate is that of the ids so far.
func TestMerging(t *testing.T) {
	all := forms(t)
	for name, start := range all {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				n := rapid.IntRange(1, 60).Draw(t, "ids")
				var text string
				var ids []uint32
				x, f := start()
				o := &x.Outputs[0]
				x.Open = 1
				for o.Reason == "" {
					some := rapid.IntRange(0, 5).Draw(t, "in one step")
					some = min(some, n-o.Completion)
					next(x, some)
					if o.Completion+some == n && rapid.Bool().Draw(t, "with its end") {
						x.Taken.Done = append(x.Taken.Done, engine.Done{Done: sim.Done{Reason: infer.ReasonLength, Completion: n, Matched: -1}})
					}
					b, struck := x.Digest(nil, f, strings.HasPrefix(name, "chat as OpenAI"))
					if struck {
						t.Fatal("no fault was asked for")
					}
					for event := range bytes.SplitSeq(b, []byte("\n\n")) {
						if len(event) == 0 {
							continue
						}
						var g generated
						var c completed
						data := bytes.TrimPrefix(event, []byte("data: "))
						if err := json.Unmarshal(data, &g); err != nil {
							t.Fatalf("%v: %s", err, data)
						}
						if err := json.Unmarshal(data, &c); err != nil {
							t.Fatalf("%v: %s", err, data)
						}
						for _, choice := range c.Choices {
							text += choice.Text + choice.Delta.Content
						}
						if c.Choices != nil {
							continue
						}
						switch {
						case strings.HasSuffix(name, "cumulative"):
							text, ids = *g.Text, g.OutputIDs
						default:
							text, ids = text+*g.Text, append(ids, g.OutputIDs...)
						}
						if g.Meta.CompletionTokens != len(ids) {
							t.Fatalf("%d ids so far: %s", len(ids), data)
						}
					}
				}
				var want string
				var wantIDs []uint32
				for i := range n {
					wantIDs = append(wantIDs, 300+uint32(i)%1024)
					want += x.Vocab.Text(wantIDs[i])
				}
				if text != want || strings.HasPrefix(name, "generate") && !slices.Equal(ids, wantIDs) {
					t.Fatalf("%q %v, want %q", text, ids, want)
				}
			})
		})
	}
}
