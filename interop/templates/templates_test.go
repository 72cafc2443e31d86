//go:build interop

// Package templates_test compares weir's chat templates with real Jinja2, in
// the environment that Hugging Face transformers builds for them: the fixed
// templates and conversations of internal/model/chat/testdata, and templates made at
// random from the grammar of what is supported.
//
//	python -m venv .venv && .venv/bin/pip install -r interop/requirements.txt
//	WEIR_PYTHON=$PWD/.venv/bin/python go test -tags interop ./interop/templates
//
// WEIR_TEMPLATES sets how many random templates there are (3,000), and WEIR_SEED
// which: the same ones in every run unless it is given, so that a change is
// judged by what it changes; 0 takes new ones, to look for differences.
package templates_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/internal/model/chat"
	"weir/internal/model/chat/jinja"
	"weir/test/e2e/harness"
)

// result is what the reference says of one rendering.
type result struct {
	Text    *string `json:"text"`
	Error   string  `json:"error"`
	Message string  `json:"message"`
	Skip    string  `json:"skip"`
	// IDs are the tokens of the text, of published.py with a folder.
	IDs []uint32 `json:"ids"`
}

func TestMain(m *testing.M) { harness.Main(m) }

// reference is a running serve.py or published.py.
type reference struct{ *harness.Peer }

func startReference(t *testing.T, program string) *reference {
	t.Helper()
	return &reference{harness.StartPeer(t, exec.Command(harness.Python(t), program))}
}

// ask has one job done.
func (r *reference) ask(t *testing.T, job any) result {
	t.Helper()
	r.hand(t, job)
	return r.answer(t)
}

// answer reads what the reference says of the earliest job that has no answer yet.
func (r *reference) answer(t *testing.T) (res result) {
	t.Helper()
	line, err := r.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &res)
	}
	if err != nil {
		t.Fatalf("the reference: %v", err)
	}
	return res
}

// hand gives the reference jobs, which it does while the answers to the first of
// them are compared. Where they cannot be written an answer is missing.
func (r *reference) hand(t *testing.T, jobs ...any) {
	t.Helper()
	var lines []byte
	for _, job := range jobs {
		line, err := json.Marshal(job)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, line...), '\n')
	}
	go r.Write(lines)
}

// now is the time that reference.py formats.
func now() time.Time { return time.Date(2026, 3, 7, 5, 6, 9, 12345000, time.UTC) }

