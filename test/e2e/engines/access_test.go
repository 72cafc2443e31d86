package engines

import (
	"path/filepath"
	"strings"
	"testing"

	"weir/test/certtest"
	"weir/test/e2e/harness"
)

// certify makes a certificate for 127.0.0.1 and for name, which is an authority itself,
// with its key behind it in one file.
func certify(t *testing.T, file, name string) string {
	t.Helper()
	cert, key, err := certtest.Make(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	harness.WriteFile(t, file, string(cert)+string(key))
	return file
}

// guardedEngine starts an engine that asks for a key, and serves its wire at addr.
func guardedEngine(t *testing.T, wire, addr, key string, more ...string) *harness.Process {
	t.Helper()
	p := harness.Start(t, append(append([]string{"engine", "--wire", wire + "=" + addr, "--api-key", key}, harness.FastSim...), more...)...)
	p.Line(wire)
	return p
}

// weir serves an engine that asks for a key with the key in a file, and reads the file again
// when it changes. Without a key, weir reports what is missing. No key is in any output.
func TestEngineKeys(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, test := range []struct{ wire, spec, kind string }{
		{"vllm", "openai=http://ADDR", "openai, noted, unverified"}, {"sglang", "sglang=http://ADDR", "sglang"}, {"weir", "weir=ADDR", "weir"},
		{"vllm", "vllm=http://ADDR", "vllm, noted"}, {"vllm", "http://ADDR", "vllm, noted"}, {"sglang", "http://ADDR", "sglang"}, {"weir", "http://ADDR", "weir"},
	} {
		if testing.Short() && strings.HasPrefix(test.spec, "http") { // TestAuto finds the kind
			continue
		}
		t.Run(test.spec+" "+test.wire, func(t *testing.T) {
			addr, file := harness.FreeAddress(t), filepath.Join(t.TempDir(), "engine.key")
			spec := strings.Replace(test.spec, "ADDR", addr, 1) + ",name=e"
			engine := guardedEngine(t, test.wire, addr, "key-secret-1")
			why := func(g *harness.Gateway, words string) {
				t.Helper()
				harness.Eventually(t, "the advice "+words, func() bool {
					return strings.Contains(string(harness.Get(t, g.Admin+"/engines").Body), words)
				})
			}

			none := harness.StartUnready(t, "serve", "--engine", spec)
			why(none, "it asks for a key; give it with key-file=FILE")
			none.Interrupt()

			harness.WriteFile(t, file, "key-secret-0\n")
			g := harness.StartUnready(t, "serve", "--pprof", "--engine", spec+",key-file="+file)
			why(g, "it does not take the key in "+file)
			harness.Rewrite(t, file, "key-secret-1\n")
			ready := func(kind string) {
				t.Helper()
				harness.Eventually(t, "the engine", func() bool { return engineKinds(t, g)["e"] == kind })
			}
			ready(test.kind)
			// The caller's own key is for weir, and never the engine's.
			ask := func() harness.Answer {
				return harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream, "Authorization", "Bearer nonsense", "X-Api-Key", "nonsense")
			}
			harness.WantComplete(t, ask())

			// Another key, on both sides.
			engine.Kill()
			harness.Rewrite(t, file, "key-secret-2")
			guardedEngine(t, test.wire, addr, "key-secret-2")
			harness.Eventually(t, "an answer with the other key", func() bool { return ask().Status == 200 })
			harness.WantComplete(t, ask())

			if cmdline := string(harness.Get(t, g.Admin+"/debug/pprof/cmdline").Body); !strings.Contains(cmdline, file) || strings.Contains(cmdline, "secret") {
				t.Errorf("the command line is %q", cmdline)
			}
			for _, page := range []string{"/engines", "/metrics", "/admin/integrity"} {
				if strings.Contains(string(harness.Get(t, g.Admin+page).Body), "key-secret") {
					t.Errorf("%s tells a key", page)
				}
			}
			g.Interrupt()
			if strings.Contains(g.Output()+g.Stderr.String(), "key-secret") {
				t.Errorf("the log tells a key:\n%s", g.Stderr.String())
			}
		})
	}
}

