//go:build interop

package page

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"weir/internal/lab/kubeapi"
	"weir/test/e2e/harness"
)

// TestGatewaysAndSources has the page show the other gateways, one of which ends, and the source
// of engines, which is then refused what it asks for. A gateway alone shows neither.
func TestGatewaysAndSources(t *testing.T) {
	harness.Beside(t, harness.Light)
	api, config := harness.StartKubernetes(t)
	s := harness.StartSim(t, harness.FastSim...)
	at := [2]string{harness.FreeAddress(t), harness.FreeAddress(t)}
	begin := func(i int, more ...string) *harness.Gateway {
		return harness.StartGateway(t, append([]string{"serve", "--engine", s.Spec("plane") + ",name=a", "--peers", strings.Join(at[:], ","), "--peer-listen", at[i]}, more...)...)
	}
	other := begin(1)
	g := begin(0, "--discover", "kubernetes=pods,selector=app=llm,kind=openai,kubeconfig="+config)
	p := openTab(t, browser(t), g.Admin)
	gateways := func(what, has string) {
		t.Helper()
		p.until(what, fmt.Sprintf(`[...document.querySelectorAll('[aria-label=Gateways] article')].some(r => r.innerText.includes(%q) && r.innerText.includes(%q))`, at[1], has))
	}
	gateways("the other one", "followed")
	p.text("this gateway")
	p.text("Where engines come from")
	p.text("current")
	api.Faults(func(w http.ResponseWriter, _ *http.Request) bool {
		kubeapi.Refuse(w, http.StatusForbidden, "Forbidden", "pods is forbidden")
		return true
	})
	other.Kill()
	for _, look := range []struct {
		width  int64
		scheme string
	}{{1280, "light"}, {390, "dark"}} {
		p.look(look.width, look.scheme)
		p.show("")
		gateways("it is missed", "unreachable")
		p.until("the refusal", `document.querySelector('[aria-label="Where engines come from"]')?.innerText.includes("pods is forbidden")`)
		p.axe("gateways and sources")
		p.fits("gateways and sources")
		js[bool](p, `document.querySelector('[aria-label=Gateways]').scrollIntoView(), true`)
		p.picture(fmt.Sprintf("around-%d", look.width))
	}

	alone := openTab(t, browser(t), harness.StartGateway(t, "serve", "--engine", s.Spec("plane")).Admin)
	alone.text("1 of 1 engines up")
	alone.until("it has asked", `['peers', 'admin/fleet'].every(path => performance.getEntriesByType('resource').some(e => e.name.endsWith('/' + path) && e.responseEnd > 0))`)
	if seen := js[string](alone, `[...document.querySelectorAll('h2')].filter(h => h.checkVisibility()).map(h => h.textContent).join()`); seen != "Slowest in the last minute,Engines" {
		t.Errorf("a gateway alone shows %s", seen)
	}
}
