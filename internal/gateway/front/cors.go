package front

import (
	"fmt"
	"net/http"
	"net/url"
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
	// Methods are the methods that any of the API's paths takes.
	Methods = "GET, POST, PUT, DELETE"
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

// Handler has browsers let the scripts of allowed origins read the answers of next, refusals
// included, and in them the header fields that are exposed. It answers what a browser sends
// before a script's request by itself, within view.
func (o Origins) Handler(exposed string, view func(http.HandlerFunc) http.HandlerFunc, next http.HandlerFunc) http.Handler {
	preflight := view(o.preflight)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Protect(w.Header())
		origin := ""
		if v := r.Header["Origin"]; len(v) > 0 {
			origin = v[0]
		}
		switch {
		case r.Method == http.MethodOptions && origin != "" && r.Header.Get("Access-Control-Request-Method") != "":
			preflight(w, r)
			return
		case (origin != "" || !o.any) && o.admit(w.Header(), origin):
			w.Header().Set("Access-Control-Expose-Headers", exposed)
		}
		next(w, r)
	})
}

// preflight answers the request that a browser sends before a script's request. A script
// of an allowed origin may request every path, so that it can read the error for one that
// does not exist.
func (o Origins) preflight(w http.ResponseWriter, r *http.Request) {
	h, origin := w.Header(), r.Header.Get("Origin")
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	if !o.admit(h, origin) {
		http.Error(w, fmt.Sprintf("web pages of %s may not use this gateway; an operator allows them with --cors %[1]s", dialect.Clip(origin, 128)), http.StatusForbidden)
		return
	}
	h.Set("Access-Control-Allow-Methods", Methods)
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", preflightAge)
	w.WriteHeader(http.StatusNoContent)
}
