package gateway

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"weir/internal/model/tokenizer"
	"weir/models"
)

// A prompt that cannot fit is refused in each dialect as ever, but for the count: it is
// tokenized until that is known, and no further. Who asks for a count gets all of it.
func TestPromptThatCannotFit(t *testing.T) {
	const context, words = 131072, 400_000
	text := strings.Repeat("word ", words)
	m := `"model":"` + models.SimName + `"`
	message := `{"role":"user","content":"` + text + `"}`
	atLeast := regexp.MustCompile(`has at least (\d+) tokens`)
	inOneWay(t, Options{}, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
		for _, test := range []struct{ path, body, param string }{
			{chatPath, `{` + m + `,"messages":[` + message + `]}`, "messages"},
			{chatPath, `{` + m + `,"stream":true,"max_tokens":7,"messages":[` + message + `]}`, "messages"},
			{completionsPath, `{` + m + `,"prompt":"` + text + `"}`, "prompt"},
			{completionsPath, `{` + m + `,"prompt":["hi","` + text + `"],"max_tokens":1}`, "prompt[1]"},
			{"/v1/responses", `{` + m + `,"input":"` + text + `"}`, "input"},
			{messagesPath, `{` + m + `,"max_tokens":1,"messages":[` + message + `]}`, ""},
			{"/generate", `{` + m + `,"text":"` + text + `"}`, "text"},
		} {
			a := b.post(test.path, test.body).answer()
			said := atLeast.FindStringSubmatch(string(a.body))
			if a.status != 400 || said == nil || !strings.Contains(string(a.body), "model weir-sim takes at most 131072 for prompt and output together") {
				t.Errorf("%s: %d %s", test.path, a.status, a.body)
				continue
			}
			// As many as fit, and those of one stretch between two yields.
			if n, err := strconv.Atoi(said[1]); err != nil || n < context || n > context+10_000 {
				t.Errorf("%s: at least %d", test.path, n)
			}
			if test.param != "" && !strings.Contains(string(a.body), fmt.Sprintf(`"param":%q`, test.param)) {
				t.Errorf("%s: %s; want param %s", test.path, a.body, test.param)
			}
		}
		all := len(idsOf(t, text, tokenizer.EncodeOptions{AddSpecial: true}))
		if all < 2*context {
			t.Fatalf("the prompt has %d tokens", all)
		}
		if got := b.post("/tokenize", `{`+m+`,"prompt":"`+text+`"}`).tokenized(t); len(got.Tokens) != all {
			t.Errorf("/tokenize: %d tokens, want %d", len(got.Tokens), all)
		}
		c := b.post(messagesPath+"/count_tokens", `{`+m+`,"messages":[`+message+`]}`).answer()
		if n := regexp.MustCompile(`"input_tokens":(\d+)`).FindStringSubmatch(string(c.body)); n == nil {
			t.Errorf("count_tokens: %d %s", c.status, c.body)
		} else if n, err := strconv.Atoi(n[1]); err != nil || n < all {
			t.Errorf("count_tokens: %d, want more than %d", n, all)
		}
	})
}
