package outputparse

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/model/stop"
)

// TestNothingLost is the second law: every byte that is no syntax is in exactly
// one event, in order. Payload is put anywhere among the words of a format; each
// piece of it is unlike any other and must come out once, in its place. (Words in the head of
// a message of harmony are syntax.)
func TestNothingLost(t *testing.T) {
	for _, o := range formats() {
		if o.Single {
			continue // what follows the call is dropped on purpose
		}
		words := alphabet(o.Format)
		t.Run(o.Format.Tools(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var text strings.Builder
				n := rapid.IntRange(0, 30).Draw(t, "words")
				var want []string
				for i := range n {
					if rapid.IntRange(0, 2).Draw(t, "payload") == 0 {
						word := fmt.Sprintf("q%dq", 100+i)
						want = append(want, word)
						text.WriteString(word)
						continue
					}
					text.WriteString(rapid.SampledFrom(words).Draw(t, "word"))
				}
				got := read(o, text.String(), rapid.IntRange(1, 9).Draw(t, "size"))
				want = slices.DeleteFunc(want, func(word string) bool { return o.inHead(text.String(), word) })
				checkPayload(t, text.String(), got, want)
			})
		})
	}
}

// checkPayload looks for the payload in the events, in order. A call's name and
// id are given out at its beginning, and so may come before arguments that were
// written before them.
func checkPayload(t failer, text string, got *listen, want []string) {
	var all strings.Builder
	for _, e := range got.all {
		name := e.name
		if strings.Contains(e.id, name) {
			name = "" // the id holds it
		}
		fmt.Fprintf(&all, "\n%s %s %s", e.text, name, e.id)
	}
	said := all.String()
	at := 0
	for _, word := range want {
		if n := strings.Count(said, word); n != 1 {
			t.Fatalf("%q: %s is in the events %d times\n%s", text, word, n, got.lines())
		}
		i := strings.Index(said, word)
		if i < at && !strings.Contains(text, `"name"`) {
			t.Fatalf("%q: %s is out of order\n%s", text, word, got.lines())
		}
		at = i
	}
}

// TestStopStrings: an answer ends at the first stop string in its content. In reasoning and in
// calls there are none, and nothing but content is changed by them.
func TestStopStrings(t *testing.T) {
	for _, o := range formats() {
		if o.Single {
			continue
		}
		stops := o
		stops.Stops = stop.New([]string{"STOP", "TOPS"})
		words := append(alphabet(o.Format), "STOP", "STOP", "ST", "OP", "S")
		t.Run(o.Format.Tools(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 30).Draw(t, "words"), "")
				var want listen
				for _, e := range read(o, text).all {
					at := -1
					if e.kind == Content {
						if at = stopIn(e.text); at >= 0 {
							e.text = e.text[:at]
						}
					}
					if e.kind != Content || e.text != "" {
						want.all = append(want.all, e)
					}
					if at >= 0 {
						break
					}
				}
				for _, size := range []int{len(text) + 1, 1, rapid.IntRange(1, 9).Draw(t, "size")} {
					if got := read(stops, text, size); got.lines() != want.lines() {
						t.Fatalf("%q in pieces of %d gives\n%swant\n%s", text, size, got.lines(), want.lines())
					}
				}
				spaces := o // which are text, unless a marker follows; a stop string does not wait for that
				spaces.Stops = stop.New([]string{"\n\n", " ", "\t"})
				checkLaws(t, spaces, text, []int{rapid.IntRange(2, 9).Draw(t, "size of these")})
			})
		})
	}
}

// stopIn returns where the first of TestStopStrings' strings is complete, less its length.
func stopIn(text string) int {
	a, b := strings.Index(text, "STOP"), strings.Index(text, "TOPS")
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// TestPlainText: text without any of a format's words is content byte for byte, behind the
// line breaks that it begins with.
func TestPlainText(t *testing.T) {
	for _, o := range formats() {
		if len(o.Prompt) > 0 || o.ForcedTool != "" {
			continue
		}
		rapid.Check(t, func(t *rapid.T) {
			text := rapid.StringOfN(rapid.RuneFrom([]rune("abc \n\té日.,!?-+*#`'\"")), 0, 60, -1).Draw(t, "text")
			if strings.TrimSpace(text) == "" && o.Format.Tools() == "harmony" {
				return
			}
			said := text
			if o.Format.Tools() != "harmony" {
				said = strings.TrimLeft(text, "\r\n") // they are those of the prompt's end
			}
			if tools := New(o).tools; tools != nil && tools.bare != "" {
				said = strings.TrimLeft(text, " \r\n\t") // or before a call without a marker
			}
			var want []told
			if said != "" {
				want = []told{{kind: Content, text: said}}
			}
			got := read(o, text, rapid.IntRange(1, 9).Draw(t, "size"))
			if fmt.Sprint(got.all) != fmt.Sprint(want) {
				t.Fatalf("%s: %q gives\n%s", o.Format.Tools(), text, got.lines())
			}
		})
	}
}

// TestHeldIsBounded: the parser never holds more than it says, whatever it is
// fed.
func TestHeldIsBounded(t *testing.T) {
	const size = maxHeld + maxHeld/4
	for _, o := range formats() {
		if o.Single || !o.Calls || len(o.Prompt) > 0 {
			continue
		}
		for _, head := range openings(o.Format) {
			p := New(o)
			most := 0
			piece := strings.Repeat("a ", 512)
			if strings.HasSuffix(head, "  ") {
				piece = strings.Repeat(" ", 1024)
			}
			text := head
			for range size / len(piece) {
				p.Append(nil, []byte(text), false)
				text = piece
				most = max(most, len(p.held)-p.taken+len(p.space))
			}
			if limit := maxHeld + 2*len(piece) + maxEdge; most > limit {
				t.Errorf("%s after %q: %d bytes held, at most %d may be", o.Format.Tools(), head, most, limit)
			}
			p.Append(nil, nil, true)
		}
	}
}

// openings are beginnings after which a format may wait for what never comes.
func openings(f Format) []string {
	all := append([]string{"", "  ", `{"name": "f", "arguments": {"a": "`, `[f(a="`, `[f(a=[`, `[{"name": "f", "arguments": {"a": "`}, f.markers()...)
	for _, m := range f.markers() {
		all = append(all, m+"  ", m+`{"arguments": {"a": "`, m+`{"name": "f`, m+`{"name": "f", "arguments": {"a": "`, m+"name", m+"f\n<arg_key>", m+"call:f{a:", m+"call:f{a:[", m+"call:f{a")
	}
	if s := f.tools; s != nil && s.key != nil {
		name := "get_weather"
		if s.nameEnd != nil {
			name += s.nameEnd[0]
		}
		end := s.keyEnd + s.tagBegin
		for _, key := range []string{"city", "days", "note", "opts"} {
			all = append(all, s.call[0]+name+s.key[0]+key+end, s.call[0]+name+s.key[0]+key+end+"nul", s.call[0]+name+s.key[0]+key+end+"  ")
		}
	}
	return all
}
