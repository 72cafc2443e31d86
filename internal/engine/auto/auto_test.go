package auto

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weir/internal/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is for hangs only.
const patience = 30 * time.Second

// server answers the paths it has, with a text or a status.
type server struct {
	mu    sync.Mutex
	paths map[string]string
	wants map[string]chan struct{} // by path; closed when it is asked for
}

// asked returns what is closed when a path is asked for from now on.
func (s *server) asked(path string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := make(chan struct{})
	s.wants = map[string]chan struct{}{path: asked}
	return asked
}

func (s *server) is(paths map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = paths
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	body, ok := s.paths[r.URL.Path]
	if asked := s.wants[r.URL.Path]; asked != nil {
		close(asked)
		delete(s.wants, r.URL.Path)
	}
	s.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	if status, err := strconv.Atoi(body); err == nil {
		w.WriteHeader(status)
		return
	}
	_, _ = w.Write([]byte(body))
}

// Answers of servers.
var (
	sglangServer = map[string]string{
		"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
		"/server_info": `{"version":"0.5.16","model_path":"/m","skip_tokenizer_init":false}`,
	}
	olderSGLang = map[string]string{
		"/v1/models":       `{"data":[{"id":"m"}]}`,
		"/get_server_info": `{"version":"0.4","skip_tokenizer_init":false}`,
	}
	silentSGLang = map[string]string{
		"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
		"/server_info": `{"version":"0.5.16","model_path":"/m","skip_tokenizer_init":true}`,
	}
	vllmServer = map[string]string{
		"/v1/models": `{"data":[{"id":"m","owned_by":"vllm"}]}`,
		"/version":   `{"version":"0.32.0"}`,

		"/v1/completions": "400", // of a request without a prompt
	}
	olderVLLM = map[string]string{
		"/v1/models": vllmServer["/v1/models"], "/version": `{"version":"0.11.2"}`, "/v1/completions": "400",
	}
	embeddingVLLM = map[string]string{
		"/v1/models": vllmServer["/v1/models"], "/version": vllmServer["/version"],
	}
	someServer = map[string]string{
		"/v1/models":   `{"data":[{"id":"m","owned_by":"somebody"}]}`,
		"/server_info": `{"version":"1"}`, // not SGLang's
	}
)

func start(t *testing.T) (*server, *url.URL) {
	t.Helper()
	s := &server{}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	u, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	return s, u
}

func noPlane(context.Context, string) (engine.Facts, error) {
	return engine.Facts{}, errors.New("not a plane")
}

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		name   string
		paths  map[string]string
		model  string
		folder bool
		want   Finding // Note: a part
	}{
		{"SGLang and a folder", sglangServer, "", true, Finding{SGLang, "SGLang 0.5.16", ""}},
		{"SGLang without a folder", sglangServer, "", false, Finding{OpenAI, "SGLang 0.5.16", "--model m=DIR"}},
		{"SGLang under another name", sglangServer, "x", false, Finding{OpenAI, "SGLang 0.5.16", "--model x=DIR"}},
		{"SGLang with neither tokenizer nor folder", silentSGLang, "", false, Finding{SGLang, "SGLang 0.5.16", ""}},
		{"an older SGLang", olderSGLang, "", true, Finding{SGLang, "SGLang 0.4", ""}},
		{"SGLang without a model list", map[string]string{"/server_info": sglangServer["/server_info"]}, "x", true, Finding{SGLang, "SGLang 0.5.16", ""}},
		{"vLLM and a folder", vllmServer, "", true, Finding{VLLM, "vLLM 0.32.0", ""}},
		{"vLLM without a folder", vllmServer, "", false, Finding{OpenAI, "vLLM 0.32.0", "--model m=DIR"}},
		{"vLLM under another name", vllmServer, "x", false, Finding{OpenAI, "vLLM 0.32.0", "--model x=DIR"}},
		{"an older vLLM", olderVLLM, "", true, Finding{OpenAI, "vLLM 0.11.2", "from 0.12 on"}},
		{"vLLM that generates no text", embeddingVLLM, "", true, Finding{OpenAI, "vLLM 0.32.0", ""}},
		{"anything else", someServer, "", true, Finding{OpenAI, "", ""}},
		{"an empty model list, by name", map[string]string{"/v1/models": `{"data":[]}`}, "x", true, Finding{OpenAI, "", ""}},
		{"without a model list, by name", map[string]string{}, "x", true, Finding{OpenAI, "", ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, u := start(t)
			s.is(test.paths)
			e := New(Options{Name: "e", URL: u, Model: test.model, Folder: func(string) bool { return test.folder }, Describe: noPlane})
			defer e.client.CloseIdle()
			got, err := e.find(t.Context(), nil)
			note := got.Note
			got.Note = test.want.Note
			if err != nil || got != test.want || !strings.Contains(note, test.want.Note) || (note == "") != (test.want.Note == "") {
				t.Errorf("%+v %q, %v; want %+v", got, note, err, test.want)
			}
		})
	}
}

