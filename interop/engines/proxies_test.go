//go:build interop

package engines

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

const proxied = 20 // events of a stream

// TestBehindProxies has a stream go through nginx and HAProxy, as Debian ships them and with what
// docs/clients.md says of them. The engine sends an event when the client has read the one before,
// so that nothing passes where anything on the way gathers events. Beside it nginx is told to take no
// notice of the field by which weir asks it not to gather: then the second event never comes.
func TestBehindProxies(t *testing.T) {
	harness.Beside(t, harness.Light)
	read := make(chan struct{}, proxied)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		if r.Method != http.MethodPost {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for n := range proxied {
			fmt.Fprintf(w, "data: {\"id\":\"a\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d \"},\"finish_reason\":null}]}\n\n", n)
			w.(http.Flusher).Flush()
			select {
			case <-read:
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprint(w, `data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(engine.Close)
	g := harness.StartGateway(t, "serve", "--engine", "openai="+engine.URL)
	dir := t.TempDir()
	upstream := strings.TrimPrefix(g.URL, "http://")
	fetch := func(t *testing.T, url string, patience time.Duration) (events int, whole bool) {
		t.Helper()
		for len(read) > 0 {
			<-read
		}
		req, err := http.NewRequestWithContext(harness.Context(t), http.MethodPost, url+"/v1/chat/completions", strings.NewReader(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		client := &http.Client{Timeout: patience}
		resp, err := client.Do(req)
		if err != nil {
			return 0, false
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			switch line := lines.Text(); {
			case line == "data: [DONE]":
				whole = true
			case strings.Contains(line, "content"):
				events++
				read <- struct{}{}
			}
		}
		return events, whole
	}
	for _, proxy := range []struct {
		name, program, config string
		args                  []string
		gathers               bool
	}{
		{"nginx", "nginx", nginxOf(dir, ""), []string{"-c"}, false},
		{"nginx that takes no notice", "nginx", nginxOf(dir, "proxy_ignore_headers X-Accel-Buffering;"), []string{"-c"}, true},
		{"HAProxy", "haproxy", `defaults
  mode http
  timeout connect 5s
  timeout client 10m
  timeout server 10m
frontend in
  bind LISTEN
  default_backend weir
backend weir
  server weir UPSTREAM
`, []string{"-db", "-f"}, false},
	} {
		t.Run(proxy.name, func(t *testing.T) {
			address := harness.FreeAddress(t)
			file := filepath.Join(dir, strings.ReplaceAll(proxy.name, " ", "-")+".conf")
			text := strings.NewReplacer("LISTEN", address, "UPSTREAM", upstream).Replace(proxy.config)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			p := harness.StartCommand(t, exec.Command(proxy.program, append(proxy.args, file)...))
			harness.Eventually(t, "listening", func() bool { _, err := http.Get("http://" + address + "/v1/models"); return err == nil }, p)
			patience := harness.Patience
			if proxy.gathers {
				patience = 3 * time.Second
			}
			events, whole := fetch(t, "http://"+address, patience)
			switch {
			case proxy.gathers && whole:
				t.Error("it gathers nothing either, so that the others show nothing")
			case !proxy.gathers && (events != proxied || !whole):
				t.Errorf("%d of %d events, whole %t", events, proxied, whole)
			}
		})
	}
	harness.Eventually(t, "engine idle", func() bool { return harness.Metric(t, g.Admin, "weir_requests_in_flight") == 0 })
}

// nginxOf is a configuration with Debian's defaults, and what docs/clients.md says.
func nginxOf(dir, more string) string {
	return fmt.Sprintf(`daemon off;
pid %[1]s/pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
  server {
    listen LISTEN;
    location / { proxy_pass http://UPSTREAM; proxy_read_timeout 10m; %[2]s }
  }
}
`, dir, more)
}
