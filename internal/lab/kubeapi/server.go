// Package kubeapi is a small Kubernetes API server for tests: lists with pages, watches with
// bookmarks, versions and 410 Gone, single objects and the discovery of its resources, and faults on
// demand.
package kubeapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Object is an object as JSON has it.
type Object = map[string]any

// Server is the API server. Its zero value is not ready; use New.
type Server struct {
	mu      sync.Mutex
	version int
	oldest  int // the version before which no watch can begin
	objects map[string]Object
	log     []change
	changed chan struct{} // closed at the next change
	fault   Fault
	asked   map[string]int
	token   string
}

// change is one that watches report.
type change struct {
	version int
	kind    string // ADDED, MODIFIED or DELETED
	path    string // of the collection
	object  Object
	before  Object // nil: it was added
}

// Fault replaces the answer to a request; it reports whether it has.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// New makes a server without objects. token is what clients must show; empty: nothing.
func New(token string) *Server {
	return &Server{version: 100, objects: map[string]Object{}, changed: make(chan struct{}), asked: map[string]int{}, token: token}
}

// Faults has requests answered by a fault from now on, and ends the watches that there are.
// nil ends that.
func (s *Server) Faults(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
	s.wake()
}

// Asked returns the number of requests so far: lists, or watches.
func (s *Server) Asked(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[what]
}

// Token sets the token that clients must show.
func (s *Server) Token(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// Compact forgets the changes so far, so that watches from before them get 410 Gone.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest, s.log = s.version, nil
	s.wake()
}

func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Put adds or replaces an object of a collection, such as /api/v1/namespaces/n/pods.
func (s *Server) Put(path string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	meta := o["metadata"].(Object)
	key := path + "/" + meta["name"].(string)
	s.version++
	meta["resourceVersion"] = strconv.Itoa(s.version)
	before := s.objects[key]
	kind := "MODIFIED"
	if before == nil {
		kind = "ADDED"
	}
	s.objects[key] = o
	s.log = append(s.log, change{s.version, kind, path, o, before})
	s.wake()
}

// Delete removes an object.
func (s *Server) Delete(path, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.objects[path+"/"+name]
	if before == nil {
		return
	}
	delete(s.objects, path+"/"+name)
	s.version++
	last := maps.Clone(before)
	last["metadata"] = maps.Clone(before["metadata"].(Object))
	last["metadata"].(Object)["resourceVersion"] = strconv.Itoa(s.version)
	s.log = append(s.log, change{s.version, "DELETED", path, last, before})
	s.wake()
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	watch := q.Get("watch") == "true" || q.Get("watch") == "1"
	s.mu.Lock()
	fault, token := s.fault, s.token
	if watch {
		s.asked["watch"]++
	} else {
		s.asked["list"]++
	}
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
		Refuse(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
		return
	}
	switch {
	case watch:
		s.watch(w, r)
	case discover(w, r.URL.Path), s.one(w, r.URL.Path):
	default:
		s.list(w, r)
	}
}

// named is an object with its kind, which items of lists have not.
func named(o Object, kind, version string) Object {
	if o == nil {
		return nil
	}
	o = maps.Clone(o)
	o["kind"], o["apiVersion"] = kind, version
	return o
}

// Refuse answers with an error as an API server has it.
func Refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(statusOf(code, reason, message))
}

func statusOf(code int, reason, message string) Object {
	return Object{"kind": "Status", "apiVersion": "v1", "metadata": Object{}, "status": "Failure", "message": message, "reason": reason, "code": code}
}

// selected reports whether an object is one of those that a request chooses.
func selected(o Object, labels, fields string) bool {
	if o == nil {
		return false
	}
	meta := o["metadata"].(Object)
	has, _ := meta["labels"].(Object)
	for r := range strings.SplitSeq(labels, ",") {
		if key, value, ok := strings.Cut(r, "="); ok && has[key] != value {
			return false
		}
	}
	if name, ok := strings.CutPrefix(fields, "metadata.name="); ok && meta["name"] != name {
		return false
	}
	return true
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	after := ""
	s.mu.Lock()
	version := s.version
	if token := q.Get("continue"); token != "" {
		at, rest, _ := strings.Cut(token, " ")
		version, _ = strconv.Atoi(at)
		if after = rest; version < s.oldest {
			s.mu.Unlock()
			Refuse(w, http.StatusGone, "Expired", "The provided continue parameter is too old")
			return
		}
	}
	items, more := []Object{}, ""
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if !strings.HasPrefix(key, r.URL.Path+"/") || key <= after || !selected(s.objects[key], q.Get("labelSelector"), q.Get("fieldSelector")) {
			continue
		}
		if limit > 0 && len(items) == limit {
			more = fmt.Sprintf("%d %s", version, after)
			break
		}
		items, after = append(items, s.objects[key]), key
	}
	s.mu.Unlock()
	kind, group := kindOf(r.URL.Path)
	meta := Object{"resourceVersion": strconv.Itoa(version)}
	if more != "" {
		meta["continue"] = fmt.Sprintf("%d %s", version, after)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Object{"kind": kind + "List", "apiVersion": group, "metadata": meta, "items": items})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	from, err := strconv.Atoi(q.Get("resourceVersion"))
	if err != nil {
		Refuse(w, http.StatusBadRequest, "BadRequest", "resourceVersion is no number")
		return
	}
	seconds, _ := strconv.Atoi(q.Get("timeoutSeconds"))
	if seconds <= 0 {
		seconds = 1800
	}
	over := time.NewTimer(time.Duration(seconds) * time.Second)
	defer over.Stop()
	mark := time.NewTicker(time.Minute)
	defer mark.Stop()
	w.Header().Set("Content-Type", "application/json")
	rc, out := http.NewResponseController(w), json.NewEncoder(w)
	if rc.Flush() != nil {
		return
	}
	send := func(kind string, o Object) bool {
		return out.Encode(Object{"type": kind, "object": o}) == nil && rc.Flush() == nil
	}
	kind, group := kindOf(r.URL.Path)
	for {
		s.mu.Lock()
		changed, faulty := s.changed, s.fault != nil
		var due []change
		lost := from < s.oldest
		for _, c := range s.log {
			if c.version > from {
				due = append(due, c)
			}
		}
		version := s.version
		s.mu.Unlock()
		if faulty {
			return
		}
		if lost {
			send("ERROR", statusOf(http.StatusGone, "Expired", fmt.Sprintf("too old resource version: %d", from)))
			return
		}
		for _, c := range due {
			from = c.version
			if c.path != r.URL.Path {
				continue
			}
			was, is := selected(c.before, q.Get("labelSelector"), q.Get("fieldSelector")), c.kind != "DELETED" && selected(c.object, q.Get("labelSelector"), q.Get("fieldSelector"))
			what := ""
			switch { // an object whose labels are no longer chosen is deleted to this watch
			case was && is:
				what = "MODIFIED"
			case is:
				what = "ADDED"
			case was:
				what = "DELETED"
			}
			if what == "" {
				continue
			}
			if !send(what, named(c.object, kind, group)) {
				return
			}
		}
		select {
		case <-changed:
		case <-over.C:
			return
		case <-mark.C:
			if from = version; !send("BOOKMARK", Object{"kind": kind, "apiVersion": group, "metadata": Object{"resourceVersion": strconv.Itoa(version)}}) {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
