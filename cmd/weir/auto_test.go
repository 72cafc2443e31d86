package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// engineKinds gives what weir engines says of the engines, by name.
func engineKinds(t *testing.T, g *gateway) map[string]string {
	t.Helper()
	var views []struct {
		Name, Kind, Software, Note string
		Ready                      bool
	}
	if err := json.Unmarshal(get(t, g.admin+"/engines").body, &views); err != nil {
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
	}
	return kinds
}

// Given a URL alone, weir finds out what is there, says so, and serves it.
func TestAuto(t *testing.T) {
	beside(t, light)
	s := startSim(t, fast...)
	for spec, want := range map[string]string{
		s.openai:                            "openai",
		s.sglang:                            "sglang",
		s.plane:                             "weir",
		"auto=" + s.sglang + ",model=other": "openai, noted",
	} {
		g := startGateway(t, "serve", "--engine", spec+",name=e")
		if got := engineKinds(t, g)["e"]; got != want {
			t.Errorf("%s is %q, want %q", spec, got, want)
		}
		if kind := g.line("engine    e"); !strings.HasPrefix(want, strings.Trim(kind, "(),")) {
			t.Errorf("%s: said %q", spec, kind)
		}
		body := askStream
		if strings.Contains(spec, "other") {
			body = strings.Replace(body, "weir-sim", "other", 1)
		}
		if a := post(t, g.url+"/v1/chat/completions", body); a.status != 200 || !strings.HasSuffix(string(a.body), "data: [DONE]\n\n") {
			t.Errorf("%s: %d, %.200s", spec, a.status, a.body)
		}
		if n := metric(t, g.admin, "weir_engine_ready"); n != 1 {
			t.Errorf("%s: %v engines", spec, n)
		}
		if frames := metric(t, g.admin, "weir_plane_frames_total"); (frames > 0) != (want == "weir") {
			t.Errorf("%s: %v frames of the plane", spec, frames)
		}
		g.interrupt()
	}
}

// The engine may come later, and come back as another kind at the same address.
func TestAutoAtJoin(t *testing.T) {
	beside(t, light)
	addr := freeAddress(t)
	g := startUnready(t, "serve", "--engine", "http://"+addr+",name=e")
	if got := engineKinds(t, g)["e"]; got != "down" {
		t.Errorf("%q before there is an engine", got)
	}
	for _, test := range []struct{ wire, kind string }{{"openai", "openai"}, {"weir", "weir"}, {"sglang", "sglang"}, {"vllm", "openai"}} {
		p := start(t, append([]string{"engine", "--wire", test.wire + "=" + addr}, fast...)...)
		p.line(test.wire)
		eventually(t, "an engine of kind "+test.kind, func() bool { return engineKinds(t, g)["e"] == test.kind })
		eventually(t, "an answer", func() bool {
			a := post(t, g.url+"/v1/chat/completions", askStream)
			return a.status == 200 && strings.HasSuffix(string(a.body), "data: [DONE]\n\n")
		})
		p.interrupt()
		eventually(t, "its end", func() bool { return engineKinds(t, g)["e"] == "down" })
	}
	g.interrupt()
}

// A stream that goes on has no limit: only silence does.
func TestLongStream(t *testing.T) {
	beside(t, light)
	s := startSim(t, "--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "50ms")
	for _, path := range paths {
		g := startGateway(t, "serve", "--engine", s.spec(path), "--first-timeout", "2s", "--idle-timeout", "2s")
		begun := time.Now()
		body := strings.Replace(askStream, `"max_tokens":40`, `"max_tokens":90`, 1)
		if a := post(t, g.url+"/v1/chat/completions", body); a.status != 200 || !strings.HasSuffix(string(a.body), "data: [DONE]\n\n") {
			t.Errorf("%s: %d, %.200s", path, a.status, a.body)
		}
		if took := time.Since(begun); took < 4*time.Second {
			t.Errorf("%s: over after %v: the test shows nothing", path, took)
		}
		g.interrupt()
	}
}
