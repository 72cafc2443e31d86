//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"weir/internal/lab/cell"
)

// Gateway is one of the candidates.
type Gateway struct {
	Name    string
	Relayed bool   // reads a relayed engine; otherwise one of ids
	Wire    string // by which it reads ids over HTTP (cell.Cell.Wire)
	Control bool   // must fail
	DialsIn bool   // its engine, a core of vLLM, connects to it
	// Peer is a gateway published by others, of which this program knows only the command
	// line. Its losses are reported, and fail no run.
	Peer bool
	// Weir reports whether it is weir, whose admin listener reports readiness, and Timed
	// whether its timeline has the first outputs of new requests as well.
	Weir, Timed bool
	// Args returns its command line. dir is a folder for it alone, admin a second address
	// for anything else that it listens at.
	Args func(b *Bench, c *cell.Cell, dir, admin string) ([]string, error)
	// Env are settings that it takes from its environment.
	Env []string
	// Header returns lines that it wants in each request's head.
	Header func(c *cell.Cell) []string
	// Ready is a path that answers 200 once it serves; /v1/models unless given.
	Ready string
}

// The names of the candidates.
const (
	Nginx        = "nginx"
	Relay        = "weir relay"
	Plane        = "weir plane"
	Core         = "weir vllm-core"
	SGLang       = "weir sglang"
	Cumulative   = "weir sglang cumulative"
	VLLM         = "weir vllm"
	ReverseProxy = "ReverseProxy"
	LatestWins   = "latest-wins"
	OneWrite     = "one-write-per-token"
)

// Gateways are the candidates in the order they run.
func Gateways() []Gateway {
	return []Gateway{
		{Name: Nginx, Relayed: true, Args: nginxArgs},
		{Name: Relay, Relayed: true, Weir: true, Args: func(b *Bench, c *cell.Cell, dir, admin string) ([]string, error) {
			return weirArgs(b, c, dir, admin, "openai=http://"+c.Engine+",model=bench"), nil
		}},
		{Name: Plane, Weir: true, Timed: true, Args: func(b *Bench, c *cell.Cell, dir, admin string) ([]string, error) {
			return weirArgs(b, c, dir, admin, "weir="+c.Engine), nil
		}},
		{Name: Core, DialsIn: true, Weir: true, Timed: true, Args: func(b *Bench, c *cell.Cell, dir, admin string) ([]string, error) {
			return weirArgs(b, c, dir, admin, "vllm-core=tcp://"+c.Engine+",model=weir-sim"), nil
		}},
		{Name: SGLang, Wire: cell.SGLangIncremental, Weir: true, Timed: true, Args: idsArgs("sglang")},
		{Name: Cumulative, Wire: cell.SGLangCumulative, Weir: true, Timed: true, Args: idsArgs("sglang")},
		{Name: VLLM, Wire: cell.VLLM, Weir: true, Timed: true, Args: idsArgs("vllm")},
		{Name: ReverseProxy, Relayed: true, Args: selfArgs("gateway-reverseproxy")},
		{Name: LatestWins, Control: true, Args: selfArgs("gateway-latest")},
		{Name: OneWrite, Control: true, Args: selfArgs("gateway-single")},
	}
}

// Named returns the candidate of a name; there must be one.
func Named(name string) Gateway {
	for _, g := range Gateways() {
		if g.Name == name {
			return g
		}
	}
	panic("bench: no gateway " + name)
}

func weirArgs(b *Bench, c *cell.Cell, dir, admin, engine string) []string {
	args := []string{b.Weir, "serve", "--listen", c.Gateway, "--admin-listen", admin, "--engine", engine,
		"--timeline", timelinePath(dir), "--log-level", "warn"}
	if b.Profile != "" {
		args = append(args, "--pprof")
	}
	return args
}

// idsArgs makes the command line of a weir that reads ids over HTTP.
func idsArgs(kind string) func(*Bench, *cell.Cell, string, string) ([]string, error) {
	return func(b *Bench, c *cell.Cell, dir, admin string) ([]string, error) {
		return weirArgs(b, c, dir, admin, kind+"=http://"+c.Engine+",model=weir-sim"), nil
	}
}

func timelinePath(dir string) string { return filepath.Join(dir, "timeline.jsonl") }

func selfArgs(role string) func(*Bench, *cell.Cell, string, string) ([]string, error) {
	return func(b *Bench, c *cell.Cell, _, _ string) ([]string, error) { return b.selfArgs(role, c) }
}

// nginxConfig is nginx at its best for the purpose: nothing logged, nothing
// buffered, connections kept, and the workers' shares of connections even.
const nginxConfig = `
daemon off;
worker_processes auto;
worker_rlimit_nofile 65536;
pid %[1]s/pid;
error_log stderr crit;
events { worker_connections 32768; }
http {
  access_log off;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
  keepalive_requests 1000000;
  upstream engine { server %[2]s; keepalive 4096; keepalive_requests 1000000; }
  server {
    listen %[3]s backlog=16384 reuseport;
    location / {
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
      send_timeout 600s;
    }
  }
}
`

// ErrNoNginx reports that nginx is not installed, and how to install it.
var ErrNoNginx = errors.New("nginx is not installed: run apt-get install -y nginx-light (or nginx)")

func nginxArgs(_ *Bench, c *cell.Cell, dir, _ string) ([]string, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			return nil, ErrNoNginx
		}
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, dir, c.Engine, c.Gateway), 0o600); err != nil {
		return nil, err
	}
	return []string{path, "-p", dir, "-c", config, "-g", "user root;"}, nil
}
