package kubernetes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInCluster(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"token": "t1\n", "namespace": "models", "ca.crt": "none"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	environment := map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
	a, err := InCluster(func(name string) string { return environment[name] }, dir)
	if err != nil || a.Server != "https://[fd00::1]:443" || a.Namespace != "models" {
		t.Fatalf("%+v, %v", a, err)
	}
	if token, err := a.Token(); token != "t1" || err != nil {
		t.Errorf("token %q, %v", token, err)
	}
	if _, err := (&client{access: a}).client(); err == nil || !strings.Contains(err.Error(), "has no certificate") {
		t.Errorf("a CA file without a certificate: %v", err)
	}
	if _, err := InCluster(func(string) string { return "" }, dir); err == nil || !strings.Contains(err.Error(), "add kubeconfig=FILE") {
		t.Errorf("outside of a cluster: %v", err)
	}
}

func TestKubeconfig(t *testing.T) {
	const text = `
current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: n}}]
clusters: [{name: k, cluster: {server: "https://h:1", certificate-authority: ca.crt}}]
users: [{name: u, user: {token: secret}}]
`
	a, err := parseKubeconfig(text, "/etc/k")
	if err != nil || a.Server != "https://h:1" || a.CAFile != "/etc/k/ca.crt" || a.Namespace != "n" {
		t.Fatalf("%+v, %v", a, err)
	}
	for from, to := range map[string]string{
		"current-context: c":    `there is no context "x"`,
		"token: secret":         "which weir does not start",
		"https://h:1":           "has no server",
		"certificate-authority": "is not base64",
	} {
		changed := map[string]string{"current-context: c": "current-context: x", "token: secret": "exec: {command: aws}", "https://h:1": "h:1", "certificate-authority": "certificate-authority-data"}[from]
		if _, err := parseKubeconfig(strings.Replace(text, from, changed, 1), "/"); err == nil || !strings.Contains(err.Error(), to) {
			t.Errorf("%s: %v, want %q", changed, err, to)
		}
	}
}
