package kubernetes

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"weir/internal/disk"
	"weir/internal/disk/yamltext"
	"weir/internal/wire/trust"
)

// Access is how an API server is reached.
type Access struct {
	Server     string // the URL
	ServerName string // of its certificate, if it is not the URL's host
	Insecure   bool   // its certificate is not checked
	Namespace  string // the one to which the credentials belong; empty: none
	// CAFile or CA has the certificate authorities; both empty: those of the system.
	CAFile string
	CA     string
	// Token reads the token; nil: there is none.
	Token func() (string, error)
	// Certificate reads weir's own certificate; nil: there is none.
	Certificate func() (*tls.Certificate, error)
}

// ServiceAccount is the folder in which a pod finds its credentials.
const ServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster returns the access of a pod, as the kubelet gives it: by variables of the
// environment, and files in a folder.
func InCluster(environment func(string) string, dir string) (Access, error) {
	host, port := environment("KUBERNETES_SERVICE_HOST"), environment("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Access{}, errors.New("weir does not run in a pod (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set): add kubeconfig=FILE")
	}
	a := Access{Server: "https://" + net.JoinHostPort(host, port), CAFile: filepath.Join(dir, "ca.crt"), Token: tokenIn(filepath.Join(dir, "token"))}
	namespace, err := readSmall(filepath.Join(dir, "namespace"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Access{}, err
	}
	a.Namespace = strings.TrimSpace(namespace)
	return a, nil
}

// tokenIn reads a token from a file.
func tokenIn(path string) func() (string, error) {
	return func() (string, error) {
		token, err := readSmall(path)
		if token = strings.TrimSpace(token); err == nil && (token == "" || strings.ContainsAny(token, "\r\n \t")) {
			err = fmt.Errorf("%s has no token", path)
		}
		return token, err
	}
}

// readSmall reads a file that has at most maxTokenSize bytes.
func readSmall(path string) (string, error) {
	data, err := disk.Read(path, maxTokenSize)
	return string(data), err
}

// ca returns the certificate authorities.
func (a *Access) ca() (string, error) {
	if a.CAFile == "" {
		return a.CA, nil
	}
	return readSmall(a.CAFile)
}

func (a *Access) caName() string {
	if a.CAFile != "" {
		return a.CAFile
	}
	return "the kubeconfig's certificate-authority-data"
}

// Kubeconfig reads the access of a kubeconfig's current context.
func Kubeconfig(path string) (Access, error) {
	text, err := readSmall(path)
	if err != nil {
		return Access{}, err
	}
	a, err := parseKubeconfig(text, filepath.Dir(path))
	if err != nil {
		return Access{}, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

// parseKubeconfig reads a kubeconfig, whose paths are relative to dir.
func parseKubeconfig(text, dir string) (a Access, err error) {
	var k struct {
		Current  string `yaml:"current-context"`
		Contexts []struct {
			Name    string
			Context struct{ Cluster, User, Namespace string }
		}
		Clusters []struct {
			Name    string
			Cluster struct {
				Server     string
				ServerName string `yaml:"tls-server-name"`
				Insecure   bool   `yaml:"insecure-skip-tls-verify"`
				CAFile     string `yaml:"certificate-authority"`
				CA         string `yaml:"certificate-authority-data"`
			}
		}
		Users []struct {
			Name string
			User struct {
				Token     string
				TokenFile string `yaml:"tokenFile"`
				CertFile  string `yaml:"client-certificate"`
				Cert      string `yaml:"client-certificate-data"`
				KeyFile   string `yaml:"client-key"`
				Key       string `yaml:"client-key-data"`
				Exec      any
				Provider  any `yaml:"auth-provider"`
			}
		}
	}
	if err := yamltext.Decode([]byte(text), &k); err != nil {
		return a, err
	}
	cluster, user, found := "", "", false
	for _, c := range k.Contexts {
		if c.Name == k.Current {
			cluster, user, a.Namespace, found = c.Context.Cluster, c.Context.User, c.Context.Namespace, true
		}
	}
	if !found {
		return a, fmt.Errorf("there is no context %q, the current-context", k.Current)
	}
	at := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(dir, path)
	}
	decoded := func(name, text string) string {
		data, wrong := base64.StdEncoding.DecodeString(text)
		if wrong != nil && err == nil {
			err = fmt.Errorf("%s is not base64", name)
		}
		return string(data)
	}
	for _, c := range k.Clusters {
		if c.Name != cluster {
			continue
		}
		a.Server, a.ServerName, a.Insecure, a.CAFile = c.Cluster.Server, c.Cluster.ServerName, c.Cluster.Insecure, at(c.Cluster.CAFile)
		a.CA = decoded("certificate-authority-data", c.Cluster.CA)
	}
	if !strings.HasPrefix(a.Server, "https://") && !strings.HasPrefix(a.Server, "http://") {
		return a, fmt.Errorf("the cluster %q has no server with https://", cluster)
	}
	for _, u := range k.Users {
		if u.Name != user {
			continue
		}
		of := u.User
		switch {
		case of.Exec != nil || of.Provider != nil:
			return a, fmt.Errorf("the user %q gets its credentials from a program (exec, auth-provider), which weir does not start: use a token or a certificate, such as those of a service account", user)
		case of.TokenFile != "":
			a.Token = tokenIn(at(of.TokenFile))
		case of.Token != "":
			a.Token = func() (string, error) { return of.Token, nil }
		}
		cert, key := decoded("client-certificate-data", of.Cert), decoded("client-key-data", of.Key)
		if of.Cert == "" && of.CertFile == "" {
			continue
		}
		a.Certificate = func() (*tls.Certificate, error) {
			cert, key := cert, key
			var err error
			if of.CertFile != "" {
				if cert, err = readSmall(at(of.CertFile)); err != nil {
					return nil, err
				}
			}
			if of.KeyFile != "" {
				if key, err = readSmall(at(of.KeyFile)); err != nil {
					return nil, err
				}
			}
			pair, err := trust.Pair([]byte(cert), []byte(key))
			return &pair, err
		}
	}
	return a, err
}
