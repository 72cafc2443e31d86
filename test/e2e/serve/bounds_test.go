package serve

import (
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// One request takes no more memory than a small multiple of its body, whatever it
// multiplies.
func TestMemoryOfOneRequest(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", s.Spec("plane"))
	resident := func() int { return int(harness.Metric(t, g.Admin, "process_resident_memory_bytes")) >> 20 }
	before := resident()
	for _, c := range []struct{ name, path, body, says string }{
		{"a stop string, 16 times", "/v1/completions", `{"model":"weir-sim","prompt":"hi","n":16,"max_tokens":4,"stop":["` + strings.Repeat("a", 8_000_000) + `"]}`, "stop[0] has 8000000 bytes"},
		{"empty lists", "/v1/chat/completions", `{"model":"weir-sim","messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":[` + strings.Repeat("[],", 2_500_000) + `0]}}`, "chat_template_kwargs holds"},
		{"empty texts", "/tokenize", `{"model":"weir-sim","prompt":[` + strings.Repeat(`"",`, 2_500_000) + `""]}`, "at most 16384 strings"},
	} {
		if a := harness.Post(t, g.URL+c.path, c.body); a.Status != 400 || !strings.Contains(string(a.Body), c.says) {
			t.Errorf("%s: %d %.300s", c.name, a.Status, a.Body)
		}
		if after := resident(); after-before > 100 { // of bodies of 8 MB; it was 500
			t.Errorf("%s: %d MB resident, %d before", c.name, after, before)
		}
	}
}
