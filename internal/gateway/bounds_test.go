package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/gateway/front"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/models"
)

// list gives n copies of a JSON value with commas between.
func list(n int, value string) string { return strings.Repeat(value+",", n-1) + value }

// A field that multiplies a request beyond the bounds is refused by its name in the dialect, before
// any of it is made.
func TestProductsAreBounded(t *testing.T) {
	const model = `"model":"` + models.SimName + `"`
	chat := func(fields string) string {
		return `{` + model + `,"max_tokens":8,"messages":[{"role":"user","content":"hi"}],` + fields + `}`
	}
	long := strings.Repeat("a", 8_000_000)
	inOneWay(t, Options{}, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
		for _, test := range []struct{ path, body, param, says string }{
			{completionsPath, `{` + model + `,"prompt":"hi","n":16,"max_tokens":4,"stop":["` + long + `"]}`, "stop[0]", "8000000 bytes"},
			{chatPath, chat(`"tools":[{"type":"function","function":{"name":"f","parameters":{"enum":[` + list(300_000, "1") + `]}}}]`), "tools", "about 300007 JSON values"},
			{chatPath, chat(`"chat_template_kwargs":{"a":[` + list(300_000, "{}") + `]}`), "chat_template_kwargs", "JSON values"},
			{chatPath, `{` + model + `,"messages":[` + list(100_000, `{"role":"user","content":"a"}`) + `]}`, "messages", "JSON values"},
			{"/v1/responses", `{` + model + `,"input":[` + list(100_000, `{"role":"user","content":"a"}`) + `]}`, "input", "JSON values"},
			{"/v1/responses", `{` + model + `,"input":"a","metadata":{"a":"` + strings.Repeat("a", 4096) + `"}}`, "metadata.a", "it may have 2048"},
			{chatPath, `{` + model + `,"messages":[{"role":"user","content":"hi"}],"n":100,"max_tokens":4000,"logprobs":true,"top_logprobs":20}`, "top_logprobs", "8400000 log probabilities"},
			{completionsPath, `{` + model + `,"prompt":"hi","n":100,"max_tokens":4000,"logprobs":20}`, "logprobs", "8400000"},
			{"/generate", `{` + model + `,"text":"hi","stream":true,"return_logprob":true,"top_logprobs_num":20,"sampling_params":{"n":100,"max_new_tokens":4000}}`, "top_logprobs_num", "8400000"},
			{"/tokenize", `{` + model + `,"prompt":[` + list(20_000, `""`) + `]}`, "prompt", "at most 16384"},
			{"/detokenize", `{` + model + `,"tokens":[` + list(20_000, `[]`) + `]}`, "tokens", "at most 16384"},
			{"/tokenize", `{` + model + `,"messages":[{"role":"user","content":[` + list(100_000, `{"type":"text","text":""}`) + `]}]}`, "messages", "JSON values"},
		} {
			c := b.post(test.path, test.body)
			a := c.answer()
			if a.status != 400 || !strings.Contains(string(a.body), fmt.Sprintf("%q", test.param)) && !strings.Contains(string(a.body), test.param) || !strings.Contains(string(a.body), test.says) {
				t.Errorf("%s %.80s: status %d, %.400s; want 400 about %s that says %q", test.path, test.body, a.status, a.body, test.param, test.says)
			}
		}
	})
}

// The text of ids may be a hundred times as long as they are.
func TestTextOfIDsIsBounded(t *testing.T) {
	m, longest := simModel(), uint32(0)
	for id := range uint32(m.VocabSize) {
		if len(m.Text(id)) > len(m.Text(longest)) {
			longest = id
		}
	}
	inBubble(t, Options{Front: front.Options{MaxBody: 64 << 10}}, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
		n := 64<<10/len(m.Text(longest)) + 1
		body := fmt.Sprintf(`{"model":%q,"tokens":[%s]}`, models.SimName, list(n, fmt.Sprint(longest)))
		if a := b.post("/detokenize", body).answer(); a.status != 400 || !strings.Contains(string(a.body), "--max-body") {
			t.Errorf("%d ids of %d bytes: %d %.200s", n, len(m.Text(longest)), a.status, a.body)
		}
	})
}

// Choices are handed over a few at once where each is large, and the prompt they share
// counts for each.
func TestHandOverIsBounded(t *testing.T) {
	m, err := model.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	m.ContextLength = 8 << 20
	var mu sync.Mutex
	under, most := 0, 0
	add := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		under += n
		most = max(most, under)
	}
	e := &tokenEngine{name: "a", accept: func(context.Context, *call) error {
		add(1)
		defer add(-1)
		time.Sleep(time.Millisecond)
		return nil
	}}
	inBubble(t, Options{Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: m}}}, []any{e}, func(t *testing.T, b *bench) {
		ids := list(1<<20, "7")
		ask := func(n int) *caller {
			return b.post(completionsPath, fmt.Sprintf(`{"model":%q,"prompt":[%s],"n":%d,"max_tokens":1,"stream":true}`, models.SimName, ids, n))
		}
		if a := ask(17).answer(); a.status != 400 || !strings.Contains(string(a.body), "each of the 17 choices") || !strings.Contains(string(a.body), "lower n") {
			t.Errorf("%d %.300s", a.status, a.body)
		}
		c := ask(16)
		time.Sleep(time.Second)
		e.call(t, 16)
		for _, choice := range e.handed() {
			choice.end(infer.ReasonStop)
		}
		if most != 2 { // of 4 MB each
			t.Errorf("%d of 16 choices were under way at once", most)
		}
		e.calls, most = nil, 0
		if a := c.answer(); a.status != 200 || !a.whole {
			t.Errorf("%d %.300s", a.status, a.body)
		}
	})
}
