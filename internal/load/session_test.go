package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"weir/internal/workload"
)

// conversation is what a server was asked.
type conversation struct {
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	MaxTokens int `json:"max_tokens"`
}

// talker answers chats and keeps what it was asked; it fails those that fails
// says.
func talker(t *testing.T, fails func(*conversation) bool) (url string, asked func() []conversation) {
	t.Helper()
	var mu sync.Mutex
	var all []conversation
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var c conversation
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			t.Error(err)
		}
		mu.Lock()
		all = append(all, c)
		n := len(all)
		mu.Unlock()
		if fails != nil && fails(&c) {
			http.Error(w, "{}", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"say \\\"%d\\\"\"}}]}\n\n", n)
		_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\n!\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []conversation { mu.Lock(); defer mu.Unlock(); return slices.Clone(all) }
}

func synthetic(t *testing.T, settings string, o workload.Options) *workload.Workload {
	t.Helper()
	w, err := workload.NewSynthetic(settings, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Each turn of a session holds all that was said before it, word for word, and
// the next session begins with nothing.
func TestSessions(t *testing.T) {
	url, asked := talker(t, nil)
	var samples []Sample
	r, err := Run(t.Context(), Plan{URL: url, Model: "m", Workload: synthetic(t, "concurrency=1,turns=3,requests=7,input=4,output=5,prefix=20,groups=2", workload.Options{Sessions: true}),
		OnSample: func(s *Sample) { samples = append(samples, *s) }})
	if err != nil || r.Complete != 7 {
		t.Fatal(err, r)
	}
	all := asked()
	for i, c := range all {
		turn := i % 3
		if len(c.Messages) != 2*turn+1 || c.MaxTokens != 5 || samples[i].Session != i/3+1 || samples[i].Turn != turn+1 {
			t.Fatalf("request %d: %+v, session %d turn %d", i, c, samples[i].Session, samples[i].Turn)
		}
		// The common beginning of a group's sessions is sent once.
		own := 4
		if turn == 0 {
			own += 20
		}
		var said string
		if err := json.Unmarshal(c.Messages[2*turn].Content, &said); err != nil || len(strings.Fields(said)) != own {
			t.Errorf("request %d says %q", i, said)
		}
		if turn == 0 {
			continue
		}
		before := all[i-1].Messages
		for k := range before {
			if c.Messages[k].Role != before[k].Role || string(c.Messages[k].Content) != string(before[k].Content) {
				t.Errorf("request %d: message %d is %s, was %s", i, k, c.Messages[k].Content, before[k].Content)
			}
		}
		if answer := c.Messages[len(before)]; answer.Role != "assistant" || string(answer.Content) != fmt.Sprintf(`"say \"%d\"\n!"`, i) {
			t.Errorf("request %d: %s said %s", i, answer.Role, answer.Content)
		}
		if string(c.Messages[len(before)+1].Content) == string(c.Messages[0].Content) {
			t.Errorf("request %d says the same again", i)
		}
	}
}

// Where tokens can be counted, sessions are made of words that are one each, although
// what a whole prompt comes to is the server's to say.
func TestSessionsOfSingleTokens(t *testing.T) {
	url, asked := talker(t, nil)
	r, err := Run(t.Context(), Plan{URL: url, Model: "m", Workload: synthetic(t, "concurrency=1,turns=2,requests=4,input=200,output=5", workload.Options{Sessions: true}),
		Count: func(prompt string) (n int, err error) {
			for w := range strings.FieldsSeq(prompt) {
				n += 1 + len(w)/5 // longer ones are two
			}
			return n, nil
		}})
	if err != nil || r.Complete != 4 || r.InputTokensExact {
		t.Fatal(err, r)
	}
	for _, c := range asked() {
		for w := range strings.FieldsSeq(string(c.Messages[0].Content)) {
			if len(strings.Trim(w, `"`)) >= 5 {
				t.Fatalf("%q is more than one token", w)
			}
		}
	}
}

// A turn without an answer ends its session, and is counted.
func TestSessionsEndWithFailures(t *testing.T) {
	url, asked := talker(t, func(c *conversation) bool { return len(c.Messages) == 3 })
	r, err := Run(t.Context(), Plan{URL: url, Model: "m", Workload: synthetic(t, "concurrency=1,turns=5,requests=6,input=4,output=5", workload.Options{Sessions: true})})
	if err != nil || r.Complete != 3 || r.Errored != 3 {
		t.Fatal(err, r)
	}
	for i, c := range asked() {
		if len(c.Messages) != 1+2*(i%2) {
			t.Errorf("request %d has %d messages", i, len(c.Messages))
		}
	}
}

// Texts are sent as they stand, with the length of their answers; images before
// them, as the API has them.
func TestTextsAndImages(t *testing.T) {
	url, asked := talker(t, nil)
	const texts = `{"conversations":[{"from":"human","value":"say \"hé\"\n"},{"from":"gpt","value":"one two three"}]}
{"prompt":"second","output_tokens":9}
{"messages":[{"role":"system","content":"be short"},{"role":"user","content":"third"},{"role":"assistant","content":"yes"}]}`
	w := synthetic(t, "concurrency=1,texts=x", workload.Options{Texts: true, Open: func(string) (io.Reader, error) { return strings.NewReader(texts), nil }})
	const image = "data:image/png;base64,AAAA"
	r, err := Run(t.Context(), Plan{URL: url, Model: "m", Workload: w, Images: []string{image, "http://h/i.png"}, Count: func(string) (int, error) { return 0, nil }})
	if err != nil || r.Complete != 3 || r.InputTokensExact {
		t.Fatal(err, r)
	}
	want := []struct {
		text  string
		limit int
	}{{"say \"hé\"\n", 3}, {"second", 9}, {"be short\nthird", 1}}
	for i, c := range asked() {
		var parts []struct {
			Type     string
			Text     string
			ImageURL struct{ URL string } `json:"image_url"`
		}
		if err := json.Unmarshal(c.Messages[0].Content, &parts); err != nil || len(parts) != 3 {
			t.Fatal(err, string(c.Messages[0].Content))
		}
		if parts[0].Type != "image_url" || parts[0].ImageURL.URL != image || parts[1].ImageURL.URL != "http://h/i.png" || parts[2].Text != want[i].text || c.MaxTokens != want[i].limit {
			t.Errorf("%+v, %d; want %+v", parts, c.MaxTokens, want[i])
		}
	}
	if _, err := Run(t.Context(), Plan{URL: url, API: Completions, Requests: 1, Images: []string{image}}); err == nil || !strings.Contains(err.Error(), "need api") {
		t.Error(err)
	}
}