// A vLLM stays relayed if a feature of it exists on relays only, and the log says so where ids
// could be exchanged.
func TestRelayedVLLM(t *testing.T) {
	s, u := start(t)
	s.is(vllmServer)
	for _, folder := range []bool{true, false} {
		e := New(Options{Name: "e", URL: u, PassKey: true, Folder: func(string) bool { return folder }, Describe: noPlane})
		if f, err := e.find(t.Context(), nil); err != nil || f.Kind != OpenAI || (f.Note != "") != folder || folder && !strings.Contains(f.Note, "pass-key=true") {
			t.Errorf("%+v, %v", f, err)
		}
		e.client.CloseIdle()
	}
}

// A kind that cannot be told is not guessed.
func TestNotFound(t *testing.T) {
	s, u := start(t)
	s.is(nil)
	e := New(Options{Name: "e", URL: u, Folder: func(string) bool { return true }, Describe: noPlane})
	defer e.client.CloseIdle()
	if f, err := e.find(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "model=NAME") {
		t.Errorf("%+v, %v", f, err)
	}
	s.is(map[string]string{"/v1/models": "[]"})
	if f, err := e.find(t.Context(), nil); err == nil {
		t.Errorf("%+v", f)
	}
}

// babbler accepts connections and says what is no HTTP.
func babbler(t *testing.T, says string) *url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(says))
			c.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return &url.URL{Scheme: "http", Host: l.Addr().String()}
}

func TestPlane(t *testing.T) {
	for _, says := range []string{"", "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00"} {
		u := babbler(t, says)
		e := New(Options{Name: "e", URL: u, Describe: func(_ context.Context, addr string) (engine.Facts, error) {
			if addr != u.Host {
				t.Errorf("asked %s", addr)
			}
			return engine.Facts{Software: "sim"}, nil
		}})
		if f, err := e.find(t.Context(), nil); err != nil || f != (Finding{Kind: Plane, Software: "sim"}) {
			t.Errorf("%+v, %v", f, err)
		}
		e.opts.Describe = noPlane
		if f, err := e.find(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "not a plane") {
			t.Errorf("%+v, %v", f, err)
		}
	}
}

// inner is the adapter of a kind; a test says what it reports.
type inner struct {
	kind   string
	states chan engine.State
	ended  chan struct{}
}

func (i *inner) Run(ctx context.Context, report func(engine.State)) {
	defer close(i.ended)
	for {
		select {
		case s := <-i.states:
			report(s)
		case <-ctx.Done():
			return
		}
	}
}

func next[T any](t *testing.T, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("waited for %s", what)
	}
	return v
}

// An engine that is not up yet is found when it is; one that comes back as another
// kind gets that kind's adapter, and the one before has ended by then.
func TestRun(t *testing.T) {
	s, u := start(t)
	s.is(nil)
	made, found, reports := make(chan *inner, 1), make(chan Finding, 1), make(chan engine.State, 1)
	e := New(Options{Name: "e", URL: u, Describe: noPlane,
		Folder: func(string) bool { return true },
		New: func(kind string) engine.Adapter {
			i := &inner{kind: kind, states: make(chan engine.State), ended: make(chan struct{})}
			made <- i
			return i
		},
		Found: func(f Finding) { found <- f },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { e.Run(ctx, func(s engine.State) { reports <- s }) })
	if r := next(t, "why nothing was found", reports); r.Ready || r.Err == nil || r.Via != nil {
		t.Errorf("%+v", r)
	}

	s.is(embeddingVLLM)
	if f := next(t, "vLLM", found); f.Kind != OpenAI || f.Software != "vLLM 0.32.0" {
		t.Errorf("%+v", f)
	}
	first := next(t, "its adapter", made)
	first.states <- engine.State{Ready: true, Facts: engine.Facts{Software: "uvicorn", Models: []string{"m"}}}
	if r := next(t, "its report", reports); !r.Ready || r.Via != engine.Adapter(first) || r.Kind != OpenAI || r.Facts.Software != "vLLM 0.32.0" || r.Facts.Models[0] != "m" {
		t.Errorf("%+v", r)
	}

	// It is gone for a moment, and the same again. It is looked at meanwhile: a look that saw it change
	// would find something between the two.
	looked := s.asked("/v1/completions")
	first.states <- engine.State{Err: errors.New("gone")}
	if r := next(t, "its loss", reports); r.Ready || r.Via != engine.Adapter(first) {
		t.Errorf("%+v", r)
	}
	next(t, "a look at it", looked)
	first.states <- engine.State{Ready: true}
	next(t, "its return", reports)

	s.is(sglangServer)
	first.states <- engine.State{Ready: true, Facts: engine.Facts{Models: []string{"other"}}}
	next(t, "its last report", reports)
	if f := next(t, "SGLang", found); f.Kind != SGLang {
		t.Errorf("%+v", f)
	}
	second := next(t, "its adapter", made)
	next(t, "the first one's end", first.ended)
	second.states <- engine.State{Ready: true}
	if r := next(t, "its report", reports); r.Via != engine.Adapter(second) || r.Kind != SGLang {
		t.Errorf("%+v", r)
	}
	cancel()
	run.Wait()
	next(t, "the second one's end", second.ended)
}
