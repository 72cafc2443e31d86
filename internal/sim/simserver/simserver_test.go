package simserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"go.uber.org/goleak"

	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/workload/content"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// toyTokenizer knows bytes (ids 0 to 255), the end of a message (256) and of
// an output (257, 258), and 1024 words from 300.
type toyTokenizer struct {
	words map[string]uint32
	text  [][]byte
}

const (
	endOfMessage = 256
	toyVocab     = 300 + 1024
)

func newToyTokenizer() *toyTokenizer {
	t := &toyTokenizer{words: map[string]uint32{}, text: make([][]byte, toyVocab)}
	for i := range 256 {
		t.text[i] = []byte{byte(i)}
	}
	for n := range 1024 {
		w := string([]byte{' ', 'a' + byte(n%26), 'a' + byte(n/26%26), 'a' + byte(n/676%26)})
		t.words[w] = uint32(300 + n)
		t.text[300+n] = []byte(w)
	}
	return t
}

func (t *toyTokenizer) Encode(text string, _ bool) ([]uint32, error) {
	if strings.Contains(text, "\x00") {
		return nil, fmt.Errorf("text has a NUL")
	}
	var ids []uint32
	for len(text) > 0 {
		switch id, ok := t.words[text[:min(4, len(text))]]; {
		case ok:
			ids = append(ids, id)
			text = text[4:]
		case strings.HasPrefix(text, "<end>"):
			ids = append(ids, endOfMessage)
			text = text[5:]
		default:
			ids = append(ids, uint32(text[0]))
			text = text[1:]
		}
	}
	return ids, nil
}

func (t *toyTokenizer) Text(id uint32) []byte { return t.text[id] }

func (t *toyTokenizer) Render(messages, tools, kwargs []byte) (string, error) {
	var list []struct{ Role, Content string }
	if err := json.Unmarshal(messages, &list, json.MatchCaseInsensitiveNames(true)); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, more := range [][]byte{tools, kwargs} {
		if string(more) != "null" {
			b.Write(more)
		}
	}
	for _, m := range list {
		b.WriteString(m.Role + ":" + m.Content + "<end>")
	}
	return b.String(), nil
}

// bench is a running engine with all its servers.
type bench struct {
	t      testing.TB
	net    *network // nil: loopback
	e      *Engine
	words  *content.Words
	openai string // base URL, as the next two
	sglang string
	vllm   string
	plane  string // host:port
	client *http.Client
}

// start runs an engine in a network of its own until the test ends, and waits for
// all of it then. It is for tests in a bubble of testing/synctest, whose time is
// the engine's.
func start(t testing.TB, o Options) *bench {
	t.Helper()
	return run(t, o, new(network))
}

// startOnLoopback is start with real sockets, in real time.
func startOnLoopback(t testing.TB, o Options) *bench {
	t.Helper()
	return run(t, o, nil)
}

