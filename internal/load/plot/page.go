// Package plot writes pages of HTML with plots in them, as SVG. A page needs nothing
// else to open: no script, no file, no network.
package plot

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"strings"
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

// style is the page's whole look: nothing is loaded from anywhere. On a narrow screen each
// row of a table is a list of its cells, each with its head.
const style = `
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6470;--line:#d5d9e0;--back:#fff;--card:#f6f7f9}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#a3abb6;--line:#3a4048;--back:#15181c;--card:#1d2126}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1080px;margin:2em auto;padding:0 1em;overflow-wrap:anywhere}
h1{font-size:1.4em}h2{font-size:1.15em;margin:2em 0 .4em}h3{font-size:1em;margin:1.4em 0 .2em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}td:first-child,th:first-child,.text{text-align:left!important}
.wide{overflow-x:auto}.points{font-size:.93em}.points td,.points th{overflow-wrap:normal}.many{font-size:.8em}.many td,.many th{padding:.2em .45em}.points td.text,.points td:last-child{overflow-wrap:anywhere}
.points td:first-child{min-width:6.4em}.facts td{text-align:left}.facts td:first-child{color:var(--soft);white-space:nowrap}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(132px,1fr));gap:.6em;margin:1em 0}
.tiles div{background:var(--card);border-radius:6px;padding:.5em .8em}
.tiles b{display:block;font-size:1.5em;line-height:1.3;font-variant-numeric:tabular-nums}.tiles span{color:var(--soft);font-size:.87em;display:block;line-height:1.3}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));gap:.8em;margin:.8em 0}.grid figure{margin:0}
figure{margin:.8em 0;background:var(--card);border-radius:6px;padding:.6em .8em;min-width:0}figcaption{font-weight:600;margin-bottom:.6em}
.plot{padding:6px 22px 40px 50px}svg{display:block;width:100%;overflow:visible}svg.area{height:190px}svg.bar{height:22px}svg.foot{height:18px}.bars p{margin:.5em 0 0}
svg text{fill:var(--soft);font:12px system-ui,sans-serif;font-variant-numeric:tabular-nums}.axis{stroke:var(--line)}
polyline{stroke-width:1.8;stroke-linejoin:round;vector-effect:non-scaling-stroke}.interval{stroke-width:1.6;opacity:.6}
.verdict{padding:.6em 1em;border-radius:6px;background:var(--card);border-left:6px solid}
.VALID{border-color:#2f9e5b}.DEGRADED{border-color:#d9920a}.INVALID{border-color:#d04437}
.key{margin:.4em 0;padding:.3em 0;position:sticky;top:0;background:var(--back);z-index:1}.key span{display:inline-block;margin-right:1.1em}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
details.run{border-top:1px solid var(--line);padding:.4em 0}summary{cursor:pointer}
p.note{color:var(--soft);margin:.4em 0}
@media(max-width:860px){
body{margin:1em auto}
.points,.points tbody,.points tr{display:block}.points thead{display:none}
.points tr{padding:.4em 0;border-bottom:1px solid var(--line);display:flex;flex-wrap:wrap;gap:0 1em}
.points td,.many td{border:0;padding:0;text-align:left;white-space:normal}.points td:first-child,.points td[colspan],.points td.text{flex-basis:100%}
.many{font-size:.93em}.points td[data-head]::before{content:attr(data-head) " ";color:var(--soft)}.points td:first-child{font-weight:600}.points td:first-child[data-head]::before{font-weight:400}
}`

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

// Flush writes the rest of a page that has no end of its own.
func (p *Page) Flush() error {
	if p.err != nil {
		return p.err
	}
	return p.w.Flush()
}

// Name is the meaning of a colour.
type Name struct{ Name, Colour string }

// Open begins a section, in which colours stand for names. The key shows them once, and
// stays visible while the section is read. A single name needs no key.
func (p *Page) Open(heading string, names []Name) {
	p.Put("<section>")
	if heading != "" {
		p.Put("<h2>%s</h2>\n", heading)
	}
	if len(names) < 2 {
		return
	}
	p.Put("<p class=\"key\">")
	for _, n := range names {
		p.Put("<span><i style=\"background:%s\"></i>%s</span>", n.Colour, n.Name)
	}
	p.Put("</p>\n")
}

// Close ends a section.
func (p *Page) Close() { p.Put("</section>\n") }

// Grid places the plots next to each other, as far as there is room.
func (p *Page) Grid(plots func()) {
	p.Put("<div class=\"grid\">\n")
	plots()
	p.Put("</div>\n")
}

// Note writes a remark that explains the figures next to it.
func (p *Page) Note(format string, args ...any) { p.Put("<p class=\"note\">"+format+"</p>\n", args...) }

// Tile is a figure that is to be seen first.
type Tile struct{ Value, Name string }

// Tiles writes figures large.
func (p *Page) Tiles(all []Tile) {
	if len(all) == 0 {
		return
	}
	p.Put("<div class=\"tiles\">")
	for _, t := range all {
		p.Put("<div><b>%s</b><span>%s</span></div>\n", t.Value, t.Name)
	}
	p.Put("</div>\n")
}

// Facts writes rows of a name and a text.
func (p *Page) Facts(rows [][2]string) {
	p.Put("<table class=\"facts\"><tbody>")
	for _, row := range rows {
		p.Put("<tr><td>%s</td><td>%s</td></tr>\n", row[0], row[1])
	}
	p.Put("</tbody></table>\n")
}

// Table writes rows of text; the first row holds the heads. A row of two cells under more
// heads is a remark on the row above it. The columns from text on, if it is not negative,
// contain words.
func (p *Page) Table(rows [][]string, text int) {
	heads, alone := rows[0], whole(rows[0])
	class := func(i int) string {
		if text >= 0 && i >= text {
			return " class=\"text\""
		}
		return ""
	}
	size := ""
	if len(heads) > 12 {
		size = " many"
	}
	p.Put("<div class=\"wide\"><table class=\"points%s\"><thead><tr>", size)
	for i, head := range heads {
		p.Put("<th"+class(i)+">%s</th>", head)
	}
	p.Put("</tr></thead><tbody>")
	for _, row := range rows[1:] {
		p.Put("<tr>")
		for i, cell := range row {
			switch {
			case i == 1 && len(row) == 2 && len(heads) > 2:
				p.Put("<td class=\"text\" colspan=\"%d\">%s</td>", len(heads)-1, cell)
			case heads[i] == "":
				p.Put("<td"+class(i)+">%s</td>", cell)
			default:
				p.Put("<td"+class(i)+" data-head=\"%s\">%s</td>", alone[i], cell)
			}
		}
		p.Put("</tr>\n")
	}
	p.Put("</tbody></table></div>\n")
}

// whole returns heads that can be understood alone: p99 next to ttft p50 becomes ttft p99.
func whole(heads []string) []string {
	all := make([]string, len(heads))
	of := ""
	for i, head := range heads {
		name, figure, ok := strings.Cut(head, " p")
		switch {
		case ok && figure != "" && figure[0] >= '0' && figure[0] <= '9':
			of = name + " "
		case of != "" && len(head) > 1 && head[0] == 'p' && head[1] >= '0' && head[1] <= '9':
			head = of + head
		default:
			of = ""
		}
		all[i] = head
	}
	return all
}

// Palette are the colours of series, in their order.
var Palette = []string{"#3b7dd8", "#d9920a", "#2f9e5b", "#d04437", "#8a63c9", "#1f8f86", "#e0709a", "#98a0ab", "#a8b820", "#5a6fb0"}
