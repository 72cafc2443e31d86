package kubernetes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

// pod makes a pod of fields in JSON, beside the ones that every pod has.
func pod(t *testing.T, name, ip, ready, meta string) *Pod {
	t.Helper()
	text := fmt.Sprintf(`{"metadata":{"name":%q,"uid":"uid-%s"%s},"spec":{"containers":[{"name":"vllm","ports":[{"name":"http","containerPort":8000}]}]},
		"status":{"phase":"Running","podIP":%q,"conditions":[{"type":"Ready","status":%q}],"containerStatuses":[{"name":"vllm","restartCount":0}]}}`, name, name, meta, ip, ready)
	p := new(Pod)
	if err := json.Unmarshal([]byte(text), p); err != nil {
		t.Fatal(err)
	}
	return p
}

func slice(t *testing.T, name, endpoints, ports string) *EndpointSlice {
	t.Helper()
	s := new(EndpointSlice)
	if err := json.Unmarshal([]byte(fmt.Sprintf(`{"metadata":{"name":%q},"addressType":"IPv4","endpoints":[%s],"ports":[%s]}`, name, endpoints, ports)), s); err != nil {
		t.Fatal(err)
	}
	return s
}

func endpoint(pod, ip, conditions string) string {
	return fmt.Sprintf(`{"addresses":[%q],"conditions":{%s},"targetRef":{"kind":"Pod","name":%q,"uid":"uid-%s"}}`, ip, conditions, pod, pod)
}

