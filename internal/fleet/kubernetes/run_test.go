package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/lab/kubeapi"
)

// pipes carries requests to a handler without sockets, so that virtual time passes.
type pipes struct{ to http.Handler }

type piped struct {
	header http.Header
	out    *io.PipeWriter
	status chan int
	once   sync.Once
}

func (p *piped) Header() http.Header  { return p.header }
func (p *piped) Flush()               { p.WriteHeader(http.StatusOK) }
func (p *piped) WriteHeader(code int) { p.once.Do(func() { p.status <- code }) }
func (p *piped) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.out.Write(b)
}

func (t pipes) RoundTrip(r *http.Request) (*http.Response, error) {
	in, out := io.Pipe()
	w := &piped{header: http.Header{}, out: out, status: make(chan int, 1)}
	context.AfterFunc(r.Context(), func() { in.CloseWithError(r.Context().Err()) })
	go func() {
		t.to.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK)
		out.Close()
	}()
	select {
	case code := <-w.status:
		return &http.Response{StatusCode: code, Header: w.header, Body: in, Request: r}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

const podsPath = "/api/v1/namespaces/models/pods"

func podObject(name, ip, ready string) kubeapi.Object {
	return kubeapi.Object{
		"metadata": kubeapi.Object{"name": name, "uid": "uid-" + name, "labels": kubeapi.Object{"app": "vllm"}},
		"spec":     kubeapi.Object{"containers": []any{kubeapi.Object{"name": "c", "ports": []any{kubeapi.Object{"containerPort": 8000}}}}},
		"status":   kubeapi.Object{"phase": "Running", "podIP": ip, "conditions": []any{kubeapi.Object{"type": "Ready", "status": ready}}},
	}
}

// watched is a running source with its reports.
type watched struct {
	*Source
	mu      sync.Mutex
	engines []*Engine
	found   int
	errs    []error
	panics  bool // Found does
}

func (w *watched) names() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, e := range w.engines {
		name := e.Name
		if e.Drained != "" {
			name += "-"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// complaint is what the source complains of; empty: of nothing.
func (w *watched) complaint() string {
	if err := w.Status().Err; err != nil {
		return err.Error()
	}
	return ""
}

// run runs a source of pods on a server, in virtual time.
func run(t *testing.T, token string, test func(api *kubeapi.Server, w *watched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := kubeapi.New(token)
		w := &watched{}
		w.Source = New(Options{
			Query: Query{Selector: Selector{"app=vllm"}}, Namespace: "models", Transport: pipes{api},
			Access: Access{Server: "http://api", Token: func() (string, error) { return "token", nil }},
			Found: func(engines []*Engine, _ []string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if w.panics {
					panic("in a report")
				}
				w.engines, w.found = engines, w.found+1
			},
			Changed: func(_ Kind, err error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.errs = append(w.errs, err)
			},
		})
		w.client.maxPage = 1 << 20 // to be passed sooner
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() { w.Run(ctx); close(done) }()
		test(api, w)
		cancel()
		<-done
	})
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantNames(t *testing.T, w *watched, what, want string) {
	t.Helper()
	if got := w.names(); got != want {
		t.Errorf("%s: engines %q, want %q", what, got, want)
	}
}

// The engines found are those of the cluster within half a second, whichever way it changes.
func TestFollows(t *testing.T) {
	run(t, "token", func(api *kubeapi.Server, w *watched) {
		for i := range 1200 { // three pages
			api.Put(podsPath, podObject(fmt.Sprintf("x%04d", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), "True"))
		}
		pass(31 * time.Second) // what is listed first may have been nothing
		if n := w.Status().Engines; n != 1200 {
			t.Fatalf("%d engines of 1200; %v", n, w.complaint())
		}
		for i := range 1200 {
			api.Delete(podsPath, fmt.Sprintf("x%04d", i))
		}
		api.Put(podsPath, podObject("a", "10.0.0.1", "True"))
		pass(500 * time.Millisecond)
		wantNames(t, w, "deleted and added", "a")
		api.Put(podsPath, podObject("b", "10.0.0.2", "True"))
		pass(500 * time.Millisecond)
		wantNames(t, w, "b", "a b")
		api.Put(podsPath, podObject("a", "10.0.0.1", "False"))
		pass(500 * time.Millisecond)
		wantNames(t, w, "a is not ready", "a- b")
		lists := api.Asked("list")
		pass(30 * time.Minute) // of watches that end after 5 minutes
		api.Put(podsPath, podObject("a", "10.0.0.1", "True"))
		pass(500 * time.Millisecond)
		wantNames(t, w, "half an hour later", "a b")
		if n := api.Asked("list"); n != lists {
			t.Errorf("%d lists in half an hour of watching, want none", n-lists)
		}
		api.Compact()
		api.Put(podsPath, podObject("c", "10.0.0.3", "True"))
		pass(500 * time.Millisecond)
		wantNames(t, w, "after 410 Gone", "a b c")
		if w.complaint() != "" {
			t.Errorf("complains: %s", w.complaint())
		}
		flapping := w.found
		for i := range 500 {
			api.Put(podsPath, podObject("b", "10.0.0.2", map[bool]string{true: "True", false: "False"}[i%2 == 1]))
			pass(20 * time.Millisecond)
		}
		pass(500 * time.Millisecond)
		wantNames(t, w, "after flapping", "a b c")
		if n := w.found - flapping; n > 45 {
			t.Errorf("%d reports in 10 s of flapping, want 4 each second at most", n)
		}
	})
}

// For each fault of an API server: the engines stay as they were last seen, the reason is stated
// with the remedy, and the server is not overrun. When it works again, so does the view.
func TestFaults(t *testing.T) {
	answer := func(code int, reason, message string) kubeapi.Fault {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			kubeapi.Refuse(w, code, reason, message)
			return true
		}
	}
	endless := func(text string) kubeapi.Fault {
		return func(w http.ResponseWriter, r *http.Request) bool {
			for range 8 << 20 / len(text) {
				if _, err := io.WriteString(w, text); err != nil {
					return true
				}
			}
			return true
		}
	}
	for _, c := range []struct {
		name  string
		fault kubeapi.Fault
		says  string
	}{
		{"forbids", answer(403, "Forbidden", "pods is forbidden: User x cannot list"), `{apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]}`},
		{"does not know weir", answer(401, "Unauthorized", "Unauthorized"), "does not accept weir's token"},
		{"fails", answer(500, "InternalError", "etcd is away"), "answers 500: etcd is away"},
		{"is too busy", answer(429, "TooManyRequests", "slow down"), "answers 429"},
		{"is none", answer(404, "NotFound", "no"), "has no pods"},
		{"redirects", func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Location", "http://elsewhere/")
			w.WriteHeader(302)
			return true
		}, "redirects"},
		{"hangs", func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }, "the list of pods took longer than 30s"},
		{"sends garbage", func(w http.ResponseWriter, _ *http.Request) bool { io.WriteString(w, "<html>"); return true }, "cannot be read"},
		{"sends another kind", func(w http.ResponseWriter, _ *http.Request) bool {
			io.WriteString(w, `{"kind":"Pod","items":[]}`)
			return true
		}, "is no list"},
		{"sends spaces without end", endless(strings.Repeat(" ", 1<<16)), errTooLong.Error()},
		{"sends items without end", func(w http.ResponseWriter, r *http.Request) bool {
			io.WriteString(w, `{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{}`)
			return endless(`,{"metadata":{"name":"a","annotations":{"x":"`+strings.Repeat("y", 1<<16)+`"}}}`)(w, r)
		}, errTooLong.Error()},
		{"has no list any more", func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != "" {
				kubeapi.Refuse(w, 410, "Expired", "too old")
				return true
			}
			io.WriteString(w, `{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"x"},"items":[{"metadata":{"name":"p"}}`+strings.Repeat(`,{"metadata":{"name":"p"}}`, 999)+`]}`)
			return true
		}, "20000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, "token", func(api *kubeapi.Server, w *watched) {
				api.Put(podsPath, podObject("a", "10.0.0.1", "True"))
				pass(35 * time.Second)
				wantNames(t, w, "at first", "a")
				api.Compact()
				api.Faults(c.fault)
				asked := api.Asked("list") + api.Asked("watch")
				pass(10 * time.Minute)
				wantNames(t, w, "while it "+c.name, "a")
				if got := w.complaint(); !strings.Contains(got, c.says) {
					t.Errorf("complains %q, want %q", got, c.says)
				}
				if n := api.Asked("list") + api.Asked("watch") - asked; n > 90 && c.says != "20000" {
					t.Errorf("asked %d times in 10 minutes", n)
				}
				api.Put(podsPath, podObject("b", "10.0.0.2", "True"))
				api.Faults(nil)
				pass(2 * time.Minute)
				wantNames(t, w, "afterwards", "a b")
				if got := w.complaint(); got != "" {
					t.Errorf("complains of %q still", got)
				}
			})
		})
	}
}

