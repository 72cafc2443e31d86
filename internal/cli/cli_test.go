package cli

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Pooled connections of net/http's default transport are not ours.
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		http.DefaultClient.CloseIdleConnections()
		os.Exit(code)
	}))
}

// run runs a command line.
func run(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runWith(t, "", args...)
}

// runWith is run with something to read.
func runWith(t testing.TB, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = Main(args, strings.NewReader(stdin), &out, &err)
	return code, out.String(), err.String()
}

// commandLines skips a test of many command lines that start nothing under -short, which
// the race detector's runs set: it would find nothing in them, and take ten times as long.
func commandLines(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("these start nothing, and run without the race detector")
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A command line that cannot be meant ends with 2 and says what to do; work
// that fails ends with 1.
func TestBadValues(t *testing.T) {
	commandLines(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	engine := []string{"serve", "--engine", "openai=http://127.0.0.1:1"}
	for _, test := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"unknown command", []string{"sevre"}, 2, []string{"sevre", "weir --help"}},
		{"unknown flag", []string{"up", "--listne", "x"}, 2, []string{"--listne", "--listen"}},
		{"no value", []string{"up", "--listen"}, 2, []string{"--listen"}},
		{"not a duration", []string{"up", "--idle-timeout", "soon"}, 2, []string{"--idle-timeout", "soon"}},
		{"not a number", []string{"up", "--max-requests", "many"}, 2, []string{"--max-requests", "many"}},
		{"not a level", []string{"up", "--log-level", "loud"}, 2, []string{`--log-level: "loud" is not a level; want debug, info, warn or error`}},
		{"no keys file", append(engine, "--keys", filepath.Join(dir, "none.yaml")), 2, []string{"--keys: open "}},
		{"no time", append(engine, "--idle-timeout", "0s"), 2, []string{"--idle-timeout must be positive", "weir serve --help"}},
		{"negative time", append(engine, "--write-timeout=-1s"), 2, []string{"--write-timeout"}},
		{"negative limit", append(engine, "--max-requests=-1"), 2, []string{"--max-requests"}},
		{"no such stage", append(engine, "--debug-stage-delay", "flsh=1s"), 2, []string{"flsh", "flush"}},
		{"the engine's stage", append(engine, "--debug-stage-delay", "engine=1s"), 2, []string{"--debug-stage-delay", "engine"}},
		{"a key without its certificate", append(engine, "--tls-key", filepath.Join(dir, "key.pem")), 2, []string{"--tls-cert", "--tls-key"}},
		{"no engine", []string{"serve"}, 2, []string{"--engine http://HOST:PORT", "weir up"}},
		{"engine without an address", []string{"serve", "--engine", "openai"}, 2, []string{"--engine", "openai=", "http://127.0.0.1"}},
		{"engine of an unknown kind", []string{"serve", "--engine", "opnai=http://a:1"}, 2, []string{"opnai", `"openai"`}},
		{"engine with an unknown option", append(engine, "--engine", "openai=http://a:1,modle=x"), 2, []string{"modle", `"model"`}},
		{"weir engine without a port", []string{"serve", "--engine", "weir=host"}, 2, []string{"HOST:PORT"}},
		{"model without a folder", append(engine, "--model", "name="), 2, []string{"--model", "NAME=DIR"}},
		{"model's folder is not there", append(engine, "--model", "x="+filepath.Join(dir, "none")), 1, []string{"--model", "none"}},
		{"model's folder is empty", append(engine, "--model", "x="+dir), 1, []string{"tokenizer.json"}},
		{"address in use", append(engine, "--listen", taken.Addr().String()), 1, []string{"--listen", "in use"}},
		{"admin address in use", append(engine, "--listen", "127.0.0.1:0", "--admin-listen", taken.Addr().String()), 1, []string{"--admin-listen", "in use"}},
		{"port that none has", append(engine, "--listen", "127.0.0.1:80000"), 1, []string{"--listen 127.0.0.1:80000: want HOST:PORT"}},
		{"path of a socket", append(engine, "--listen", "unix:/run/weir.sock"), 1, []string{"--listen unix:/run/weir.sock: want HOST:PORT"}},
		{"workers for no machine", append(engine, "--tokenize-workers=9223372036854775807"), 2, []string{"--tokenize-workers", "at most 4096"}},
		{"no address", append(engine, "--listen", ""), 2, []string{"--listen is empty"}},
		{"no admin address", append(engine, "--listen", "127.0.0.1:0", "--admin-listen", ""), 2, []string{"--admin-listen is empty", "off"}},
		{"wire without an address", []string{"engine", "--wire", "openai="}, 2, []string{"--wire openai=HOST:PORT has no address"}},
		{"simulated engine without an address", []string{"engine", "--listen", ""}, 2, []string{"--listen has no address"}},
		{"simulated engine's address in use", []string{"engine", "--listen", taken.Addr().String()}, 1, []string{"choose another with --listen"}},
		{"wire's address in use", []string{"engine", "--wire", "vllm=" + taken.Addr().String()}, 1, []string{"choose another with --wire vllm"}},
		{"timeline cannot be written", append(engine, "--timeline", filepath.Join(dir, "no", "t.jsonl")), 1, []string{"t.jsonl"}},
		{"timeline's size without a timeline", append(engine, "--timeline-max-size", "1000"), 2, []string{"--timeline FILE"}},
		{"usage log cannot be written", append(engine, "--usage-log", filepath.Join(dir, "no", "u.jsonl")), 1, []string{"usage log", "u.jsonl"}},
		{"usage log's size without one", append(engine, "--usage-log-max-size", "1000"), 2, []string{"--usage-log FILE"}},
		{"no usage log kept", append(engine, "--usage-log-keep=0"), 2, []string{"--usage-log-keep"}},
		{"usage log in the timeline", append(engine, "--usage-log", filepath.Join(dir, "t.jsonl"), "--timeline", filepath.Join(dir, "t.jsonl")), 2, []string{"same file"}},
		{"negative age of a timeline", append(engine, "--timeline-max-age=-1s"), 2, []string{"--timeline-max-age"}},
		{"a sample of no timeline", append(engine, "--timeline-sample=0.5"), 2, []string{"--timeline FILE"}},
		{"a sample of none", append(engine, "--timeline", filepath.Join(dir, "t.jsonl"), "--timeline-sample=0"), 2, []string{"--timeline-sample", "above 0"}},
		{"size of a timeline that is off", append(engine, "--timeline=off", "--timeline-max-size", "1000"), 2, []string{"--timeline FILE"}},
		{"a collector without a port", append(engine, "--otlp", "http://localhost"), 2, []string{"--otlp", "http://HOST:PORT"}},
		{"headers for a collector without a name", append(engine, "--otlp", "http://localhost:4317", "--otlp-headers", "s3cret"), 2, []string{"--otlp-headers", "NAME=VALUE"}},
		{"spans of too many", append(engine, "--otlp", "http://localhost:4317", "--otlp-share=2"), 2, []string{"--otlp-share"}},
		{"no timeline kept", append(engine, "--timeline-keep=0"), 2, []string{"--timeline-keep"}},
		{"no simulated engines", []string{"up", "--engines", "0"}, 2, []string{"--engines"}},
		{"unknown wire", []string{"engine", "--wire", "smoke"}, 2, []string{"smoke", "openai", "weir"}},
		{"unknown fault", []string{"engine", "--fault", "sulk"}, 2, []string{"--fault", "sulk"}},
		{"unknown cost", []string{"engine", "--cost", "free"}, 2, []string{"--cost", "per-batch"}},
		{"bench without a URL", []string{"bench"}, 2, []string{"url", "Run \"weir bench --help\""}},
		{"engines with an argument", []string{"engines", "http://127.0.0.1:1"}, 2, []string{"http://127.0.0.1:1", "Run \"weir engines list --help\""}},
		{"bench without an end", []string{"bench", "http://127.0.0.1:1"}, 2, []string{"--requests", "--duration"}},
		{"bench with two loops", []string{"bench", "http://127.0.0.1:1", "--rate", "1", "--concurrency", "1", "--requests", "1"}, 2, []string{"--rate", "--concurrency", "Run \"weir bench --help\""}},
		{"bench with a field that is no JSON", []string{"bench", "http://127.0.0.1:1", "--requests", "1", "--field", "a=b"}, 2, []string{"--field a=b", "JSON"}},
		{"no such configuration", []string{"serve", "--config", filepath.Join(dir, "none.yaml")}, 2, []string{"none.yaml"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := run(t, test.args...)
			if code != test.code {
				t.Errorf("exit code %d, want %d; stderr: %s", code, test.code, stderr)
			}
			for _, part := range test.want {
				if !strings.Contains(stderr, part) {
					t.Errorf("stderr %q lacks %q", stderr, part)
				}
			}
			if !strings.HasPrefix(stderr, "weir: ") {
				t.Errorf("stderr %q does not say who speaks", stderr)
			}
			if stdout != "" {
				t.Errorf("stdout: %s", stdout)
			}
		})
	}
}

