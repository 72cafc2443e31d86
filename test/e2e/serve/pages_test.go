package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// document is a page of the documents whose commands run.
type document struct {
	name string
	// before has commands that a reader has run before: what the page says in words.
	before []string
	// first and second are further flags of the two simulated engines that stand for vLLM and
	// SGLang.
	first, second []string
	// instead has pairs of a text and what the test runs in its place: shorter loads, and
	// folders and ports that a machine of tests has.
	instead []string
	// waits is set if the page's gateways wait for engines that nobody starts here; they
	// must listen, and are not ready.
	waits bool
}

const (
	askOnce    = `curl -s http://127.0.0.1:8000/v1/completions -H 'X-Request-Id: ask-12' -H 'Content-Type: application/json' -d '{"model": "weir-sim", "prompt": "Hello", "max_tokens": 4}'`
	bodyOnce   = `echo '{"model": "weir-sim", "messages": [{"role": "user", "content": "Hello"}]}' | tee body.json`
	certOnce   = `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=gateway -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem 2>&1 && cp cert.pem ca.pem`
	traceOnce  = `cp docs/samples/synthetic-chat.jsonl trace.jsonl && wc -l trace.jsonl`
	stubOnce   = `printf '#!/bin/sh\nweir engines | grep "^${2#engine-} .*drained"\n' | tee systemctl && chmod +x systemctl` // restarts an engine only if it is drained
	workerOnce = `for i in 1 2 3 4; do weir bench http://gateway:8000 --rate 40 --duration 1s --seed 1 --worker $i/4 --start-at $(cat at) --record $i.rec & done; wait`
)

// prefill and decode are the flags of a pair of engines.
var (
	prefill = []string{"--name", "prefill1", "--role", "prefill", "--disaggregation-bootstrap-port", "0", "--nixl-side-channel-port", "0"}
	decode  = []string{"--name", "decode1", "--role", "decode", "--nixl-side-channel-port", "0"}
)

// pages has every page with commands that are to run.
var pages = []document{
	{name: "README.md", instead: []string{"bin/weir", "weir", "make run", "weir up", "make test", "make -C repository -n test", "--requests 1024 --output-tokens 64", "--requests 32 --output-tokens 4"}},
	{name: "apis.md", before: []string{"weir up"}},
	{name: "bench.md", before: []string{"weir up"}, instead: []string{
		"--rate 50 --duration 30s", "--rate 20 --duration 1s", "--requests 1000", "--requests 50", "--cv 2 --requests 2000", "--cv 2 --requests 20",
		"--rate 10..100+10 --duration 30s --repeats 3", "--rate 10..20+10 --duration 1s --repeats 1",
		"ttft_p99=500ms,tpot_p99=50ms,success=99% --rate 1..64 --requests 800", "ttft_p50=60s --rate 40..80 --requests 40",
		"+20 seconds", "+3 seconds", "weir bench http://gateway:8000 --rate 2000 --duration 1m --seed 1 --worker 1/4 --start-at $(cat at) --record 1.rec", workerOnce,
		"examples/rate.yaml", "rate.yaml"}},
	{name: "changing.md", before: []string{stubOnce}, instead: []string{"for name in a b c d", "weir engines add http://10.0.0.3:8000; for name in 10.0.0.1:8000 10.0.0.3:8000", "systemctl restart", "./systemctl restart", "resume $name; done", "resume $name || exit; done; weir engines remove 10.0.0.3:8000"}},
	{name: "clients.md"},
	{name: "disaggregation.md", first: prefill, second: decode, instead: []string{
		" --engine sglang=http://gpu3:30000", "", "http://gpu1:8000,role", "vllm=http://gpu1:8000,role", "http://gpu2:8000,role", "vllm=http://gpu2:8000,role",
		"duration=10m,", "duration=20s,"}},
	{name: "engines.md", waits: true, instead: []string{"lora=sql=/adapters/sql,lora=chat=/adapters/chat", "lora=sql=/adapters/sql", "/run/user/1000/sg", "sg"}},
	{name: "fairness.md"},
	{name: "fleet-offline.md", before: []string{traceOnce}, instead: []string{"duration=1h", "duration=2m", "0.5,0.8,0.95", "0.5"}},
	{name: "generate.md"},
	{name: "in-front-of-disaggregated.md", first: prefill, second: decode},
	{name: "in-front-of-engines.md"},
	{name: "keys.md", before: []string{certOnce}},
	{name: "kv-events.md", before: []string{"weir up"}},
	{name: "offline.md", instead: []string{"duration=1h", "duration=2m"}},
	{name: "quickstart.md"},
	{name: "receipts.md", before: []string{"weir up", askOnce, bodyOnce}},
	{name: "replacing.md"},
	{name: "simulated-engine.md"},
	{name: "timeline.md", before: []string{"weir up", askOnce}},
	{name: "tokenize.md", before: []string{"weir up"}},
	{name: "watching.md"},
	{name: "when.md"},
}

