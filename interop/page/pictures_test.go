//go:build interop

package page

import (
	"fmt"
	"strings"
	"testing"

	"weir/test/e2e/harness"
)

// TestPageUnderLoad has a fleet under load, with one request of a long prompt among short ones.
// The page shows the rates, and that request with its reason. With WEIR_SCREENSHOTS it makes the
// pictures of docs/page (make page-pictures).
func TestPageUnderLoad(t *testing.T) {
	harness.Beside(t, harness.Light)
	g := harness.StartGateway(t, "up")
	if first, _, _ := strings.Cut(g.Output(), "\n"); !strings.HasPrefix(first, "page      "+g.Admin) {
		t.Errorf("a newcomer is first shown %q", first)
	}
	harness.Start(t, "bench", g.URL, "--rate", "15", "--requests", "100000", "--output-tokens", "60") // until the test ends
	p := openTab(t, browser(t), g.Admin)
	p.until("rates and percentiles", "[...document.querySelectorAll('.strip dd')].slice(2).filter(d => parseFloat(d.textContent) > 0).length == 4")
	long := strings.Repeat("A document that the question is about. ", 1500)
	harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", fmt.Sprintf(`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":400,"messages":[{"role":"user","content":%q}]}`, long), "X-Request-Id", "summarize-report"))
	reason := g.Reasons("id=summarize-report", 1)[0].Reason.Sentence
	link := ".slowest a[href*=summarize-report]" // on a starved machine another one can be slower
	p.until("among the slowest", "document.querySelector('"+link+"')")
	p.picture("fleet")
	p.click(link)
	p.text(reason) // on a starved machine weir's own stages, and not prefill, can be the longest
	p.text("The decision")
	p.within(3)
	p.picture("request")
	p.look(390, "dark")
	p.click(`nav a[href="#fleet"]`)
	p.until("engines", "document.querySelectorAll('article.engine').length == 2")
	p.text("summarize-report")
	p.picture("fleet-phone")
	p.click(`nav a[href="#live"]`)
	p.until("a series", "document.querySelector('.uplot canvas')")
	p.fits("live on a phone")
	p.picture("live-phone")
}