// Every command's help has examples of it, and every variable is named after its
// flag.
func TestHelp(t *testing.T) {
	commandLines(t)
	for _, command := range []string{"up", "serve", "engine", "bench", "tokenize", "version"} {
		code, stdout, stderr := run(t, command, "--help")
		if code != 0 || stderr != "" {
			t.Errorf("%s: exit code %d, stderr %s", command, code, stderr)
		}
		_, examples, ok := strings.Cut(stdout, "Examples:\n")
		if !ok || !strings.Contains(examples, "weir "+command) {
			t.Errorf("the help of %s has no example of it:\n%s", command, stdout)
		}
		for _, v := range regexp.MustCompile(`\$WEIR_\w+`).FindAllString(stdout, -1) {
			flag := "--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(v, "$WEIR_")), "_", "-")
			if !regexp.MustCompile(regexp.QuoteMeta(flag) + `\W`).MatchString(stdout) {
				t.Errorf("weir %s: %s is the variable of no flag %s", command, v, flag)
			}
		}
	}
	for _, args := range [][]string{nil, {"--help"}, {"help"}} {
		code, stdout, _ := run(t, args...)
		if code != 0 {
			t.Errorf("%v: exit code %d", args, code)
		}
		for _, part := range []string{"serve", "up", "engine", "bench", "tokenize", "version", "WEIR_LISTEN"} {
			if !strings.Contains(stdout, part) {
				t.Errorf("%v: the help lacks %q", args, part)
			}
		}
	}
	_, want, _ := run(t, "serve", "--help")
	if code, stdout, _ := run(t, "help", "serve"); code != 0 || stdout != want || stdout == "" {
		t.Errorf("help serve: exit code %d, %q", code, stdout)
	}
	if code, _, stderr := run(t, "help", "sevre"); code != 2 || !strings.Contains(stderr, "sevre") {
		t.Errorf("help sevre: exit code %d, %q", code, stderr)
	}
	if code, stdout, _ := run(t, "--version"); code != 0 || !strings.HasPrefix(stdout, "weir ") {
		t.Errorf("--version: exit code %d, %q", code, stdout)
	}
	if code, stdout, _ := run(t, "version"); code != 0 || !strings.HasPrefix(stdout, "weir ") {
		t.Errorf("version: exit code %d, %q", code, stdout)
	}
}

