package page

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// ask asks for a file of the page.
func ask(method, path string, header ...string) *http.Response {
	mux := http.NewServeMux()
	for _, p := range Patterns {
		mux.HandleFunc(p, Serve)
	}
	r := httptest.NewRequest(method, "http://127.0.0.1"+path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, resp *http.Response) []byte {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var types = map[string]string{"/": "text/html; charset=utf-8", "/page.js": "text/javascript; charset=utf-8", "/page.css": "text/css; charset=utf-8"}

// Each file comes with its type and the policy, plain or compressed, and once.
func TestServe(t *testing.T) {
	for path, kind := range types {
		plain := ask("GET", path)
		want := body(t, plain)
		if plain.StatusCode != 200 || len(want) == 0 || plain.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %s", path, plain.Status)
		}
		zipped := ask("GET", path, "Accept-Encoding", "br, gzip;q=0.8")
		r, err := gzip.NewReader(zipped.Body)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) || zipped.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: compressed it is another, or %v", path, err)
		}
		if plain.Header.Get("ETag") == zipped.Header.Get("ETag") {
			t.Errorf("%s: both have ETag %s", path, plain.Header.Get("ETag"))
		}
		for _, resp := range []*http.Response{plain, zipped} {
			h := resp.Header
			if h.Get("Content-Type") != kind || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Vary") != "Accept-Encoding" || h.Get("Cache-Control") != "no-cache" {
				t.Errorf("%s: %v", path, h)
			}
			for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'", "frame-ancestors 'none'"} {
				if !strings.Contains(h.Get("Content-Security-Policy"), part) {
					t.Errorf("%s: the policy lacks %s", path, part)
				}
			}
			if strings.Contains(h.Get("Content-Security-Policy"), "unsafe") {
				t.Errorf("%s: %s", path, h.Get("Content-Security-Policy"))
			}
		}
		if head := ask("HEAD", path, "Accept-Encoding", "gzip"); head.StatusCode != 200 || len(body(t, head)) != 0 || head.Header.Get("ETag") != zipped.Header.Get("ETag") {
			t.Errorf("HEAD %s: %s %v", path, head.Status, head.Header)
		}
		for _, of := range []*http.Response{plain, zipped} {
			again := ask("GET", path, "Accept-Encoding", of.Header.Get("Content-Encoding"), "If-None-Match", of.Header.Get("ETag"))
			if again.StatusCode != http.StatusNotModified || len(body(t, again)) != 0 {
				t.Errorf("%s again: %s", path, again.Status)
			}
		}
		if old := ask("GET", path, "If-None-Match", `"another"`, "Range", "bytes=0-3"); old.StatusCode != 200 || !bytes.Equal(body(t, old), want) {
			t.Errorf("%s with another tag: %s", path, old.Status)
		}
	}
	for path, want := range map[string]int{"/index.html": 404, "/page": 404, "/page.js/": 404, "/src/main.ts": 404} {
		if got := ask("GET", path).StatusCode; got != want {
			t.Errorf("%s: %d", path, got)
		}
	}
	if got := ask("POST", "/").StatusCode; got != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", got)
	}
}

// A page that loads slowly is not opened when it is needed.
func TestSize(t *testing.T) {
	sum := 0
	for _, f := range files() {
		sum += len(f.zipped)
	}
	if sum > 150<<10 {
		t.Errorf("%d bytes compressed", sum)
	}
	t.Logf("%d bytes compressed", sum)
}

// markup matches what would take text for markup or code, and what would load or send
// something elsewhere.
var markup = regexp.MustCompile(`\b(inner|outer)HTML\b|insertAdjacentHTML|createContextualFragment|document\.write|DOMParser|srcdoc|\beval\(|new Function|javascript:|@import`)

// outside matches addresses. Names of XML are none.
var outside = regexp.MustCompile(`(https?:)?//[a-z0-9.-]+\.[a-z]{2,}`)

// Nothing of the page takes text for markup, in its sources or as built, and nothing in it
// is elsewhere.
func TestNoMarkup(t *testing.T) {
	check := func(path string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if found := markup.Find(text); found != nil {
			t.Errorf("%s has %s", path, found)
		}
		for _, found := range outside.FindAllString(string(text), -1) {
			if found != "http://www.w3.org" && found != "https://github.com" { // the licence's
				t.Errorf("%s names %s", path, found)
			}
		}
		return nil
	}
	n := 0
	for _, root := range []string{"src", "dist"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			n++
			return check(path)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < 10 {
		t.Errorf("only %d files", n)
	}
	index, err := os.ReadFile("dist/index.html")
	if err != nil {
		t.Fatal(err)
	}
	if inline := regexp.MustCompile(`<style|<script>|\son[a-z]+=|\sstyle=`).Find(index); inline != nil {
		t.Errorf("the document has %s", inline)
	}
}
