package change

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weir/internal/lab/kubeapi"
	"weir/test/e2e/harness"
)

const podsPath = "/api/v1/namespaces/models/pods"

// podAt is the pod of an engine at a loopback address.
func podAt(t *testing.T, name, addr string, ready, terminating bool) kubeapi.Object {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	number, _ := strconv.Atoi(port)
	meta := kubeapi.Object{"name": name, "uid": "uid-" + name, "labels": kubeapi.Object{"app": "llm"}}
	if terminating {
		meta["deletionTimestamp"] = "2001-01-01T00:00:00Z" // by a clock that is years behind
	}
	return kubeapi.Object{"metadata": meta,
		"spec": kubeapi.Object{"containers": []any{kubeapi.Object{"name": "c", "ports": []any{kubeapi.Object{"name": "http", "containerPort": number}}}}},
		"status": kubeapi.Object{"phase": "Running", "podIP": host, "conditions": []any{
			kubeapi.Object{"type": "Ready", "status": map[bool]string{true: "True", false: "False"}[ready]}}},
	}
}

// The pods of a Deployment are replaced one after the other under streams, as Kubernetes does:
// the new one gets ready, the old one terminates. No request fails. While the API server
// forbids everything the engines stay, and the gateway says which rule is missing.
func TestKubernetes(t *testing.T) {
	harness.Beside(t, harness.Heavy)
	api, config := harness.StartKubernetes(t)

	var all []*member
	add := func() *member {
		m := startMember(t, fmt.Sprint("pod-", len(all)+1), "openai")
		all = append(all, m)
		api.Put(podsPath, podAt(t, m.name, m.addr, true, false))
		return m
	}
	for range 2 {
		add()
	}
	file := filepath.Join(t.TempDir(), "weir.yaml")
	harness.WriteFile(t, file, "discover: kubernetes=pods,selector=app=llm,kind=openai,loopback=true,kubeconfig="+config+"\n")
	g := harness.StartGateway(t, "serve", "--submit-timeout", harness.Unhurried, "--config", file)
	becomes := func(name, state string) {
		t.Helper()
		harness.Eventually(t, name+" "+state, func() bool { return stateOf(g, name) == state })
	}
	for _, m := range all {
		becomes(m.name, "ready")
	}
	stop := underLoad(t, g.URL, *streams, 40)
	for i := range 2 {
		old, next := all[i], add()
		becomes(next.name, "ready")
		api.Put(podsPath, podAt(t, old.name, old.addr, false, true))
		becomes(old.name, "drained")
		old.Kill()
		api.Delete(podsPath, old.name)
		becomes(old.name, "none")
	}
	if out, stderr, code := harness.Finish(t, "", "engines", "drain", all[2].name, "--wait", "--admin", g.Admin); code != 0 {
		t.Errorf("an operator drains a pod: %d %s %s", code, out, stderr)
	}
	if out, stderr, code := harness.Finish(t, "", "engines", "resume", all[2].name, "--admin", g.Admin); code != 0 {
		t.Errorf("and resumes it: %d %s %s", code, out, stderr)
	}

	api.Faults(func(w http.ResponseWriter, _ *http.Request) bool {
		kubeapi.Refuse(w, http.StatusForbidden, "Forbidden", "pods is forbidden")
		return true
	})
	harness.Eventually(t, "complaining", func() bool {
		return harness.Metric(t, g.Admin, "weir_discovery_current") == 0 && strings.Contains(string(harness.Get(t, g.Admin+"/admin/fleet").Body), `resources: [\"pods\"]`)
	})
	for _, m := range all[2:] {
		becomes(m.name, "ready")
	}
	api.Faults(nil)
	harness.Eventually(t, "current again", func() bool { return harness.Metric(t, g.Admin, "weir_discovery_current") == 1 })

	whole, wrong := stop()
	ended := g.Balanced()
	harness.WantDocumented(t, g)
	if wrong != nil || ended["failed"]+ended["rejected"]+ended["cancelled"] > 0 || whole == 0 {
		t.Errorf("%d whole, %v; %v", whole, ended, wrong)
	}
	if n := harness.Metric(t, g.Admin, "weir_retries_total"); n > 0 {
		t.Errorf("%v requests were repeated at another engine, and no engine had any when it ended", n)
	}
	t.Logf("%d whole, %v", whole, ended)
}

// A specification that cannot be meant is refused with the line of the file, and one without
// a cluster says what is missing.
func TestDiscoverWrongly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	harness.WriteFile(t, file, "max-body: 1048576\ndiscover:\n  - kubernetes=service/vllm,namespce=models\n")
	if _, stderr, code := harness.Finish(t, "", "serve", "--config", file); code != 2 || !strings.Contains(stderr, "line 3: --discover") || !strings.Contains(stderr, `did you mean "namespace"`) {
		t.Errorf("%d %s", code, stderr)
	}
	for content, wants := range map[string]string{
		"":            "line 3: --discover kubernetes=service/vllm,kubeconfig=", // there is none
		"clusters: [": "line 3: --discover kubernetes=service/vllm,kubeconfig=",
	} {
		config := filepath.Join(t.TempDir(), "kubeconfig")
		if content != "" {
			harness.WriteFile(t, config, content)
		}
		harness.WriteFile(t, file, "max-body: 1048576\ndiscover:\n  - kubernetes=service/vllm,kubeconfig="+config+"\n")
		if _, stderr, code := harness.Finish(t, "", "serve", "--config", file); code != 2 || !strings.Contains(stderr, wants) || strings.Contains(stderr, `\n`) {
			t.Errorf("%d %s", code, stderr)
		}
	}
	if _, stderr, code := harness.Finish(t, "", "serve", "--discover", "kubernetes=service/vllm"); code != 2 || !strings.Contains(stderr, "does not run in a pod") {
		t.Errorf("%d %s", code, stderr)
	}
}
