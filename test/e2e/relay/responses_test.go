package relay

import (
	"net/http"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// A relayed stream passes untouched, its tokens are counted, and one that ends
// before its answer does is cut.
func TestResponsesRelayed(t *testing.T) {
	harness.Beside(t, harness.Light)
	const whole = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{}}\n\n" +
		"event: response.completed\ndata: {\"type\": \"response.completed\",\"sequence_number\":1,\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4,\"total_tokens\":7}}}\n\n"
	cut := strings.Index(whole, "event: response.completed")
	url := scripted(t, func(body []byte) (http.Header, [][]byte) {
		said := []byte(whole)
		if strings.Contains(string(body), "cut") {
			said = said[:cut]
		}
		return http.Header{"Content-Type": {"text/event-stream"}}, [][]byte{said[:50], said[50:]}
	})
	g := harness.StartGateway(t, "serve", "--engine", "openai="+url+",model=m")
	a := harness.Post(t, g.URL+"/v1/responses", `{"model":"m","input":"x","stream":true}`, "X-Request-Id", "whole-1")
	if a.Status != 200 || a.Err != nil || string(a.Body) != whole {
		t.Errorf("status %d, %v: %q", a.Status, a.Err, a.Body)
	}
	a = harness.Post(t, g.URL+"/v1/responses", `{"model":"m","input":"cut","stream":true}`)
	if rest, ok := strings.CutPrefix(string(a.Body), whole[:cut]); !ok || a.Err == nil || !strings.HasPrefix(rest, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":1,\"code\":\"engine_error\"") {
		t.Errorf("status %d, %v: %q", a.Status, a.Err, a.Body)
	}
	g.Balanced()
	g.Interrupt()
	for _, r := range g.Records() {
		if r.RequestID == "whole-1" && (r.PromptTokens != 3 || r.CompletionTokens != 4 || r.Outcome != "finished") {
			t.Errorf("%+v", r)
		}
	}
}
