package outputparse

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// testTools are what a request has: enough types for the formats that need a
// schema.
var testTools = func() string {
	data, err := os.ReadFile("testdata/tools.json")
	if err != nil {
		panic(err)
	}
	return string(data)
}()

// told is an answer read whole: events with the fragments joined, each text a
// copy.
type told struct {
	kind  Kind
	call  int
	text  string
	name  string
	id    string
	valid bool
}

func (t told) String() string {
	switch t.kind {
	case CallBegin:
		return strings.TrimSpace(fmt.Sprintf("call %d %s %s", t.call, t.name, t.id))
	case CallEnd:
		return fmt.Sprintf("end %d %v", t.call, t.valid)
	case Arguments:
		return fmt.Sprintf("arguments %d %s", t.call, t.text)
	}
	return fmt.Sprintf("%s %q", t.kind, t.text)
}

// listen joins what a parser tells.
type listen struct{ all []told }

func (l *listen) hear(events []Event) {
	for _, e := range events {
		if n := len(l.all); e.Kind != CallBegin && e.Kind != CallEnd && n > 0 && l.all[n-1].kind == e.Kind && l.all[n-1].call == e.Call {
			l.all[n-1].text += string(e.Text)
			continue
		}
		l.all = append(l.all, told{e.Kind, e.Call, string(e.Text), e.Name, e.ID, e.Valid})
	}
}

func (l *listen) lines() string {
	var b strings.Builder
	for _, t := range l.all {
		b.WriteString(t.String() + "\n")
	}
	return b.String()
}

// read parses a text cut into pieces of the sizes given in turn.
func read(o Options, text string, sizes ...int) *listen {
	p, l := New(o), &listen{}
	piece := make([]byte, 0, len(text))
	for i := 0; len(text) > 0; i++ {
		n := len(text)
		if len(sizes) > 0 {
			n = min(n, sizes[i%len(sizes)])
		}
		piece = append(piece[:0], text[:n]...) // reused, as the gateway does
		text = text[n:]
		l.hear(p.Append(nil, piece, text == "" && len(sizes) == 0))
	}
	l.hear(p.Append(nil, nil, true))
	return l
}

// formats are those that the laws are held against, with prompts that leave
// the answer's beginning open or not.
func formats() []Options {
	var all []Options
	for _, tools := range ToolNames() {
		reasoning := "think"
		if slices.Contains(ReasoningNames(), tools) {
			reasoning = tools
		}
		f, ok := Named(tools, reasoning)
		if !ok {
			panic(tools)
		}
		all = append(all,
			Options{Format: f, Calls: true, Tools: ReadTools([]byte(testTools))},
			Options{Format: f, Calls: true, Tools: ReadTools([]byte(testTools)), Prompt: []byte("<|x|>" + f.think.open + "\n")},
			Options{Format: f},
			Options{Format: f, Calls: true, Tools: ReadTools([]byte(testTools)), Single: true})
	}
	all = append(all, Options{Calls: true, ForcedAny: true}, Options{Calls: true, ForcedTool: "get_weather"})
	return all
}

