//go:build linux

package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Gateway is one of the candidates.
type Gateway struct {
	Name    string
	Relayed bool // reads a relayed engine; otherwise the plane
	Control bool // must fail
	// args give its command line; dir is a folder of its own.
	args func(b *bench, c *Cell, dir, admin string) ([]string, error)
}

// The names of those that verdicts speak of.
const (
	nameNginx  = "nginx"
	nameRelay  = "weir relay"
	namePlane  = "weir plane"
	nameLatest = "latest-wins"
	nameSingle = "one-write-per-token"
)

// gateways are the candidates in the order they run.
func gateways() []Gateway {
	return []Gateway{
		{Name: nameNginx, Relayed: true, args: nginxArgs},
		{Name: nameRelay, Relayed: true, args: func(b *bench, c *Cell, dir, admin string) ([]string, error) {
			return weirArgs(b, c, dir, admin, "openai=http://"+c.Engine+",model=bench"), nil
		}},
		{Name: namePlane, args: func(b *bench, c *Cell, dir, admin string) ([]string, error) {
			return weirArgs(b, c, dir, admin, "weir="+c.Engine), nil
		}},
		{Name: "ReverseProxy", Relayed: true, args: selfArgs("gateway-reverseproxy")},
		{Name: nameLatest, Control: true, args: selfArgs("gateway-latest")},
		{Name: nameSingle, Control: true, args: selfArgs("gateway-single")},
	}
}

func weirArgs(b *bench, c *Cell, dir, admin, engine string) []string {
	return []string{b.weir, "serve", "--listen", c.Gateway, "--admin-listen", admin, "--engine", engine,
		"--timeline", timelinePath(dir), "--log-level", "warn"}
}

func timelinePath(dir string) string { return filepath.Join(dir, "timeline.jsonl") }

func selfArgs(role string) func(*bench, *Cell, string, string) ([]string, error) {
	return func(b *bench, c *Cell, _, _ string) ([]string, error) { return b.selfArgs(role, c) }
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

func nginxArgs(_ *bench, c *Cell, dir, _ string) ([]string, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			return nil, fmt.Errorf("nginx is not installed: run apt-get install -y nginx-light (or nginx)")
		}
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, dir, c.Engine, c.Gateway), 0o600); err != nil {
		return nil, err
	}
	return []string{path, "-p", dir, "-c", config, "-g", "user root;"}, nil
}

// process is a child that stop ends.
type process struct {
	cmd  *exec.Cmd
	err  *strings.Builder
	done chan struct{}
}

func start(args []string) (*process, error) {
	p := &process{cmd: exec.Command(args[0], args[1:]...), err: new(strings.Builder), done: make(chan struct{})}
	p.cmd.Stderr = p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ended does not matter once it is stopped
	}()
	return p, nil
}

// stop asks the process to end, and makes it.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(3 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// pids gives the process and its children.
func (p *process) pids() []int {
	return append([]int{p.cmd.Process.Pid}, children(p.cmd.Process.Pid)...)
}

// awaitHTTP waits until a URL answers with status 200.
func (p *process) awaitHTTP(url string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return p.await(url, func() bool {
		resp, err := client.Get(url)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// awaitTCP waits until an address accepts.
func (p *process) awaitTCP(addr string) error {
	return p.await(addr, func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

func (p *process) await(what string, ready func() bool) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %s", filepath.Base(p.cmd.Path), p.err)
		default:
		}
		if ready() {
			return nil
		}
	}
	return fmt.Errorf("%s does not answer after 20 s: %s", what, p.err)
}

// freeAddr finds a loopback address that nobody listens at.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
