package jinja

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

func renderWith(t testing.TB, source string, o Options) (string, error) {
	t.Helper()
	tmpl, err := Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	out, err := tmpl.Render(nil, nil, o)
	return string(out), err
}

// endless are templates that would take all time or memory.
func endless() map[string]string {
	doubling := "{% set ns = namespace(x=START) %}{% for i in range(90) %}{% set ns.x = GROW %}{% endfor %}"
	grow := func(start, by string) string {
		return strings.NewReplacer("START", start, "GROW", by).Replace(doubling)
	}
	return map[string]string{
		"loops":         "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"output":        "{% for a in range(100000) %}" + strings.Repeat("x", 4000) + "{% endfor %}",
		"search":        "{% set x = 'x' * 300000 %}{% for a in range(100000) %}{{ 'y' in x }}{% endfor %}",
		"count":         "{% set x = 'x' * 300000 %}{% for a in range(100000) %}{{ x.count('y') }}{% endfor %}",
		"length":        "{% set x = 'x' * 300000 %}{% for a in range(100000) %}{{ x|length }}{% endfor %}",
		"compare":       "{% set x = 'x' * 300000 %}{% for a in range(100000) %}{{ x == x ~ '' }}{% endfor %}",
		"repeat":        "{{ 'x' * 9007199254740993 }}",
		"repeat list":   "{{ [1] * 9007199254740993 }}",
		"double string": grow("'x'", "ns.x ~ ns.x"),
		"add string":    grow("'x'", "ns.x + ns.x"),
		"replace":       grow("'xx'", "ns.x.replace('x', 'xxxx')"),
		"join":          grow("'xx'", "ns.x.join([ns.x, ns.x])"),
		"join filter":   grow("'xx'", "[ns.x, ns.x, ns.x]|join(ns.x)"),
		"double list":   grow("[1]", "ns.x + ns.x"),
		"shared repr":   grow("[1]", "[ns.x, ns.x]") + "{{ ns.x }}",
		"shared json":   grow("[1]", "[ns.x, ns.x]") + "{{ ns.x|tojson }}",
		"shared equal":  grow("[1]", "[ns.x, ns.x]") + "{% set a = ns.x %}" + grow("[1]", "[ns.x, ns.x]") + "{{ a == ns.x }}",
		"shared key":    grow("(1,)", "(ns.x, ns.x)") + "{{ {ns.x: 1} }}",
		"big integer":   grow("10", "ns.x * ns.x"),
		"power":         "{{ 2 ** 9007199254740993 }}",
		"recursion":     "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"own namespace": "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
		"deep list":     "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
		"width":         "{{ '%999999999d' % 1 }}{{ '%2000000000d' % 1 }}",
		"spec width":    "{{ '{:2000000000}'.format(1) }}",
		"center":        "{{ 'x'|center(9007199254740993) }}",
		"indent":        "{{ 'x'|indent(9007199254740993) }}",
		"batch":         "{{ [1]|batch(9007199254740993, 0)|list }}",
		"slice":         "{{ [1]|slice(9007199254740993)|list }}",
		"zfill":         "{{ 'x'.zfill(9007199254740993) }}",
		"tabs":          "{{ ('\t' * 60000).expandtabs(60000) }}",
	}
}

// TestLimits runs them under bounds that are soon reached; one that no bound
// ended would run until go test's own time is up.
func TestLimits(t *testing.T) {
	for name, source := range endless() {
		t.Run(name, func(t *testing.T) {
			if _, err := renderWith(t, source, Options{MaxOutput: 1 << 20, MaxSteps: 1 << 20, MaxAlloc: 1 << 22}); !isKind(err, KindLimit) {
				t.Errorf("got %v, want a limit", err)
			}
		})
	}
}

// BenchmarkBoundLimits fails where bounds of a usual size let a template
// run for as long as nobody waits.
func BenchmarkBoundLimits(b *testing.B) {
	for name, source := range endless() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := renderWith(b, source, Options{MaxAlloc: 1 << 26}); !isKind(err, KindLimit) {
					b.Errorf("got %v, want a limit", err)
				}
			}
			if took := b.Elapsed() / time.Duration(b.N); took > 30*time.Second {
				b.Errorf("took %v", took)
			}
		})
	}
}

func TestCheckStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	calls := 0
	_, err := renderWith(t, "{% for a in range(100000) %}{{ a }}{% endfor %}", Options{Check: func() error {
		if calls++; calls == 3 {
			cancel()
		}
		return ctx.Err()
	}})
	if !isKind(err, KindStopped) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want stopped by the context", err)
	}
	if calls != 3 {
		t.Errorf("checked %d times, want it to stop at the third", calls)
	}
}

// TestErrorLines holds errors to the line of the template they come from.
func TestErrorLines(t *testing.T) {
	for source, line := range map[string]int{
		"a\n\n{{ nope.x }}": 3,
		"{% if 1 %}\n{% for x in 5 %}{% endfor %}{% endif %}":           2,
		"\n{% macro m(a) %}\n{{ a + 1 }}\n{% endmacro %}\n{{ m('x') }}": 3,
		"\n\n{{ raise_exception('no') }}":                               3,
		"{{ 1 }}\n{% include 'x' %}":                                    2,
		"\n{{ 1 | pprint }}":                                            2,
		"\n{{ lipsum() }}{{ x }}":                                       2,
		"\n{{ (1 }}":                                                    2,
		"{#\n\n#}\n{%- set x = 1 %}\n\n{{ x.y.z }}":                     6,
	} {
		tmpl, err := Parse(source)
		if err == nil {
			_, err = tmpl.Render(nil, nil, Options{})
		}
		var e *Error
		if !errors.As(err, &e) || e.Line != line {
			t.Errorf("%q: got %v, want an error in line %d", source, err, line)
		}
	}
}

// TestConcurrent renders one template from many goroutines: under the race
// detector it shows that a template keeps nothing of a rendering.
func TestConcurrent(t *testing.T) {
	tmpl, err := Parse("{% set ns = namespace(n=0) %}{% macro m(x) %}<{{ x }}>{% endmacro %}" +
		"{% for x in xs %}{% set ns.n = ns.n + x %}{{ m(x) }}{{ loop.index }}{% endfor %}{{ ns.n }}{{ xs|sort|reverse|list }}")
	if err != nil {
		t.Fatal(err)
	}
	xs := &List{[]Value{Int(3), Int(1), Int(2)}}
	want, err := tmpl.Render(nil, map[string]Value{"xs": xs}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				got, err := tmpl.Render(nil, map[string]Value{"xs": xs}, Options{})
				if err != nil || string(got) != string(want) {
					t.Errorf("got %q, %v; want %q", got, err, want)
				}
			}
		})
	}
	wg.Wait()
}

// TestRefused holds the list of what is refused when the template is parsed.
func TestRefused(t *testing.T) {
	for _, source := range []string{
		"{% block a %}{% endblock %}", "{% extends 'a' %}", "{% include 'a' %}", "{% import 'a' as b %}",
		"{% from 'a' import b %}", "{% autoescape true %}{% endautoescape %}", "{{ 1|pprint }}", "{{ [1]|random }}",
		"{{ ''|striptags }}", "{{ ''|urlize }}", "{{ ''|wordwrap }}", "{{ lipsum() }}", "{{ self.x() }}",
		`{{ "\ud83d" }}`, `{{ "\N{BULLET}" }}`, "{{ x[1:2, 3] }}",
	} {
		if _, err := Parse(source); !isKind(err, KindUnsupported) {
			t.Errorf("%s: got %v, want it refused", source, err)
		}
	}
}
