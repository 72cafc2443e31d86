package outputparse

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/model/callid"
	"weir/internal/model/outputparse/outputtest"
)

// eachFormat runs a property with the options of each format, and a source that answers are
// drawn from.
func eachFormat(t *testing.T, property func(t *rapid.T, o Options, r *rand.Rand)) {
	for _, tools := range ToolNames() {
		o := optionsOf(t, tools+".txt")
		t.Run(tools, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { property(t, o, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))) })
		})
	}
}

// TestWritten: an answer as the model should write it means what it says, nothing more and
// nothing less, however it comes.
func TestWritten(t *testing.T) {
	eachFormat(t, func(t *rapid.T, o Options, r *rand.Rand) {
		a := outputtest.Write(r, o.Format.Tools())
		for _, size := range []int{len(a.Text) + 1, 1, rapid.IntRange(2, 9).Draw(t, "size")} {
			var got outputtest.Answer
			for _, e := range read(o, a.Text, size).all {
				switch e.kind {
				case Content:
					got.Content += e.text
				case Reasoning:
					got.Reasoning += e.text
				case CallBegin:
					got.Calls = append(got.Calls, outputtest.Call{Name: e.name})
				case Arguments:
					got.Calls[e.call].Arguments += e.text
				case CallEnd:
					if !e.valid {
						t.Fatalf("%q: call %d is not valid", a.Text, e.call)
					}
				}
			}
			if got.Content != a.Content || got.Reasoning != a.Reasoning || len(got.Calls) != len(a.Calls) {
				t.Fatalf("%q in pieces of %d: %+v, want %+v", a.Text, size, got, a)
			}
			for i, c := range got.Calls {
				if c.Name != a.Calls[i].Name || !reflect.DeepEqual(valueOf(c.Arguments), valueOf(a.Calls[i].Arguments)) {
					t.Fatalf("%q in pieces of %d: call %+v, want %+v", a.Text, size, c, a.Calls[i])
				}
			}
		}
	})
}

func valueOf(text string) (v any) {
	if json.Unmarshal([]byte(text), &v) != nil {
		return text
	}
	return v
}

// TestSpoiled: in an answer that is spoiled nothing is lost, no tool is called that is none,
// and all laws hold.
func TestSpoiled(t *testing.T) {
	eachFormat(t, func(t *rapid.T, o Options, r *rand.Rand) {
		a := outputtest.Spoil(r, o.Format.Tools(), rapid.SampledFrom(outputtest.Spoilers()).Draw(t, "spoiler"))
		checkLaws(t, o, a.Text, []int{rapid.IntRange(2, 9).Draw(t, "size")})
		got := read(o, a.Text)
		if strings.Contains(a.Text, "qqq") && !o.inHead(a.Text, "qqq") {
			checkPayload(t, a.Text, got, []string{"qqq"})
		}
		for _, e := range got.all {
			if e.kind == CallBegin && !o.Tools.has(e.name) {
				t.Fatalf("%q calls %s", a.Text, e.name)
			}
		}
	})
}

// inHead reports whether a word is in the head of one of harmony's messages: in that of a call
// any word is syntax.
func (o Options) inHead(text, word string) bool {
	before := text[:strings.Index(text, word)]
	last := func(markers ...string) (at int) {
		at = -1
		for _, m := range markers {
			at = max(at, strings.LastIndex(before, m))
		}
		return at
	}
	return o.Format.Tools() == "harmony" && last(harmonyStart, harmonyChannel, harmonyConstrain) >= last(harmonyMessage, harmonyEnd, harmonyCall, harmonyReturn)
}

// TestSilence: text, reasoning and arguments go out as they come. The text that is held is never
// more than a marker, with white space before it, the name of a parameter or a number; a text that
// goes on does not wait.
func TestSilence(t *testing.T) {
	long := strings.Repeat("some words of it, ", 30)
	values := []string{
		`"` + long + `"`, `[` + strings.Repeat(`{"old": "a b", "new": [1, true]}, `, 20) + `0]`,
		`{"a": {"b": [` + strings.Repeat(`"x y", `, 60) + `1]}}`, `[[` + strings.Repeat("1, ", 90) + "2]]",
	}
	for _, tools := range ToolNames() {
		o := optionsOf(t, tools+".txt")
		for _, text := range silenceTexts(o.Format, long, values) {
			p := New(o)
			given, out, most := 0, 0, 0
			p.Append(nil, []byte(text.head), false)
			for i := range text.body {
				given++
				for _, e := range p.Append(nil, []byte(text.body[i:i+1]), false) {
					out += len(e.Text)
				}
				most = max(most, given-out)
			}
			if limit := maxMarker(o.Format) + text.slack; most > limit {
				t.Errorf("%s: %d bytes are behind in %.90q, at most %d may be", tools, most, text.head+text.body, limit)
			}
		}
	}
}

