package kubeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// resource is a kind of objects that the server has.
type resource struct{ group, version, name, singular, kind string }

// resources are those that the server has, and events, of which there are none: kubectl asks for
// them with each object that it describes.
var resources = []resource{
	{"", "v1", "pods", "pod", "Pod"},
	{"", "v1", "events", "event", "Event"},
	{"discovery.k8s.io", "v1", "endpointslices", "endpointslice", "EndpointSlice"},
	{"inference.networking.k8s.io", "v1", "inferencepools", "inferencepool", "InferencePool"},
}

// kindOf is the kind and API version of a collection's objects.
func kindOf(path string) (kind, version string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for _, r := range resources {
		if r.name == parts[len(parts)-1] {
			kind = r.kind
		}
	}
	if parts[0] == "api" {
		return kind, parts[1]
	}
	return kind, parts[1] + "/" + parts[2]
}

// discover answers what a client asks before it asks for objects: the groups, their versions and
// their resources. It reports whether the path is one of these.
func discover(w http.ResponseWriter, path string) bool {
	var answer Object
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/version":
		answer = Object{"major": "1", "minor": "36", "gitVersion": "v1.36.0-kubeapi"}
	case path == "/api":
		answer = Object{"kind": "APIVersions", "versions": []string{"v1"}}
	case path == "/apis":
		var groups []Object
		for _, r := range resources {
			if r.group != "" {
				version := Object{"groupVersion": r.group + "/" + r.version, "version": r.version}
				groups = append(groups, Object{"name": r.group, "versions": []Object{version}, "preferredVersion": version})
			}
		}
		answer = Object{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
	case parts[0] == "api" && len(parts) == 2:
		answer = resourcesOf("", parts[1])
	case parts[0] == "apis" && len(parts) == 3:
		answer = resourcesOf(parts[1], parts[2])
	default:
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
	return true
}

func resourcesOf(group, version string) Object {
	all := []Object{}
	for _, r := range resources {
		if r.group == group && r.version == version {
			all = append(all, Object{"name": r.name, "singularName": r.singular, "namespaced": true, "kind": r.kind, "verbs": []string{"get", "list", "watch"}})
		}
	}
	if group != "" {
		version = group + "/" + version
	}
	return Object{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": all}
}

// one answers a request for one object. It reports whether the path is one's.
func (s *Server) one(w http.ResponseWriter, path string) bool {
	at := strings.LastIndexByte(path, '/')
	kind, version := "", ""
	if strings.Count(path, "/") > 4 {
		kind, version = kindOf(path[:at])
	}
	if kind == "" {
		return false // it is a collection's
	}
	s.mu.Lock()
	o := named(s.objects[path], kind, version)
	s.mu.Unlock()
	if o == nil {
		Refuse(w, http.StatusNotFound, "NotFound", fmt.Sprintf("%s %q not found", path[strings.LastIndexByte(path[:at], '/')+1:at], path[at+1:]))
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o)
	return true
}
