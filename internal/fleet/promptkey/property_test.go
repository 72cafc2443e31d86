package promptkey

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"weir/internal/dialect"
)

// A conversation, apart from how a body spells it.
type (
	conversation struct {
		tools    []tool
		messages []message
		effort   string
	}
	tool struct{ name, description string }
	call struct{ id, name, arguments string }
	part struct{ text, url string }

	message struct {
		role, name, callID, reasoning string
		parts                         []part
		calls                         []call
	}
)

// words are long enough for some blocks, and have what JSON escapes.
var words = rapid.Custom(func(t *rapid.T) string {
	return strings.Repeat(rapid.StringN(0, 12, -1).Draw(t, "text"), rapid.IntRange(1, 60).Draw(t, "times"))
})

var toolOf = rapid.Custom(func(t *rapid.T) tool {
	return tool{rapid.StringMatching(`[a-z_]{1,8}`).Draw(t, "name"), words.Draw(t, "description")}
})

var messageOf = rapid.Custom(func(t *rapid.T) message {
	m := message{role: rapid.SampledFrom([]string{"system", "developer", "user", "assistant", "tool", "ünknown"}).Draw(t, "role")}
	m.parts = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) part {
		if rapid.IntRange(0, 9).Draw(t, "image") == 0 {
			return part{url: "data:image/png;base64," + rapid.StringMatching(`[A-Za-z0-9+/]{1,9}`).Draw(t, "data")}
		}
		return part{text: words.Filter(func(s string) bool { return s != "" }).Draw(t, "text")}
	}), 0, 3).Draw(t, "parts")
	switch m.role {
	case "tool":
		m.callID = rapid.StringMatching(`call_[0-9]{1,3}`).Draw(t, "call")
	case "assistant":
		m.reasoning = words.Draw(t, "reasoning")
		m.calls = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) call {
			return call{rapid.StringMatching(`call_[0-9]{1,3}`).Draw(t, "id"), "f", words.Draw(t, "arguments")}
		}), 0, 2).Draw(t, "calls")
	default:
		m.name = rapid.SampledFrom([]string{"", "", "ann"}).Draw(t, "name")
	}
	return m
})

var conversationOf = rapid.Custom(func(t *rapid.T) conversation {
	return conversation{
		tools:    rapid.SliceOfN(toolOf, 0, 3).Draw(t, "tools"),
		messages: rapid.SliceOfN(messageOf, 1, 6).Draw(t, "messages"),
		effort:   rapid.SampledFrom([]string{"", "low"}).Draw(t, "effort"),
	}
})

// speller writes JSON in one of many ways.
type speller struct{ t *rapid.T }

func (s speller) pick(n int) int { return rapid.IntRange(0, n-1).Draw(s.t, "spelling") }

func (s speller) space() string {
	return []string{"", "", "", " ", "\n\t", "\r\n "}[s.pick(6)]
}

