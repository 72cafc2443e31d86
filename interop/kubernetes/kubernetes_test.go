//go:build interop_engines

// Package kubernetes follows Kubernetes' own API server, with a service account that has the
// Role of docs/kubernetes.md and nothing else. make interop-engines builds the server.
package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/fleet/kubernetes"
)

// cluster is an API server that runs.
type cluster struct {
	t   *testing.T
	url string
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// start starts etcd and the API server.
func start(t *testing.T) *cluster {
	binary := os.Getenv("WEIR_APISERVER")
	if binary == "" {
		t.Fatal("WEIR_APISERVER is not set: run make interop-engines")
	}
	dir := t.TempDir()
	run := func(name string, args ...string) {
		log, err := os.Create(filepath.Join(dir, name+".log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(binary, args...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait(); log.Close() })
	}
	key := filepath.Join(dir, "sa.key")
	if out, err := exec.Command("openssl", "genrsa", "-out", key, "2048").CombinedOutput(); err != nil {
		t.Fatalf("openssl: %v %s", err, out)
	}
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte("admin,admin,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	etcd, peer, port := "http://127.0.0.1:"+freePort(t), "http://127.0.0.1:"+freePort(t), freePort(t)
	run("etcd", "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync")
	run("apiserver", "--etcd-servers="+etcd, "--secure-port="+port, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--cert-dir="+dir,
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key, "--service-account-issuer=https://kubernetes.default.svc",
		"--token-auth-file="+tokens, "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount")
	c := &cluster{t, "https://127.0.0.1:" + port}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second / 2) {
		if code, _ := c.ask("GET", "/readyz", "", nil); code == 200 {
			return c
		} else if time.Now().After(end) {
			t.Fatal("the API server is not ready in 2 minutes")
		}
	}
}

func (c *cluster) ask(method, path, kind string, body any) (int, []byte) {
	var data []byte
	if body != nil {
		data, _ = json.Marshal(body)
	}
	req, err := http.NewRequest(method, c.url+path, bytes.NewReader(data))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	req.Header.Set("Content-Type", kind)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, answer
}

type object = map[string]any

// do asks for a change that must be made.
func (c *cluster) do(method, path, kind string, body any) []byte {
	c.t.Helper()
	code, answer := c.ask(method, path, kind, body)
	if code < 200 || code > 299 {
		c.t.Fatalf("%s %s: %d %s", method, path, code, answer)
	}
	return answer
}

func (c *cluster) create(path string, body object) []byte {
	c.t.Helper()
	return c.do("POST", path, "application/json", body)
}

// define makes the custom resources of the file that a variable names, and waits until they are
// served.
func (c *cluster) define(variable, path string) {
	c.t.Helper()
	crd, err := os.ReadFile(os.Getenv(variable))
	if err != nil {
		c.t.Fatalf("%s: %v: run make interop-kubernetes", variable, err)
	}
	for _, o := range objects(c.t, crd) {
		c.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", o)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if code, _ := c.ask("GET", path, "", nil); code == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("%s is not served a minute after its definition was made", path)
		}
	}
}

const namespace = "/api/v1/namespaces/models"

func (c *cluster) pod(name, ip string) (uid string) {
	c.t.Helper()
	answer := c.create(namespace+"/pods", object{"metadata": object{"name": name, "labels": object{"app": "vllm", "llm-d.ai/role": "decode"}},
		"spec": object{"containers": []any{object{"name": "c", "image": "x", "ports": []any{object{"name": "http", "containerPort": 8000}}}}}})
	var p struct{ Metadata struct{ UID string } }
	if err := json.Unmarshal(answer, &p); err != nil {
		c.t.Fatal(err)
	}
	c.status(name, object{"phase": "Running", "podIP": ip, "podIPs": []any{object{"ip": ip}}, "conditions": []any{object{"type": "Ready", "status": "True"}}})
	return p.Metadata.UID
}

func (c *cluster) status(name string, status object) {
	c.t.Helper()
	c.do("PATCH", namespace+"/pods/"+name+"/status", "application/merge-patch+json", object{"status": status})
}

func endpoint(pod, uid, ip string, conditions object) object {
	return object{"addresses": []any{ip}, "conditions": conditions, "targetRef": object{"kind": "Pod", "namespace": "models", "name": pod, "uid": uid}}
}

// Engines are those of a cluster, by Pods, by a Service's EndpointSlices, and by an InferencePool;
// without its Role, or without the resource, weir says what is missing.
func TestAPIServer(t *testing.T) {
	c := start(t)
	const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/models"
	c.create("/api/v1/namespaces", object{"metadata": object{"name": "models"}})
	c.create(namespace+"/serviceaccounts", object{"metadata": object{"name": "weir"}})
	var token struct{ Status struct{ Token string } }
	if err := json.Unmarshal(c.create(namespace+"/serviceaccounts/weir/token", object{"spec": object{}}), &token); err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	seen := map[string]string{}
	follow := func(name string, q kubernetes.Query) *kubernetes.Source {
		s := kubernetes.New(kubernetes.Options{Query: q, Namespace: "models", Changed: func(kubernetes.Kind, error) {},
			Access: kubernetes.Access{Server: c.url, Insecure: true, Token: func() (string, error) { return token.Status.Token, nil }},
			Found: func(engines []*kubernetes.Engine, _ []string) {
				var all []string
				for _, e := range engines {
					all = append(all, fmt.Sprintf("%s %s %s %s", e.Name, e.Address, e.Role, e.Drained))
				}
				mu.Lock()
				defer mu.Unlock()
				seen[name] = strings.TrimSpace(strings.Join(all, "; "))
			}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		t.Cleanup(func() { cancel(); <-done })
		return s
	}
	becomes := func(name, want string) {
		t.Helper()
		for end := time.Now().Add(40 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			mu.Lock()
			got := seen[name]
			mu.Unlock()
			if got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %q, want %q", name, got, want)
			}
		}
	}
	pods := follow("pods", kubernetes.Query{Selector: kubernetes.Selector{"app=vllm"}})
	follow("service", kubernetes.Query{Service: "vllm"})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if err := pods.Status().Err; err != nil && strings.Contains(err.Error(), `{apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]}`) {
			break
		} else if time.Now().After(end) {
			t.Fatalf("without a Role: %v", err)
		}
	}
	c.create(rbac+"/roles", object{"metadata": object{"name": "weir"}, "rules": []any{
		object{"apiGroups": []any{""}, "resources": []any{"pods"}, "verbs": []any{"list", "watch"}},
		object{"apiGroups": []any{"discovery.k8s.io"}, "resources": []any{"endpointslices"}, "verbs": []any{"list", "watch"}}}})
	c.create(rbac+"/rolebindings", object{"metadata": object{"name": "weir"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "weir"},
		"subjects": []any{object{"kind": "ServiceAccount", "name": "weir", "namespace": "models"}}})

	a, b := c.pod("a", "10.1.0.1"), c.pod("b", "10.1.0.2")
	becomes("pods", "a 10.1.0.1:8000 decode ; b 10.1.0.2:8000 decode")
	const slices = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
	slice := func(second object) object {
		return object{"metadata": object{"name": "vllm-1", "labels": object{"kubernetes.io/service-name": "vllm"}}, "addressType": "IPv4",
			"ports": []any{object{"name": "http", "port": 8000}}, "endpoints": []any{endpoint("a", a, "10.1.0.1", object{"ready": true}), endpoint("b", b, "10.1.0.2", second)}}
	}
	c.create(slices, slice(object{"ready": true}))
	becomes("service", "a 10.1.0.1:8000 decode ; b 10.1.0.2:8000 decode")
	c.do("PUT", slices+"/vllm-1", "application/json", slice(object{"ready": false, "serving": true, "terminating": true}))
	becomes("service", "a 10.1.0.1:8000 decode ; b 10.1.0.2:8000 decode its pod is terminating")
	c.status("a", object{"conditions": []any{object{"type": "Ready", "status": "False"}}})
	becomes("pods", "a 10.1.0.1:8000 decode its pod is not ready; b 10.1.0.2:8000 decode")
	c.status("a", object{"conditions": []any{object{"type": "Ready", "status": "True"}}})
	becomes("pods", "a 10.1.0.1:8000 decode ; b 10.1.0.2:8000 decode")
	c.do("PATCH", namespace+"/pods/a", "application/merge-patch+json", object{"metadata": object{"labels": object{"app": "other"}}})
	becomes("pods", "b 10.1.0.2:8000 decode")
	c.do("DELETE", namespace+"/pods/b?gracePeriodSeconds=0", "application/json", nil)
	c.do("DELETE", slices+"/vllm-1", "application/json", nil)
	becomes("pods", "")
	becomes("service", "")
	if s := pods.Status(); s.Err != nil || s.Events == 0 {
		t.Errorf("%+v", s)
	}

	const pools = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools"
	pool := follow("pool", kubernetes.Query{Pool: "llama"})
	lacks := func(what string) {
		t.Helper()
		for end := time.Now().Add(40 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			err := pool.Status().Err
			if err != nil && strings.Contains(err.Error(), what) {
				return
			} else if time.Now().After(end) {
				t.Fatalf("the pool's source says %v, want %q", err, what)
			}
		}
	}
	rule := object{"apiGroups": []any{"inference.networking.k8s.io"}, "resources": []any{"inferencepools"}, "verbs": []any{"list", "watch"}}
	lacks(`{apiGroups: ["inference.networking.k8s.io"], resources: ["inferencepools"], verbs: ["list", "watch"]}`)
	c.create(rbac+"/roles", object{"metadata": object{"name": "pools"}, "rules": []any{rule}})
	c.create(rbac+"/rolebindings", object{"metadata": object{"name": "pools"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pools"},
		"subjects": []any{object{"kind": "ServiceAccount", "name": "weir", "namespace": "models"}}})
	lacks("the API server does not know inference.networking.k8s.io/v1")
	c.define("WEIR_INFERENCEPOOL", pools)
	spec := func(app string, ports ...int) object {
		var all []any
		for _, p := range ports {
			all = append(all, object{"number": p})
		}
		return object{"selector": object{"matchLabels": object{"app": app}}, "targetPorts": all, "endpointPickerRef": object{"name": "weir", "port": object{"number": 9002}}}
	}
	c.create(pools, object{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": object{"name": "llama"}, "spec": spec("vllm", 8000)})
	c.pod("d", "10.1.0.4")
	becomes("pool", "d 10.1.0.4:8000 decode")
	c.do("PATCH", pools+"/llama", "application/merge-patch+json", object{"spec": spec("vllm", 8000, 8001)})
	becomes("pool", "d:8000 10.1.0.4:8000 decode ; d:8001 10.1.0.4:8001 decode")
	c.do("PATCH", pools+"/llama", "application/merge-patch+json", object{"spec": spec("other", 8000)})
	becomes("pool", "a 10.1.0.1:8000 decode")
	c.do("DELETE", pools+"/llama", "application/json", nil)
	becomes("pool", "")
}
