package change

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/internal/lab/forward"
	"weir/test/e2e/harness"
)

// Two gateways in front of the same engines find each other, over TLS with a certificate of
// their own. A prompt that one of them has sent to an engine is found there by the other one;
// between two gateways that do not know of each other it is found by chance. A gateway that is
// killed takes nothing along: the other one notices, and serves. A stranger without a
// certificate is not served.
func TestPeers(t *testing.T) {
	harness.Beside(t, harness.Light)
	one, two := harness.StartSim(t, "--max-total-tokens", "800000"), harness.StartSim(t, "--max-total-tokens", "800000")
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	harness.KeyPair(t, cert, key, 1)
	at := [2]string{harness.FreeAddress(t), harness.FreeAddress(t)}
	engines := []string{"--engine", one.Spec("plane") + ",name=one", "--engine", two.Spec("plane") + ",name=two"}
	begin := func(i int) *harness.Gateway {
		return harness.StartGateway(t, append([]string{"serve", "--peers", strings.Join(at[:], ","), "--peer-listen", at[i],
			"--peer-cert", cert, "--peer-key", key, "--peer-ca", cert}, engines...)...)
	}
	a, b := begin(0), begin(1)
	for _, g := range []*harness.Gateway{a, b} {
		harness.Eventually(t, "each follows the other", func() bool { return harness.Metric(t, g.Admin, "weir_peers", `state="followed"`) == 1 })
	}

	found := func(first, second *harness.Gateway, kind string) (share float64) {
		cached, all := 0, 0
		for i := range 20 {
			prompt := strings.Repeat(string(rune('a'+i)), 40) + kind + strings.Repeat("another word of a long prompt ", 1500)
			ask := func(g *harness.Gateway) (tokens, cached int) {
				r := harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":%q,"max_tokens":2}`, prompt))
				var of struct {
					Usage struct {
						PromptTokens int `json:"prompt_tokens"`
						Details      struct {
							CachedTokens int `json:"cached_tokens"`
						} `json:"prompt_tokens_details"`
					} `json:"usage"`
				}
				if err := json.Unmarshal(r.Body, &of); err != nil || r.Status != http.StatusOK {
					t.Fatalf("%d %v: %s", r.Status, err, r.Body)
				}
				return of.Usage.PromptTokens, of.Usage.Details.CachedTokens
			}
			ask(first)
			n, c := ask(second)
			all, cached = all+n, cached+c
		}
		return float64(cached) / float64(all)
	}
	if share := found(a, b, "told"); share < 0.95 {
		t.Errorf("%.2f of prompts that the other gateway has sent are found in a cache, want 0.95", share)
	}
	harness.WantDocumented(t, a)
	alone := []*harness.Gateway{harness.StartGateway(t, append([]string{"serve"}, engines...)...), harness.StartGateway(t, append([]string{"serve"}, engines...)...)}
	if share := found(alone[0], alone[1], "not told"); share > 0.9 {
		t.Errorf("gateways that do not know of each other find %.2f, so this test shows nothing", share)
	}

	if conn, err := tls.Dial("tcp", at[1], &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}); err == nil {
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("a stranger without a certificate is answered: %v", err)
		}
		conn.Close()
	}

	if err := a.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the other one is missed", func() bool { return harness.Metric(t, b.Admin, "weir_peers", `state="unreachable"`) == 1 })
	harness.WantComplete(t, harness.Post(t, b.URL+"/v1/completions", `{"model":"weir-sim","prompt":"a","stream":true,"max_tokens":2}`))
	again := begin(0)
	harness.Eventually(t, "it is followed again", func() bool {
		return harness.Metric(t, b.Admin, "weir_peers", `state="followed"`) == 1 && harness.Metric(t, again.Admin, "weir_peers", `state="followed"`) == 1
	})
}

// Nothing passes between two gateways for a while. Both serve meanwhile, and soon after it each
// knows again what the other one has under way.
func TestPeersParted(t *testing.T) {
	harness.Beside(t, harness.Light)
	engine := harness.StartSim(t)
	at := [2]string{harness.FreeAddress(t), harness.FreeAddress(t)}
	between := [2]*forward.Forwarder{harness.Forward(t, at[0]), harness.Forward(t, at[1])}
	var gateways [2]*harness.Gateway
	for i := range gateways { // each knows itself by its own address, and the other by a forwarder's
		gateways[i] = harness.StartGateway(t, "serve", "--peers", at[i]+","+between[1-i].Addr, "--peer-listen", at[i], "--engine", engine.Spec("plane")+",name=one")
	}
	state := func(want string) {
		t.Helper()
		for _, g := range gateways {
			harness.Eventually(t, "the other gateway is "+want, func() bool { return harness.Metric(t, g.Admin, "weir_peers", fmt.Sprintf("state=%q", want)) == 1 })
		}
	}
	others := func(g *harness.Gateway) int {
		var engines []struct {
			Books struct {
				Others int `json:"others_in_flight"`
			}
		}
		if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &engines); err != nil || len(engines) != 1 {
			t.Fatalf("%v: %d engines", err, len(engines))
		}
		return engines[0].Books.Others
	}
	state("followed")
	for _, f := range between {
		f.Hold(forward.ToServer, forward.ToClient)
	}
	state("unreachable")
	for _, g := range gateways {
		harness.WantComplete(t, harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"a","stream":true,"max_tokens":2}`))
	}
	stream, err := http.Post(gateways[0].URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"weir-sim","prompt":"a","stream":true,"max_tokens":9000,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if n := others(gateways[1]); n != 0 {
		t.Errorf("a request that was begun meanwhile is known: %d", n)
	}
	healed := time.Now()
	for _, f := range between {
		f.Heal()
	}
	harness.Eventually(t, "the stream of the other gateway is known", func() bool { return others(gateways[1]) == 1 })
	t.Logf("known %v after it was over", time.Since(healed))
	state("followed")
}

// Flags that cannot be meant are refused by name.
func TestPeersWrongly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flags, want string }{
		{"--engine weir=127.0.0.1:1 --peers a:1", "--peers and --peer-listen belong together"},
		{"--engine weir=127.0.0.1:1 --peers a --peer-listen 127.0.0.1:0", "--peers a: want HOST:PORT"},
		{"--engine weir=127.0.0.1:1 --peers a:1 --peer-listen 127.0.0.1:0 --peer-cert x", "belong together: give all three or none"},
		{"--engine weir=127.0.0.1:1 --peers a:1 --peer-listen :0", "other machines reach this address"},
		{"--engine weir=127.0.0.1:1 --peers a:1 --peer-listen 127.0.0.1:0 --peer-cert x --peer-key x --peer-ca x", "--peer-cert"},
		{"--engine vllm-core=tcp://127.0.0.1:15570 --model weir-sim --peers a:1 --peer-listen 127.0.0.1:0", "has one front end"},
	} {
		_, out, code := harness.Finish(t, "", append([]string{"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, strings.Fields(c.flags)...)...)
		if code != 2 || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit %d, %q; want %q", c.flags, code, out, c.want)
		}
	}
}