// Engines are known by an authority of their own, and know weir by its certificate.
func TestEngineTLS(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	server, client := certify(t, filepath.Join(dir, "server.pem"), "engine.internal"), certify(t, filepath.Join(dir, "client.pem"), "weir")
	stranger := certify(t, filepath.Join(dir, "stranger.pem"), "stranger")
	for _, test := range []struct{ wire, spec, kind string }{
		{"vllm", "openai=https://ADDR", "openai, noted, unverified"}, {"sglang", "sglang=https://ADDR", "sglang"}, {"weir", "weir=ADDR", "weir"},
		{"vllm", "vllm=https://ADDR", "vllm, noted"}, {"vllm", "https://ADDR", "vllm, noted"}, {"sglang", "https://ADDR", "sglang"}, {"weir", "https://ADDR", "weir"},
	} {
		if testing.Short() && strings.HasPrefix(test.spec, "http") { // TestAuto finds the kind
			continue
		}
		t.Run(test.spec+" "+test.wire, func(t *testing.T) {
			addr, file := harness.FreeAddress(t), filepath.Join(t.TempDir(), "engine.key")
			harness.WriteFile(t, file, "key")
			guardedEngine(t, test.wire, addr, "key", "--ssl-certfile", server, "--ssl-ca-certs", client)
			spec := strings.Replace(test.spec, "ADDR", addr, 1) + ",name=e,key-file=" + file
			for options, words := range map[string]string{
				",tls=true,server-name=127.0.0.1":                               "certificate signed by unknown authority",
				",ca=" + stranger:                                               "certificate signed by unknown authority",
				",ca=" + server + ",server-name=other,cert=" + client:           "not other",
				",ca=" + server + ",cert=" + stranger:                           "unknown certificate authority",
				",ca=" + server + ",server-name=engine.internal,cert=" + client: "",
				",ca=" + server + ",cert=" + client + ",cert-key=" + client:     "",
			} {
				if testing.Short() && words != "" && !strings.Contains(options, stranger) {
					continue
				}
				if test.wire != "weir" || strings.HasPrefix(test.spec, "https") {
					options = strings.TrimPrefix(options, ",tls=true")
				}
				g := harness.StartUnready(t, "serve", "--engine", spec+options)
				if words != "" {
					harness.Eventually(t, "words", func() bool {
						return strings.Contains(string(harness.Get(t, g.Admin+"/engines").Body), words)
					})
				} else {
					harness.Eventually(t, "the engine", func() bool { return engineKinds(t, g)["e"] == test.kind })
					harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream))
				}
				g.Interrupt()
			}
		})
	}
}

// If an engine judges its callers itself, their keys go with their requests and its refusals
// go back to them. Otherwise neither is passed on.
func TestCallersKeys(t *testing.T) {
	harness.Beside(t, harness.Light)
	addr := harness.FreeAddress(t)
	guardedEngine(t, "vllm", addr, "the callers")
	for _, test := range []struct {
		options      string
		right, wrong int
	}{{",pass-key=true", 200, 401}, {"", 503, 503}} {
		g := harness.StartUnready(t, "serve", "--engine", "openai=http://"+addr+",model=weir-sim"+test.options, "--wait-for-engines", "100ms")
		if test.right == 200 {
			harness.Eventually(t, "the engine", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 1 })
		}
		for key, want := range map[string]int{"the callers": test.right, "another": test.wrong} {
			a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream, "Authorization", "Bearer "+key)
			if a.Status != want {
				t.Errorf("pass-key %q, key %q: status %d, want %d: %.200s", test.options, key, a.Status, want, a.Body)
			}
		}
		g.Interrupt()
	}
}
