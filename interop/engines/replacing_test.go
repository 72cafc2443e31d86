//go:build interop

package engines

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// TestReplacingNamesOthers holds the first column of docs/replacing.md to what other gateways
// have: each flag to the --help of SGLang's and vLLM's routers or to the program text of
// LiteLLM's command line, each metric to the routers' programs, and each directive to nginx,
// which checks a configuration of all of them.
func TestReplacingNamesOthers(t *testing.T) {
	text, err := os.ReadFile("../../docs/replacing.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(harness.Python(t), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.TrimSpace(string(out))
	routers := append(helpOf(t, "sglang_router.launch_router"), helpOf(t, "vllm_router.launch_router")...)
	litellm := files(t, packages, "litellm/proxy/proxy_cli.py")
	programs := append(files(t, packages, "sglang_router/*.so"), files(t, packages, "vllm_router*.so")...)

	var directives []string
	section, seen := "", 0
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = name
		}
		cells := strings.Split(line, "|")
		if len(cells) != 4 || strings.Contains(cells[1], "---") {
			continue
		}
		for _, quoted := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			known := programs
			name := quoted[1]
			switch {
			case strings.HasPrefix(section, "nginx"):
				directives = append(directives, name)
				continue
			case strings.HasPrefix(name, "--") && strings.HasPrefix(section, "LiteLLM"):
				known = litellm
			case strings.HasPrefix(name, "--"):
				known = routers
			case !strings.Contains(name, "_total") && !strings.HasPrefix(name, "smg_") && !strings.HasPrefix(name, "vllm_router_"):
				continue
			}
			seen++
			name = strings.TrimSuffix(strings.Fields(name)[0], "...")
			more := `[^a-z0-9_-]`
			if strings.HasSuffix(name, "-") { // --cb-...
				more = ""
			}
			if !regexp.MustCompile(regexp.QuoteMeta(name) + more).Match(known) {
				t.Errorf("%s has no %s", strings.TrimSpace(section), name)
			}
		}
	}
	if seen < 60 || len(directives) < 12 {
		t.Errorf("%d flags and metrics and %d directives only", seen, len(directives))
	}
	checkDirectives(t, directives)
}

// helpOf returns what a Python module prints for --help.
func helpOf(t *testing.T, module string) []byte {
	t.Helper()
	out, err := exec.Command(harness.Python(t), "-m", module, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v\n%s", module, err, out)
	}
	return out
}

// files returns the contents of the files that match a pattern below a folder.
func files(t *testing.T, folder, pattern string) []byte {
	t.Helper()
	names, err := fs.Glob(os.DirFS(folder), pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s has no %s: %v", folder, pattern, err)
	}
	var all []byte
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, data...)
	}
	return all
}

// checkDirectives has nginx check a configuration that contains each of these directives.
func checkDirectives(t *testing.T, directives []string) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key.pem")
	cert := filepath.Join(dir, "cert.pem")
	if out, err := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost", "-keyout", key, "-out", cert).CombinedOutput(); err != nil {
		t.Fatalf("openssl: %v\n%s", err, out)
	}
	// Where each directive stands, and with what.
	lines := map[string]string{
		"proxy_buffering off":              "",
		"proxy_read_timeout":               "600s",
		"proxy_next_upstream":              "error timeout",
		"client_max_body_size":             "32m",
		"limit_conn":                       "one 10",
		"ssl_certificate":                  cert,
		"ssl_certificate_key":              key,
		"listen ... proxy_protocol":        "",
		"set_real_ip_from":                 "127.0.0.1",
		"location":                         "",
		"least_conn":                       "",
		"upstream { server A; server B; }": "",
	}
	var server bytes.Buffer
	for _, d := range directives {
		with, ok := lines[d]
		switch {
		case !ok:
			t.Errorf("no line is known for nginx's %q: add one", d)
		case strings.HasPrefix(d, "upstream"), d == "least_conn", d == "location", strings.HasPrefix(d, "listen"):
		default:
			fmt.Fprintf(&server, "    %s %s;\n", d, with)
		}
		delete(lines, d)
	}
	for d := range lines {
		t.Errorf("docs/replacing.md has no %q any more", d)
	}
	config := fmt.Sprintf(`pid %[1]s/pid;
error_log stderr;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
  limit_conn_zone $binary_remote_addr zone=one:1m;
  upstream engines { least_conn; server 127.0.0.1:1; server 127.0.0.1:2; }
  server {
    listen unix:%[1]s/socket ssl proxy_protocol;
%[2]s    location /v1/ { proxy_pass http://engines; }
  }
}
`, dir, server.String())
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nginx", "-t", "-c", file).CombinedOutput(); err != nil {
		t.Errorf("nginx -t: %v\n%s\n%s", err, out, config)
	}
}
