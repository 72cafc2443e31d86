package kubernetes

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// cluster draws changes of a few objects, with names and addresses that come again.
type cluster struct{ t *rapid.T }

func (c cluster) pod() *Pod {
	p := new(Pod)
	p.Name = rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(c.t, "pod")
	p.UID = rapid.SampledFrom([]string{"1", "1", "1", "2"}).Draw(c.t, "uid")
	p.Labels = map[string]string{"app": rapid.SampledFrom([]string{"vllm", "vllm", "vllm", "other"}).Draw(c.t, "app")}
	if role := rapid.SampledFrom([]string{"", "", "prefill", "wrong"}).Draw(c.t, "role"); role != "" {
		p.Labels[roleKey] = role
	}
	if on := rapid.SampledFrom([]string{"", "", "8000", "x"}).Draw(c.t, "active ports"); on != "" {
		p.Annotations = map[string]string{activePorts[0]: on}
	}
	if rapid.IntRange(0, 5).Draw(c.t, "terminates") == 0 {
		p.DeletionTimestamp = "2031-01-01T00:00:00Z"
	}
	p.Spec.Containers = []Container{{Name: "c"}}
	for range rapid.IntRange(0, 1).Draw(c.t, "ports") {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, struct {
			Name          string `json:"name"`
			ContainerPort int    `json:"containerPort"`
			Protocol      string `json:"protocol"`
		}{"http", 8000, "TCP"})
	}
	p.Status.Phase = rapid.SampledFrom([]string{"Running", "Running", "Running", "Failed"}).Draw(c.t, "phase")
	p.Status.PodIP = c.address()
	p.Status.Conditions = []Condition{{"Ready", rapid.SampledFrom([]string{"True", "False"}).Draw(c.t, "ready")}}
	p.Status.ContainerStatuses = []ContainerStatus{{"c", rapid.IntRange(0, 1).Draw(c.t, "restarts")}}
	return p
}

func (c cluster) address() string {
	return rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1", ""}).Draw(c.t, "address")
}

func (c cluster) slice() *EndpointSlice {
	s := new(EndpointSlice)
	s.Name = rapid.SampledFrom([]string{"s", "t"}).Draw(c.t, "slice")
	s.AddressType = rapid.SampledFrom([]string{"IPv4", "IPv4", "FQDN"}).Draw(c.t, "type")
	s.Ports = []EndpointPort{{Name: "http", Port: 8000}}
	for range rapid.IntRange(0, 3).Draw(c.t, "endpoints") {
		e := Endpoint{Addresses: []string{c.address()}}
		if ready := rapid.IntRange(0, 2).Draw(c.t, "ready"); ready < 2 {
			e.Conditions.Ready = new(ready == 1)
		}
		e.Conditions.Terminating = new(rapid.IntRange(0, 5).Draw(c.t, "terminating") == 0)
		if rapid.IntRange(0, 4).Draw(c.t, "of a pod") > 0 {
			e.TargetRef = &struct {
				Kind string `json:"kind"`
				Name string `json:"name"`
				UID  string `json:"uid"`
			}{"Pod", rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(c.t, "target"), rapid.SampledFrom([]string{"1", "1", "2"}).Draw(c.t, "target's uid")}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (c cluster) pool() *InferencePool {
	p := new(InferencePool)
	p.Name = "pool"
	p.Spec.Selector.MatchLabels = map[string]string{"app": rapid.SampledFrom([]string{"vllm", "other"}).Draw(c.t, "selected")}
	for _, port := range rapid.SliceOfN(rapid.IntRange(8000, 8001), 0, 2).Draw(c.t, "target ports") {
		p.Spec.TargetPorts = append(p.Spec.TargetPorts, struct {
			Number int `json:"number"`
		}{port})
	}
	return p
}

// object draws an object of a kind.
func (c cluster) object(k Kind) Object {
	switch k {
	case Slices:
		return c.slice()
	case Pools:
		return c.pool()
	}
	return c.pod()
}

// After any changes of objects a view that derives only from those that have changed finds the
// engines, and has the notes, of one that derives from all of them each time. An engine of which
// nothing has changed is the same one as before.
func TestChangedObjectsAreEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := rapid.SampledFrom([]Query{
			{Selector: Selector{"app=vllm"}}, {Service: "svc", Selector: Selector{"app=vllm"}}, {Pool: "pool"}, {Selector: Selector{"app=vllm"}, Ports: []string{"http", "8001"}},
		}).Draw(t, "query")
		changed, all := NewView(q), NewView(q)
		c := cluster{t}
		had := map[string]*Engine{}
		for range rapid.IntRange(1, 20).Draw(t, "reports") {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				kind := rapid.SampledFrom(q.needs()).Draw(t, "kind")
				switch o := c.object(kind); rapid.IntRange(0, 9).Draw(t, "what") {
				case 0:
					list := []Object{o}
					changed.Replace(kind, list)
					all.Replace(kind, list)
				case 1, 2:
					changed.Delete(o)
					all.Delete(o)
				default:
					changed.Set(o)
					all.Set(o)
				}
			}
			for _, p := range all.pods {
				p.unit = nil
			}
			for _, s := range all.slices {
				s.unit = nil
			}
			all.byName = nil
			got, notes := changed.Engines()
			want, wantNotes := all.Engines()
			if text := func(engines []*Engine, notes []string) (s string) {
				for _, e := range engines {
					s += fmt.Sprintf("%+v\n", *e)
				}
				return s + fmt.Sprintf("%q", notes)
			}; text(got, notes) != text(want, wantNotes) {
				t.Fatalf("from what has changed:\n%s\nfrom all:\n%s", text(got, notes), text(want, wantNotes))
			}
			now := map[string]*Engine{}
			for _, e := range got {
				if was := had[e.Name]; was != nil && was != e && *was == *e {
					t.Fatalf("engine %s is made anew, and nothing of it has changed", e.Name)
				}
				now[e.Name] = e
			}
			had = now
		}
	})
}

// BenchmarkEngines is a result of a thousand pods of which one has changed.
func BenchmarkEngines(b *testing.B) {
	v := NewView(Query{Selector: Selector{"app=vllm"}})
	set := func(i int, ready string) {
		p := new(Pod)
		p.Name, p.UID, p.Labels = fmt.Sprintf("pod-%04d", i), fmt.Sprint("uid-", i), map[string]string{"app": "vllm"}
		p.Spec.Containers = []Container{{Name: "c"}}
		p.Status.Phase, p.Status.PodIP = "Running", fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)
		p.Status.Conditions = []Condition{{"Ready", ready}}
		v.Set(p)
	}
	v.query.Ports = []string{"8000"}
	for i := range 1000 {
		set(i, "True")
	}
	v.Engines()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		set(i%1000, []string{"False", "True"}[i/1000%2])
		v.Engines()
	}
}