// TestFixed renders every conversation with every template.
func TestFixed(t *testing.T) {
	harness.Beside(t, harness.Light)
	ref := startReference(t, "serve.py")
	templates, _ := filepath.Glob("../../internal/model/chat/testdata/templates/*.jinja")
	conversations, _ := filepath.Glob("../../internal/model/chat/testdata/conversations/*.json")
	if len(templates) < 12 || len(conversations) < 10 {
		t.Fatalf("%d templates, %d conversations", len(templates), len(conversations))
	}
	for _, tp := range templates {
		source := read(t, tp)
		tmpl, err := chat.Parse(string(source), chat.Options{})
		if err != nil {
			t.Errorf("%s: %v", tp, err)
			continue
		}
		for _, cp := range conversations {
			var req map[string]json.RawMessage
			if err := json.Unmarshal(read(t, cp), &req); err != nil {
				t.Fatal(err)
			}
			req["tokens"] = json.RawMessage(`{"bos_token": "<s>", "eos_token": "</s>"}`)
			want := ref.ask(t, map[string]any{"source": string(source), "request": req})
			got, err := tmpl.Render(context.Background(), nil, &chat.Input{
				Messages: req["messages"], Tools: req["tools"], Documents: req["documents"], Kwargs: req["kwargs"],
				AddGenerationPrompt:  string(req["add_generation_prompt"]) == "true",
				ContinueFinalMessage: string(req["continue_final_message"]) == "true",
				SpecialTokens:        map[string]string{"bos_token": "<s>", "eos_token": "</s>"},
				Now:                  now(),
			})
			switch {
			case want.Text == nil && err == nil:
				t.Errorf("%s, %s: got %q, want %s: %s", tp, cp, got, want.Error, want.Message)
			case want.Text != nil && (err != nil || string(got) != *want.Text):
				t.Errorf("%s, %s:\n got %q, %v\nwant %q", tp, cp, got, err, *want.Text)
			}
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func setting(t *testing.T, name string, def uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestRandom renders random templates. What both refuse is as good as what
// both render; what only we refuse must say that it is not supported.
func TestRandom(t *testing.T) {
	harness.Beside(t, harness.Light)
	ref := startReference(t, "serve.py")
	raw := read(t, "../../internal/model/chat/jinja/testdata/vars.json")
	decoded, err := jinja.DecodeJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]jinja.Value{}
	for k, v := range decoded.(*jinja.Dict).All() {
		vars[k] = v
	}
	seed := setting(t, "WEIR_SEED", uint64(1))
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	templates := uint64(3000)
	if testing.Short() {
		templates = 150
	}
	count := int(setting(t, "WEIR_TEMPLATES", templates))
	t.Logf("WEIR_SEED=%d", seed)
	g := &grammar{r: rand.New(rand.NewPCG(seed, 0))}
	sources, jobs := make([]string, count), make([]any, count)
	for i := range sources {
		sources[i] = g.template()
		jobs[i] = map[string]any{"source": sources[i], "vars": json.RawMessage(raw)}
	}
	ref.hand(t, jobs...)
	rendered, failed, refused := 0, 0, 0
	for _, source := range sources {
		want := ref.answer(t)
		got, err := renderOurs(source, vars)
		var e *jinja.Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("not an *Error: %v\n%s", err, source)
		}
		switch {
		case want.Skip != "":
		case e != nil && (e.Kind == jinja.KindUnsupported || e.Kind == jinja.KindLimit):
			refused++
		case want.Text != nil && (err != nil || got != *want.Text):
			t.Errorf("%s\n got %q, %v\nwant %q", source, got, err, *want.Text)
		case want.Text == nil && err == nil:
			t.Errorf("%s\n got %q\nwant %s: %s", source, got, want.Error, want.Message)
		case want.Text == nil:
			// A template with several faults may fail at another of them: the
			// reference finds some when it compiles.
			failed++
		default:
			rendered++
		}
	}
	t.Logf("%d rendered alike, %d failed alike, %d refused", rendered, failed, refused)
	if rendered < count/3 || refused > count/10 {
		t.Errorf("of %d templates %d rendered and %d were refused: the comparison says too little", count, rendered, refused)
	}
}

func renderOurs(source string, vars map[string]jinja.Value) (string, error) {
	tmpl, err := jinja.Parse(source)
	if err != nil {
		return "", err
	}
	out, err := tmpl.Render(nil, vars, jinja.Options{Now: now()})
	return string(out), err
}

// grammar makes random templates over the variables of vars.json.
type grammar struct {
	r     *rand.Rand
	depth int
	loops int
}

func (g *grammar) pick(xs ...string) string { return xs[g.r.IntN(len(xs))] }

func (g *grammar) some(p float64) bool { return g.r.Float64() < p }

func (g *grammar) template() string {
	g.depth, g.loops = 0, 0
	return "{% set ns = namespace(a=1, s='') %}{% macro mac(x, y='d') %}({{ x }}{{ y }}{{ caller() if caller }}){% endmacro %}" +
		g.body(2+g.r.IntN(4))
}

func (g *grammar) body(n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(g.statement())
	}
	return b.String()
}

// open and shut are the ends of a tag with random white space control.
func (g *grammar) open() string {
	return g.pick("", "", "", " ", "\n", "  ", "\n  ", "x\n\t") + g.pick("{%", "{%", "{%-", "{%+")
}

func (g *grammar) shut() string {
	return g.pick(" %}", " %}", " -%}", " +%}", "%}") + g.pick("", "", "\n", " \n", "\n\n ")
}

func (g *grammar) tag(s string) string { return g.open() + " " + s + g.shut() }

func (g *grammar) text() string {
	return g.pick("text", " a\n", "\n\nb ", "  ", "{ }", "é😀\r\n", "<x>", "\t\n", "{# c #}", "{#- c -#}", "  {# c #}\n", "{% raw %}{{ r }}{% endraw %}\n")
}

func (g *grammar) output() string {
	return g.pick("{{", "{{-") + " " + g.expr() + " " + g.pick("}}", "}}", "-}}") + g.pick("", "\n")
}

func (g *grammar) statement() string {
	if g.depth++; g.depth > 4 {
		g.depth--
		return g.output()
	}
	defer func() { g.depth-- }()
	inner := func() string { return g.body(1 + g.r.IntN(3)) }
	switch g.r.IntN(14) {
	case 0, 1:
		return g.text()
	case 2, 3:
		s := g.tag("if "+g.expr()) + inner()
		if g.some(0.4) {
			s += g.tag("elif "+g.expr()) + inner()
		}
		if g.some(0.5) {
			s += g.tag("else") + inner()
		}
		return s + g.tag("endif")
	case 4, 5:
		g.loops++
		head := g.pick("for v in "+g.seq(), "for v in "+g.seq(), "for k, v in d.items()", "for k, v in "+g.pick("people[0]", "d")+"|items")
		if g.some(0.25) {
			head += " if " + g.expr()
		}
		s := g.tag(head) + inner()
		if g.some(0.2) {
			s += g.tag("if "+g.expr()) + g.tag(g.pick("break", "continue")) + g.tag("endif") + inner()
		}
		if g.some(0.2) {
			s += g.tag("else") + inner()
		}
		g.loops--
		return s + g.tag("endfor")
	case 6, 7:
		return g.tag("set " + g.pick("v", "w", "s", "n", "ns.a", "ns.s", "v, w", "xs") + " = " + g.pick(g.expr(), g.expr()+", "+g.expr()))
	case 8:
		return g.tag("set "+g.pick("w", "s", "w|upper", "s|trim")) + inner() + g.tag("endset")
	case 9:
		return g.tag("with v = "+g.expr()+", w = "+g.expr()) + inner() + g.tag("endwith")
	case 10:
		return g.tag("filter "+g.pick("upper", "trim", "replace('a', 'b')", "indent(2)", "length|string")) + inner() + g.tag("endfilter")
	case 11:
		return g.tag(g.pick("call mac(", "call(q) mac(")+g.expr()+")") + inner() + g.tag("endcall")
	case 12:
		return g.tag("generation") + inner() + g.tag("endgeneration")
	}
	return g.output()
}

func (g *grammar) seq() string {
	return g.pick("xs", "names", "people", "messages", "'h\u00e9y'", "range(3)", "d", "[]", "nope", g.list(), g.list())
}

// nest descends one level; it says no where the expression is deep enough.
func (g *grammar) nest() bool {
	if g.depth >= 7 || g.some(0.3) {
		return false
	}
	g.depth++
	return true
}

// expr makes an expression of any type. Most fit together, so that templates
// render; a few do not, so that failures are compared too.
func (g *grammar) expr() string {
	if g.loops > 0 && g.some(0.2) {
		return g.pick("v", "k", "loop.index", "loop.first", "loop.last", "loop.length", "loop.revindex0", "loop.previtem", "loop.nextitem", "loop.cycle(1, 'b')", "loop.changed(v)")
	}
	switch g.r.IntN(16) {
	case 0, 1, 2, 3, 4:
		return g.str()
	case 5, 6, 7:
		return g.num()
	case 8, 9, 10:
		return g.list()
	case 11, 12:
		return g.cond()
	case 13:
		return g.pick("d", "people[0]", "nothing", "nope", "f", "big", "dict(a="+g.num()+")", "{'k': "+g.str()+", 1: none}", "(1, 'two')", "d.nope", "xs[9]", "ns.a", "w", "v", "s", "n")
	case 14:
		return "(" + g.expr() + ")|" + g.pick("tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "string", "default('d')", "default('d', true)", "e", "safe", "upper", "title", "trim")
	}
	if g.some(0.1) {
		return g.pick("n.x.y", "nope.x", "s + 1", "n + 'a'", "xs|upper|length", "d|sum", "nothing.a", "xs.append(1)", "n()", "raise_exception('r')", "people|max")
	}
	return "(" + g.expr() + " if " + g.cond() + g.pick(" else "+g.expr(), "") + ")"
}

func (g *grammar) str() string {
	if !g.nest() {
		return g.pick("u", "empty", "'a'", "'A b\\n'", "\"it's\"", "''", "people[0].name", "messages[-1].content", "messages[0]['role']", "names[1]", "'x' 'y'")
	}
	defer func() { g.depth-- }()
	s := g.str
	switch g.r.IntN(7) {
	case 0:
		return "(" + s() + " + " + s() + ")"
	case 1:
		return "(" + g.expr() + " ~ " + g.expr() + ")"
	case 2:
		return "(" + s() + ")" + g.pick(".strip()", ".upper()", ".lower()", ".title()", ".capitalize()", ".replace('a', 'b')", ".rstrip('t')", ".lstrip()", ".join(names)",
			".removeprefix('a')", ".zfill(5)", ".center(7, '*')", ".split('t')[0]", ".split('</think>')[-1]", ".format(1)")
	case 3:
		return "(" + s() + ")|" + g.pick("upper", "lower", "trim", "title", "capitalize", "reverse", "replace('t', 'TT')", "replace('e', '', 1)", "indent", "indent(2, true)", "truncate(5)", "truncate(6, true, '', 0)", "center(9)", "e", "string", "tojson", "urlencode")
	case 4:
		return "u" + g.pick("[1:]", "[:2]", "[::-1]", "[-3:]", "[0]", "[-1]", "[1:9:2]", "[5:1:-1]", "[n:]")
	case 5:
		return "(" + g.list() + ")|" + g.pick("join", "join(', ')", "join('-')", "tojson", "string")
	}
	return g.pick("mac("+g.expr()+")", "mac(y="+g.expr()+", x=1)", "'%s|%r' % ("+g.expr()+", "+s()+")", "'%05.2f' % "+g.num(), "'{} {:>4}'.format("+s()+", "+s()+")")
}

func (g *grammar) num() string {
	if !g.nest() {
		return g.pick("0", "1", "2", "-3", "7", "1.5", "-0.25", "1e3", "big", "f", "xs[0]", "people[1].age", "xs|length", "9007199254740993")
	}
	defer func() { g.depth-- }()
	n := g.num
	switch g.r.IntN(6) {
	case 0, 1:
		return "(" + n() + g.pick(" + ", " - ", " * ") + n() + ")"
	case 2:
		return "(" + n() + g.pick(" / 4", " // 3", " % 5", " // -2", " % -3", " ** 2", " / 0.5", " % 1.5") + ")"
	case 3:
		return "(" + n() + ")|" + g.pick("abs", "int", "float", "round", "round(1)", "round(1, 'floor')", "round(0, 'ceil')")
	case 4:
		return "(" + g.pick(g.str(), g.list()) + ")|" + g.pick("length", "count")
	}
	return g.pick("xs|sum", "xs|max", "people|sum(attribute='age')", "(-"+n()+")", "("+g.str()+").find('t')", "("+g.str()+").count('a')", "("+g.str()+")|wordcount", "("+g.str()+")|int(4)")
}

func (g *grammar) list() string {
	if !g.nest() {
		return g.pick("xs", "names", "people", "messages", "[]", "[1, 'x']", "d|list", "range(4)|list", "(1, 2)|list")
	}
	defer func() { g.depth-- }()
	l := g.list
	switch g.r.IntN(6) {
	case 0:
		return "(" + l() + " + " + l() + ")"
	case 1:
		return g.pick("xs", "names", "messages", "people") + g.pick("[1:]", "[:-1]", "[::-1]", "[::2]", "[-2:]", "[5:]")
	case 2:
		return "(" + l() + ")|" + g.pick("reverse|list", "list", "map('string')|list", "select('defined')|list", "reject('none')|list", "batch(2)|list", "slice(2, 'f')|list", "map('tojson')|list")
	case 3:
		return g.pick("people", "messages") + "|" + g.pick("map(attribute='name')|list", "map(attribute='name', default='q')|list", "selectattr('role', 'equalto', 'user')|list",
			"rejectattr('role')|list", "selectattr('age', 'defined')|list", "map('length')|list")
	case 4:
		return g.pick("people|sort(attribute='name')", "people|groupby('age')|list", "d|dictsort", "d.items()|list", "d|items|list", "d.keys()|list", "names|sort", "names|sort(case_sensitive=true)|list", "names|unique|list", "people[0].values()|list")
	}
	return "(" + g.str() + ")" + g.pick(".split()", ".split('a', 1)", ".rsplit(none, 1)", ".splitlines()", "|list", ".partition('t')|list")
}

func (g *grammar) cond() string {
	if !g.nest() {
		return g.pick("t", "true", "false", "nope", "empty", "xs", "not nothing")
	}
	defer func() { g.depth-- }()
	switch g.r.IntN(7) {
	case 0:
		return "(" + g.num() + g.pick(" == ", " < ", " >= ", " != ") + g.num() + ")"
	case 1:
		return "(" + g.str() + g.pick(" == ", " < ", " in ", " not in ") + g.str() + ")"
	case 2:
		return "(" + g.expr() + g.pick(" in ", " not in ", " == ") + g.list() + ")"
	case 3:
		return "(" + g.cond() + g.pick(" and ", " or ") + g.cond() + ")"
	case 4:
		return "(not " + g.expr() + ")"
	case 5:
		return "(" + g.expr() + " is " + g.pick("", "not ") + g.pick("defined", "none", "string", "mapping", "iterable", "sequence", "number", "in xs", "eq 1", "true", "boolean", "integer", "callable", "upper") + ")"
	}
	return "(" + g.str() + ")" + g.pick(".startswith('a')", ".endswith('t')", ".isdigit()", ".isupper()", ".isalpha()")
}
