package engines

import (
	"encoding/json"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// engineKinds returns what weir engines says of the engines, by name.
func engineKinds(t *testing.T, g *harness.Gateway) map[string]string {
	t.Helper()
	var views []struct {
		Name, Kind, Software, Note string
		Ready                      bool
	}
	if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &views); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, v := range views {
		kinds[v.Name] = v.Kind
		if !v.Ready {
			kinds[v.Name] = "down"
		}
		if v.Note != "" {
			kinds[v.Name] += ", noted"
		}
		if strings.Contains(v.Note, "verify=ids") {
			kinds[v.Name] += ", unverified"
		}
	}
	return kinds
}

// Given a URL alone, weir finds out what is there, says so, and serves it.
func TestAuto(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	for spec, want := range map[string]string{
		s.OpenAI:                            "openai",
		s.SGLang:                            "sglang",
		s.VLLM:                              "vllm, noted", // for want of --enable-scale-out
		s.Plane:                             "weir",
		"auto=" + s.SGLang + ",model=other": "openai, noted, unverified",
		"auto=" + s.VLLM + ",model=other":   "openai, noted, unverified",

		"auto=" + s.VLLM + ",model=other,verify=ids": "openai, noted",
	} {
		g := harness.StartGateway(t, "serve", "--engine", spec+",name=e")
		if got := engineKinds(t, g)["e"]; got != want {
			t.Errorf("%s is %q, want %q", spec, got, want)
		}
		if kind := g.Line("engine    e"); !strings.HasPrefix(want, strings.Trim(kind, "(),")) {
			t.Errorf("%s: said %q", spec, kind)
		}
		body := harness.AskStream
		if strings.Contains(spec, "other") {
			body = strings.Replace(body, "weir-sim", "other", 1)
		}
		if a := harness.Post(t, g.URL+"/v1/chat/completions", body); a.Status != 200 || !strings.HasSuffix(string(a.Body), "data: [DONE]\n\n") {
			t.Errorf("%s: %d, %.200s", spec, a.Status, a.Body)
		}
		if n := harness.Metric(t, g.Admin, "weir_engine_ready"); n != 1 {
			t.Errorf("%s: %v engines", spec, n)
		}
		if frames := harness.Metric(t, g.Admin, "weir_plane_frames_total"); (frames > 0) != (want == "weir") {
			t.Errorf("%s: %v frames of the plane", spec, frames)
		}
		g.Interrupt()
		if said := strings.Count(g.Stderr.String(), "verify=ids"); (said > 0) != strings.HasSuffix(want, "unverified") {
			t.Errorf("%s: the log says %d times how its streams would be verified", spec, said)
		}
	}
}

// The engine may come later, and come back as another kind at the same address.
func TestAutoAtJoin(t *testing.T) {
	harness.Beside(t, harness.Light)
	addr := harness.FreeAddress(t)
	g := harness.StartUnready(t, "serve", "--engine", "http://"+addr+",name=e")
	if got := engineKinds(t, g)["e"]; got != "down" {
		t.Errorf("%q before there is an engine", got)
	}
	for _, test := range []struct{ wire, kind string }{{"openai", "openai"}, {"weir", "weir"}, {"sglang", "sglang"}, {"vllm", "vllm"}} {
		p := harness.Start(t, append([]string{"engine", "--wire", test.wire + "=" + addr}, harness.FastSim...)...)
		p.Line(test.wire)
		harness.Eventually(t, "an engine of kind "+test.kind, func() bool {
			return strings.TrimSuffix(strings.TrimSuffix(engineKinds(t, g)["e"], ", unverified"), ", noted") == test.kind
		})
		harness.Eventually(t, "an answer", func() bool {
			a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream)
			return a.Status == 200 && strings.HasSuffix(string(a.Body), "data: [DONE]\n\n")
		})
		p.Interrupt()
		harness.Eventually(t, "its end", func() bool { return engineKinds(t, g)["e"] == "down" })
	}
	g.Interrupt()
}

// Engines of vLLM's that were given roles exchange ids too where the model's folder is known,
// and serve a request in two halves.
func TestAutoPair(t *testing.T) {
	harness.Beside(t, harness.Light)
	start := func(role string) half {
		return startHalf(t, "vllm", "nixl", "--nixl-side-channel-port", "0", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"`+role+`"}`)
	}
	g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", start("kv_producer").url+",name=p,role=prefill", "--engine", start("kv_consumer").url+",name=d,role=decode")
	harness.Eventually(t, "kind vllm", func() bool {
		kinds := engineKinds(t, g)
		return kinds["p"] == "vllm, noted" && kinds["d"] == "vllm, noted" // for want of --enable-scale-out
	})
	if a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream); a.Status != 200 || !strings.HasSuffix(string(a.Body), "data: [DONE]\n\n") {
		t.Errorf("%d, %.200s", a.Status, a.Body)
	}
	g.Interrupt()
	if r := g.Records(); len(r) != 1 || len(r[0].Attempts) != 1 || len(r[0].Attempts[0].Legs) != 2 {
		t.Errorf("it was not served in two halves: %+v", r)
	}
}

// A relayed SGLang has its adapters under the names that its API reads. By an adapter's own name, which
// it lists, it would answer with the base model.
func TestRelayedAdapters(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, append(harness.FastSim, "--lora-paths", "fine")...)
	g := harness.StartGateway(t, "serve", "--engine", "openai="+s.SGLang)
	g.WantModels("weir-sim weir-sim:fine")
	for model, want := range map[string]int{"weir-sim": 200, "weir-sim:fine": 200, "fine": 404} {
		if a := harness.Post(t, g.URL+"/v1/completions", `{"model":"`+model+`","prompt":"Say it.","max_tokens":5}`); a.Status != want {
			t.Errorf("%s: %d %s, want %d", model, a.Status, a.Body, want)
		}
	}
}