// alphabet is what texts are made of that are to be hard on a format: all of its
// markers, what calls consist of, beginnings of markers, and payload.
func alphabet(f Format) []string {
	all := f.markers()
	all = append(all, "{", "}", "[", "]", "(", ")", `"`, "'", `\`, ":", ",", ";", "=", " ", "\n", "\n\n", "\t",
		`"name"`, `"arguments"`, `"parameters"`, `"id"`, `"type"`, `"function"`, `"f"`, `"get_weather"`,
		"get_weather", "f", "now", "functions.f:0", "assistant", " to=functions.f", "analysis", "commentary", "final", "json",
		"city", "days", "note", "opts", "true", "None", "null", "12", "-1.5e3", `"a\u00e9\n"`, "é", "日本", "😀", "\x01",
		`{"name": "f", "arguments": {}}`, `{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}`,
		`{"arguments": {"a": [1, 2]}, "name": "f"}`, `"{\"a\": 1}"`, "city='Paris', days=3", "<", "</", "<|", "[[", "X1X", "X2X",
		strings.Repeat("é", maxName), strings.Repeat(" ", maxSpace))
	for _, m := range f.markers() {
		if len(m) > 2 {
			all = append(all, m[:len(m)/2], m[len(m)/2:])
		}
	}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// TestChunkings is the first law: the events are the same for every way to cut
// the text, inside runes and markers too.
func TestChunkings(t *testing.T) {
	for _, o := range formats() {
		words := alphabet(o.Format)
		t.Run(o.Format.Tools(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 30).Draw(t, "words"), "")
				sizes := rapid.SliceOfN(rapid.IntRange(1, 12), 1, 8).Draw(t, "sizes")
				checkLaws(t, o, text, sizes)
			})
		})
	}
}

// checkRunes: where no rune is cut in what the parser is given, none is in what
// it gives.
func checkRunes(t failer, o Options, text string) {
	if !utf8.ValidString(text) {
		return
	}
	p := New(o)
	for _, r := range text {
		for _, e := range p.Append(nil, []byte(string(r)), false) {
			if !utf8.Valid(e.Text) {
				t.Fatalf("%s: %q cuts a rune in %v", o.Format.Tools(), text, e)
			}
		}
	}
	for _, e := range New(o).Append(nil, []byte(text), true) {
		if !utf8.Valid(e.Text) {
			t.Fatalf("%s: %q cuts a rune in %v", o.Format.Tools(), text, e)
		}
	}
}

// TestMarkers: no marker that may be looked for together with another is the
// beginning of it, or find would not know which it is.
func TestMarkers(t *testing.T) {
	for _, o := range formats() {
		p := New(o)
		if p.tools == forcedTools {
			continue
		}
		for _, m := range []*markers{p.atStart, p.inside, p.thinking, p.ends, p.strays, p.mail.ends} {
			if m == nil {
				continue
			}
			for i, a := range m.list {
				for j, b := range m.list {
					if i != j && strings.HasPrefix(b, a) {
						t.Errorf("%s: %q begins with %q", o.Format.Tools(), b, a)
					}
				}
			}
		}
	}
}

type failer interface {
	Fatalf(format string, args ...any)
}

// checkLaws holds the laws that are true of every text.
func checkLaws(t failer, o Options, text string, sizes []int) {
	whole := read(o, text)
	for _, cut := range [][]int{{1}, sizes} {
		if got := read(o, text, cut...); got.lines() != whole.lines() {
			t.Fatalf("%s, calls %v, prompt %q: text %q\ncut %v gives\n%swhole gives\n%s",
				o.Format.Tools(), o.Calls, o.Prompt, text, cut, got.lines(), whole.lines())
		}
	}
	checkRunes(t, o, text)
	open := -1
	for _, e := range whole.all {
		switch e.kind {
		case CallBegin:
			if open >= 0 || e.name == "" {
				t.Fatalf("%q: %v within a call\n%s", text, e, whole.lines())
			}
			open = e.call
		case Arguments, CallEnd:
			if e.call != open {
				t.Fatalf("%q: %v outside of its call\n%s", text, e, whole.lines())
			}
			if e.kind == CallEnd {
				open = -1
			}
		default:
			if open >= 0 {
				t.Fatalf("%q: %v within a call\n%s", text, e, whole.lines())
			}
		}
	}
	if open >= 0 {
		t.Fatalf("%q: call %d has no end\n%s", text, open, whole.lines())
	}
	for i, e := range whole.all {
		if e.kind != CallEnd || !e.valid {
			continue
		}
		if args := whole.all[i-1]; args.kind != Arguments || !json.Valid([]byte(args.text)) {
			t.Fatalf("%q: call %d ended well with arguments %q\n%s", text, e.call, args.text, whole.lines())
		}
	}
}
