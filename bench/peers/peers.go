//go:build linux

// Package peers starts gateways that others publish, so that benchmarks can compare
// weir with them. Their versions are pinned, and make bench-peers sets up their
// folder. Their settings are here; docs/bench/peers.md gives the reasons.
package peers

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"weir/internal/lab"
	"weir/internal/lab/cell"
)

// The names of the gateways.
const (
	SMG        = "smg"
	Router     = "sglang-router"
	VLLMRouter = "vllm-router"
	LiteLLM    = "litellm"
	Portkey    = "portkey"
	HAProxy    = "haproxy"
	VLLMRust   = "vllm-rs" // vLLM's own front end, before the same core as weir's vllm-core
)

// Folder is where make bench-peers sets them up, seen from the module's root.
const Folder = ".venv/peers"

// All returns the gateways that are set up in a folder.
func All(folder string) []lab.Gateway {
	if abs, err := filepath.Abs(folder); err == nil {
		folder = abs // a gateway may change its working directory
	}
	return []lab.Gateway{
		{Name: SMG, Peer: true, Relayed: true, Ready: "/health", Args: router(folder, SMG)},
		{Name: Router, Peer: true, Relayed: true, Ready: "/health", Args: router(folder, Router)},
		{Name: VLLMRouter, Peer: true, Relayed: true, Ready: "/health", Args: router(folder, VLLMRouter)},
		{Name: LiteLLM, Peer: true, Relayed: true, Ready: "/health/liveliness", Args: litellm(folder), Env: litellmEnv, Header: litellmHeader},
		{Name: Portkey, Peer: true, Relayed: true, Ready: "/", Args: portkey(folder), Env: portkeyEnv, Header: portkeyHeader},
		{Name: HAProxy, Peer: true, Relayed: true, Args: haproxy},
		{Name: VLLMRust, Peer: true, DialsIn: true, Ready: "/health", Args: vllmRust(folder)},
	}
}

// args returns the command that starts a gateway.
type args = func(b *lab.Bench, c *cell.Cell, dir, admin string) ([]string, error)

// installed finds a gateway's program. Its error names the command that installs it.
func installed(path ...string) (string, error) {
	name := filepath.Join(path...)
	if _, err := os.Stat(name); err != nil {
		return "", fmt.Errorf("%s is not set up: run make bench-peers (%w)", filepath.Base(name), err)
	}
	return name, nil
}

// router starts one of the three gateways that descend from SGLang's router. It has
// one worker, which leaves nothing to choose, so no policy keeps a tree of prompts.
func router(folder, name string) args {
	return func(_ *lab.Bench, c *cell.Cell, _, admin string) ([]string, error) {
		path, err := installed(folder, name, "bin", name)
		if err != nil {
			return nil, err
		}
		host, port, err := net.SplitHostPort(c.Gateway)
		if err != nil {
			return nil, err
		}
		metricsHost, metricsPort, err := net.SplitHostPort(admin)
		if err != nil {
			return nil, err
		}
		line := []string{path}
		if name != VLLMRouter {
			line = append(line, "launch")
		}
		return append(line, "--host", host, "--port", port, "--worker-urls", "http://"+c.Engine,
			"--policy", "round_robin", "--log-level", "error", "--prometheus-host", metricsHost, "--prometheus-port", metricsPort), nil
	}
}

// vllmRustPath is where make interop-ready keeps vLLM's front end, seen from the peers'
// folder.
const vllmRustPath = "../vllm-rs/0.33.0"

// vllmRust starts vLLM's Rust front end with its defaults.
func vllmRust(folder string) args {
	return func(_ *lab.Bench, c *cell.Cell, _, _ string) ([]string, error) {
		path, err := installed(folder, vllmRustPath)
		if err != nil {
			return nil, err
		}
		host, port, err := net.SplitHostPort(c.Gateway)
		if err != nil {
			return nil, err
		}
		engineHost, enginePort, err := net.SplitHostPort(c.Engine)
		if err != nil {
			return nil, err
		}
		model, err := filepath.Abs("models/weir-sim")
		if err != nil {
			return nil, err
		}
		return []string{path, "serve", model, "--served-model-name", "weir-sim", "--host", host, "--port", port,
			"--data-parallel-size-local", "0", "--data-parallel-address", engineHost, "--data-parallel-rpc-port", enginePort}, nil
	}
}

// litellmConfig is the configuration of LiteLLM's own benchmarks: no callbacks, no
// retries, no database.
const litellmConfig = `model_list:
  - model_name: bench
    litellm_params:
      model: openai/bench
      api_base: http://%s/v1
      api_key: none
litellm_settings:
  callbacks: []
  num_retries: 0
  request_timeout: 600
  telemetry: false
`

// litellmKey is the master key. LiteLLM does not start without one.
const litellmKey = "sk-5f0c1d7be2a94863b4f87d1c30e95a26"

// litellmHeader carries the key.
func litellmHeader(*cell.Cell) []string { return []string{"Authorization: Bearer " + litellmKey} }