func run(t testing.TB, o Options, n *network) *bench {
	t.Helper()
	tok := newToyTokenizer()
	words, err := content.New(toyVocab, func(id uint32) ([]byte, bool) { return tok.Text(id), true })
	if err != nil {
		t.Fatal(err)
	}
	o.Tokenizer = tok
	o.Sim.Words, o.Sim.VocabSize, o.Sim.EOS = words, toyVocab, []uint32{257, 258}
	if o.Sim.Cost == nil {
		o.Sim.Cost = sim.Constant{Prefill: time.Millisecond, Decode: time.Millisecond}
	}
	o.Speaker, err = words.Speaker(content.SpeakerOptions{
		Size: toyVocab, Text: tok.Text, Ordinary: func(id uint32) ([]byte, bool) { return tok.Text(id), id < 256 || id >= 300 }, MeanTokens: 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	o.goTimers = n != nil
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &bench{t: t, e: e, net: n, words: words}
	b.client = &http.Client{Transport: &http.Transport{DialContext: b.connect}}
	const servers = 4
	ended := make(chan error, servers+1)
	serve := func(name string, f func(context.Context, net.Listener) error) string {
		l := b.listen(name)
		go func() { ended <- f(ctx, l) }()
		return l.Addr().String()
	}
	b.openai = "http://" + serve("openai:80", e.ServeOpenAI)
	b.sglang = "http://" + serve("sglang:80", e.ServeSGLang)
	b.vllm = "http://" + serve("vllm:80", e.ServeVLLM)
	b.plane = serve("plane:80", e.ServePlane)
	go func() { e.Run(ctx); ended <- nil }()
	t.Cleanup(func() {
		cancel()
		for range servers + 1 {
			if err := <-ended; err != nil {
				t.Errorf("a server ended with %v", err)
			}
		}
		b.client.CloseIdleConnections()
	})
	return b
}

// listen listens by a name, or on loopback.
func (b *bench) listen(name string) net.Listener {
	b.t.Helper()
	if b.net != nil {
		return b.net.listen(name)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// connect dials an address that listen gave.
func (b *bench) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if b.net != nil {
		return b.net.dial(ctx, network, addr)
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// faults sets the engine's faults over the admin call.
func (b *bench) faults(list ...string) {
	b.t.Helper()
	body, _ := json.Marshal(map[string][]string{"faults": list})
	resp, err := b.client.Post(b.openai+"/admin/faults", "application/json", bytes.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		b.t.Fatalf("faults %v: %s %s", list, resp.Status, text)
	}
}

// state reads the engine's state over the admin call.
func (b *bench) state() (s engine.State) {
	b.t.Helper()
	resp, err := b.client.Get(b.openai + "/admin/state")
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.UnmarshalRead(resp.Body, &s); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// settle waits until the engine's state satisfies ok.
func (b *bench) settle(what string, ok func(engine.State) bool) {
	b.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok(b.e.State()) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s never came; state %+v", what, b.e.State())
		}
		time.Sleep(time.Millisecond)
	}
}

// answerText is a completed or broken answer as a client sees it.
type answerText struct {
	status       int
	text         []string // by choice
	reason       []string
	events       int // with text
	terminated   bool
	usage        *usage
	errorCode    string
	errorParam   string
	errorMessage string
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

type wireAnswer struct {
	Object  string `json:"object"`
	Choices []struct {
		Index        int    `json:"index"`
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
		Delta        struct {
			Content string `json:"content"`
		} `json:"delta"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
	Error *struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Param   string `json:"param"`
		Code    any    `json:"code"`
	} `json:"error"`
}

// post sends a completion and reads the answer to its end, whatever the end
// is. err is the transport's.
func (b *bench) post(ctx context.Context, path, body string, header ...string) (a answerText, err error) {
	b.t.Helper()
	if strings.HasPrefix(path, "/") {
		path = b.openai + path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	a.status = resp.StatusCode
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return a, err
		}
		return a, a.read(text)
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		switch data, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "data: "); {
		case !ok && line != "\n":
			b.t.Fatalf("line %q is no event", line)
		case data == "[DONE]":
			a.terminated = true
		case ok:
			if err := a.read([]byte(data)); err != nil {
				return a, err
			}
		}
	}
}

// read adds an event, or a whole answer.
func (a *answerText) read(data []byte) error {
	var w wireAnswer
	if err := json.Unmarshal(data, &w); err != nil {
		return fmt.Errorf("%w: %s", err, data)
	}
	if w.Error != nil {
		a.errorParam, a.errorMessage = w.Error.Param, w.Error.Message
		if w.Error.Code != nil {
			a.errorCode = fmt.Sprint(w.Error.Code)
		}
	}
	if w.Usage != nil {
		a.usage = w.Usage
	}
	for _, c := range w.Choices {
		for len(a.text) <= c.Index {
			a.text, a.reason = append(a.text, ""), append(a.reason, "")
		}
		text := c.Text + c.Delta.Content + c.Message.Content
		if text != "" {
			a.events++
		}
		a.text[c.Index] += text
		a.reason[c.Index] += c.FinishReason
	}
	return nil
}

// verify counts the words of a text that follows no word.
func (b *bench) verify(text string) (int, error) {
	v := b.words.Verifier()
	v.WriteString(text)
	err := v.Close()
	return v.Words(), err
}
