//go:build interop_engines

package real

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"weir/internal/lab/forward"
	"weir/test/e2e/harness"
)

const (
	cutStreams   = 100  // that must go on
	alikeWithin  = 1e-3 // in log probability: two tokens whose order float32 leaves open
	uncutTokens  = 48
	killedAtOnce = 16
)

// uncut is what vLLM itself answers, with the most likely tokens at each place.
type uncut struct {
	text   string
	ids    []int
	likely []map[string]float64 // by "token_id:N"
}

// TestVLLMContinued has streams of two vLLMs as released go on at the other one when one's
// connection is cut at a random token, and at last when its process is killed. At temperature 0
// the whole is what one vLLM says by itself, unless two tokens are as likely as each other.
func TestVLLMContinued(t *testing.T) {
	ports := [2]string{freePort(t), freePort(t)}
	servers := [2]*harness.Process{vllm(t, nil, "--port", ports[0]), vllm(t, nil, "--port", ports[1], "--enable-scale-out")}
	var ways [2]*forward.Forwarder
	args := []string{"--model", "tiny=" + folder, "--policy", "round-robin"}
	for i, port := range ports {
		ways[i] = harness.Forward(t, "127.0.0.1:"+port)
		args = append(args, "--engine", "vllm=http://"+ways[i].Addr)
	}
	g := serve(t, args...)
	g.ready(true, servers[:]...)
	ctx := harness.Context(t)
	itself := way{"vLLM itself", "http://127.0.0.1:" + ports[1], "tiny"}
	by := way{"weir", g.URL, "tiny"}
	continued := func() int { return int(harness.Metric(t, g.Admin, "weir_continuations_total")) }

	differ := 0
	check := func(what string, a answer, want uncut) {
		t.Helper()
		switch gap, at := firstDifference(a, want); {
		case a.Failed || !a.Done || a.OutputTokens != uncutTokens || a.Reason != "length":
			t.Errorf("%s: %+v", what, a)
		case at < 0 && whole(a.Text) != whole(want.text):
			t.Errorf("%s: the ids are the same, the text is %q, want %q", what, a.Text, want.text)
		case at >= 0 && gap >= alikeWithin:
			t.Errorf("%s: token %d differs, and is less likely by %g", what, at, gap)
		case at >= 0:
			differ++
			t.Logf("%s: token %d differs, and is less likely by %g", what, at, gap)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	asked := 0
	for ; continued() < cutStreams && asked < 3*cutStreams && !t.Failed(); asked++ {
		body := someWords(random)
		want := askUncut(ctx, t, itself, body)
		at, before := 1+random.IntN(uncutTokens*3/4), [2]int{ways[0].Carried(forward.ToClient), ways[1].Carried(forward.ToClient)}
		cut := false
		a, err := by.ask(ctx, completionPath, body.with(streamed), func(a *answer) bool {
			if !cut && strings.Count(a.IDs, ",") >= at {
				cut = true
				i := 0
				if ways[1].Carried(forward.ToClient)-before[1] > ways[0].Carried(forward.ToClient)-before[0] {
					i = 1
				}
				ways[i].Cut()
			}
			return false
		})
		if err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("cut at %d", at), a, want)
	}
	t.Logf("%d streams, %d went on, %d differ where two tokens are alike", asked, continued(), differ)
	if n := continued(); n < cutStreams {
		t.Fatalf("%d of %d streams went on, want %d", n, asked, cutStreams)
	}

	// Streams of both, and one is killed under them.
	g.ready(true, servers[:]...)
	had := continued()
	var bodies []fields
	var wants []uncut
	for range killedAtOnce {
		bodies = append(bodies, someWords(random))
		wants = append(wants, askUncut(ctx, t, itself, bodies[len(bodies)-1]))
	}
	var begun, ended sync.WaitGroup
	answers := make([]answer, len(bodies))
	for i := range bodies {
		begun.Add(1)
		ended.Go(func() {
			once := sync.OnceFunc(begun.Done)
			defer once()
			var err error
			if answers[i], err = by.ask(ctx, completionPath, bodies[i].with(streamed), func(a *answer) bool {
				if strings.Count(a.IDs, ",") > 2 {
					once()
				}
				return false
			}); err != nil {
				t.Error(err)
			}
		})
	}
	begun.Wait()
	servers[0].Kill()
	ended.Wait()
	for i, a := range answers {
		check("killed", a, wants[i])
	}
	n := continued() - had
	t.Logf("%d of %d streams went on when an engine was killed", n, killedAtOnce)
	if n == 0 {
		t.Error("the engine that was killed had no streams")
	}
}

// whole is a text without a rune at its end of which the limit has left a part: there vLLM's whole
// answer has nothing, and a stream U+FFFD.
func whole(text string) string { return strings.TrimRight(text, "\uFFFD") }

// someWords is a request of its own.
func someWords(random *rand.Rand) fields {
	all := strings.Fields("the quick brown fox jumps over a lazy dog and counts to seven while rain falls on old stone walls")
	var prompt []string
	for range 4 + random.IntN(40) {
		prompt = append(prompt, all[random.IntN(len(all))])
	}
	return fields{"prompt": strings.Join(prompt, " "), "temperature": 0, "max_tokens": uncutTokens, "ignore_eos": true, "return_token_ids": true}
}

// askUncut asks vLLM by itself, for a whole answer.
func askUncut(ctx context.Context, t *testing.T, w way, body fields) (u uncut) {
	t.Helper()
	resp, err := w.post(ctx, completionPath, body.with(fields{"logprobs": 5, "return_tokens_as_token_ids": true}))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Choices []struct {
			Text     string
			TokenIDs []int `json:"token_ids"`
			Logprobs struct {
				Top []map[string]float64 `json:"top_logprobs"`
			}
		}
	}
	if err := json.Unmarshal(text.Bytes(), &answer); err != nil || resp.StatusCode != http.StatusOK || len(answer.Choices) != 1 {
		t.Fatalf("%s: %s (%v)", resp.Status, &text, err)
	}
	c := answer.Choices[0]
	if len(c.TokenIDs) != uncutTokens || len(c.Logprobs.Top) != uncutTokens {
		t.Fatalf("%d ids and %d log probabilities: %s", len(c.TokenIDs), len(c.Logprobs.Top), &text)
	}
	return uncut{c.Text, c.TokenIDs, c.Logprobs.Top}
}

// firstDifference returns where an answer leaves the uncut one, and by how much its token is less
// likely there; at is negative where it does not leave it. A token that is not among the likely
// ones is less likely by 1 at least.
func firstDifference(a answer, want uncut) (gap float64, at int) {
	var ids []int
	for id := range strings.SplitSeq(strings.TrimSuffix(a.IDs, ","), ",") {
		n, err := strconv.Atoi(id)
		if err != nil {
			n = -1
		}
		ids = append(ids, n)
	}
	if slices.Equal(ids, want.ids) {
		return 0, -1
	}
	for at = 0; at < len(ids) && at < len(want.ids) && ids[at] == want.ids[at]; at++ {
	}
	if at == len(ids) || at == len(want.ids) {
		return 1, at
	}
	name := func(id int) string { return "token_id:" + strconv.Itoa(id) }
	theirs, ok := want.likely[at][name(ids[at])]
	if !ok {
		return 1, at
	}
	return want.likely[at][name(want.ids[at])] - theirs, at
}
