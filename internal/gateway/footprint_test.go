package gateway

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
)

// TestRelayedTurnsStay has conversations with two relayed engines, by cost, streamed and
// not: whatever else their bodies say, turns go where the turns before have gone, and
// what engines report of their prompts' lengths is what the next ones are taken for.
func TestRelayedTurnsStay(t *testing.T) {
	const conversations, turns = 6, 4
	for _, stream := range []bool{true, false} {
		engines := []any{}
		for _, name := range []string{"r", "s"} {
			e := &relayEngine{name: name}
			if !stream {
				e.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
					return f.response(200, "Content-Type", "application/json"), nil
				}
			}
			engines = append(engines, e)
		}
		inBubble(t, Options{}, engines, func(t *testing.T, b *bench) {
			model := b.snapshot.Load().Models["relayed"]
			model.Policy = new(balance.Cost)
			seen := map[*relayEngine]int{}
			handed := func() *forward {
				synctest.Wait()
				for _, e := range engines {
					e := e.(*relayEngine)
					e.mu.Lock()
					n := len(e.forwards)
					e.mu.Unlock()
					if n > seen[e] {
						seen[e] = n
						return e.forward(t, n)
					}
				}
				t.Fatal("no engine was asked")
				return nil
			}
			for _, e := range engines { // the bubble before has had them too
				seen[e.(*relayEngine)] = len(e.(*relayEngine).forwards)
			}
			homes, count := map[int]*relayEngine{}, map[*relayEngine]int{}
			dialog := make([]string, conversations)
			for i := range dialog {
				dialog[i] = fmt.Sprintf(`{"role":"system","content":"%s"}`, strings.Repeat(fmt.Sprintf("You are number %d.\\n", i), 200))
			}
			for turn := range turns {
				var ends []func()
				for i := range dialog {
					dialog[i] += fmt.Sprintf(`,{"role":"user","content":"Question %d?"}`, turn)
					body := fmt.Sprintf(`{"model":"relayed","messages":[%s],"temperature":0.%d,"stream":%t}`, dialog[i], turn, stream)
					if turn%2 == 1 { // as another client spells it
						body = fmt.Sprintf(`{"seed":%d, "stream":%t, "messages" : [%s], "model":"relayed"}`, turn, stream, strings.ReplaceAll(dialog[i], "You are", `\u0059ou are`))
					}
					c := b.post(chatPath, body)
					f := handed()
					ends = append(ends, func() {
						time.Sleep(50 * time.Millisecond)
						usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":2,"total_tokens":%d}`, len(dialog[i])/10, len(dialog[i])/10+2)
						if stream {
							f.send(relayToken + strings.Replace(relayEnd, "data: [DONE]", `data: {"choices":[],`+usage+"}\n\ndata: [DONE]", 1))
						} else {
							f.send(`{"choices":[],` + usage + `}`)
						}
						f.end()
						b.wantRecord(c, "finished", "")
						dialog[i] += `,{"role":"assistant","content":"An answer."}`
					})
					if turn == 0 {
						homes[i] = f.engine
						count[f.engine]++
						continue // the first turns are under way together
					}
					if f.engine != homes[i] {
						t.Errorf("turn %d of conversation %d went to %s, and the one before to %s", turn, i, f.engine.name, homes[i].name)
					}
					ends[len(ends)-1]()
				}
				if turn == 0 {
					for _, end := range ends {
						end()
					}
				}
			}
			if len(count) != len(engines) {
				t.Error("all conversations are at one engine")
			}
			if got := model.Ratio.PerByte(); math.Abs(got-0.1) > 0.02 {
				t.Errorf("%.3f tokens a byte were learned of 0.1", got)
			}
		})
	}
}
