// Package plot writes pages of HTML with plots in them, as SVG. A page needs nothing
// else to open: no script, no file, no network.
package plot

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"maps"
	"slices"
)

// Page writes HTML; its first error stays.
type Page struct {
	w   *bufio.Writer
	err error
}

// New writes a page to w.
func New(w io.Writer) *Page { return &Page{w: bufio.NewWriter(w)} }

// Put writes text with values in it; strings among them are escaped.
func (p *Page) Put(format string, args ...any) {
	if p.err != nil {
		return
	}
	for i, a := range args {
		switch v := a.(type) {
		case string:
			args[i] = html.EscapeString(v)
		case fmt.Stringer:
			args[i] = html.EscapeString(v.String())
		}
	}
	_, p.err = fmt.Fprintf(p.w, format, args...)
}

// style is the page's whole look: nothing is loaded from anywhere.
const style = `
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6470;--line:#d5d9e0;--back:#fff;--card:#f6f7f9}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#a3abb6;--line:#3a4048;--back:#15181c;--card:#1d2126}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1080px;margin:2em auto;padding:0 1em}
h1{font-size:1.4em;overflow-wrap:anywhere}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600;white-space:nowrap}td:first-child,th:first-child,.text{text-align:left!important}
.points td{white-space:nowrap}td:last-child{overflow-wrap:anywhere}
.facts td{text-align:left}.wide,.plot{overflow-x:auto}
figure{margin:1em 0;background:var(--card);border-radius:6px;padding:.6em .8em}figcaption{font-weight:600}
svg{display:block;width:100%;min-width:620px;height:auto}
svg text{fill:var(--soft);font:12px system-ui,sans-serif}.axis{stroke:var(--line)}
.verdict{padding:.6em 1em;border-radius:6px;background:var(--card);border-left:6px solid}
.VALID{border-color:#2f9e5b}.DEGRADED{border-color:#d9920a}.INVALID{border-color:#d04437}
.key{margin:.2em 0}.key span{display:inline-block;margin-right:1.2em}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
details.run{border-top:1px solid var(--line);padding:.4em 0}summary{cursor:pointer}
p.note{color:var(--soft)}`

// Begin writes the head of a page.
func (p *Page) Begin(title string) {
	p.Put("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" content=\"width=device-width\"/><title>%s</title><style>", title)
	if p.err == nil {
		_, p.err = p.w.WriteString(style)
	}
	p.Put("</style></head><body>\n")
}

// End writes its end.
func (p *Page) End() error {
	p.Put("</body></html>\n")
	return p.Flush()
}

// Raw writes HTML that another page was written as.
func (p *Page) Raw(html []byte) {
	if p.err == nil {
		_, p.err = p.w.Write(html)
	}
}

// Flush writes what is left of a page that has no end of its own.
func (p *Page) Flush() error {
	if p.err != nil {
		return p.err
	}
	return p.w.Flush()
}

// Key says which colour is which name.
func (p *Page) Key(colour map[string]string) {
	p.Put("<p class=\"key\">")
	for _, name := range slices.Sorted(maps.Keys(colour)) {
		p.Put("<span><i style=\"background:%s\"></i>%s</span>", colour[name], name)
	}
	p.Put("</p>\n")
}

// Table writes rows of text, the first one the heads.
func (p *Page) Table(rows [][]string) {
	p.Put("<div class=\"wide\"><table class=\"points\"><thead><tr>")
	for _, head := range rows[0] {
		p.Put("<th>%s</th>", head)
	}
	p.Put("</tr></thead><tbody>")
	for _, row := range rows[1:] {
		p.Put("<tr>")
		for _, cell := range row {
			p.Put("<td>%s</td>", cell)
		}
		p.Put("</tr>\n")
	}
	p.Put("</tbody></table></div>\n")
}

// Palette are the colours of series, in their order.
var Palette = []string{"#3b7dd8", "#d9920a", "#2f9e5b", "#d04437", "#8a63c9", "#1f8f86", "#e0709a", "#98a0ab", "#a8b820", "#5a6fb0"}