func (s speller) string(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	how := s.pick(3)
	for i, r := range text {
		switch {
		case r < ' ' || how == 1 && i%3 == 0 || how == 2:
			if short := strings.IndexRune("\b\t\n\f\r", r); short >= 0 && how == 0 {
				b.WriteString([]string{`\b`, `\t`, `\n`, `\f`, `\r`}[strings.Index("\b\t\n\f\r", string(r))])
				continue
			}
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, []string{`\u%04x`, `\u%04X`}[i%2], unit)
			}
		case r == '"' || r == '\\' || r == '/' && how == 1:
			b.WriteByte('\\')
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// object writes members in any order, each a name and a value.
func (s speller) object(members ...string) string {
	var pairs []string
	for i := 0; i < len(members); i += 2 {
		if members[i+1] != "" {
			pairs = append(pairs, s.space()+s.string(members[i])+s.space()+":"+s.space()+members[i+1]+s.space())
		}
	}
	return "{" + strings.Join(rapid.Permutation(pairs).Draw(s.t, "order"), ",") + "}"
}

func (s speller) array(items []string) string {
	return "[" + s.space() + strings.Join(items, s.space()+","+s.space()) + s.space() + "]"
}

// optional writes a text, and none in one of the ways that there are.
func (s speller) optional(text string) string {
	if text == "" {
		return []string{"", "null", `""`}[s.pick(3)]
	}
	return s.string(text)
}

func (s speller) message(m message) string {
	var content string
	switch {
	case len(m.parts) == 0:
		content = []string{"", "null", `""`, "[]"}[s.pick(4)]
	case len(m.parts) == 1 && m.parts[0].url == "" && s.pick(2) == 0:
		content = s.string(m.parts[0].text)
	default:
		var parts []string
		for _, p := range m.parts {
			if p.url == "" {
				parts = append(parts, s.object("type", `"text"`, "text", s.string(p.text), "cache_control", []string{"", `{"type":"ephemeral"}`}[s.pick(2)]))
				continue
			}
			url := s.string(p.url)
			if s.pick(2) == 0 {
				url = s.object("url", url, "detail", []string{"", "null", `"auto"`}[s.pick(3)])
			}
			parts = append(parts, s.object("type", `"image_url"`, "image_url", url))
		}
		content = s.array(parts)
	}
	calls := []string{"", "null", "[]"}[s.pick(3)]
	if m.calls != nil {
		var all []string
		for i, c := range m.calls {
			all = append(all, s.object("id", s.string(c.id), "type", `"function"`, "index", []string{"", fmt.Sprint(i)}[s.pick(2)],
				"function", s.object("name", s.string(c.name), "arguments", s.optional(c.arguments))))
		}
		calls = s.array(all)
	}
	return s.object("role", s.string(m.role), "name", s.optional(m.name), "tool_call_id", s.optional(m.callID),
		[]string{"reasoning", "reasoning_content"}[s.pick(2)], s.optional(m.reasoning), "content", content, "tool_calls", calls,
		"annotations", []string{"", "[]"}[s.pick(2)])
}

func (s speller) body(c conversation) string {
	var tools, messages []string
	for _, t := range c.tools {
		tools = append(tools, s.object("type", `"function"`, "function", s.object("name", s.string(t.name), "description", s.optional(t.description),
			"parameters", `{"type":`+s.space()+`"object","properties":{`+s.space()+`}}`)))
	}
	for _, m := range c.messages {
		messages = append(messages, s.message(m))
	}
	all := []string{"model", `"m"`, "messages", s.array(messages), "reasoning_effort", s.optional(c.effort),
		"temperature", []string{"", "0", "1.5"}[s.pick(3)], "stream", []string{"", "true"}[s.pick(2)], "user", s.optional("")}
	if len(tools) > 0 || s.pick(2) == 0 {
		all = append(all, "tools", s.array(tools), "tool_choice", []string{"", `"auto"`, `"required"`}[s.pick(3)])
	}
	return s.object(all...)
}

func (s speller) key(c conversation) Key {
	body := s.body(c)
	k, ok := keyOf(s.t, Chat, body)
	if !ok {
		s.t.Fatalf("no key of %s", body)
	}
	return k
}

// TestSpelling: equal prompts have equal keys, however they are spelled.
func TestSpelling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := conversationOf.Draw(t, "conversation")
		s := speller{t}
		a, b := s.key(c), s.key(c)
		if !slices.Equal(a.Blocks, b.Blocks) || a.Bytes != b.Bytes || a.Media != b.Media {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

// TestNextTurn: what a conversation goes on with is behind all the blocks that it had.
func TestNextTurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := conversationOf.Draw(t, "conversation")
		s := speller{t}
		before := s.key(c)
		c.messages = append(slices.Clone(c.messages), rapid.SliceOfN(messageOf, 1, 3).Draw(t, "next")...)
		after := s.key(c)
		if n := common(t, before.Blocks, after.Blocks); n != len(before.Blocks) || after.Bytes <= before.Bytes {
			t.Fatalf("of %d blocks %d are in the next turn's; %d bytes, then %d", len(before.Blocks), n, before.Bytes, after.Bytes)
		}
	})
}