// A server that has lost each version is read by lists alone, ever more seldom, and that is
// stated.
func TestGoneForEver(t *testing.T) {
	run(t, "", func(api *kubeapi.Server, w *watched) {
		api.Put(podsPath, podObject("a", "10.0.0.1", "True"))
		pass(35 * time.Second)
		api.Faults(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") == "" {
				return false
			}
			kubeapi.Refuse(w, 410, "Expired", "too old resource version")
			return true
		})
		asked := api.Asked("list")
		api.Put(podsPath, podObject("b", "10.0.0.2", "True"))
		pass(5 * time.Minute)
		wantNames(t, w, "410 for ever", "a b")
		if n := api.Asked("list") - asked; n < 5 || n > 40 {
			t.Errorf("%d lists in 5 minutes", n)
		}
		if !strings.Contains(w.complaint(), "no longer has the version") {
			t.Errorf("complains %q", w.complaint())
		}
		w.mu.Lock()
		if n := len(w.errs); n > 3 {
			t.Errorf("%d reports of one state: %v", n, w.errs)
		}
		w.mu.Unlock()
		api.Faults(nil)
		pass(2 * time.Minute)
		if w.complaint() != "" {
			t.Errorf("complains %q still", w.complaint())
		}
	})
}

// A list that is empty all of a sudden is believed after half a minute; pods that are deleted
// one by one are, at once.
func TestEmpty(t *testing.T) {
	run(t, "", func(api *kubeapi.Server, w *watched) {
		api.Put(podsPath, podObject("a", "10.0.0.1", "True"))
		pass(35 * time.Second)
		empty := func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != "" {
				<-r.Context().Done()
				return true
			}
			io.WriteString(w, `{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":[]}`)
			return true
		}
		api.Faults(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") != "" {
				kubeapi.Refuse(w, 410, "Expired", "too old")
				return true
			}
			return empty(w, r)
		})
		pass(15 * time.Second)
		wantNames(t, w, "empty for 15 s", "a")
		if !strings.Contains(w.complaint(), "the engines stay") {
			t.Errorf("complains %q", w.complaint())
		}
		api.Faults(nil)
		pass(15 * time.Second)
		wantNames(t, w, "back", "a")
		api.Faults(empty)
		api.Compact()
		pass(10 * time.Minute)
		wantNames(t, w, "empty for long", "")
		api.Faults(nil)
		api.Compact()
		pass(2 * time.Minute)
		wantNames(t, w, "there again", "a")
		api.Delete(podsPath, "a")
		pass(500 * time.Millisecond)
		wantNames(t, w, "deleted", "")
	})
}

