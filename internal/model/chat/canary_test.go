package chat

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/model/callid"
	"weir/internal/model/chat/jinja"
)

// marked draws a conversation of the API's, each text of which is a mark.
type marked struct {
	t        *rapid.T
	n, calls int
	messages []string
	marks    map[string]string // what the prompt must contain, by the path of the message
}

func (m *marked) mark() string {
	m.n++
	return fmt.Sprintf("canary%04dx", m.n)
}

func (m *marked) yes(label string) bool { return rapid.Bool().Draw(m.t, label) }

// needs notes that the prompt must contain a mark, of the message that comes next.
func (m *marked) needs(mark string) string {
	m.marks[mark] = fmt.Sprintf("messages[%d].content", len(m.messages))
	return mark
}

func (m *marked) content() string {
	switch rapid.IntRange(0, 5).Draw(m.t, "content") {
	case 0:
		return fmt.Sprintf(`"content": [{"type": "text", "text": %q}]`, m.needs(m.mark()))
	case 1:
		return fmt.Sprintf(`"content": [{"type": "text", "text": %q}, {"type": "text", "text": %q}]`, m.needs(m.mark()), m.needs(m.mark()))
	case 2:
		return `"content": []`
	}
	return fmt.Sprintf(`"content": %q`, m.needs(m.mark()))
}

func (m *marked) say(role string) {
	m.messages = append(m.messages, fmt.Sprintf(`{"role": %q, %s}`, role, m.content()))
}

func (m *marked) answer() {
	if n := rapid.IntRange(0, 3).Draw(m.t, "calls"); n > 0 {
		m.call(n)
		return
	}
	more := ""
	if m.yes("thinks") {
		more = `, "reasoning_content": "` + m.mark() + `"`
	}
	m.messages = append(m.messages, `{"role": "assistant", `+m.content()+more+`}`)
}

func (m *marked) call(n int) {
	at := `"content": null`
	if m.yes("text beside calls") {
		at = m.content()
	}
	if m.yes("thinks") {
		at += `, "reasoning_content": "` + m.mark() + `"`
	}
	if m.yes("old") {
		old := fmt.Sprintf(`{"role": "assistant", %s, "function_call": {"name": %q, "arguments": %q}}`, at, m.needs("f"+m.mark()), `{"k": "`+m.needs(m.mark())+`"}`)
		m.messages = append(m.messages, old)
		m.messages = append(m.messages, fmt.Sprintf(`{"role": "function", "name": "f", %s}`, m.content()))
		return
	}
	var ids, calls []string
	for range n {
		m.calls++
		id := fmt.Sprintf(rapid.SampledFrom([]string{"call%05d", "call_%024d", "toolu_%d"}).Draw(m.t, "id"), m.calls)
		arguments := ""
		switch rapid.IntRange(0, 4).Draw(m.t, "arguments") {
		case 0:
		case 1:
			arguments = `{"command": "` + m.needs(m.mark())
		case 2:
			arguments = `["` + m.needs(m.mark()) + `"]`
		default:
			arguments = `{"command": "` + m.needs(m.mark()) + `"}`
		}
		ids, calls = append(ids, id), append(calls, called(id, m.needs("f"+m.mark()), arguments))
	}
	m.messages = append(m.messages, `{"role": "assistant", `+at+`, "tool_calls": [`+strings.Join(calls, ",")+`]}`)
	for _, id := range rapid.Permutation(ids).Draw(m.t, "results") {
		m.messages = append(m.messages, fmt.Sprintf(`{"role": "tool", "tool_call_id": %q, %s}`, id, m.content()))
	}
}

// draw draws the turns of a conversation.
func (m *marked) draw() {
	if m.yes("instructed") {
		m.say(rapid.SampledFrom([]string{"system", "developer"}).Draw(m.t, "first"))
	}
	for range rapid.IntRange(1, 3).Draw(m.t, "turns") {
		m.say("user")
		switch rapid.IntRange(0, 5).Draw(m.t, "instructed later") {
		case 0:
			m.say("system")
		case 1:
			m.say("developer")
		}
		m.answer()
		if rapid.IntRange(0, 5).Draw(m.t, "answers again") == 0 {
			m.answer()
		}
	}
	if m.yes("asks") {
		m.say("user")
	}
}

