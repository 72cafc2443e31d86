//go:build interop_engines

package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

const chart = "../../integrations/kubernetes/weir"

// helm runs helm, built from its Go module.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	binary := os.Getenv("WEIR_HELM")
	if binary == "" {
		t.Fatal("WEIR_HELM is not set: run make interop-kubernetes")
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	err := cmd.Run()
	return out.String() + problem.String(), err
}

// objects are the documents of a file of YAML.
func objects(t *testing.T, text []byte) (all []object) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var o object
		if err := d.Decode(&o); err != nil {
			if err.Error() == "EOF" {
				return all
			}
			t.Fatal(err)
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
}

// settings are the values that the chart is rendered with.
var settings = []struct {
	name string
	args []string
}{
	{"engines of a Service", []string{"--set", "discover={service/vllm}"}},
	{"simulated engines, all parts", []string{"--set", "simulatedEngines.enabled=true,autoscaling.enabled=true,serviceMonitor.enabled=true,dashboard.enabled=true"}},
	{"keys and certificates", []string{"--set", "insecure=false,keysSecret=k,adminKeysSecret=a,peers.tlsSecret=p,limits.url=rediss://valkey:6379,limits.outage=refuse,serviceMonitor.enabled=true,serviceMonitor.bearerTokenSecret.name=s,serviceMonitor.bearerTokenSecret.key=token,engines={vllm=http://a:8000},rbac.namespaces={models}"}},
	{"one gateway, nothing else", []string{"--set", "replicas=1,peers.enabled=false,networkPolicy.enabled=false,podDisruptionBudget.enabled=false,rbac.create=false,engines={http://a:8000},drain.preStopSeconds=0"}},
	{"volumes and placement", []string{"--set", "discover={pool/llama},models={llama=/models/llama},volumes[0].name=m,volumes[0].emptyDir.sizeLimit=1Gi,volumeMounts[0].name=m,volumeMounts[0].mountPath=/models,nodeSelector.a=b,tolerations[0].key=x,tolerations[0].operator=Exists,envSecret=e,extraArgs={--policy=cost},podAnnotations.a=b,imagePullSecrets[0].name=r"}},
	{"scaling a Deployment of engines", []string{"--set", "discover={service/vllm},autoscaling.enabled=true,autoscaling.target.name=vllm,networkPolicy.apiFrom[0].podSelector.matchLabels.a=b"}},
}

// Every object of the chart, and of the manifests that are made of it, is accepted by the API
// server with strict validation of fields, in a namespace that enforces the restricted profile.
func TestManifests(t *testing.T) {
	c := start(t)
	c.create("/api/v1/namespaces", object{"metadata": object{"name": "models", "labels": object{"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}}})
	c.define("WEIR_SERVICEMONITOR", "/apis/monitoring.coreos.com/v1/namespaces/models/servicemonitors")
	apply := func(name string, text []byte) {
		all := objects(t, text)
		if len(all) < 2 {
			t.Errorf("%s: %d objects", name, len(all))
		}
		for _, o := range all {
			if code, answer := c.ask("POST", c.path(o)+"?dryRun=All&fieldValidation=Strict", "application/json", o); code != 201 {
				t.Errorf("%s: %v: %d %s", name, o["kind"], code, answer)
			}
		}
	}
	for _, s := range settings {
		out, err := helm(t, append([]string{"template", "weir", chart, "--namespace", "models"}, s.args...)...)
		if err != nil {
			t.Errorf("%s: %v: %s", s.name, err, out)
			continue
		}
		apply(s.name, []byte(out))
	}
	files, err := filepath.Glob("../../integrations/kubernetes/manifests/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		apply(file, bytes.ReplaceAll(text, []byte("namespace: default"), []byte("namespace: models")))
	}

	// The checks above can fail: a field that nobody knows, and a pod that may do too much.
	bad := object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "x", "namespace": "models"}, "spec": object{"replicaz": 1}}
	if code, answer := c.ask("POST", c.path(bad)+"?dryRun=All&fieldValidation=Strict", "application/json", bad); code != 400 || !strings.Contains(string(answer), "replicaz") {
		t.Errorf("a field that nobody knows: %d %s", code, answer)
	}
	// A Deployment of pods that are not restricted is accepted, so its pods are asked for.
	out, err := helm(t, "template", "weir", chart, "--namespace", "models", "--set", "simulatedEngines.enabled=true")
	if err != nil {
		t.Fatal(out)
	}
	pods := 0
	for _, o := range objects(t, []byte(out)) {
		if o["kind"] != "Deployment" {
			continue
		}
		pods++
		template := o["spec"].(object)["template"].(object)
		pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "x", "labels": template["metadata"].(object)["labels"]}, "spec": template["spec"]}
		if code, answer := c.ask("POST", namespace+"/pods?dryRun=All&fieldValidation=Strict", "application/json", pod); code != 201 {
			t.Errorf("a pod of %v: %d %s", o["metadata"], code, answer)
		}
		delete(pod["spec"].(object), "securityContext")
		if code, answer := c.ask("POST", namespace+"/pods?dryRun=All", "application/json", pod); code != 403 || !strings.Contains(string(answer), "restricted") {
			t.Errorf("a pod that may be root: %d %s", code, answer)
		}
	}
	if pods != 2 {
		t.Errorf("%d Deployments, want the gateway's and the engines'", pods)
	}
}

