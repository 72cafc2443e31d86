package engines

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// A request with media, or for a model whose vocabulary is larger than is kept, ends with an
// error event that names this reason. The same request without media, or for another model,
// continues.
func TestContinuationForbidden(t *testing.T) {
	wide := modelFolder(t)
	name := filepath.Join(wide, "config.json")
	var config map[string]any
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	config["vocab_size"] = 1<<24 + 1
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	harness.WriteFile(t, name, string(text))
	image := fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`, base64.StdEncoding.EncodeToString(harness.Picture(t, 28, 28, 1, "png")))
	for _, path := range []string{"plane", "sglang"} {
		for _, test := range []struct {
			name, content string
			args          []string
			why, word     string
		}{
			{"plain", "", nil, "", ""},
			{"media", image, nil, "the request has media", "media"},
			{"vocabulary", "", []string{"--model", "weir-sim=" + wide}, "the model has more ids than are kept", "vocabulary"},
		} {
			t.Run(path+"/"+test.name, func(t *testing.T) {
				harness.Beside(t, harness.Light)
				args := append([]string{"serve", "--policy", "round-robin"}, test.args...)
				for i := range 2 { // the second engine is asked for too few tokens to fail
					s := harness.StartSim(t, append(harness.FastSim, "--fault", "cut,after=30")...)
					args = append(args, "--engine", s.Spec(path)+fmt.Sprint(",name=e", i))
				}
				g := harness.StartGateway(t, args...)
				harness.Eventually(t, "both well", func() bool { return up(t, g) == 2 })
				content := strings.TrimSuffix(`{"type":"text","text":"x"},`+test.content, ",")
				a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":40,"messages":[{"role":"user","content":[`+content+`]}]}`)
				went := harness.Metric(t, g.Admin, "weir_continuations_total")
				if test.why == "" {
					harness.WantComplete(t, a)
					if went != 1 {
						t.Errorf("%v went on", went)
					}
				} else {
					harness.WantTorn(t, a, "engine_error")
					if refused := harness.Metric(t, g.Admin, "weir_continuations_refused_total", `why="`+test.word+`"`); went != 0 || refused != 1 || !strings.Contains(string(a.Body), "could not go on at another engine: "+test.why) {
						t.Errorf("%v went on, %v refused: %s", went, refused, a.Body[max(0, len(a.Body)-400):])
					}
				}
				g.Balanced()
				g.Interrupt()
			})
		}
	}
}

// A stream of a pair whose decode engine closes its connection goes on at the prefill engine
// and another decode engine, as if nothing had happened.
func TestPairsContinue(t *testing.T) {
	for _, name := range []string{"sglang", "vllm, pull", "vllm, push"} {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			w := wirePairs[name]
			start := func(more ...string) half {
				other := w.other
				if w.wire == "sglang" && !strings.Contains(strings.Join(more, " "), "bootstrap") {
					other = ""
				}
				return startHalf(t, w.wire, other, append(more, "--max-total-tokens", "65536")...)
			}
			fault := []string{"--fault", "cut,after=30"}
			halves := []half{start(w.prefill...), start(append(w.decode, fault...)...), start(append(w.decode, fault...)...)}
			args := []string{"serve", "--policy", "round-robin"}
			for i, h := range halves {
				spec := fmt.Sprintf("%s=%s,name=e%d", w.kind, h.url, i)
				if w.options == "role" {
					spec += ",role=" + []string{"prefill", "decode", "decode"}[i]
				}
				args = append(args, "--engine", spec)
			}
			g := harness.StartGateway(t, args...)
			harness.Eventually(t, "all well", func() bool { return up(t, g) == 3 })
			alone := startHalf(t, w.wire, "")
			one := harness.StartGateway(t, "serve", "--engine", w.kind+"="+alone.url)
			ask := func(g *harness.Gateway) (text, counts string, body []byte) {
				a := harness.Post(t, g.URL+"/v1/completions", `{"model":"weir-sim","prompt":"Once upon a time","max_tokens":40,"temperature":0,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`)
				harness.WantComplete(t, a)
				text, _ = harness.Streamed(a)
				return text, usage(t, a), a.Body
			}
			want, counted, _ := ask(one)
			got, counts, body := ask(g)
			if went := harness.Metric(t, g.Admin, "weir_continuations_total"); got != want || want == "" || counts != counted || went != 1 || !strings.Contains(string(body), ": x-weir-continued 1\n") {
				t.Errorf("%v went on: %q, %s, at one engine %q, %s", went, got, counts, want, counted)
			}
			g.Balanced()
			for _, h := range halves {
				h.rests(t)
			}
			if a := harness.Get(t, g.Admin+"/readyz"); a.Status != http.StatusOK {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			g.Interrupt()
		})
	}
}