// line writes engines in one line.
func line(engines []*Engine) string {
	var parts []string
	for _, e := range engines {
		text := e.Name + "@" + e.Address
		for _, more := range []string{e.Role, e.Model, e.Weight} {
			if more != "" {
				text += " " + more
			}
		}
		if e.BootstrapPort != 0 {
			text += fmt.Sprint(" ", e.BootstrapPort)
		}
		if e.Drained != "" {
			text += " (" + e.Drained + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// wants compares a view with the expected engines, and a part of its notes; empty: no notes.
func wants(t *testing.T, v *View, what, want, note string) []*Engine {
	t.Helper()
	engines, notes := v.Engines()
	if got := line(engines); got != want {
		t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
	}
	if text := strings.Join(notes, "; "); note == "" && text != "" || !strings.Contains(text, note) {
		t.Errorf("%s: notes %q, want %q", what, text, note)
	}
	return engines
}

// A pod joins when it is ready, is drained while it is not or terminates, and leaves with its
// object. Its times are not read: a cluster's clock may differ by minutes.
func TestPodsOverTime(t *testing.T) {
	v := NewView(Query{Selector: Selector{"app=vllm"}})
	meta := `,"labels":{"app":"vllm"}`
	v.Replace(Pods, []Object{pod(t, "a", "10.0.0.1", "True", meta), pod(t, "b", "10.0.0.2", "False", meta), pod(t, "x", "10.0.0.9", "True", "")})
	wants(t, v, "b starts", "a@10.0.0.1:8000", "")
	v.Set(pod(t, "b", "10.0.0.2", "True", meta))
	before := wants(t, v, "b is ready", "a@10.0.0.1:8000; b@10.0.0.2:8000", "")
	v.Set(pod(t, "b", "10.0.0.2", "False", meta))
	wants(t, v, "b is not ready", "a@10.0.0.1:8000; b@10.0.0.2:8000 (its pod is not ready)", "")
	v.Set(pod(t, "a", "10.0.0.1", "False", meta))
	wants(t, v, "none is ready", "a@10.0.0.1:8000; b@10.0.0.2:8000", "none of the pods is ready: the 2 that were take requests all the same")
	v.Set(pod(t, "a", "10.0.0.1", "False", meta+`,"deletionTimestamp":"2031-01-01T00:00:00Z"`))
	wants(t, v, "a terminates", "a@10.0.0.1:8000 (its pod is terminating); b@10.0.0.2:8000", "the 1 that were")
	again := pod(t, "b", "10.0.0.2", "False", meta)
	again.Status.ContainerStatuses[0].RestartCount = 1
	v.Set(again)
	if e := wants(t, v, "b's container starts again", "a@10.0.0.1:8000 (its pod is terminating); b@10.0.0.2:8000", "none"); e[1].Instance != before[1].Instance {
		t.Error("b is another engine before it is ready again")
	}
	again = new(*again)
	again.Status.Conditions = []Condition{{Type: "Ready", Status: "True"}}
	v.Set(again)
	if e := wants(t, v, "b is ready again", "a@10.0.0.1:8000 (its pod is terminating); b@10.0.0.2:8000", ""); e[1].Instance == before[1].Instance {
		t.Error("after a restart of its container b is the same engine as before")
	}
	v.Delete(pod(t, "a", "", "", ""))
	wants(t, v, "a is gone", "b@10.0.0.2:8000", "")
	other := pod(t, "b", "10.0.0.2", "False", meta)
	other.UID = "another"
	v.Set(other)
	wants(t, v, "another b at the same address starts", "", "")
	other = new(*other)
	other.Status.Conditions = []Condition{{Type: "Ready", Status: "True"}}
	v.Set(other)
	if e := wants(t, v, "and is ready", "b@10.0.0.2:8000", ""); e[0].Instance == before[1].Instance {
		t.Error("another pod is the same engine")
	}
	other = new(*other)
	other.Status.Phase = "Failed"
	v.Set(other)
	wants(t, v, "it has failed", "", "")
}

// Conditions of endpoints that are absent have their meanings; a pod that is not known yet is
// waited for, because its labels say what the engine is.
func TestEndpoints(t *testing.T) {
	v := NewView(Query{Service: "vllm", Ports: []string{"http"}})
	http := `{"name":"http","port":8000},{"name":"metrics","port":9000}`
	v.Replace(Pods, []Object{pod(t, "a", "10.0.0.1", "True", ""), pod(t, "b", "10.0.0.2", "True", "")})
	v.Replace(Slices, []Object{slice(t, "s1", endpoint("a", "10.0.0.1", "")+","+endpoint("b", "10.0.0.2", `"ready":false,"serving":true,"terminating":true`), http),
		slice(t, "s2", endpoint("c", "10.0.0.3", `"ready":true`)+`,{"addresses":["10.1.0.1"],"conditions":{}}`, http)})
	wants(t, v, "at the start", "10.1.0.1:8000@10.1.0.1:8000; a@10.0.0.1:8000", "")
	v.Set(pod(t, "c", "10.0.0.3", "True", `,"labels":{"weir/role":"prefill"},"annotations":{"sglang.ai/bootstrap-port":"8998"}`))
	wants(t, v, "c is known", "10.1.0.1:8000@10.1.0.1:8000; a@10.0.0.1:8000; c@10.0.0.3:8000 prefill 8998", "")
	v.Delete(pod(t, "c", "", "", ""))
	wants(t, v, "the pod goes before its endpoint", "10.1.0.1:8000@10.1.0.1:8000; a@10.0.0.1:8000; c@10.0.0.3:8000 prefill 8998 (its pod is gone)", "")
	v.Set(slice(t, "s1", endpoint("a", "10.0.0.1", `"ready":false,"serving":true,"terminating":true`), http))
	v.Set(slice(t, "s2", "", http))
	wants(t, v, "a terminates", "a@10.0.0.1:8000 (its pod is terminating)", "")
	v.Replace(Slices, nil)
	wants(t, v, "a Service without endpoints", "", "")
}

// Both address families of a pod are one engine. Addresses of the machine itself are none.
func TestAddresses(t *testing.T) {
	v := NewView(Query{Service: "vllm"})
	v.Replace(Pods, []Object{pod(t, "a", "10.0.0.1", "True", "")})
	http := `{"name":"","port":8000}`
	six := slice(t, "s6", strings.Replace(endpoint("a", "fd00::1", ""), "10.0.0.1", "fd00::1", 1), http)
	v.Replace(Slices, []Object{slice(t, "s4", endpoint("a", "10.0.0.1", ""), http), six})
	wants(t, v, "both families", "a@10.0.0.1:8000", "")
	for addr, want := range map[string]string{"127.0.0.1": "loopback=true", "169.254.169.254": "no engine's", "::ffff:127.0.0.1": "loopback=true", "fe80::1": "no engine's", "example.com": "none"} {
		v.Replace(Slices, []Object{slice(t, "s", `{"addresses":["`+addr+`"]}`, http)})
		wants(t, v, addr, "", want)
	}
	v.Replace(Slices, []Object{slice(t, "s", `{"addresses":["10.0.0.1"]}`, `{"name":"a","port":1},{"name":"b","port":2}`)})
	wants(t, v, "several ports", "", "the Service vllm has the ports a, b: add port=NAME")
}

// Labels and annotations of pods, in weir's, SMG's and llm-d's words. A wrong value is named, and
// the engine stays as it was.
func TestLabels(t *testing.T) {
	for _, c := range []struct {
		query      Query
		meta       string
		want, note string
	}{
		{Query{}, `,"labels":{"llm-d.ai/role":"prefill-decode"}`, "p@10.0.0.1:8000 both", ""},
		{Query{}, `,"labels":{"llm-d.ai/role":"encode-prefill"}`, "p@10.0.0.1:8000 prefill", ""},
		{Query{}, `,"labels":{"llm-d.ai/role":"encode"}`, "", "weir knows prefill"},
		{Query{}, `,"labels":{"llm-d.ai/role":"prefill","weir/role":"decode"}`, "p@10.0.0.1:8000 decode", ""},
		{Query{}, `,"labels":{"weir/role":"encode-prefill"}`, "", "weir/role=encode-prefill: want both"},
		{Query{Prefill: Selector{"tier=p"}, Decode: Selector{"tier=d"}}, `,"labels":{"tier":"d"}`, "p@10.0.0.1:8000 decode", ""},
		{Query{Prefill: Selector{"tier=p"}, Decode: Selector{"tier=d"}}, `,"labels":{"tier":"x"}`, "", ""},
		{Query{Prefill: Selector{"tier=p"}}, `,"labels":{"tier":"p"},"annotations":{"sglang.ai/bootstrap-port":"9001"}`, "p@10.0.0.1:8000 prefill 9001", ""},
		{Query{Prefill: Selector{"tier=p"}}, `,"labels":{"tier":"p"},"annotations":{"sglang.ai/bootstrap-port":"x"}`, "", "sglang.ai/bootstrap-port=x: want a port"},
		{Query{}, `,"annotations":{"weir/model":"org/name","weir/weight":"0.1"}`, "p@10.0.0.1:8000 org/name 0.1", ""},
		{Query{}, `,"annotations":{"weir/weight":"2"}`, "", "want a share"},
		{Query{}, `,"annotations":{"weir/model":"m,key-file=/etc/passwd"}`, "", "without a comma"},
		{Query{}, `,"annotations":{"weir/model":"m\u001b[2J"}`, "", "or a control character"},
		{Query{ModelFrom: "label:llm-d.ai/model"}, `,"labels":{"llm-d.ai/model":"m"}`, "p@10.0.0.1:8000 m", ""},
		{Query{Ports: []string{"8000", "8001", "8002"}}, `,"annotations":{"llm-d.ai/active-ports":"8000, 8002"}`, "p:8000@10.0.0.1:8000; p:8002@10.0.0.1:8002", ""},
		{Query{Ports: []string{"grpc"}}, "", "", `no port named "grpc"`},
		{Query{Selector: Selector{"a!=b", "!c", "d"}}, `,"labels":{"d":""}`, "p@10.0.0.1:8000", ""},
		{Query{Selector: Selector{"a!=b"}}, `,"labels":{"a":"b"}`, "", ""},
	} {
		if c.query.Prefill == nil && c.query.Selector == nil {
			c.query.Selector = Selector{"!none"}
		}
		v := NewView(c.query)
		v.Replace(Pods, []Object{pod(t, "p", "10.0.0.1", "True", c.meta)})
		wants(t, v, c.meta, c.want, c.note)
	}
	v := NewView(Query{Selector: Selector{"!none"}})
	v.Set(pod(t, "p", "10.0.0.1", "True", `,"labels":{"llm-d.ai/role":"decode"}`))
	wants(t, v, "right", "p@10.0.0.1:8000 decode", "")
	v.Set(pod(t, "p", "10.0.0.1", "True", `,"labels":{"llm-d.ai/role":"decoed"}`))
	wants(t, v, "mistyped later", "p@10.0.0.1:8000 decode", "decoed")
}

// A pod's labels and annotations may have any text. An engine has then
// what its settings may have, or a note says why it has none.
func TestHostilePods(t *testing.T) {
	value := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
		"", "0", "-1", "1e-400", "NaN", "Inf", "0x1p-2", "1,2", "8000,8000", ",", "65536", "9223372036854775808", "prefill", "both",
		"m\u001b[2J", "m\nn", "m\u2028n", "../../etc", "a=b,c=d", strings.Repeat("x", 1<<12), "\xff", "\u202egpj"}))
	rapid.Check(t, func(r *rapid.T) {
		v := NewView(Query{Selector: Selector{"!none"}, Ports: rapid.SampledFrom([][]string{nil, {"8000", "8001"}, {"http"}}).Draw(r, "ports")})
		for i := range rapid.IntRange(1, 3).Draw(r, "pods") {
			labels, annotations := map[string]string{}, map[string]string{}
			for _, key := range append([]string{modelKey, roleKey, weightKey, llmdRole, bootstrapKey}, activePorts...) {
				if rapid.Bool().Draw(r, "label of "+key) {
					labels[key] = value.Draw(r, key)
				}
				if rapid.Bool().Draw(r, "annotation of "+key) {
					annotations[key] = value.Draw(r, key)
				}
			}
			p := pod(t, fmt.Sprint("p", i), fmt.Sprint("10.0.0.", i+1), "True", "")
			p.Labels, p.Annotations = labels, annotations
			if err := trim(p); err != nil {
				r.Fatal(err)
			}
			v.Set(p)
		}
		engines, notes := v.Engines()
		for _, e := range engines {
			w, err := strconv.ParseFloat(cmp.Or(e.Weight, "1"), 64)
			if err != nil || !(w > 0 && w <= 1) || e.BootstrapPort < 0 || e.BootstrapPort > 65535 || roles[cmp.Or(e.Role, "both")] == "" ||
				strings.ContainsFunc(e.Model, func(c rune) bool { return c == ',' || !unicode.IsPrint(c) }) || len(e.Model) > maxName {
				r.Errorf("%+v", *e)
			}
		}
		for _, n := range notes {
			if len(n) > 1<<10 {
				r.Errorf("a note of %d bytes", len(n))
			}
		}
	})
}

// An InferencePool names pods and ports. Each target port is an engine.
func TestPool(t *testing.T) {
	v := NewView(Query{Pool: "pool"})
	v.Replace(Pods, []Object{pod(t, "p", "10.0.0.1", "True", `,"labels":{"app":"a"}`), pod(t, "q", "10.0.0.2", "True", `,"labels":{"app":"b"}`)})
	v.Replace(Pools, nil)
	wants(t, v, "no pool", "", `there is no InferencePool "pool"`)
	pool := new(InferencePool)
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"pool"},"spec":{"selector":{"matchLabels":{"app":"a"}},"targetPorts":[{"number":8000},{"number":8001}]}}`), pool); err != nil {
		t.Fatal(err)
	}
	v.Set(pool)
	wants(t, v, "a pool", "p:8000@10.0.0.1:8000; p:8001@10.0.0.1:8001", "")
	if s, ok := v.PodSelector(); !ok || s.String() != "app=a" {
		t.Errorf("selector %v %v", s, ok)
	}
}
