//go:build interop_engines

package kubernetes

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"weir/internal/lab/kubeapi"
	"weir/test/e2e/harness"
)

// Kubernetes' own client reads what the API server of weir's tests answers as it is meant: lists
// with pages, events of watches, selectors' additions and deletions, and 410 Gone.
func TestOwnServer(t *testing.T) {
	const pods, slices = "/api/v1/namespaces/models/pods", "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
	api, kubeconfig := harness.StartKubernetes(t)
	put := func(name, ip, ready string) {
		api.Put(pods, kubeapi.Object{"metadata": kubeapi.Object{"name": name, "namespace": "models", "uid": "uid-" + name, "labels": kubeapi.Object{"app": "vllm"}},
			"spec":   kubeapi.Object{"containers": []any{kubeapi.Object{"name": "c", "ports": []any{kubeapi.Object{"containerPort": 8000}}}}},
			"status": kubeapi.Object{"phase": "Running", "podIP": ip, "conditions": []any{kubeapi.Object{"type": "Ready", "status": ready}}}})
	}
	slice := func(ready bool) {
		api.Put(slices, kubeapi.Object{"metadata": kubeapi.Object{"name": "vllm-1", "namespace": "models", "labels": kubeapi.Object{"kubernetes.io/service-name": "vllm"}}, "addressType": "IPv4",
			"endpoints": []any{kubeapi.Object{"addresses": []any{"10.1.0.1"}, "conditions": kubeapi.Object{"ready": ready}}}})
	}
	for i := range 1200 { // more than a page of either client
		put(fmt.Sprintf("p-%04d", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), "True")
	}
	slice(true)
	client := harness.StartCommand(t, exec.Command(os.Getenv("WEIR_APISERVER"), "follow", kubeconfig, "models"))
	says := func(want string) {
		t.Helper()
		client.Find(want, func(line string) bool { return line == want })
	}
	says("synced")
	says("pod added p-0000 10.1.0.1 vllm True")
	says("pod added p-1199 10.1.4.200 vllm True")
	says("slice added vllm-1 10.1.0.1=true")
	put("p-0001", "10.1.0.2", "False")
	says("pod modified p-0001 10.1.0.2 vllm False")
	slice(false)
	says("slice modified vllm-1 10.1.0.1=false")
	api.Delete(pods, "p-0002")
	says("pod deleted p-0002 10.1.0.3 vllm True")
	api.Compact() // watches from before get 410 Gone, and the client lists again
	put("p-new", "10.1.9.9", "True")
	says("pod added p-new 10.1.9.9 vllm True")
	put("p-new", "10.1.9.9", "False")
	says("pod modified p-new 10.1.9.9 vllm False")
}