// templateFiles are the templates of testdata, or of a folder of others.
func templateFiles(t testing.TB) []string {
	files, err := filepath.Glob(filepath.Join(cmp.Or(os.Getenv("WEIR_TEMPLATE_FOLDER"), "testdata/templates"), "*.jinja"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%v: %v", files, err)
	}
	return files
}

// Each text of a conversation that is rendered stands in the prompt, or is named as left out.
// Other conversations are refused by the name of a message, or as a whole.
func TestNothingVanishes(t *testing.T) {
	rendered, refusedByName := 0, 0
	for _, file := range templateFiles(t) {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := Parse(string(source), Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jinja"), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := &marked{t: t, marks: map[string]string{}}
				m.draw()
				in := probeInput(strings.Join(m.messages, ", "), true)
				if in.Tools = nil; m.yes("has tools") {
					in.Tools = []byte(`[{"type": "function", "function": {"name": "bash"}}]`)
				}
				got, err := tmpl.Render(context.Background(), nil, in)
				var e *infer.Error
				switch {
				case errors.As(err, &e) && e.Code == infer.CodeInvalid && strings.HasPrefix(e.Param, "messages"):
					refusedByName++
					return
				case err != nil:
					t.Fatalf("%s: %v", in.Messages, err)
				}
				rendered++
				for mark, path := range m.marks {
					if !strings.Contains(string(got), mark) && !slices.Contains(in.PassedOver, path) {
						t.Fatalf("%s: %s of %s is not in the prompt\n%s", in.Messages, mark, path, got)
					}
				}
				if in.Tools != nil && tmpl.form.tools == shown && !strings.Contains(string(got), "bash") {
					t.Fatalf("%s: the tool is not in the prompt\n%s", in.Messages, got)
				}
			})
		})
	}
	t.Logf("%d rendered, %d refused", rendered, refusedByName)
	if rendered < refusedByName {
		t.Errorf("%d conversations were rendered and %d refused", rendered, refusedByName)
	}
}

var update = flag.Bool("update", false, "write what the templates of testdata take; read it before it is committed")

// The table of what each template takes is the one that was read.
func TestTakes(t *testing.T) {
	files, err := filepath.Glob("testdata/templates/*.jinja")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var b strings.Builder
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".jinja")
		fmt.Fprintf(&b, "%s:", name)
		for _, r := range readTemplate(t, name).Takes() {
			if r.How != "yes" {
				fmt.Fprintf(&b, " %s=%q", r.Of, r.How)
			}
		}
		b.WriteByte('\n')
	}
	const path = "testdata/takes.txt"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || b.String() != string(want) {
		t.Errorf("%v; got\n%swant\n%s", err, b.String(), want)
	}
}

// A template that fails on everything is loaded, says so, and what it cannot render is refused by name.
func TestTakesNothing(t *testing.T) {
	tmpl := mustParse(t, `{{ raise_exception('never') }}`)
	if !tmpl.TakesNothing() || mustParse(t, plain).TakesNothing() {
		t.Error("a template that takes nothing does not say so, or another does")
	}
	_, err := tmpl.Render(t.Context(), nil, &Input{Messages: []byte(`[{"role":"user","content":"q"}]`), FromAPI: true})
	var e *infer.Error
	if !errors.As(err, &e) || e.Param != "messages[0].role" || !strings.Contains(e.Message, "refuses: never") {
		t.Errorf("%v", err)
	}
}