// silenceText is a text whose body is to go out as it comes, but for the slack.
type silenceText struct {
	head, body string
	slack      int // bytes of the body that are syntax, or are spelled shorter
}

// silenceTexts are content, reasoning and arguments of a format.
func silenceTexts(f Format, long string, values []string) (all []silenceText) {
	if f.Tools() == "harmony" {
		for channel, text := range map[string]string{"final": long, "analysis": long, "commentary to=functions.f": `{"a": ` + values[1] + `}`} {
			all = append(all, silenceText{head: harmonyChannel + channel + harmonyMessage, body: text})
		}
		return all
	}
	all = append(all, silenceText{body: long}, silenceText{head: f.think.open, body: long})
	s := f.tools
	if f.framed() {
		all = append(all, silenceText{head: " to=user<|message|>", body: long}, silenceText{head: " to=self<|message|>", body: long})
	}
	for i, v := range values {
		key := []string{"city", "ids", "opts", "ids"}[i]
		switch {
		case s.body == taggedBody:
			head := s.call[0] + "get_weather"
			if s.attributes {
				head = s.call[0] + ` name="get_weather">` + s.key[0] + ` name="` + key + `">`
			} else {
				if s.nameEnd != nil {
					head += s.nameEnd[0]
				}
				head += s.key[0] + key + s.keyEnd + s.tagBegin
			}
			all = append(all, silenceText{head: head, body: strings.Trim(v, `"`)})
		case s.body == literalBody:
			if i == 0 {
				v = s.quote + long + s.quote
			}
			v = strings.ReplaceAll(v, `"`, s.quote)
			all = append(all, silenceText{head: s.call[0] + s.prefix + "get_weather{" + key + ":", body: v, slack: len(v) - len(strings.NewReplacer(" ", "", s.quote, "").Replace(v))})
		case s.body == pythonBody:
			all = append(all, silenceText{head: "[f(a=", body: v, slack: strings.Count(v, " ")}) // white space goes
		case s.body == jsonBody:
			name := "f"
			if s.ids == callid.Typed {
				name = "functions.f:0"
			}
			all = append(all, silenceText{head: s.call[0] + s.prefix + name + s.nameEnd[0], body: `{"a": ` + v + `}`})
		default:
			head := `{"name": "f", "arguments": `
			if s.keyed {
				head = `{"f": `
			}
			if s.bare == "" {
				head = s.call[0] + head
			}
			all = append(all, silenceText{head: head, body: `{"a": ` + v + `}`})
		}
	}
	return all
}

// maxMarker is the length of a format's longest marker.
func maxMarker(f Format) (n int) {
	for _, m := range f.markers() {
		n = max(n, len(m))
	}
	return n
}

// TestSpaceFirst: white space that an answer begins with waits for nothing. It is text at once,
// or syntax at once.
func TestSpaceFirst(t *testing.T) {
	for _, o := range formats() {
		if o.Format.framed() {
			continue // whose answers begin with the head of a message
		}
		for _, space := range []string{" ", "\n", "\n\n", " \n", "\t", "\r\n  "} {
			p := New(o)
			var got listen
			if got.hear(p.Append(nil, []byte(space), false)); p.Holds() {
				t.Errorf("%s, prompt %q: %q is held", o.Format.Tools(), o.Prompt, space)
			}
			got.hear(p.Append(nil, []byte("word"), true))
			if whole := read(o, space+"word"); got.lines() != whole.lines() {
				t.Errorf("%s, prompt %q: %q at once is %s, else %s", o.Format.Tools(), o.Prompt, space, got.lines(), whole.lines())
			}
		}
	}
	o := optionsOf(t, "hermes.txt")
	if o.Continues = true; read(o, "\nand more").lines() != "content \"\\nand more\"\n" {
		t.Error("an answer that continues a text loses its line break")
	}
}