// TestDifference: conversations share no block that lies beyond their first difference.
func TestDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := conversationOf.Draw(t, "conversation")
		s := speller{t}
		other := conversation{slices.Clone(c.tools), slices.Clone(c.messages), c.effort}
		at := rapid.IntRange(0, len(c.messages)-1).Draw(t, "at")
		// least is how much of the text is alike at most.
		start := func(c conversation) int { return s.key(c).Bytes }(conversation{c.tools, c.messages[:at], c.effort}.orNothing())
		m := &other.messages[at]
		most := 0
		switch what := rapid.SampledFrom([]string{"role", "text", "image", "left out", "effort", "tool"}).Draw(t, "what"); what {
		case "role":
			m.role = "x" + m.role
			most = start + 1
		case "text":
			m.parts = slices.Clone(m.parts)
			i := slices.IndexFunc(m.parts, func(p part) bool { return p.url == "" })
			if i < 0 {
				t.Skip("no text")
			}
			// Everything of the message that stands before its end, less the last character.
			text := []rune(m.parts[i].text)
			from := rapid.IntRange(0, len(text)-1).Draw(t, "from")
			m.parts[i].text = string(text[:from]) + "\u2603" + string(text[from:])
			if text[from] == '\u2603' {
				t.Skip("the same character")
			}
			alone := conversation{c.tools, append(slices.Clone(c.messages[:at]), message{role: m.role, name: m.name, callID: m.callID, reasoning: m.reasoning,
				parts: append(slices.Clone(m.parts[:i]), part{text: string(text[:from]) + "\u2603"})}), c.effort}
			most = s.key(alone).Bytes - len("\u2603") + 2 // the first bytes of two characters may be alike
		case "image":
			m.parts = append([]part{{url: "data:,new"}}, m.parts...)
			most = start + 1 + len(m.role) + 2 + len(m.name) + 2 + len(m.callID) + 2 + len(m.reasoning) + mediaBytes
		case "left out":
			other.messages = slices.Delete(other.messages, at, at+1)
			if len(other.messages) == 0 || at < len(other.messages) && fmt.Sprint(other.messages[at]) == fmt.Sprint(c.messages[at]) {
				t.Skip("nothing else")
			}
			// The text that follows may begin like the text that was left out.
			most = s.key(conversation{c.tools, c.messages[:at+1], c.effort}).Bytes
		case "effort":
			other.effort = "high"
		case "tool":
			other.tools = append([]tool{{"new tool", "of which nobody has heard"}}, other.tools...)
			most = 4
		}
		a, b := s.key(c), s.key(other)
		if n := common(t, a.Blocks, b.Blocks); n*BlockBytes > most {
			t.Fatalf("%d blocks are alike, of at most %d bytes", n, most)
		}
	})
}

// orNothing has a message of nothing where there is none: a body has one at least.
func (c conversation) orNothing() conversation {
	if len(c.messages) == 0 {
		c.messages = []message{{}}
	}
	return c
}

// FuzzRead: no body panics, and what a body has in common with another that differs in
// white space is all of it.
func FuzzRead(f *testing.F) {
	for shape := range endpoints {
		f.Add(uint8(shape), []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\n"},{"type":"image_url","image_url":{"url":"u"}}]},{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[1]}}}]}`))
		f.Add(uint8(shape), []byte(`{"model":"m","max_tokens":1,"system":[{"type":"text","text":"x-anthropic-billing-header: a\nb"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"a"}]}]}]}`))
		f.Add(uint8(shape), []byte(`{"model":"m","instructions":"a","input":[{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"b"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"c"}]}`))
		f.Add(uint8(shape), []byte(`{"model":"m","prompt":[[1,2],[3]],"input":["a",[1],{"text":"b"}],"query":"q","documents":["a",{"text":"b"}]}`))
		f.Add(uint8(shape), []byte(`{"\u006dodel":"m","m\u0065ssages":[{"r\u006fle":"user","content":"\ud83d\ude00\ud800"}],"chat_template_kwargs":{"a":{"b":[[[[[[[[[[]]]]]]]]]]}}}`))
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		shape := Shape(which % uint8(len(endpoints)))
		h, err := endpoints[shape].ParseHead(body)
		if err != nil {
			return
		}
		var r Reader
		k, ok := r.Read(nil, 1, shape, h)
		if !ok && (k.Blocks != nil || k.Bytes != 0) || len(k.Blocks) > MaxBlocks || len(k.Blocks) > k.Bytes/BlockBytes {
			t.Fatalf("%v %+v", ok, k)
		}
		h, err = endpoints[shape].ParseHead(spaced(body))
		if err != nil {
			t.Fatal(err)
		}
		again, same := r.Read(nil, 1, shape, h)
		if same != ok || again.Bytes != k.Bytes || again.Media != k.Media || !slices.Equal(again.Blocks, k.Blocks) {
			t.Fatalf("%+v, with white space %+v", k, again)
		}
	})
}

// spaced puts white space around what is no string.
func spaced(body []byte) (out []byte) {
	for i := 0; i < len(body); {
		switch c := body[i]; c {
		case '"':
			end := dialect.SkipString(body, i)
			out = append(out, body[i:end]...)
			i = end
		case ',', ':', '{', '}', '[', ']':
			out = append(out, ' ', c, '\n')
			i++
		default:
			out = append(out, c)
			i++
		}
	}
	return out
}
