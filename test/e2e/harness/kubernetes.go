package harness

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"weir/internal/lab/kubeapi"
)

// StartKubernetes starts a Kubernetes API server, over TLS and HTTP/2, and writes the kubeconfig
// of a user who may ask it. Its namespace is models.
func StartKubernetes(t testing.TB) (api *kubeapi.Server, kubeconfig string) {
	t.Helper()
	const token = "secret"
	api = kubeapi.New(token)
	server := httptest.NewUnstartedServer(api)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	kubeconfig = filepath.Join(dir, "kubeconfig")
	WriteFile(t, filepath.Join(dir, "token"), token+"\n")
	WriteFile(t, kubeconfig, fmt.Sprintf(`current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: models}}]
clusters: [{name: k, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {tokenFile: token}}]
`, server.URL, ca))
	return api, kubeconfig
}
