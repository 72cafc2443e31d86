package enginetest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/engine"
)

// Silent is an engine that is read by its pages. A page is a body by its path; a number stands for
// an answer with that status and without a body.
type Silent struct {
	Pages map[string]string
	// Restarted is the page that tells processes apart, as the next one says it.
	Restarted [2]string
	// Later is what the pages of that process say later, where it differs.
	Later map[string]string
	// Kept are the pages of which a failure changes nothing that could be old.
	Kept []string
	// New makes an adapter with a time between two readings, and the longest time for one.
	New func(u *url.URL, interval, patience time.Duration) engine.Adapter
}

// failures are the ways in which a page fails.
var failures = map[string]func(w http.ResponseWriter, r *http.Request, body string){
	"500":     status(500),
	"404":     status(404),
	"401":     status(401),
	"empty":   func(http.ResponseWriter, *http.Request, string) {},
	"garbage": func(w http.ResponseWriter, _ *http.Request, _ string) { _, _ = io.WriteString(w, "<html>\x00}{") },
	"nothing": func(w http.ResponseWriter, _ *http.Request, _ string) { _, _ = io.WriteString(w, "{}") },
	"half": func(w http.ResponseWriter, _ *http.Request, body string) {
		_, _ = io.WriteString(w, body[:len(body)/2])
	},
	"cut": func(w http.ResponseWriter, _ *http.Request, body string) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = io.WriteString(w, body[:len(body)/2])
	},
	"hangs": func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() },
	"slow": func(w http.ResponseWriter, r *http.Request, body string) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = io.WriteString(w, body[:1])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	},
}

func status(code int) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(code) }
}

// pageServer serves the pages, one of which may fail.
type pageServer struct {
	mu    sync.Mutex
	pages map[string]string
	page  string // that fails
	fails func(http.ResponseWriter, *http.Request, string)
}

func (s *pageServer) set(page string, fails func(http.ResponseWriter, *http.Request, string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page, s.fails = page, fails
}

// ServeHTTP implements http.Handler.
func (s *pageServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	body, ok := s.pages[r.URL.Path]
	fails := s.fails
	if s.page != r.URL.Path {
		fails = nil
	}
	s.mu.Unlock()
	_, _ = io.Copy(io.Discard, r.Body) // or its end is not noticed
	code, err := strconv.Atoi(body)
	switch {
	case fails != nil:
		fails(w, r, body)
	case !ok:
		http.NotFound(w, r)
	case err == nil:
		w.WriteHeader(code)
	default:
		_, _ = io.WriteString(w, body)
	}
}

// served is an adapter and the server that it reads.
type served struct {
	*testing.T
	*pageServer
	adapter engine.Adapter
	addr    string
	http    *http.Server

	states  chan struct{} // has one after each report
	latest  engine.State
	reports sync.Mutex
}

func (s *Silent) serve(t *testing.T, pages map[string]string) *served {
	t.Helper()
	b := &served{T: t, pageServer: &pageServer{pages: pages}, addr: "127.0.0.1:0", states: make(chan struct{}, 1)}
	b.listen()
	t.Cleanup(func() { b.http.Close() })
	b.adapter = s.New(&url.URL{Scheme: "http", Host: b.addr}, time.Millisecond, 50*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.adapter.Run(ctx, func(s engine.State) {
			b.reports.Lock()
			defer b.reports.Unlock()
			b.latest = s
			select {
			case b.states <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

func (b *served) listen() {
	l, err := net.Listen("tcp", b.addr)
	if err != nil {
		b.Fatal(err)
	}
	b.addr, b.http = l.Addr().String(), &http.Server{Handler: b.pageServer}
	go b.http.Serve(l)
}

// until waits for a report, and returns it.
func (b *served) until(what string, is func(engine.State) bool) engine.State {
	b.Helper()
	late := time.After(20 * time.Second)
	for {
		b.reports.Lock()
		s := b.latest
		b.reports.Unlock()
		if is(s) {
			return s
		}
		select {
		case <-b.states:
		case <-late:
			b.Fatalf("%s: the latest report is %+v", what, s)
		}
	}
}

// load returns the engine's load.
func (b *served) load() string {
	b.reports.Lock()
	of := cmp.Or(b.latest.Via, b.adapter) // that which it stands for
	b.reports.Unlock()
	l, ok := of.(engine.Loaded).Load()
	return fmt.Sprintf("%+v %t", l, ok)
}

// fresh reports whether a state is of an engine all of whose pages could be read.
func fresh(s engine.State) bool { return s.Ready && len(s.Facts.Old) == 0 }

// plain returns facts without the mark that they are old.
func plain(f engine.Facts) engine.Facts {
	f.Old = nil
	return f
}

// Silence checks that silence is not an answer: whatever page fails, and however, all facts and
// figures of the engine stay as they were, and are marked old until the page can be read again.
// Then they change to what it says.
func Silence(t *testing.T, s Silent) {
	b := s.serve(t, s.Pages)
	good := b.until("ready", fresh)
	load := b.load()
	check := func(what string, now engine.State) {
		t.Helper()
		if got := plain(now.Facts); !reflect.DeepEqual(got, good.Facts) {
			t.Errorf("%s: facts %+v, want %+v", what, got, good.Facts)
		}
		if got := b.load(); got != load {
			t.Errorf("%s: load %s, want %s", what, got, load)
		}
	}
	for page, body := range s.Pages {
		if _, err := strconv.Atoi(body); err == nil || slices.Contains(s.Kept, page) {
			continue
		}
		for how, fails := range failures {
			what := page + " " + how
			b.set(page, fails)
			now := b.until(what, func(s engine.State) bool {
				return slices.ContainsFunc(s.Facts.Old, func(o engine.Old) bool { return strings.HasPrefix(o.Page, page) || o.Page == engine.AllPages })
			})
			if check(what, now); !now.Ready || now.Facts.Old[0].Since == 0 || now.Facts.Old[0].Why == "" {
				t.Errorf("%s: %+v", what, now)
			}
			b.set("", nil)
			check(what+", and over", b.until(what+", and over", fresh))
		}
	}
	// Nobody listens for a while.
	b.http.Close()
	check("refused", b.until("refused", func(s engine.State) bool { return !s.Ready }))
	b.listen()
	check("refused, and over", b.until("refused, and over", fresh))

	// It restarts so fast that no connection is refused, and all but its process is as it was.
	b.mu.Lock()
	b.pages = maps.Clone(s.Pages)
	b.pages[s.Restarted[0]] = s.Restarted[1]
	b.mu.Unlock()
	now := b.until("another process", func(s engine.State) bool { return s.Facts.Instance != good.Facts.Instance })
	now.Facts.Ranks = slices.Clone(now.Facts.Ranks)
	for i := range now.Facts.Ranks {
		if now.Facts.Ranks[i].Instance != now.Facts.Instance {
			t.Errorf("rank %d is not another", i)
		}
		now.Facts.Ranks[i].Instance = good.Facts.Instance
	}
	now.Facts.Instance = good.Facts.Instance
	check("another process", now)

	later := maps.Clone(s.Pages)
	for page, body := range s.Later {
		later[page] = body
	}
	other := s.serve(t, later)
	want := other.until("ready", fresh)
	b.mu.Lock()
	b.pages = later
	b.mu.Unlock()
	b.until("other values", func(s engine.State) bool {
		return fresh(s) && reflect.DeepEqual(s.Facts, want.Facts) && b.load() == other.load()
	})
	if reflect.DeepEqual(want.Facts, good.Facts) || other.load() == load {
		t.Errorf("the later pages say nothing else: %+v, %s", want.Facts, load)
	}
}