// TestPages runs the commands of the documents, in order. A command that serves runs until
// the next one that serves; a simulated engine runs until the page's end. Any other one must succeed
// and print something, in a folder that has what the commands before it wrote. Simulated
// engines stand for vLLM and SGLang.
func TestPages(t *testing.T) {
	for _, p := range pages {
		t.Run(strings.TrimSuffix(p.name, ".md"), func(t *testing.T) {
			harness.Beside(t, harness.Light)
			p.run(t)
		})
	}
}

// path is the page's place.
func (p document) path() string {
	if p.name == "README.md" {
		return "../../../README.md"
	}
	return "../../../docs/" + p.name
}

// real returns what puts addresses and folders of this machine in place of the page's.
func (p document) real(t *testing.T, api, admin string) *strings.Replacer {
	one, two := harness.StartSim(t, append([]string{"--name", "gpu1"}, p.first...)...), harness.StartSim(t, append([]string{"--name", "gpu2"}, p.second...)...)
	_, port, _ := net.SplitHostPort(api)
	model, err := filepath.Abs("../../../models/weir-sim")
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(
		"vllm=http://gpu1:8000", "vllm="+one.VLLM, "vllm=http://gpu2:8000", "vllm="+two.VLLM,
		"sglang=http://gpu1:30000", "sglang="+one.SGLang, "sglang=http://gpu2:30000", "sglang="+two.SGLang,
		"http://prefill1:30000", one.SGLang, "http://decode1:30000", two.SGLang,
		"http://prefill1:8000", one.VLLM, "http://decode1:8000", two.VLLM,
		"http://10.0.0.1:8000", one.OpenAI, "http://10.0.0.3:8000", two.OpenAI,
		"http://10.0.0.1:30000", one.SGLang, "http://10.0.0.2:30000", two.SGLang, "http://10.0.0.2:8000", two.VLLM,
		"10.0.0.1:8000", strings.TrimPrefix(one.OpenAI, "http://"), "10.0.0.3:8000", strings.TrimPrefix(two.OpenAI, "http://"),
		"--engine vllm=http://127.0.0.1:8000", "--engine vllm="+one.VLLM, "=http://127.0.0.1:30000", "="+one.SGLang, " http://127.0.0.1:30000", " "+one.SGLang,
		"http://gpu1:8000", one.OpenAI, "http://gpu2:8000", two.OpenAI,
		"=MODEL", "="+model, "/models/llama", model, "llama=", "weir-sim=", "model=llama", "model=weir-sim",
		"https://gateway:8001", "https://"+admin, "0.0.0.0:8001", admin, "127.0.0.1:8001", admin, "localhost:8001", admin,
		"127.0.0.1:8000", api, "0.0.0.0:8000", api, "gateway:8000", api, "localhost:8000", "localhost:"+port,
		"127.0.0.1:5570", harness.FreeAddress(t),
		"--listen 127.0.0.1:30001", "--listen "+harness.FreeAddress(t), "--listen 127.0.0.1:30000", "--listen "+harness.FreeAddress(t),
		"--listen 127.0.0.1:8100", "--listen "+harness.FreeAddress(t), "--listen 127.0.0.1:8200", "--listen "+harness.FreeAddress(t),
		"port 8998", "port 0", "port 5600", "port 0", "port 5601", "port 0", "tcp://*:5557", "tcp://"+harness.FreeAddress(t), "tcp://*:5558", "tcp://"+harness.FreeAddress(t))
}

