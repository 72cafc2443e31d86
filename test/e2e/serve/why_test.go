package serve

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// weir why reports which engine a request went to, what was predicted for it and how it ended.
// For a request that was not sent it reports where it would go, and no engine receives it.
func TestWhy(t *testing.T) {
	harness.Beside(t, harness.Light)
	p := startPair(t, "plane", kvSim, kvSim)
	body := func(prompt string) string {
		b, err := json.Marshal(map[string]any{"model": "weir-sim", "prompt": prompt, "max_tokens": 8, "stream": true})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	prompt := strings.Repeat("Say why. ", 400)
	why := func(stdin string, args ...string) string {
		t.Helper()
		out, stderr, code := harness.Finish(t, stdin, append(append([]string{"why"}, args...), "--admin", p.Admin)...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		return out
	}
	// The engines' lines of a receipt, the chosen one first.
	engine := regexp.MustCompile(`(?m)^engine    (\S+), of 2: .+$`)
	cached := regexp.MustCompile(`(?m)^prompt    (\d+) tokens; some engine was believed to have (\d+) of them, this one (\d+)(, and it had (\d+))?$`)

	dry := why(body(prompt), "--request", "-", "--path", "/v1/completions")
	if m := cached.FindStringSubmatch(dry); m == nil || m[2] != "0" || m[3] != "0" || m[5] != "" || !strings.Contains(dry, "given to nobody") {
		t.Errorf("of a prompt that nobody has:\n%s", dry)
	}
	if n := harness.Metric(t, p.Admin, "weir_requests_received_total"); n != 0 {
		t.Errorf("%v requests are counted", n)
	}

	if a := harness.Post(t, p.URL+"/v1/completions", body(prompt)); a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	p.wantEven(t)
	a, b := p.finished(t)
	if a+b != 1 {
		t.Fatalf("%d and %d requests are finished", a, b)
	}
	home := map[bool]string{true: "a", false: "b"}[a == 1]
	dry = why(body(prompt+" And again."), "--request", "-", "--path", "/v1/completions")
	if m := cached.FindStringSubmatch(dry); m == nil || m[3] == "0" || m[2] != m[3] || engine.FindStringSubmatch(dry)[1] != home {
		t.Errorf("of one whose beginning is at %s:\n%s", home, dry)
	}

	req, err := http.NewRequest("POST", p.URL+"/v1/completions", strings.NewReader(body(prompt+" And again.")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", "the-second")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var done strings.Builder
	if _, err := io.Copy(&done, resp.Body); err != nil || !strings.Contains(done.String(), "[DONE]") {
		t.Fatalf("%v: %s", err, done.String())
	}
	p.Balanced()
	was := why("", "the-second")
	m := cached.FindStringSubmatch(was)
	if m == nil || m[3] == "0" || m[5] != m[3] || engine.FindStringSubmatch(was)[1] != home {
		t.Errorf("of the second request:\n%s", was)
	}
	for _, part := range []string{"request   the-second, model weir-sim: finished", "\noutput    predicted after ", ", and it took ", "\nENGINE  ", "DECODERS\n" + home, "TTFT"} {
		if !strings.Contains(was, part) {
			t.Errorf("%q is missing:\n%s", part, was)
		}
	}
	for name, want := range map[string]string{"weir_affinity_available_tokens_total": m[3], "weir_affinity_taken_tokens_total": m[3], "weir_affinity_delivered_tokens_total": m[3]} {
		if got := harness.Metric(t, p.Admin, name); json.Number(want) != json.Number(jsonOf(t, got)) {
			t.Errorf("%s is %v, want %s", name, got, want)
		}
	}
	if n := harness.Metric(t, p.Admin, "weir_regret_seconds_count"); n != 2 {
		t.Errorf("the regret of %v of 2 choices is known", n)
	}
	if n := harness.Metric(t, p.Admin, "weir_cached_predictions_total", `came="exact"`); n != 2 {
		t.Errorf("%v of 2 predictions were exact", n)
	}

	for _, bad := range []struct {
		stdin string
		args  []string
		want  string
	}{
		{"", []string{"nobody"}, "no request with that id"},
		{"", nil, "give the id of a request that has ended, or --request FILE"},
		{"", []string{"a", "--request", "-"}, "not both"},
		{"{", []string{"--request", "-"}, "would be refused"},
		{"", []string{"--request", "-", "--header", "x"}, "want 'Name: value'"},
	} {
		_, stderr, code := harness.Finish(t, bad.stdin, append(append([]string{"why"}, bad.args...), "--admin", p.Admin)...)
		if code == 0 || !strings.Contains(stderr, bad.want) {
			t.Errorf("%v: exit code %d, %s", bad.args, code, stderr)
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
