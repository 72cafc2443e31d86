//go:build interop

package page

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"weir/test/e2e/harness"
)

// TestOperatorsKey opens the page of a gateway that wants an operator's key: by keyboard, with a
// wrong key, with one that may read, with one that may operate, and with one that is revoked.
func TestOperatorsKey(t *testing.T) {
	harness.Beside(t, harness.Light)
	dir := t.TempDir()
	file := filepath.Join(dir, "admin.yaml")
	add := func(name, role string) string {
		t.Helper()
		out, errs, code := harness.Finish(t, "", "keys", "add", name, "--keys", file, "--role", role)
		if code != 0 {
			t.Fatalf("weir keys add: exit code %d, %s", code, errs)
		}
		return strings.TrimSpace(out)
	}
	root, viewer := add("root", "operate"), add("viewer", "read")
	// One processor, as a held core stops the gateway only if it is the only one.
	profiles := filepath.Join(dir, "profiles")
	g := harness.StartGatewayWith(t, []string{"GOMAXPROCS=1"}, "up", "--admin-keys", file, "--profiles-dir", profiles,
		"--stall-threshold", "20ms", "--debug-stage-delay", "tokenize=60ms", "--debug-hold-core")
	ctx := browser(t)
	p := openTab(t, ctx, g.Admin)
	asks := func(p *tab, why string) {
		t.Helper()
		p.text(why)
		p.until("at the key", "document.activeElement.id == 'key' && document.activeElement.type == 'password'")
		if js[bool](p, "document.querySelectorAll('.engine, .grid, table').length > 0 || !document.querySelector('header button').hidden") {
			t.Error("without a key there are data, or a key to forget")
		}
	}
	asks(p, "operators with a key")
	p.picture("key")
	p.press(kb.Enter) // nothing was typed: the browser says so
	for _, wrong := range []string{"weir_wrong", "größer", "two words"} {
		p.press(wrong + kb.Enter)
		if wrong == "weir_wrong" {
			p.text("does not know this key")
		} else {
			p.text("letters, digits and signs only")
		}
		p.until("marked", "document.activeElement.matches('#key[aria-invalid=true]')")
		for _, look := range []struct {
			width  int64
			scheme string
		}{{1280, "light"}, {390, "dark"}} {
			p.look(look.width, look.scheme)
			p.axe("a wrong key")
			p.fits("a wrong key")
		}
	}
	p.look(1280, "light")
	if js[bool](p, "sessionStorage.length > 0") {
		t.Error("a wrong key is kept")
	}

	const shown = "document.querySelectorAll('article.engine').length == 2 && document.querySelector('.alive').textContent.includes('live')"
	p.press(viewer + kb.Enter) // in the place of the last one, which is selected
	p.until("the engines", shown)
	p.axe("with a key")
	if err := chromedp.Do(p.ctx, chromedp.Reload()); err != nil {
		t.Fatal(err)
	}
	p.until("the engines after a reload", shown)
	if got := js[string](p, "JSON.stringify([document.cookie, localStorage.length, sessionStorage.length, sessionStorage['weir.key']])"); got != `["",0,1,"`+viewer+`"]` {
		t.Errorf("cookies, what the browser keeps and what the tab keeps: %s", got)
	}
	if js[bool](p, "performance.getEntries().some(e => e.name.includes('weir_')) || location.href.includes('weir_')") {
		t.Error("the key is in an address")
	}
	asks(openTab(t, ctx, p.origin), "operators with a key") // another tab has none

	// A key that may read sees no profiles, and is told why.
	p.show("#stalls")
	p.text("Profiles are not shown with this key: the key viewer has the role read, and this needs operate")
	p.text("since weir was started")
	p.axe("a key that may read")
	p.click("header button")
	asks(p, "operators with a key")
	if js[bool](p, "sessionStorage.length > 0") {
		t.Error("a key that was forgotten is kept")
	}
	keepStall(t, profiles, func() {
		harness.WantComplete(t, harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","stream":true,"max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`))
	}, g.Process)
	p.press(root + kb.Enter)
	p.text("-stall.trace")
	// A profile's link sends the key too.
	js[bool](p, `window.sent = [], window.fetch = new Proxy(fetch, {apply: async (f, self, args) => { const a = await f.apply(self, args); if (args[0].startsWith("profiles/")) sent.push(a.status); return a }}), true`)
	p.click("a[download$='-stall.trace']")
	p.until("the profile", "sent[0] == 200")

	if _, errs, code := harness.Finish(t, "", "keys", "revoke", "root", "--keys", file, "--admin"); code != 0 {
		t.Fatalf("weir keys revoke: exit code %d, %s", code, errs)
	}
	asks(p, "no longer knows the key")
	p.press(viewer + kb.Enter)
	p.text("since weir was started")
}