// The command line wins over the environment, and that over the file, for
// flags with one value and for those with many. Which one was used shows in
// the complaint about it.
func TestPrecedence(t *testing.T) {
	commandLines(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "weir.yaml")
	for _, flag := range []struct {
		name, env string
		value     func(source string) string
	}{
		{"model", "WEIR_MODEL", func(s string) string { return filepath.Join(dir, "from-"+s) }},
		{"listen", "WEIR_LISTEN", func(s string) string { return "from-" + s + ":no-port" }},
	} {
		content := "engine: [openai=http://127.0.0.1:1]\n" + flag.name + ": " + flag.value("file") + "\n"
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			sources string
			want    string
		}{
			{"file", "from-file"},
			{"file env", "from-env"},
			{"file flag", "from-flag"},
			{"file env flag", "from-flag"},
			{"env flag", "from-flag"},
			{"env", "from-env"},
		} {
			t.Run(flag.name+" in "+test.sources, func(t *testing.T) {
				args := []string{"serve"}
				if strings.Contains(test.sources, "file") {
					args = append(args, "--config", file)
				} else {
					args = append(args, "--engine", "openai=http://127.0.0.1:1")
				}
				if strings.Contains(test.sources, "env") {
					t.Setenv(flag.env, flag.value("env"))
				}
				if strings.Contains(test.sources, "flag") {
					args = append(args, "--"+flag.name, flag.value("flag"))
				}
				code, _, stderr := run(t, args...)
				if code != 1 || !strings.Contains(stderr, test.want) {
					t.Errorf("exit code %d, stderr %q; want %s used", code, stderr, test.want)
				}
			})
		}
	}
}

