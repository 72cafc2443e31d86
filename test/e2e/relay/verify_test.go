package relay

import (
	"fmt"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// Tokens that an engine's front end drops are detected only where its streams are verified.
// Other streams count as unverified. The caller of a whole stream sees no difference.
func TestVerifiedStreams(t *testing.T) {
	harness.Beside(t, harness.Light)
	const (
		chat       = "/v1/chat/completions"
		completion = "/v1/completions"
	)
	ask := func(path, more string) string {
		if path == chat {
			return `{"model":"weir-sim","stream":true,"max_tokens":20,"ignore_eos":true,"seed":7,"messages":[{"role":"user","content":"go on"}]` + more + `}`
		}
		return `{"model":"weir-sim","stream":true,"max_tokens":20,"ignore_eos":true,"seed":7,"prompt":"go on"` + more + `}`
	}
	for _, test := range []struct {
		wire, options, path string
		verified            string // what the metric says of a whole stream
	}{
		{"vllm", ",verify=ids", chat, "ids"},
		{"vllm", ",verify=ids", completion, "ids"},
		{"sglang", ",verify=ids", completion, "ids"},
		{"sglang", ",verify=ids", chat, "endpoint"},
		{"openai", ",verify=ids", chat, "engine"},
		{"vllm", "", chat, "off"},
	} {
		t.Run(fmt.Sprint(test.wire, test.options, test.path), func(t *testing.T) {
			args := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "5ms"}
			switch test.wire {
			case "vllm":
				args = append(args, "--fingerprint-value", "vllm-sim")
			case "sglang": // which else draws by no seed
				args = append(args, "--enable-deterministic-inference")
			}
			url, admin := harness.StartWire(t, test.wire, args...)
			g := harness.StartGateway(t, "serve", "--engine", "openai="+url+test.options+",name=e")
			// The same as from the engine itself, whatever is asked for; how many tokens are in
			// an event depends on the moment.
			for _, more := range []string{"", `,"stream_options":{"include_usage":true}`, `,"return_token_ids":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`} {
				through, direct := harness.Post(t, g.URL+test.path, ask(test.path, more)), harness.Post(t, url+test.path, ask(test.path, more))
				harness.WantComplete(t, through)
				text, _ := harness.Streamed(through)
				if want, _ := harness.Streamed(direct); text != want || text == "" {
					t.Errorf("%s: text %q, the engine's own %q", more, text, want)
				}
				for _, name := range []string{`"token_ids":[`, `"prompt_token_ids":[`, `"usage":{`, `"usage":null`, `"system_fingerprint":"vllm-sim"`, `"token_ids":null`} {
					one, other := strings.Contains(string(through.Body), name), strings.Contains(string(direct.Body), name)
					if one != other {
						t.Errorf("%s: %s is there: %t, of the engine itself: %t\n%s", more, name, one, other, through.Body)
					}
				}
				if test.wire == "vllm" && strings.Count(string(through.Body), "vllm-sim\"") != 1 {
					t.Errorf("%s: the fingerprint is not there once:\n%s", more, through.Body)
				}
			}
			g.Balanced() // a stream is counted after its client has its end
			if n := harness.Metric(t, g.Admin, "weir_relay_streams_total", `engine="e"`, `verified="`+test.verified+`"`); n != 3 {
				t.Errorf("%v streams are counted as %q", n, test.verified)
			}

			if a := harness.Post(t, admin+"/admin/faults", `{"faults":["skip,after=5"]}`); a.Status != 200 {
				t.Fatalf("faults: %d %s", a.Status, a.Body)
			}
			lost := harness.Post(t, g.URL+test.path, ask(test.path, ""))
			failures := g.Failures()
			if test.verified != "ids" {
				harness.WantComplete(t, lost) // nobody can know
				if len(failures) != 0 {
					t.Errorf("kept %+v", failures)
				}
			} else {
				harness.WantTorn(t, lost, "integrity_error")
				if len(failures) != 1 || failures[0].Reason != "total_mismatch" || failures[0].Engine != "e" || failures[0].Evidence.Found.Text == "" {
					t.Errorf("kept %+v", failures)
				}
			}
			// A stream is counted when all of it is over, after its client has it.
			want := map[string]string{"ids": `"streams_verified": 3`, "endpoint": `"streams_unverified": 4`, "engine": `"streams_unverified": 4`, "off": `"streams_unverified": 4`}[test.verified]
			harness.Eventually(t, want, func() bool { return strings.Contains(string(harness.Get(t, g.Admin+"/engines").Body), want) })
			g.Interrupt()
		})
	}
}
