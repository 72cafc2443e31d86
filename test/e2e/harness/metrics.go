package harness

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// documented is a metric in docs/metrics.md.
type documented struct {
	kind, scope string
	series      int
}

// scopes are the labels that metrics are counted by, by the title of their section.
var scopes = map[string]string{"The gateway": "", "Each model": "model", "Each engine": "engine", "Each data-parallel rank that an engine names": "engine rank", "Each kind of engines": "kind", "Each source of engines": "source"}

// documentedMetrics reads the tables of docs/metrics.md, and the number of series of an engine.
func documentedMetrics(t testing.TB) (by map[string]documented, engines map[string]int) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	by, engines = map[string]documented{}, map[string]int{}
	scope := ""
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			if scope, ok = scopes[strings.TrimSpace(title)]; !ok {
				t.Fatalf("what is counted %q?", title)
			}
		}
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if kind, ok := strings.CutPrefix(cells[0], "| engine of kind `"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(cells[1], " |"))
			if err != nil {
				t.Fatal(err)
			}
			engines[strings.TrimSuffix(kind, "`")] = n
		}
		if len(cells) < 6 || !strings.HasPrefix(cells[0], "| `weir_") {
			continue
		}
		n, err := strconv.Atoi(cells[4])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		by[strings.Trim(cells[0], "|` ")] = documented{cells[1], scope, n}
	}
	if len(by) < 100 || len(engines) != 6 {
		t.Fatalf("%d metrics and %d kinds of engines are documented", len(by), len(engines))
	}
	return by, engines
}

// Scraped returns a gateway's metrics.
func Scraped(t testing.TB, g *Gateway) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(Get(t, g.Admin+"/metrics").Body))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// lines is how many series a metric's sample has in the text format.
func lines(m *dto.Metric) int {
	if h := m.GetHistogram(); h != nil {
		return len(h.GetBucket()) + 2
	}
	return 1
}

// WantDocumented compares a scrape of a gateway with docs/metrics.md: each metric is there,
// has that type, and has at most that number of series.
func WantDocumented(t testing.TB, g *Gateway) {
	t.Helper()
	by, most := documentedMetrics(t)
	perEngine, kinds := map[string]int{}, map[string]string{}
	for name, f := range Scraped(t, g) {
		if !strings.HasPrefix(name, "weir_") {
			continue
		}
		d, ok := by[name]
		if !ok || d.kind != strings.ToLower(f.GetType().String()) {
			t.Errorf("%s, a %s, is documented as %+v", name, f.GetType(), d)
			continue
		}
		n := map[string]int{}
		for _, m := range f.GetMetric() {
			of, engine := "", ""
			for _, l := range m.GetLabel() {
				if strings.Contains(" "+d.scope+" ", " "+l.GetName()+" ") {
					of += l.GetName() + "=" + l.GetValue() + " "
				}
				switch l.GetName() {
				case "engine":
					engine = l.GetValue()
				case "kind":
					if name == "weir_engine_ready" {
						kinds[engine] = l.GetValue()
					}
				}
			}
			n[of] += lines(m)
			if d.scope == "engine" {
				perEngine[engine] += lines(m)
			}
		}
		for of, n := range n {
			if n > d.series {
				t.Errorf("%s has %d series of %s, and is documented with %d", name, n, of, d.series)
			}
		}
	}
	for engine, n := range perEngine {
		if kind, ok := kinds[engine]; ok && (n > most[kind] || n < 40) {
			t.Errorf("engine %s has %d series, at most %d of kind %s are documented", engine, n, most[kind], kind)
		}
	}
}