// What is refused is named, by its place among the caller's messages.
func TestRefusedByName(t *testing.T) {
	const call = `{"role":"assistant","content":"a","tool_calls":[{"id":"call00001","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	for _, c := range []struct{ template, messages, param, says string }{
		{"gpt-oss", `{"role":"user","content":"q"},{"role":"tool","tool_call_id":"x","content":"r"}`, "messages[1].role", "refuses"},
		{"qwen2-vl", `{"role":"user","content":"q"},` + call, "messages[1].tool_calls", "passes over"},
		{"mistral", `{"role":"system","content":"s"},{"role":"user","content":"q"},` + call + `,{"role":"user","content":"q"}`, "messages[3].role", "alternate"},
	} {
		_, err := readTemplate(t, c.template).Render(t.Context(), nil, probeInput(c.messages, true))
		var e *infer.Error
		if !errors.As(err, &e) || e.Code != infer.CodeInvalid || e.Param != c.param || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %v, want %s that says %q", c.template, err, c.param, c.says)
		}
	}
}

// What a conversation gets its form with grows as the conversation does.
func TestShapeGrowsEvenly(t *testing.T) {
	const call = `{"id":"c%d","type":"function","function":{"name":"f","arguments":"{"}}`
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strings.ReplaceAll(format, "%d", strconv.Itoa(i)))
		}
		return b.String()
	}
	for _, c := range []struct {
		template string
		messages func(n int) string
	}{
		{"gpt-oss", func(n int) string {
			return `{"role":"user","content":"q"},` + many(n, `{"role":"system","content":"an instruction of some length, number %d"}`)
		}},
		{"mistral", func(n int) string {
			return many(n, `{"role":"user","content":"a question of some length, number %d"}`)
		}},
		{"mistral", func(n int) string {
			return many(n, `{"role":"user","content":[{"type":"text","text":"a question, number %d"},{"type":"image"}]}`)
		}},
		{"mistral", func(n int) string {
			return `{"role":"user","content":[` + many(n, `{"type":"text","text":"part %d"}`) + `,{"type":"image"}]},` + many(n, `{"role":"user","content":"number %d"}`)
		}},
		{"gpt-oss", func(n int) string {
			return `{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[` + many(n, call) + `]},` + many(n, `{"role":"tool","tool_call_id":"c%d","content":"r"}`)
		}},
	} {
		f := readTemplate(t, c.template).form
		grown := func(n int) float64 {
			v, err := jinja.DecodeJSON([]byte("[" + c.messages(n) + "]"))
			if err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = f.shape(v.(*jinja.List), callid.Any)
			if runtime.ReadMemStats(&after); err != nil {
				t.Fatal(err)
			}
			return float64(after.TotalAlloc - before.TotalAlloc)
		}
		if once, thrice := grown(2000), grown(6000); thrice > 4.5*once {
			t.Errorf("%s: %.0f bytes for 2000 messages, %.0f for 6000: %.60s", c.template, once, thrice, c.messages(2))
		}
	}
}

// What a template leaves out because of a conversation's end gets another place, or is refused.
func TestEnds(t *testing.T) {
	const (
		ask, tell = `{"role":"user","content":"a question"}`, `{"role":"assistant","content":"an answer"}`
		be        = `{"role":"system","content":"be brief"}`
		withLast  = "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content + '\n\n' %}" +
			"{% elif m.role == 'user' and loop.last %}[{{ ns.s }}{{ m.content }}]{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
		noEnd = "{% for m in messages %}{% if m.role != 'assistant' or messages[-1].role == 'user' %}[{{ m.content }}]{% endif %}{% endfor %}"
	)
	for _, c := range []struct{ template, messages, want, param string }{
		{withLast, be + "," + ask, "[be brief\n\na question]", ""},
		{withLast, be + "," + ask + "," + tell, "[be brief\n\na question][an answer]", ""},
		{withLast, be + "," + ask + "," + tell + "," + ask, "[a question][an answer][be brief\n\na question]", ""},
		{withLast, be + "," + tell, "", "messages[0].content"},
		{noEnd, ask + "," + tell + "," + ask, "[a question][an answer][a question]", ""},
		{noEnd, ask + "," + tell, "", "messages[1].content"},
		{noEnd, ask, "[a question]", ""},
	} {
		got, err := render(t, c.template, &Input{Messages: []byte("[" + c.messages + "]"), FromAPI: true})
		var e *infer.Error
		if got != c.want || (err == nil) != (c.param == "") || errors.As(err, &e) && e.Param != c.param {
			t.Errorf("%s of %s: %q, %v; want %q, %s", c.messages, c.template, got, err, c.want, c.param)
		}
	}
}

// A template that never writes a system message, and takes tools, is given them: the message alone is
// refused.
func TestToolsWithoutInstructions(t *testing.T) {
	tmpl := mustParse(t, "{% for t in tools or [] %}{{ t|tojson }}{% endfor %}{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}")
	if got := tmpl.form.tools; got != shown {
		t.Errorf("tools: %s", got)
	}
	tmpl = mustParse(t, "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{% if m.role == 'user' or not tools %}{{ m.content }}{% endif %}{% endfor %}")
	if got := tmpl.form.tools; got != lost {
		t.Errorf("tools in place of a system message: %s", got)
	}
}
