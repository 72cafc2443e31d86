package serve

import (
	"bytes"
	"context"
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

// TestPages runs the commands of the pages that a newcomer reads first, in order. A
// command that serves runs until the next one that serves; any other one must succeed and
// print something, in a folder that has what the commands before it wrote. Simulated engines
// stand for vLLM and SGLang.
func TestPages(t *testing.T) {
	for _, page := range []string{"quickstart.md", "in-front-of-engines.md", "in-front-of-disaggregated.md", "disaggregation.md", "replacing.md", "when.md", "keys.md", "changing.md"} {
		t.Run(page, func(t *testing.T) {
			commands := shell(t, "../../../docs/"+page)
			first, second := []string{"--name", "gpu1"}, []string{"--name", "gpu2"}
			if page == "in-front-of-disaggregated.md" {
				first = []string{"--name", "prefill1", "--role", "prefill", "--disaggregation-bootstrap-port", "0", "--nixl-side-channel-port", "0"}
				second = []string{"--name", "decode1", "--role", "decode", "--nixl-side-channel-port", "0"}
			}
			one, two := harness.StartSim(t, first...), harness.StartSim(t, second...)
			api, admin := harness.FreeAddress(t), harness.FreeAddress(t)
			_, port, _ := net.SplitHostPort(api)
			model, err := filepath.Abs("../../../models/weir-sim")
			if err != nil {
				t.Fatal(err)
			}
			folder := t.TempDir()
			real := strings.NewReplacer(
				"vllm=http://gpu1:8000", "vllm="+one.VLLM, "vllm=http://gpu2:8000", "vllm="+two.VLLM,
				"sglang=http://gpu1:30000", "sglang="+one.SGLang, "sglang=http://gpu2:30000", "sglang="+two.SGLang,
				"http://prefill1:30000", one.SGLang, "http://decode1:30000", two.SGLang,
				"http://prefill1:8000", one.VLLM, "http://decode1:8000", two.VLLM,
				"http://10.0.0.1:8000", one.OpenAI, "http://10.0.0.3:8000", two.OpenAI,
				"10.0.0.1:8000", strings.TrimPrefix(one.OpenAI, "http://"), "10.0.0.3:8000", strings.TrimPrefix(two.OpenAI, "http://"),
				"http://gpu1:8000", one.OpenAI, "http://gpu2:8000", two.OpenAI,
				"=MODEL", "="+model,
				"127.0.0.1:8000", api, "0.0.0.0:8000", api, "localhost:8000", "localhost:"+port, "127.0.0.1:8001", admin, "localhost:8001", admin)
			pairs := 0
			path := filepath.Dir(harness.Binary) + ":" + os.Getenv("PATH")
			var gateway *harness.Process
			for _, command := range commands {
				text := real.Replace(command)
				if serves.MatchString(text) {
					if gateway != nil {
						gateway.Kill()
						<-gateway.Exited
					}
					gateway = harness.StartCommand(t, bash(t.Context(), folder, path, "exec "+text+" --admin-listen "+admin+listens(text, api)))
					harness.Eventually(t, command, func() bool {
						answer, err := http.Get("http://" + admin + "/readyz")
						if err != nil {
							return false
						}
						answer.Body.Close()
						return answer.StatusCode == http.StatusOK
					}, gateway)
					continue
				}
				if strings.HasPrefix(text, "tail ") { // of a file that is written a moment later
					text = "until " + text + " | grep .; do sleep 0.05; done"
				}
				cmd := bash(harness.Context(t), folder, path, "set -o pipefail; "+text)
				cmd.Env = append(cmd.Env, "WEIR_ADMIN=http://"+admin)
				out, err := cmd.CombinedOutput()
				if err != nil || len(bytes.TrimSpace(out)) == 0 || bytes.Contains(out, []byte(`"error":{`)) {
					t.Errorf("%s\n%v\n%s", command, err, out)
				}
				if regexp.MustCompile(`(?m)^pair +\S`).Match(out) {
					pairs++
				}
			}
			if gateway == nil {
				t.Error("the page starts no gateway")
			}
			if page == "in-front-of-disaggregated.md" && pairs != 2 {
				t.Errorf("%d requests were served by a prefill and a decode engine, not those before SGLang and vLLM", pairs)
			}
		})
	}
}

// serves matches commands that serve until they are stopped.
var serves = regexp.MustCompile(`^weir (serve|up)\b`)

// listens returns the flag for the API's address, unless a command has it.
func listens(command, api string) string {
	if strings.Contains(command, "--listen") {
		return ""
	}
	return " --listen " + api
}

func bash(ctx context.Context, folder, path, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "PATH="+path)
	return cmd
}

// shell returns the commands of a page: the lines of its sh blocks, continued ones joined,
// and the lines behind $ in its console blocks.
func shell(t *testing.T, page string) (commands []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```(sh|console)\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		joined := strings.ReplaceAll(block[2], "\\\n", "")
		for line := range strings.Lines(joined) {
			line, prompt := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if line != "" && prompt == (block[1] == "console") {
				commands = append(commands, line)
			}
		}
	}
	if len(commands) == 0 {
		t.Fatalf("%s has no commands", page)
	}
	return commands
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
