package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"weir/internal/dialect"
)

// Origins are the web pages of other origins whose scripts may call the API and read its
// answers, as CORS has it. The zero value is none.
type Origins struct {
	any    bool
	listed map[string]bool
}

// ParseOrigins reads off, any, or a list of origins, each SCHEME://HOST or
// SCHEME://HOST:PORT.
func ParseOrigins(words []string) (Origins, error) {
	o := Origins{listed: map[string]bool{}}
	for _, word := range words {
		switch word {
		case "off", "any":
			if len(words) > 1 {
				return Origins{}, fmt.Errorf("%s covers all origins; leave out the others", word)
			}
			o.any = word == "any"
		case "*":
			return Origins{}, fmt.Errorf("* is not an origin; write any")
		default:
			origin, err := parseOrigin(word)
			if err != nil {
				return Origins{}, err
			}
			o.listed[origin] = true
		}
	}
	return o, nil
}

// parseOrigin returns an origin as browsers write it.
func parseOrigin(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" || u.Host == "" {
		return "", fmt.Errorf("%q is not an origin; want off, any, or origins such as https://chat.example or http://localhost:3000", s)
	}
	if u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || strings.ContainsAny(u.Host, "* ") {
		return "", fmt.Errorf("%q is more than an origin; want %s://%s, without a path, and without a wildcard in its host", s, u.Scheme, strings.ReplaceAll(u.Host, "*", "NAME"))
	}
	host := strings.ToLower(u.Host)
	switch u.Scheme { // a scheme's own port is not written
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return u.Scheme + "://" + host, nil
}

// none reports whether no page may.
func (o Origins) none() bool { return !o.any && len(o.listed) == 0 }

// The heads of CORS.
const (
	// preflightMethods are the methods that any of the API's paths takes.
	preflightMethods = "GET, POST, PUT, DELETE"
	// exposed are the fields of weir's answers that a script may read beside those that it
	// may always read.
	exposed = "X-Request-Id, Request-Id, Retry-After, " + reasonHeader + ", Server-Timing, " + ignoredHeader
	// preflightAge is for how many seconds a browser need not ask again.
	preflightAge = "600"
)

// admit adds the header fields that let a browser's script of the origin read the answer,
// and reports whether the origin is allowed.
//
// A script of a listed origin may send the user's cookies and certificates, for a proxy
// before weir that authenticates the user by them. If all origins are allowed, scripts may
// not send them, because any page could then act as the user. A script can send its own
// keys in both cases.
func (o Origins) admit(h http.Header, origin string) bool {
	switch {
	case o.none():
		return false
	case o.any:
		h.Set("Access-Control-Allow-Origin", "*")
		return true
	}
	h.Add("Vary", "Origin") // what a cache holds for one page is not for another
	if !o.listed[origin] {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Credentials", "true")
	return true
}

// crossOrigin answers OPTIONS, and has browsers let the scripts of allowed origins read
// the answers of mux, refusals included.
func (g *Gateway) crossOrigin(mux *http.ServeMux) http.Handler {
	origins := g.opts.Front.CORS
	preflight, options := g.view(g.preflight), g.view(func(w http.ResponseWriter, r *http.Request) { g.options(w, r, mux) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header())
		origin := first(r.Header, "Origin")
		switch {
		case r.Method == http.MethodOptions && origin != "" && r.Header.Get("Access-Control-Request-Method") != "":
			preflight(w, r)
			return
		case (origin != "" || !origins.any) && origins.admit(w.Header(), origin):
			w.Header().Set("Access-Control-Expose-Headers", exposed)
		}
		if r.Method == http.MethodOptions {
			options(w, r)
			return
		}
		if g.known(r) {
			g.handle(w, r)
			return
		}
		if r.ContentLength != 0 {
			dropBody(http.NewResponseController(w)) // mux answers some by itself; net/http reads their bodies
		}
		mux.ServeHTTP(w, r)
	})
}

// preflight answers the request that a browser sends before a script's request. A script
// of an allowed origin may request every path, so that it can read the error for one that
// does not exist.
func (g *Gateway) preflight(w http.ResponseWriter, r *http.Request) {
	h, origin := w.Header(), first(r.Header, "Origin")
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	if !g.opts.Front.CORS.admit(h, origin) {
		http.Error(w, fmt.Sprintf("web pages of %s may not use this gateway; an operator allows them with --cors %[1]s", dialect.Clip(origin, 128)), http.StatusForbidden)
		return
	}
	h.Set("Access-Control-Allow-Methods", preflightMethods)
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", preflightAge)
	w.WriteHeader(http.StatusNoContent)
}

// options answers with the methods of a path.
func (g *Gateway) options(w http.ResponseWriter, r *http.Request, mux *http.ServeMux) {
	path := r.URL.Path
	if r.RequestURI == "*" { // the whole server
		w.Header().Set("Allow", preflightMethods+", "+http.MethodOptions)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	methods := slices.Clone(g.services[path].methods)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		asks := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		_, pattern := mux.Handler(asks)
		own := strings.HasPrefix(pattern, method+" ") || method == http.MethodPost && g.opts.Prepare.Allow.Paths.Has(path)
		if own && !slices.Contains(methods, method) {
			methods = append(methods, method)
		}
	}
	if len(methods) == 0 || g.services.meant(path) != "" {
		writeError(w, g.endpointOf(path), g.services.nothingAt(path))
		return
	}
	w.Header().Set("Allow", strings.Join(append(methods, http.MethodOptions), ", "))
	w.WriteHeader(http.StatusNoContent)
}
