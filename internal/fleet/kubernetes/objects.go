// Package kubernetes finds engines in a Kubernetes cluster. It lists and watches the
// EndpointSlices of a Service, Pods and InferencePools, and reports the engines that follow
// from them.
//
// Two parts are pure and take events and time as input: a View turns objects into engines,
// and a follower decides when to list, to watch and to wait. Run is the shell around them
// with the sockets and goroutines. The types have only the fields that are read here.
package kubernetes

import (
	"io"
	"slices"
	"strings"
)

// Kind is a kind of object that is followed.
type Kind int

// The kinds.
const (
	Pods Kind = iota
	Slices
	Pools
	kinds // their number
)

// resources are the paths, the words and the decoding of each kind.
var resources = [kinds]struct {
	group, version, plural string

	object func() Object                 // makes one to decode into
	page   func(io.Reader) (page, error) // decodes an answer to a list
}{
	Pods:   {"", "v1", "pods", func() Object { return new(Pod) }, decodePage[Pod]},
	Slices: {"discovery.k8s.io", "v1", "endpointslices", func() Object { return new(EndpointSlice) }, decodePage[EndpointSlice]},
	Pools:  {"inference.networking.k8s.io", "v1", "inferencepools", func() Object { return new(InferencePool) }, decodePage[InferencePool]},
}

// String is the kind's resource, as RBAC rules name it.
func (k Kind) String() string { return resources[k].plural }

// path is the collection of a namespace in the API.
func (k Kind) path(namespace string) string {
	r := resources[k]
	if r.group == "" {
		return "/api/" + r.version + "/namespaces/" + namespace + "/" + r.plural
	}
	return "/apis/" + r.group + "/" + r.version + "/namespaces/" + namespace + "/" + r.plural
}

// Object is an object of one of the kinds.
type Object interface{ meta() *Meta }

// Meta is what all objects have.
type Meta struct {
	Name              string            `json:"name"`
	UID               string            `json:"uid"`
	ResourceVersion   string            `json:"resourceVersion"`
	DeletionTimestamp string            `json:"deletionTimestamp"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
}

func (m *Meta) meta() *Meta { return m }

// Pod is a Pod.
type Pod struct {
	Meta `json:"metadata"`
	Spec struct {
		Containers     []Container `json:"containers"`
		InitContainers []Container `json:"initContainers"` // some are sidecars, which have ports
	} `json:"spec"`
	Status struct {
		Phase             string            `json:"phase"`
		PodIP             string            `json:"podIP"`
		Conditions        []Condition       `json:"conditions"`
		ContainerStatuses []ContainerStatus `json:"containerStatuses"`
	} `json:"status"`
}

// Container is a container of a pod.
type Container struct {
	Name  string `json:"name"`
	Ports []struct {
		Name          string `json:"name"`
		ContainerPort int    `json:"containerPort"`
		Protocol      string `json:"protocol"`
	} `json:"ports"`
}

// Condition is a condition of a pod.
type Condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// ContainerStatus has how often a container was started again.
type ContainerStatus struct {
	Name         string `json:"name"`
	RestartCount int    `json:"restartCount"`
}

// EndpointSlice is a part of a Service's endpoints.
type EndpointSlice struct {
	Meta        `json:"metadata"`
	AddressType string         `json:"addressType"`
	Endpoints   []Endpoint     `json:"endpoints"`
	Ports       []EndpointPort `json:"ports"`
}

// Endpoint is one of a slice. A condition that is absent has a meaning of its own.
type Endpoint struct {
	Addresses  []string `json:"addresses"` // all are the same endpoint; the first is used
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	TargetRef *struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
		UID  string `json:"uid"`
	} `json:"targetRef"`
}

// EndpointPort is a port of all endpoints of a slice.
type EndpointPort struct {
	Name     string `json:"name"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
}

// InferencePool is a pool of the Gateway API's inference extension.
type InferencePool struct {
	Meta `json:"metadata"`
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts []struct {
			Number int `json:"number"`
		} `json:"targetPorts"`
	} `json:"spec"`
}

// ready reports a pod's condition Ready.
func (p *Pod) ready() bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c Condition) bool { return c.Type == "Ready" && c.Status == "True" })
}

// ended reports whether the pod has ended: its containers do not run again.
func (p *Pod) ended() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

// restarts returns how often the container of a port was started again. If no container
// declares the port, it is the first one's.
func (p *Pod) restarts(port int) int {
	if len(p.Spec.Containers) == 0 {
		return 0
	}
	name := p.Spec.Containers[0].Name
	for _, c := range p.Spec.Containers {
		for _, d := range c.Ports {
			if d.ContainerPort == port {
				name = c.Name
			}
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == name {
			return s.RestartCount
		}
	}
	return 0
}

// of returns the value of a label or else of an annotation.
func (m *Meta) of(key string) string {
	if value := m.Labels[key]; value != "" {
		return value
	}
	return m.Annotations[key]
}

// Selector is a conjunction of requirements on labels: KEY=VALUE, KEY!=VALUE, KEY and !KEY.
type Selector []string

// Matches reports whether labels meet all requirements. The empty selector matches all.
func (s Selector) Matches(labels map[string]string) bool {
	for _, r := range s {
		key, value, valued := strings.Cut(r, "=")
		has, there := labels[strings.Trim(key, "!")]
		switch {
		case valued && strings.HasSuffix(key, "!"):
			if has == value && there {
				return false
			}
		case valued:
			if !there || has != value {
				return false
			}
		case there == strings.HasPrefix(key, "!"):
			return false
		}
	}
	return true
}

// String is the selector as the API takes it.
func (s Selector) String() string { return strings.Join(s, ",") }