// path is where objects like this one are made.
func (c *cluster) path(o object) string {
	meta, _ := o["metadata"].(object)
	of := "/api/v1"
	if v := fmt.Sprint(o["apiVersion"]); v != "v1" {
		of = "/apis/" + v
	}
	kind := strings.ToLower(fmt.Sprint(o["kind"]))
	plural := kind + "s"
	if strings.HasSuffix(kind, "y") {
		plural = strings.TrimSuffix(kind, "y") + "ies"
	}
	return fmt.Sprintf("%s/namespaces/%v/%s", of, meta["namespace"], plural)
}

// Values that nobody knows, and those that cannot be meant, are refused by name.
func TestWrongValues(t *testing.T) {
	for _, c := range []struct{ set, want string }{
		{"discover={service/vllm},replica=3", "'replica' not allowed"},
		{"discover={service/vllm},drain.timeout=3", "'timeout' not allowed"},
		{"simulatedEngines.enable=true", "'enable' not allowed"},
		{"discover=service/vllm", "/discover"},
		{"discover={service/vllm},replicas=0", "/replicas"},
		{"discover={service/vllm},image.pullPolicy=never", "/image/pullPolicy"},
		{"", "set discover"},
		{"discover={service/vllm},insecure=false", "keysSecret is needed"},
		{"discover={service/vllm},limits.url=redis://valkey:6379", "limits.url needs keysSecret"},
		{"discover={service/vllm},insecure=false,keysSecret=k,adminKeysSecret=a", "peers.tlsSecret is needed"},
		{"discover={service/vllm},autoscaling.enabled=true", "autoscaling.target.name is needed"},
		{"simulatedEngines.enabled=true,autoscaling.minReplicas=9", "autoscaling.maxReplicas is less"},
	} {
		if out, err := helm(t, "template", "weir", chart, "--set", c.set); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v: %s; want %q", c.set, err, out, c.want)
		}
	}
	if out, err := helm(t, "lint", "--strict", chart, "--set", "discover={service/vllm}"); err != nil || strings.Contains(out, "[WARNING]") {
		t.Errorf("lint: %v: %s", err, out)
	}
}

// A pod has the time that it waits and that its streams have, and it serves what the Service and
// its policies name.
func TestTimesFit(t *testing.T) {
	out, err := helm(t, "template", "weir", chart, "--set", "discover={service/vllm},drain.preStopSeconds=7,drain.timeoutSeconds=100")
	if err != nil {
		t.Fatal(out)
	}
	for _, o := range objects(t, []byte(out)) {
		if o["kind"] != "Deployment" {
			continue
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"--drain-timeout=100s"`, `"sleep":{"seconds":7}`, `"terminationGracePeriodSeconds":117`} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s is not in %s", want, text)
			}
		}
		return
	}
	t.Error("no Deployment")
}

// The plain manifests and the chart's dashboard are those that make manifests makes.
func TestManifestsAreCurrent(t *testing.T) {
	same := func(file string, want []byte) {
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is stale (%v): run make manifests", file, err)
		}
	}
	for file, set := range map[string]string{"weir": "discover={service/vllm}", "weir-simulated": "simulatedEngines.enabled=true"} {
		out, err := helm(t, "template", "weir", chart, "--namespace", "default", "--set", set)
		if err != nil {
			t.Fatal(out)
		}
		same("../../integrations/kubernetes/manifests/"+file+".yaml", []byte(out))
	}
	dashboard, err := os.ReadFile("../../integrations/prometheus/weir.dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	same(chart+"/files/weir.dashboard.json", dashboard)
}
