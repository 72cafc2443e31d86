package relay

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"
)

// A server's release is read once for each connection: what is at the other end of the same one is
// the same process.
func TestReleaseOfAConnection(t *testing.T) {
	var mu sync.Mutex
	lists, releases := 0, map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch r.URL.Path {
		case "/v1/models":
			lists++
			_, _ = io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
		case "/version":
			releases[r.RemoteAddr]++
			_, _ = fmt.Fprintf(w, `{"version":"0.%d.0"}`, 30+len(releases))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	states := run(t, New(Options{Name: "e", URL: u, ProbeInterval: 5 * time.Millisecond}))
	for i := range 4 { // each connection is another release's
		if lacks, want := next(t, states).Facts.Lacks, fmt.Sprintf("is vLLM 0.%d.0", 31+i); len(lacks) == 0 || len(lacks[0].Why) < len(want) || lacks[0].Why[:len(want)] != want {
			t.Errorf("report %d: %v, want that it %s", i, lacks, want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for conn, n := range releases {
		if n != 1 {
			t.Errorf("the release was read %d times over the connection of %s", n, conn)
		}
	}
	if lists < 2*len(releases) {
		t.Errorf("%d releases were read with %d model lists", len(releases), lists)
	}
}
