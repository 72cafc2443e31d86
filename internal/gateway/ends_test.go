package gateway

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/gateway/front"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/models"
)

// The table of docs/ends.md: how a request ends, by what ends it and how far it has come.
const endsFile = "../../docs/ends.md"

// Moments of a request, the rows of the table.
var endMoments = []string{"before its head", "in the queue", "prefill", "decode", "after the last token", "after `[DONE]`"}

// endings are what ends it, the columns.
var endings = []string{"client closes", "engine breaks", "engine ends", "deadline", "cut"}

// endsBed is a request that has come to a moment.
type endsBed struct {
	*bench
	c      *caller
	blocks *caller // the request that has the only place at the engine; nil: there is none
	call   *call
	f      *forward
}

// reach brings a request of a kind of engine to a moment.
func (e *endsBed) reach(t *testing.T, relayed bool, moment string, a *tokenEngine, r *relayEngine) {
	body := askStream(``)
	if relayed {
		body = relayBody
	}
	n := 1
	if moment == "in the queue" {
		e.blocks, n = e.post(chatPath, body), 2
	}
	if moment == "before its head" {
		e.c = e.dial(0)
		e.c.head("POST", chatPath, len(body))
		synctest.Wait()
		return
	}
	e.c = e.post(chatPath, body)
	if n == 2 {
		return
	}
	if relayed {
		e.f = r.forward(t, 1)
	} else {
		e.call = a.call(t, 1)
	}
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}` + "\n\n"
	last, done, _ := strings.Cut(relayEnd, "data: [DONE]")
	for _, step := range endMoments[2:] {
		if relayed {
			e.f.send(map[string]string{"decode": relayToken + relayToken, "after the last token": last + usage, "after `[DONE]`": "data: [DONE]" + done}[step])
		} else {
			switch step {
			case "decode":
				e.call.send(words()[0], words()[1])
			case "after `[DONE]`":
				e.call.end(infer.ReasonStop)
			}
		}
		if step == moment {
			break
		}
	}
	e.c.answer()
}

// end lets it end.
func (e *endsBed) end(how string) {
	switch how {
	case "client closes":
		e.c.hangUp()
	case "engine breaks":
		if e.f != nil {
			e.f.fail(false)
		} else {
			e.call.sink.Offer(&infer.Delta{Attempt: e.call.attempt, Received: trace.Now(), Total: e.call.total,
				Finish: &infer.Finish{Reason: infer.ReasonError, PromptTokens: -1, CachedTokens: -1, Err: e.call.engine.fault(infer.CodeEngine, false)}})
			synctest.Wait()
		}
	case "engine ends":
		if e.f != nil {
			e.f.end()
		} else {
			e.call.end(infer.ReasonStop)
		}
	case "deadline":
		time.Sleep(20 * time.Second)
		synctest.Wait()
	case "cut":
		e.g.Cut()
		synctest.Wait()
	}
}

// Every pair of a moment and an end has one outcome: that of the table in the document. The record,
// the metrics, what is learned of the engine, its faults, and the usage agree on it, however the
// stream is carried.
func TestEnds(t *testing.T) {
	text, err := os.ReadFile(endsFile)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, kind := range []string{"relayed", "token ids"} {
		_, table, ok := strings.Cut(string(text), "| "+kind+" | "+strings.Join(endings, " | ")+" |\n|---|---|---|---|---|---|\n")
		if !ok {
			t.Fatalf("no table of %s in %s", kind, endsFile)
		}
		for i, row := range strings.Split(table, "\n")[:len(endMoments)] {
			cells := strings.Split(strings.Trim(row, "| "), " | ")
			if len(cells) != 1+len(endings) || cells[0] != endMoments[i] {
				t.Fatalf("row %q, want one of %q", row, endMoments[i])
			}
			for k, how := range endings {
				if cells[k+1] == "–" { // no engine has it, or nothing is left to end
					continue
				}
				seen++
				t.Run(kind+"/"+cells[0]+"/"+how, func(t *testing.T) { testEnd(t, kind == "relayed", cells[0], how, cells[k+1]) })
			}
		}
	}
	if seen != 52 {
		t.Errorf("%d cells", seen)
	}
}

func testEnd(t *testing.T, relayed bool, moment, how, want string) {
	a, r := &tokenEngine{name: "a", most: 1}, &relayEngine{name: "e", most: 1}
	o := Options{Front: front.Options{RequestTimeout: 10 * time.Second}}
	inBubble(t, o, []any{a, r}, func(t *testing.T, b *bench) {
		e := &endsBed{bench: b}
		name := models.SimName
		if relayed {
			name = "relayed"
		}
		lengths := b.snapshot.Load().Models[name].Lengths
		before := lengths.Expect(0, 1<<20)
		e.reach(t, relayed, moment, a, r)
		e.end(how)
		if e.blocks != nil {
			e.blocks.hangUp()
		}
		time.Sleep(3 * time.Second) // the engine may take so long to end a whole answer
		synctest.Wait()
		rec := b.record(e.c)
		got := rec.Outcome
		if rec.Code != "" && rec.Code != rec.Outcome {
			got += ", " + rec.Code
		}
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
		tokens := 0.0
		if i := slices.Index(endMoments, moment); i >= slices.Index(endMoments, "decode") {
			if tokens = 2; relayed && moment == "after the last token" && rec.Outcome != "finished" {
				tokens = 4 // the events of a stream that was cut
			}
		}
		if learned := lengths.Expect(0, 1<<20) != before; tokens > 0 && learned != (rec.Outcome == "finished") {
			t.Errorf("%s, and its length was learned: %v", got, learned)
		}
		faults := b.sum("weir_engine_faults_total")
		if engines := how == "engine breaks" || how == "engine ends"; (faults > 0) != (engines && rec.Outcome == "failed") {
			t.Errorf("%s, and %v faults of the engine", got, faults)
		}
		if used := b.sum("weir_usage_completion_tokens_total"); used != tokens {
			t.Errorf("%s, and %v tokens are used, want %v", got, used, tokens)
		}
	})
}