// A token that is replaced is read again when the old one is refused.
func TestToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubeapi.New("first")
		token, reads := "first", 0
		c := &client{namespace: "models", transport: pipes{api}, maxPage: maxPage, access: Access{Server: "http://api", Token: func() (string, error) { reads++; return token, nil }}}
		ask := func() error { _, err := c.list(t.Context(), Pods, nil, 1, ""); return err }
		if err := errors.Join(ask(), ask()); err != nil || reads != 1 {
			t.Fatalf("%v, read %d times", err, reads)
		}
		token = "second"
		api.Token("second")
		if err := ask(); err != nil || reads != 2 {
			t.Errorf("%v, read %d times", err, reads)
		}
		time.Sleep(tokenTime)
		if err := ask(); err != nil || reads != 3 {
			t.Errorf("after a minute: %v, read %d times", err, reads)
		}
	})
}

// A panic while what the API server has sent is read is shown, and ends nothing.
func TestPanic(t *testing.T) {
	run(t, "token", func(api *kubeapi.Server, w *watched) {
		panics := func(is bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.panics = is
		}
		panics(true)
		api.Put(podsPath, podObject("a", "10.0.0.1", "True"))
		pass(time.Second)
		if got := w.complaint(); got != "panic: in a report" {
			t.Errorf("it complains of %q", got)
		}
		panics(false)
		api.Put(podsPath, podObject("b", "10.0.0.2", "True"))
		pass(time.Second)
		wantNames(t, w, "afterwards", "a b")
	})
}
