// Package page is the operator's page: the data of the admin listener's endpoints, for
// people. It consists of one document, one script and one style sheet, which are embedded
// and request only the listener that served them.
//
// The sources are in src, in TypeScript without a framework. "make page" builds dist from
// them with the tools pinned in package-lock.json. dist is committed, so that weir builds
// without Node.
package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"sync"
	"time"

	"weir/internal/wire/http1"
)

//go:embed dist
var dist embed.FS

// policy lets the page load its own files and request its own listener, and nothing else.
// The document contains no inline script or style, and no text becomes markup.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is one of the page's files, plain and compressed.
type file struct {
	kind           string
	plain, zipped  []byte
	etag, zippedAs string
}

// files are those of the page by their paths. Compressing them takes some milliseconds,
// once.
var files = sync.OnceValue(func() map[string]*file {
	all := map[string]*file{}
	for path, of := range map[string]struct{ name, kind string }{
		"/": {"index.html", "text/html; charset=utf-8"}, "/page.js": {"page.js", "text/javascript; charset=utf-8"}, "/page.css": {"page.css", "text/css; charset=utf-8"},
	} {
		plain, err := dist.ReadFile("dist/" + of.name)
		if err != nil {
			panic("page: " + err.Error()) // the compiler has embedded it
		}
		sum := sha256.Sum256(plain)
		tag := base64.RawURLEncoding.EncodeToString(sum[:12])
		all[path] = &file{of.kind, plain, compress(plain), fmt.Sprintf("%q", tag), fmt.Sprintf("%q", tag+"-gzip")}
	}
	return all
})

func compress(plain []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		panic("page: " + err.Error()) // the level is one of gzip's
	}
	_, _ = w.Write(plain) // a Buffer takes all
	_ = w.Close()
	return b.Bytes()
}

// Patterns are the patterns for http.ServeMux that Serve answers.
var Patterns = []string{"GET /{$}", "GET /page.js", "GET /page.css"}

// Serve answers a request for one of the page's files. A browser keeps them and asks each
// time whether they have changed, so that a page is never older than the process that it
// shows.
func Serve(w http.ResponseWriter, r *http.Request) {
	f := files()[r.URL.Path]
	if f == nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	body := f.plain
	h.Set("ETag", f.etag)
	if http1.TakesGzip(r.Header.Values("Accept-Encoding")) {
		body = f.zipped
		h.Set("ETag", f.zippedAs)
		h.Set("Content-Encoding", "gzip")
	}
	r.Header.Del("Range") // of bytes that are compressed or not
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}