// litellmEnv follows LiteLLM's guide to production: the mode of production, and no
// log below errors. The price list is the one of the release.
var litellmEnv = []string{"LITELLM_MASTER_KEY=" + litellmKey, "LITELLM_MODE=PRODUCTION", "LITELLM_LOG=ERROR", "LITELLM_LOCAL_MODEL_COST_MAP=True", "NO_DOCS=True", "NO_REDOC=True"}

func litellm(folder string) args {
	return func(_ *lab.Bench, c *cell.Cell, dir, _ string) ([]string, error) {
		path, err := installed(folder, LiteLLM, "bin", LiteLLM)
		if err != nil {
			return nil, err
		}
		host, port, err := net.SplitHostPort(c.Gateway)
		if err != nil {
			return nil, err
		}
		config := filepath.Join(dir, "litellm.yaml")
		if err := os.WriteFile(config, fmt.Appendf(nil, litellmConfig, c.Engine), 0o600); err != nil {
			return nil, err
		}
		return []string{path, "--config", config, "--host", host, "--port", port, "--num_workers", strconv.Itoa(runtime.NumCPU())}, nil
	}
}

// portkeyEnv is the environment of production, without the console. Portkey itself
// has no setting for the address that it listens at.
var portkeyEnv = []string{"NODE_ENV=production"}

// loopback makes Node listen at a loopback address if the program names no address.
const loopback = `const net = require('node:net');
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  return typeof port === 'number' && typeof rest[0] !== 'string' ? listen.call(this, port, '127.0.0.1', ...rest.filter((x) => typeof x === 'function')) : listen.call(this, port, ...rest);
};
`

func portkey(folder string) args {
	return func(_ *lab.Bench, c *cell.Cell, dir, _ string) ([]string, error) {
		path, err := installed(folder, Portkey, "node_modules/@portkey-ai/gateway/build/start-server.js")
		if err != nil {
			return nil, err
		}
		node, err := exec.LookPath("node")
		if err != nil {
			return nil, err
		}
		_, port, err := net.SplitHostPort(c.Gateway)
		if err != nil {
			return nil, err
		}
		script := filepath.Join(dir, "loopback.cjs")
		if err := os.WriteFile(script, []byte(loopback), 0o600); err != nil {
			return nil, err
		}
		return []string{node, "--require", script, path, "--port=" + port, "--headless"}, nil
	}
}

// portkeyHeader names the engine's address in each request.
func portkeyHeader(c *cell.Cell) []string {
	return []string{"x-portkey-provider: openai", "x-portkey-custom-host: http://" + c.Engine + "/v1", "Authorization: Bearer none"}
}

// haproxyConfig has a thread per core. Threads share kept connections, as many as
// there are files. A request ends with its client's connection (abortonclose).
// HAProxy sends on at once what arrives: without http-no-delay it announces to the
// kernel that more is to come, and a token waits for that.
const haproxyConfig = `global
  nbthread %d
defaults
  mode http
  option http-no-delay
  option http-keep-alive
  option abortonclose
  http-reuse always
  timeout connect 10s
  timeout client 600s
  timeout server 600s
  retries 0
listen engine
  bind %s backlog 16384
  server engine %s
`

func haproxy(_ *lab.Bench, c *cell.Cell, dir, _ string) ([]string, error) {
	path, err := haproxyPath()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(config, fmt.Appendf(nil, haproxyConfig, runtime.NumCPU(), c.Gateway, c.Engine), 0o600); err != nil {
		return nil, err
	}
	return []string{path, "-db", "-q", "-f", config}, nil
}

func haproxyPath() (string, error) {
	path, err := exec.LookPath("haproxy")
	if err != nil {
		return installed("/usr/sbin/haproxy")
	}
	return path, nil
}

// Version returns the version of a gateway that is set up, as its package states it.
// It is empty if the gateway is not there.
func Version(folder, name string) string {
	switch name {
	case HAProxy:
		path, err := haproxyPath()
		if err != nil {
			return ""
		}
		out, _ := exec.Command(path, "-v").Output() // no output, no version
		return string(haproxyVersion.Find(out))
	case VLLMRust:
		if _, err := os.Stat(filepath.Join(folder, vllmRustPath)); err != nil {
			return ""
		}
		return filepath.Base(vllmRustPath)
	case Portkey:
		var pkg struct{ Version string }
		data, err := os.ReadFile(filepath.Join(folder, Portkey, "node_modules/@portkey-ai/gateway/package.json"))
		if err != nil || json.Unmarshal(data, &pkg) != nil {
			return ""
		}
		return pkg.Version
	}
	// pip leaves NAME-VERSION.dist-info, the name's dashes as underscores.
	under := strings.ReplaceAll(name, "-", "_") + "-"
	found, _ := filepath.Glob(filepath.Join(folder, name, "lib/python*/site-packages", under+"*.dist-info")) // the pattern is good
	if len(found) == 0 {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), under), ".dist-info")
}

var haproxyVersion = regexp.MustCompile(`[0-9]+\.[0-9]+\.[0-9]+[^ ]*`)
