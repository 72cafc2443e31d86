package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/observe/timeline"
	"weir/internal/tenancy"
)

// logged is a line of the usage log.
type logged struct {
	Prompt     int64 `json:"prompt_tokens"`
	Cached     int64 `json:"cached_tokens"`
	Completion int64 `json:"completion_tokens"`
	Estimated  bool
	Clipped    bool
}

// A budget pays what the usage log has, for any usage that an engine states. A count has the bounds
// of the model's context and of max_tokens, and is clipped beyond them. A usage that is no count is
// estimated. The log's line says so.
func TestStatedUsage(t *testing.T) {
	const context_, answer = 1000, 20
	e := &relayEngine{name: "r"}
	inBubble(t, Options{Prepare: prepare.Options{Callers: byHeader}}, []any{e}, func(t *testing.T, b *bench) {
		path := filepath.Join(t.TempDir(), "usage")
		usage, err := timeline.New(timeline.Options{File: path, Form: timeline.Usage})
		if err != nil {
			t.Fatal(err)
		}
		defer usage.Close()
		b.g.opts.Record.Usage = usage
		b.g.recorder = record.New(b.g.opts.Record, b.g.opts.Metrics, b.g.opts.Log, nil)
		log, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		account := withAccount(t, "k1", tenancy.Limits{TokensPerDay: math.MaxInt64})
		b.snapshot.Load().Engines[0].Facts.ContextLength = context_
		paid, asked := int64(0), 0
		try := func(stream bool, stated string) (l logged, answered bool) {
			body := fmt.Sprintf(`{"model":"relayed","messages":[{"role":"user","content":"hi"}],"max_tokens":%d,"stream":%t}`, answer, stream)
			e.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
				if stream {
					return f.events(), nil
				}
				return f.response(200, "Content-Type", "application/json"), nil
			}
			c := b.post(chatPath, body, "Test-Caller", "k1")
			asked++
			f := e.latest(t, asked)
			if stream {
				f.send(relayToken + strings.Replace(relayEnd, "data: [DONE]", `data: {"choices":[],"usage":`+stated+"}\n\ndata: [DONE]", 1))
			} else {
				f.send(`{"choices":[{"message":{"content":"Hello."}}],"usage":` + stated + `}`)
			}
			f.end()
			outcome := b.record(c).Outcome
			time.Sleep(time.Second) // the log is written now and then
			synctest.Wait()
			if line, err := io.ReadAll(log); err != nil || json.Unmarshal(line, &l) != nil {
				t.Fatalf("%s: the usage log has %q, %v", stated, line, err)
			}
			now := account.Usage(time.Now()).TokensToday
			if l.Prompt+l.Completion != now-paid {
				t.Errorf("stream %t, %s: %d tokens were paid, and the log has %+v", stream, stated, now-paid, l)
			}
			if l.Prompt < 0 || l.Prompt > context_ || l.Completion < 0 || l.Completion > answer || l.Cached < 0 || l.Cached > l.Prompt {
				t.Errorf("stream %t, %s counts as %+v", stream, stated, l)
			}
			paid = now
			return l, outcome == "finished"
		}
		for _, x := range []struct {
			stated             string
			prompt, completion int64
			clipped            bool // otherwise estimated, if the counts are 0
		}{
			{`{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}`, 7, 3, false},
			{`{"prompt_tokens":7.0,"completion_tokens":3e0,"total_tokens":1e1}`, 7, 3, false},
			{`{"prompt_tokens":5000000,"completion_tokens":3,"total_tokens":5000003}`, context_, 3, true},
			{`{"prompt_tokens":7,"completion_tokens":2147483647,"total_tokens":2147483654}`, 7, answer, true},
			{`{"prompt_tokens":4611686018427387903,"completion_tokens":1}`, context_, 1, true},
			{`{"prompt_tokens":-9000000000000000000,"completion_tokens":-5}`, 0, 0, false},
			{`{"prompt_tokens":9223372036854775807,"completion_tokens":9223372036854775807}`, 0, 0, false},
			{`{"prompt_tokens":1e400,"completion_tokens":2.5}`, 0, 0, false},
			{`{"prompt_tokens":1e18,"completion_tokens":1}`, 0, 0, false},
			{`"many"`, 0, 0, false},
		} {
			for _, stream := range []bool{false, true} {
				l, finished := try(stream, x.stated)
				if x.prompt > 0 && (!finished || l != logged{x.prompt, 0, x.completion, false, x.clipped}) || x.prompt == 0 && (!l.Estimated || l.Clipped || l.Prompt == 0 || l.Completion == 0) {
					t.Errorf("stream %t, %s counts as %+v", stream, x.stated, l)
				}
			}
		}
		random := rapid.Custom(func(t *rapid.T) string {
			number := rapid.OneOf(rapid.Map(rapid.Int64(), func(n int64) string { return fmt.Sprint(n) }), rapid.Map(rapid.Float64(), func(f float64) string { return fmt.Sprint(f) }),
				rapid.SampledFrom([]string{"null", "-0", "0.0", "[]", `"9"`, "1E9", "99999999999999999999999"}), rapid.Map(rapid.IntRange(0, 50), func(n int) string { return fmt.Sprint(n) }))
			names := [][2]string{{"prompt_tokens", "completion_tokens"}, {"input_tokens", "output_tokens"}}[rapid.IntRange(0, 1).Draw(t, "names")]
			return fmt.Sprintf(`{%q:%s,%q:%s,"prompt_tokens_details":{"cached_tokens":%s}}`, names[0], number.Draw(t, "prompt"), names[1], number.Draw(t, "completion"), number.Draw(t, "cached"))
		})
		for seed := range 60 { // a bubble has no rapid.Check
			if stated := random.Example(seed); json.Valid([]byte(stated)) {
				try(seed%2 == 0, stated)
			}
		}
	})
}