func (p document) run(t *testing.T) {
	commands := slices.Concat(p.before, shell(t, p.path()))
	api, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	real, instead := p.real(t, api, admin), strings.NewReplacer(p.instead...)
	folder := t.TempDir()
	for name, to := range map[string]string{"examples": "examples", "docs": "docs", "repository": ""} {
		to, err := filepath.Abs("../../../" + to)
		if err == nil {
			err = os.Symlink(to, filepath.Join(folder, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "rate.yaml"), []byte(shortExperiment), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Dir(harness.Binary) + ":" + os.Getenv("PATH")
	var gateway *harness.Process
	pairs, ran := 0, 0
	for _, command := range commands {
		text := real.Replace(instead.Replace(command))
		ran++
		switch {
		case serves.MatchString(text):
			if gateway != nil {
				gateway.Kill()
				<-gateway.Exited
			}
			gateway = harness.StartCommand(t, bash(t.Context(), folder, path, "exec env "+text+listens(text, "--admin-listen", admin)+listens(text, "--listen", api)))
			p.await(t, command, text, admin, gateway)
			continue
		case simulates.MatchString(text):
			if !strings.Contains(text, "--listen ") {
				text += " --listen 127.0.0.1:0"
			}
			harness.StartCommand(t, bash(t.Context(), folder, path, "exec "+text+" --admin-listen 127.0.0.1:0")).Line("admin")
			continue
		}
		if strings.HasPrefix(text, "tail ") { // of a file that is written a moment later
			text = "until " + text + " | grep .; do sleep 0.05; done"
		}
		cmd := bash(harness.Context(t), folder, path, "set -o pipefail; "+text)
		cmd.Env = append(cmd.Env, "WEIR_ADMIN=http://"+admin)
		out, err := cmd.CombinedOutput()
		if err != nil && undecided.Match(out) {
			t.Logf("%s: this machine is too busy to decide: %s", command, undecided.Find(out))
			err = nil
		}
		silent := len(bytes.TrimSpace(out)) == 0 && !strings.Contains(text, " > ") && !strings.Contains(text, "--record")
		if err != nil || silent || bytes.Contains(out, []byte(`"error":{`)) {
			t.Errorf("%s\n%v\n%s", command, err, out)
		}
		if regexp.MustCompile(`(?m)^pair +\S`).Match(out) {
			pairs++
		}
	}
	if ran == 0 {
		t.Error("the page has no commands")
	}
	if p.name == "in-front-of-disaggregated.md" && pairs != 2 {
		t.Errorf("%d requests were served by a prefill and a decode engine, not those before SGLang and vLLM", pairs)
	}
}

// undecided is how a search for a rate ends on a machine that is too busy to send on time. It finds
// out, and says so in its exit code too.
var undecided = regexp.MustCompile(`void: requests were sent up to \S+ ms late`)

// shortExperiment stands for an experiment of minutes.
const shortExperiment = `{name: rate, repeats: 1, load: {rate: [8], duration: 1s, input-tokens: 50, output-tokens: 4}, fleet: {engines: 1, engine: {cost: constant}}}`

// await waits until a command that serves is ready, or listens where the page's gateways wait.
func (p document) await(t *testing.T, command, text, admin string, gateway *harness.Process) {
	scheme := "http://"
	if strings.Contains(text, "--admin-tls-cert") {
		scheme = "https://"
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	harness.Eventually(t, command, func() bool {
		answer, err := client.Get(scheme + admin + "/readyz")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return p.waits || answer.StatusCode == http.StatusOK
	}, gateway)
}

// serves matches commands that serve until they are stopped, and simulates those that run
// an engine.
var (
	serves    = regexp.MustCompile(`^([A-Z]+=\S+ )*weir (serve|up)\b`)
	simulates = regexp.MustCompile(`^weir engine --wire\b`)
)

// listens returns a flag for an address, unless a command has it.
func listens(command, flag, address string) string {
	if strings.Contains(command, " "+flag+" ") {
		return ""
	}
	return " " + flag + " " + address
}

func bash(ctx context.Context, folder, path, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "PATH="+path)
	return cmd
}

// shell returns the commands of a page: the lines of its sh blocks, continued ones joined, as
// are loops, and the lines behind $ in its console blocks.
func shell(t *testing.T, page string) (commands []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```(sh|console)\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		joined := strings.ReplaceAll(block[2], "\\\n", "")
		joined = regexp.MustCompile(`(?ms)^for .*?^done`).ReplaceAllStringFunc(joined, func(loop string) string {
			return strings.NewReplacer("; do\n", "; do ", "\ndone", "; done", "\n", ";").Replace(loop)
		})
		for line := range strings.Lines(joined) {
			line, prompt := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if line, _, _ = strings.Cut(line, "   #"); line != "" && prompt == (block[1] == "console") {
				commands = append(commands, line)
			}
		}
	}
	return commands
}

// TestPagesAreMarked checks that no command of the documents is left out by accident: a block that
// has one is marked "sh" or "console" and run by TestPages, or "sh not-run:" with the
// reason.
func TestPagesAreMarked(t *testing.T) {
	files, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d pages, %v", len(files), err)
	}
	run := map[string]bool{}
	for _, p := range pages {
		run[p.name] = true
	}
	fence := regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```")
	command := regexp.MustCompile(`(?m)^(\w*\$ +|[A-Z_]+=\S+ )*(weir|curl|make|go|docker|kubectl|vllm|python|sudo|for|bin/weir) `)
	blocks, shown := 0, 0
	for _, file := range append(files, "../../../README.md") {
		name := filepath.Base(file)
		if name == "status.md" { // a table of what was seen
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
			language, reason, apart := strings.Cut(block[1], " not-run: ")
			switch {
			case apart:
				shown++
				if language != "sh" || len(reason) < 10 {
					t.Errorf("%s: %q: want \"sh not-run: REASON\"", name, block[1])
				}
			case language == "sh" || language == "console":
				blocks++
				if !run[name] {
					t.Errorf("%s: no test runs\n%s", name, block[2])
				}
			case command.MatchString(block[2]):
				t.Errorf("%s: this block has a command and is marked neither \"sh\", \"console\" nor \"sh not-run: REASON\":\n%s", name, block[2])
			}
		}
	}
	t.Logf("%d blocks run, %d are not run for the reason that they give", blocks, shown)
	if blocks < 40 {
		t.Errorf("found %d blocks only", blocks)
	}
}

// TestReplacingNamesFlags holds the last column of docs/replacing.md to what weir serve
// has, and its metrics to docs/metrics.md.
func TestReplacingNamesFlags(t *testing.T) {
	text, err := os.ReadFile("../../../docs/replacing.md")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	help, _, _ := harness.Finish(t, "", "serve", "--help")
	seen := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		for _, flag := range regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(cells[2], -1) {
			seen++
			if !regexp.MustCompile(regexp.QuoteMeta(flag[1]) + `\b[^-]`).MatchString(help) {
				t.Errorf("weir serve has no %s", flag[1])
			}
		}
		for _, metric := range regexp.MustCompile("`(weir_[a-z_]+)`").FindAllStringSubmatch(cells[2], -1) {
			seen++
			if !bytes.Contains(metrics, []byte("`"+metric[1]+"`")) {
				t.Errorf("docs/metrics.md has no %s", metric[1])
			}
		}
	}
	if seen < 40 {
		t.Errorf("found %d flags and metrics only", seen)
	}
}

// TestWhenNamesAlerts holds docs/when.md to the alerts: each has its line, and no other.
func TestWhenNamesAlerts(t *testing.T) {
	names := func(path, pattern string) (all []string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return all
	}
	alerts := names("../../../integrations/prometheus/weir.rules.yml", `alert: (\w+)`)
	if in := names("../../../docs/when.md", "`(Weir\\w+)`"); len(alerts) == 0 || !slices.Equal(in, alerts) {
		t.Errorf("docs/when.md has %v, the rules have %v", in, alerts)
	}
}
