package change

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

// The configuration file and a list that it names are read again when they change and at
// SIGHUP. A broken file changes nothing and is named with its line. A change that needs a
// restart is named likewise. Streams in flight are not disturbed by a storm of signals.
func TestReload(t *testing.T) {
	harness.Beside(t, harness.Light)
	var sims []*harness.Sim
	for range 3 {
		sims = append(sims, harness.StartSim(t, engineFlags...))
	}
	dir := t.TempDir()
	file, list := filepath.Join(dir, "weir.yaml"), filepath.Join(dir, "engines")
	conf := func(engines ...string) string {
		return fmt.Sprintf("max-body: 1048576\nengine:\n  - %s\n", strings.Join(engines, "\n  - "))
	}
	harness.WriteFile(t, list, "# none yet\n")
	harness.WriteFile(t, file, conf(sims[0].Spec("plane")+",name=a", "file="+list))
	g := harness.StartGateway(t, "serve", "--config", file)
	names := func() (all []string) {
		for _, e := range fleet(g).Engines {
			all = append(all, e.Name+" "+e.State)
		}
		return all
	}
	becomes := func(want string) {
		t.Helper()
		harness.Eventually(t, "of the engines "+want, func() bool { return fmt.Sprint(names()) == want })
	}
	said := func(what string) {
		t.Helper()
		harness.Eventually(t, "saying "+what, func() bool { return strings.Contains(g.Output(), what) })
	}
	becomes("[a ready]")
	generation := fleet(g).Engines[0].Generation

	// This stream goes on during all changes below.
	long := make(chan harness.Answer, 1)
	go func() {
		long <- harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"a","stream":true,"ignore_eos":true,"max_tokens":1000}`)
	}()
	harness.Eventually(t, "given the stream", func() bool { return harness.EngineState(t, sims[0].Admin).Running == 1 })

	harness.Rewrite(t, list, sims[1].Spec("plane")+",name=b\n")
	becomes("[a ready b ready]")
	harness.Rewrite(t, file, conf(sims[0].Spec("plane")+",name=a", sims[2].Spec("plane")+",name=c", "file="+list))
	becomes("[a ready c ready b ready]")

	before := fleet(g).Generation
	harness.Rewrite(t, list, sims[1].Spec("plane")+",name=b\n\nopenia=http://h:1\n")
	said("line 3: engine \"openia=http://h:1\"")
	harness.Rewrite(t, list, sims[1].Spec("plane")+",name=b\n# and no more\n")
	harness.Rewrite(t, file, conf(sims[0].Spec("plane")+",name=a", "wier=h:1", "file="+list))
	said("line 4: --engine: engine \"wier=h:1\"")
	harness.Rewrite(t, file, "engine: [\n")
	said("config " + file)
	harness.Rewrite(t, file, "max-body: 1048576\n")
	said("it has no engine")
	if got := fmt.Sprint(names()); got != "[a ready c ready b ready]" || fleet(g).Generation != before {
		t.Errorf("after files that are broken: %s", got)
	}
	if p := pending(g); p.Reading.Result != "failed" || !strings.Contains(p.Reading.Error, "it has no engine") || len(p.Restart) > 0 || len(p.Engines) > 0 {
		t.Errorf("pending after files that are broken: %+v", p)
	}
	if n := harness.Metric(t, g.Admin, "weir_config_reloads_total", `result="failed"`); n < 3 { // two of the files may have been read as one
		t.Errorf("%v readings failed, and files were broken that must have been read in 3", n)
	}

	harness.Rewrite(t, list, "none\n")
	harness.Rewrite(t, file, "max-body: 2097152\nengine:\n  - "+sims[0].Spec("plane")+",name=a,weight=0.5\n  - file="+list+"\n")
	becomes("[a ready]")
	said(`--max-body changes at a restart`)
	if got := fleet(g).Engines[0].Generation; got != generation {
		t.Errorf("the engine that stayed is of generation %d, and was of %d", got, generation)
	}
	if a := harness.Get(t, g.Admin+"/config"); !strings.Contains(string(a.Body), `"pending"`) {
		t.Errorf("/config does not say what waits for a restart: %s", a.Body)
	}

	if p := pending(g); p.Reading.Result == "failed" || len(p.Restart) != 1 || p.Restart[0] != (restart{Name: "max-body", InForce: "1MiB", Wanted: "2MiB"}) {
		t.Errorf("pending: %+v", p)
	}

	for range 50 {
		hangUp(g)
		time.Sleep(2 * time.Millisecond)
	}
	said("the engines and models are the same")
	harness.WantComplete(t, <-long)
	if got := fmt.Sprint(names()); got != "[a ready]" {
		t.Errorf("after 50 signals: %s", got)
	}
	if n := strings.Count(g.Output(), "change    "); n != fleetSteps {
		t.Errorf("%d steps were said, want %d:\n%s", n, fleetSteps, g.Output())
	}
}

// fleetSteps are those of TestReload: b and c added, b and c removed, a's weight.
const fleetSteps = 5

// An engine at each address that a name has. This machine's own name leads to this machine, and
// another name may not.
func TestNamesWithAddresses(t *testing.T) {
	harness.Beside(t, harness.Light)
	sim := harness.StartSim(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(sim.OpenAI, "http://"), ":")
	g := harness.StartGateway(t, "serve", "--engine", "openai=http://localhost:"+port+",name=each,resolve=each")
	harness.Eventually(t, "of the engine at the name's address", func() bool { return stateOf(g, "each@127.0.0.1:"+port) == "ready" })
	if e := fleet(g).Engines[0]; e.Origin != "resolve=localhost" {
		t.Errorf("%+v", e)
	}
	_, stderr, code := harness.Finish(t, "", "serve", "--engine", "sglang-ipc=/tmp/x,resolve=each")
	if code != 2 || !strings.Contains(stderr, `"resolve"`) {
		t.Errorf("a kind that dials in: %d %s", code, stderr)
	}
}
