//go:build interop_engines

package kubernetes

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir/internal/lab/kubeapi"
	"weir/test/e2e/harness"
)

// kubectl is Kubernetes' own command, as a user of a kubeconfig.
type kubectl struct{ kubeconfig string }

func (k kubectl) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Getenv("WEIR_APISERVER"), append([]string{"kubectl", "--kubeconfig", k.kubeconfig, "--cache-dir", filepath.Dir(k.kubeconfig)}, args...)...)
	cmd.Env = append(os.Environ(), "KUBERC=off")
	return cmd
}

// run returns what a command prints to either stream.
func (k kubectl) run(input string, args ...string) (string, error) {
	cmd := k.command(args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must returns what a command prints that succeeds.
func (k kubectl) must(t *testing.T, input string, args ...string) string {
	t.Helper()
	out, err := k.run(input, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// user writes the kubeconfig of the cluster's administrator.
func (c *cluster) user() kubectl {
	k := kubectl{filepath.Join(c.t.TempDir(), "kubeconfig")}
	text := fmt.Sprintf(`current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: models}}]
clusters: [{name: k, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: admin}}]
`, c.url)
	if err := os.WriteFile(k.kubeconfig, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return k
}

// reads checks what kubectl reads of a server that has the pods a (ready) and b (not ready) and
// the EndpointSlice vllm-1. change makes a not ready, and remove removes it.
func (k kubectl) reads(t *testing.T, change, remove func()) {
	t.Helper()
	const columns = "custom-columns=NAME:.metadata.name,IP:.status.podIP,READY:.status.conditions[?(@.type=='Ready')].status"
	for _, c := range []struct {
		args string
		want []string
	}{
		{"get pods --no-headers -o " + columns, []string{"a 10.1.0.1 True", "b 10.1.0.2 False"}},
		{"get pods --no-headers -l app=other -o name", nil},
		{"get pods --no-headers --chunk-size=1 -l app=vllm -o name", []string{"pod/a", "pod/b"}},
		{"get pod b --no-headers -o " + columns, []string{"b 10.1.0.2 False"}},
		{"get endpointslices.discovery.k8s.io -o jsonpath={.items[*].endpoints[*].addresses[0]}", []string{"10.1.0.1"}},
		{"get endpointslices -l kubernetes.io/service-name=vllm -o name", []string{"endpointslice.discovery.k8s.io/vllm-1"}},
	} {
		var got []string
		for line := range strings.Lines(k.must(t, "", strings.Fields(c.args)...)) {
			if line = strings.Join(strings.Fields(line), " "); line != "" && !strings.HasPrefix(line, "No resources found") {
				got = append(got, line)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("kubectl %s: %q, want %q", c.args, got, c.want)
		}
	}
	for args, wants := range map[string][]string{
		"describe pod b":                {"Name: b", "Namespace: models", "Labels: app=vllm", "IP: 10.1.0.2", "Ready False", "Events: <none>"},
		"describe endpointslice vllm-1": {"Name: vllm-1", "AddressType: IPv4", "- Addresses: 10.1.0.1", "Ready: true", "Events: <none>"},
	} {
		out := strings.Join(strings.Fields(k.must(t, "", strings.Fields(args)...)), " ")
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("kubectl %s: %q, want %q in it", args, out, want)
			}
		}
	}
	if out, err := k.run("", "get", "pod", "nobody"); err == nil || !strings.Contains(out, `pods "nobody" not found`) {
		t.Errorf("a pod that is not there: %v: %s", err, out)
	}
	watch := harness.StartCommand(t, k.command("get", "pods", "--watch", "--output-watch-events", "-o",
		`jsonpath={.type} {.object.metadata.name} {.object.status.podIP} {.object.status.conditions[?(@.type=="Ready")].status}{"\n"}`))
	says := func(want string) {
		t.Helper()
		watch.Find(want, func(line string) bool { return strings.Join(strings.Fields(line), " ") == want })
	}
	says("ADDED a 10.1.0.1 True")
	says("ADDED b 10.1.0.2 False")
	change()
	says("MODIFIED a 10.1.0.1 False")
	remove()
	says("DELETED a 10.1.0.1 False")
}

// kubectl reads the API server of weir's tests as it reads Kubernetes' own: lists with pages and
// selectors, single objects, descriptions and watches.
func TestKubectlReads(t *testing.T) {
	slice := func() object {
		return object{"metadata": object{"name": "vllm-1", "namespace": "models", "labels": object{"kubernetes.io/service-name": "vllm"}}, "addressType": "IPv4",
			"endpoints": []any{object{"addresses": []any{"10.1.0.1"}, "conditions": object{"ready": true}}}}
	}
	const pods, slices = namespace + "/pods", "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
	t.Run("own", func(t *testing.T) {
		api, kubeconfig := harness.StartKubernetes(t)
		put := func(name, ip, ready string) {
			api.Put(pods, kubeapi.Object{"metadata": object{"name": name, "namespace": "models", "uid": "uid-" + name, "labels": object{"app": "vllm"}},
				"spec":   object{"containers": []any{object{"name": "c", "ports": []any{object{"containerPort": 8000}}}}},
				"status": object{"phase": "Running", "podIP": ip, "conditions": []any{object{"type": "Ready", "status": ready}}}})
		}
		put("a", "10.1.0.1", "True")
		put("b", "10.1.0.2", "False")
		api.Put(slices, slice())
		kubectl{kubeconfig}.reads(t, func() { put("a", "10.1.0.1", "False") }, func() { api.Delete(pods, "a") })
	})
	t.Run("kube-apiserver", func(t *testing.T) {
		c := start(t)
		c.create("/api/v1/namespaces", object{"metadata": object{"name": "models"}})
		unready := object{"conditions": []any{object{"type": "Ready", "status": "False"}}}
		c.pod("a", "10.1.0.1")
		c.pod("b", "10.1.0.2")
		c.status("b", unready)
		c.create(slices, slice())
		c.user().reads(t, func() { c.status("a", unready) }, func() { c.do("DELETE", pods+"/a?gracePeriodSeconds=0", "application/json", nil) })
	})
}

// The plain manifests and what helm renders are applied by kubectl without a warning. Applied again
// they change nothing, and they can be deleted.
func TestKubectlApplies(t *testing.T) {
	c := start(t)
	c.create("/api/v1/namespaces", object{"metadata": object{"name": "models", "labels": object{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}}})
	k := c.user()
	all := func(out, verb string) {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(out), "\n")
		for _, line := range lines {
			if !strings.HasSuffix(line, verb) {
				t.Errorf("%q, want an object %s", line, verb)
			}
		}
		if len(lines) < 5 {
			t.Errorf("%d objects %s: %s", len(lines), verb, out)
		}
	}
	files, err := filepath.Glob("../../integrations/kubernetes/manifests/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	for _, file := range files {
		all(k.must(t, "", "apply", "--dry-run=server", "--validate=strict", "-f", file), " created (server dry run)")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bad := string(bytes.Replace(text, []byte("  replicas:"), []byte("  replicaz:"), 1))
		if out, err := k.run(bad, "apply", "--dry-run=server", "--validate=strict", "-f", "-"); err == nil || !strings.Contains(out, "replicaz") {
			t.Errorf("%s with a field that nobody knows: %v: %s", file, err, out)
		}
	}
	out, err := helm(t, "template", "weir", chart, "--namespace", "models", "--set", "simulatedEngines.enabled=true,autoscaling.enabled=true")
	if err != nil {
		t.Fatal(out)
	}
	all(k.must(t, out, "apply", "-f", "-"), " created")
	// That apply says "configured" again of a NetworkPolicy and of a PodDisruptionBudget means nothing:
	// kubectl replaces their lists and selectors whole. There must be no difference.
	k.must(t, out, "apply", "-f", "-")
	if diff := k.must(t, out, "diff", "-f", "-"); diff != "" {
		t.Errorf("applied, and yet different: %s", diff)
	}
	all(k.must(t, out, "delete", "--wait=false", "-f", "-"), `deleted from models namespace`)
}
