//go:build interop

package page

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"weir/test/e2e/harness"
)

// chatInPage is a chat as a page has it: what it reads of a streamed answer, of its head and
// of a refusal, and why it reads nothing where the browser shows it nothing.
const chatInPage = `(async (url) => {
	const seen = {Events: 0, ID: "", Ignored: "", Refusal: "", Status: 0, Failed: ""}
	const ask = (fields) => fetch(url + "/v1/chat/completions", {
		method: "POST",
		headers: {"Content-Type": "application/json", "Authorization": "Bearer none"},
		body: JSON.stringify({model: "weir-sim", stream: true, max_tokens: 20, ignore_eos: true, store: true, messages: [{role: "user", content: "Hello"}], ...fields}),
	})
	try {
		const answer = await ask({})
		seen.ID = answer.headers.get("X-Request-Id")
		seen.Ignored = answer.headers.get("Weir-Ignored")
		const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
		let text = ""
		for (let r; !(r = await reader.read()).done;) text += r.value
		seen.Events = text.split("\n\n").filter(e => e.startsWith("data: {")).length
		if (!text.endsWith("data: [DONE]\n\n")) seen.Failed = "the stream ends with " + text.slice(-50)
		const refused = await ask({model: "none"})
		seen.Status = refused.status
		seen.Refusal = (await refused.json()).error.message
	} catch (e) {
		seen.Failed = String(e)
	}
	return seen
})`

// A page of a listed origin chats in a real browser, which asks before and reads what it may;
// one of another origin reads nothing, and no page reads anything of the admin listener.
func TestPagesChat(t *testing.T) {
	harness.Beside(t, harness.Light)
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<title>chat</title>")
	})
	listed, other := httptest.NewServer(page), httptest.NewServer(page)
	defer listed.Close()
	defer other.Close()
	g := harness.StartGateway(t, "up", "--cors", listed.URL)
	ctx := browser(t)
	type seen struct {
		Events               int
		ID, Ignored, Refusal string
		Status               int
		Failed               string
	}
	chat := func(from, url string) seen {
		t.Helper()
		if err := chromedp.Do(ctx, chromedp.Navigate(from)); err != nil {
			t.Fatal(err)
		}
		s, err := chromedp.Run(ctx, chromedp.Evaluate[seen](chatInPage+`("`+url+`")`, chromedp.EvalAwaitPromise))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := chat(listed.URL, g.URL); s.Failed != "" || s.Events < 3 || s.ID == "" || s.Ignored != "store" || s.Status != 404 || !strings.Contains(s.Refusal, `there is no model "none"`) {
		t.Errorf("a listed page: %+v", s)
	}
	if s := chat(other.URL, g.URL); s.Failed != "TypeError: Failed to fetch" || s.ID != "" || s.Status != 0 {
		t.Errorf("another page: %+v", s)
	}
	if s := chat(listed.URL, g.Admin); s.Failed != "TypeError: Failed to fetch" {
		t.Errorf("the admin listener: %+v", s)
	}
	if n := g.Balanced(); n["finished"] != 1 || n["rejected"] != 1 {
		t.Errorf("the requests: %v", n)
	}
	g.Interrupt()
}