// The file may be named by the environment, and its mistakes by their line.
func TestConfigurationFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	for _, test := range []struct {
		content string
		code    int
		want    []string
	}{
		{"listen: nowhere:no-port\nengine: [openai=http://127.0.0.1:1]\n", 1, []string{"nowhere"}},
		{"# comment\nlistne: x\n", 2, []string{"line 2", `"listne"`, `"listen"`}},
		{"config: other.yaml\n", 2, []string{"config"}},
		{"listen: [a, b]\nengine: [openai=http://127.0.0.1:1]\n", 2, []string{"listen"}},
		{"idle-timeout: soon\nengine: [openai=http://127.0.0.1:1]\n", 2, []string{"idle-timeout", "soon"}},
		{"engine: [{kind: openai}]\n", 2, []string{"line 1", "url"}},
		{"listen: {a: b}\n", 2, []string{"line 1", "listen"}},
		{"]", 2, []string{"weir.yaml"}},
		{"", 2, []string{"no engine was given"}},
	} {
		if err := os.WriteFile(file, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("WEIR_CONFIG", file)
		code, _, stderr := run(t, "serve")
		if code != test.code {
			t.Errorf("%q: exit code %d, want %d: %s", test.content, code, test.code, stderr)
		}
		for _, part := range test.want {
			if !strings.Contains(stderr, part) {
				t.Errorf("%q: stderr %q lacks %q", test.content, stderr, part)
			}
		}
	}
}

// A field of the load generator's goes out as it was given: a number keeps its
// digits, whatever a float64 makes of them.
func TestBenchFields(t *testing.T) {
	var mu sync.Mutex
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		bodies = append(bodies, string(b))
		http.Error(w, "no", http.StatusBadRequest)
	}))
	defer server.Close()
	code, _, _ := run(t, "bench", server.URL, "--model", "m", "--verify", "off", "--requests", "1",
		"--field", "seed=9007199254740993", "--field", `stop=["a"]`, "--field", "top_p=1.0")
	if code != 1 {
		t.Errorf("exit code %d for a run without a complete answer", code)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(bodies) != 1 {
		t.Fatalf("%d requests arrived", len(bodies))
	}
	for _, part := range []string{`"seed":9007199254740993`, `"top_p":1.0`, `"stop":["a"]`} {
		if !strings.Contains(bodies[0], part) {
			t.Errorf("body %s lacks %s", bodies[0], part)
		}
	}
}

// An empty variable is an empty address, not the default one.
func TestEmptyAddressInTheEnvironment(t *testing.T) {
	for _, name := range []string{"WEIR_LISTEN", "WEIR_ADMIN_LISTEN"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "")
			flag := map[string]string{"WEIR_LISTEN": "--listen", "WEIR_ADMIN_LISTEN": "--admin-listen"}[name]
			code, stdout, stderr := run(t, "serve", "--engine", "openai=http://127.0.0.1:1")
			if code != 2 || stdout != "" || !strings.Contains(stderr, flag+" is empty") {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}
