package sse

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// streams are whole streams that every test cuts in every way it can.
var streams = []string{
	"",
	"data: {\"a\":1}\n\ndata: [DONE]\n\n",
	"data: {\"a\":1}\r\n\r\ndata: [DONE]\r\n\r\n",
	"data: {\"a\":1}\r\rdata: [DONE]\r\r",
	"data: a\r\n\rdata: b\r\r\ndata: c\n\r\n: ping\r\n\ndata:[DONE]\n\n",
	"\xEF\xBB\xBFdata: [DONE]\n\n",
	"\xEF\xBB\xBF\ndata: x\n\n",
	": comment\n\n:\n\n:: two\nevent: error\ndata: 1\ndata:  2\ndata\ndata:\n\n",
	"event: only a name\n\ndata: x\n\n",
	"id: 7\nretry: 10\ndatum: no\ndata2: no\n data: no\ndata: yes\n\n",
	"\n\n\r\r\n\r\n\ndata:\n\n\n\n",
	"data: [DONE]\n\n: bye\n\n",
	"data: [DONE]\n\ndata: more\n\n",
	"data: [DONE]\ndata: [DONE]\n\n",
	"data: [DONE]x\n\ndata: [DONE] \n\ndata:  [DONE]\n\ndata: [DONE\n\n",
	"data: ends without a blank line\n",
	"data: ends inside a line",
	"data: é世界😀\n\n",
}

// reference takes a stream apart the slow and obvious way.
func reference(stream string) (events []string, done bool) {
	stream = strings.TrimPrefix(stream, "\xEF\xBB\xBF")
	stream = strings.ReplaceAll(stream, "\r\n", "\n")
	stream = strings.ReplaceAll(stream, "\r", "\n")
	all := strings.Split(stream, "\n")
	var name string
	var data []string
	for _, line := range all[:len(all)-1] {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != nil {
				joined := strings.Join(data, "\n")
				events = append(events, fmt.Sprintf("%q %q", name, joined))
				done = joined == "[DONE]"
			}
			name, data = "", nil
		case field == "":
			events = append(events, fmt.Sprintf("comment %q", value))
		case field == "event":
			name = value
		case field == "data":
			data = append(data, value)
		}
	}
	return events, done
}

// dataEvents counts what reference found, comments left out.
func dataEvents(events []string) int {
	n := 0
	for _, e := range events {
		if !strings.HasPrefix(e, "comment") {
			n++
		}
	}
	return n
}

func parse(t *testing.T, chunks [][]byte) []string {
	t.Helper()
	var p Parser
	var got []string
	for _, chunk := range chunks {
		p.Feed(chunk)
		for ev, ok := p.Next(); ok; ev, ok = p.Next() {
			if ev.Comment {
				got = append(got, fmt.Sprintf("comment %q", ev.Data))
			} else {
				got = append(got, fmt.Sprintf("%q %q", ev.Name, ev.Data))
			}
		}
	}
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	return got
}

// split feeds chunks and checks what must hold after each. It gives the events
// counted and the offsets of the cuts in the stream.
func split(t *testing.T, limit int, chunks [][]byte) (events int, cuts []int, s *Splitter) {
	t.Helper()
	s = &Splitter{Max: limit}
	var stream, held, out []byte
	for _, chunk := range chunks {
		stream = append(stream, chunk...)
		held = append(held, chunk...)
		r := s.Feed(chunk)
		if r.Len < 0 || r.Len > len(held) {
			t.Fatalf("region of %d bytes, %d are held", r.Len, len(held))
		}
		out = append(out, held[:r.Len]...)
		if r.Done && r.DoneAt >= 0 {
			if found, _ := reference(string(held[r.DoneAt:r.Len])); dataEvents(found) != 1 || !strings.Contains(strings.Join(found, " "), `"[DONE]"`) {
				t.Fatalf("no marker at %d of %q", r.DoneAt, held[:r.Len])
			}
		}
		held = held[r.Len:]
		if len(held) != s.Held() || len(held) > limit {
			t.Fatalf("holds %d bytes, says %d, limit %d", len(held), s.Held(), limit)
		}
		if r.Open != s.Open() || r.Done != s.Done() {
			t.Fatalf("region %+v disagrees with the splitter", r)
		}
		if r.Open && len(held) > 0 {
			t.Fatalf("%d bytes held of an open event", len(held))
		}
		events += r.Events
		if r.Len > 0 {
			cuts = append(cuts, len(out))
		}
	}
	if out = append(out, held...); !bytes.Equal(out, stream) {
		t.Fatalf("forwarded %q of %q", out, stream)
	}
	return events, cuts, s
}

func check(t *testing.T, stream string, chunks [][]byte) {
	t.Helper()
	want, done := reference(stream)
	if diff := cmp.Diff(want, parse(t, chunks)); diff != "" {
		t.Fatalf("parser on %q: %s", chunks, diff)
	}
	events, cuts, s := split(t, 1<<20, chunks)
	if events != dataEvents(want) || s.Done() != done {
		t.Fatalf("splitter on %q: %d events, done %v; want %v", chunks, events, s.Done(), want)
	}
	// Each region stands alone: what a reader finds in the prefix and in the
	// rest is what it finds in the whole.
	for _, cut := range cuts {
		before, _ := reference(stream[:cut])
		after, _ := reference(stream[cut:])
		if diff := cmp.Diff(want, append(before, after...)); diff != "" {
			t.Fatalf("cut of %q at %d is inside an event: %s", stream, cut, diff)
		}
	}
}

func TestCutAtEveryPair(t *testing.T) {
	for _, stream := range streams {
		b := []byte(stream)
		for i := range len(b) + 1 {
			for j := i; j <= len(b); j++ {
				check(t, stream, [][]byte{b[:i], b[i:j], b[j:]})
			}
		}
		single := make([][]byte, len(b))
		for i := range b {
			single[i] = b[i : i+1]
		}
		check(t, stream, single)
	}
}

func FuzzCuts(f *testing.F) {
	for _, stream := range streams {
		f.Add(stream, uint64(0x9E3779B97F4A7C15))
	}
	f.Fuzz(func(t *testing.T, stream string, seed uint64) {
		if strings.Contains(strings.TrimPrefix(stream, bom), bom) {
			t.Skip("a cut before a later BOM would make the reference take it off")
		}
		check(t, stream, chunksOf(stream, seed))
		split(t, 8, chunksOf(stream, seed))
	})
}

// chunksOf cuts a stream where the bits of a generator say.
func chunksOf(stream string, seed uint64) [][]byte {
	var chunks [][]byte
	b := []byte(stream)
	for len(b) > 0 {
		seed = seed*6364136223846793005 + 1442695040888963407
		n := min(len(b), int(seed>>60))
		chunks = append(chunks, b[:n])
		b = b[n:]
	}
	return chunks
}

func TestSplitterOversizedEvent(t *testing.T) {
	s := Splitter{Max: 10}
	steps := []struct {
		chunk string
		want  Region
	}{
		{"data: 1\n\ndata: 2", Region{Len: 9, Events: 1, DoneAt: -1}},
		{"345", Region{DoneAt: -1}},
		{"6", Region{Len: 11, DoneAt: -1, Open: true}},
		{"7\n", Region{Len: 2, DoneAt: -1, Open: true}},
		{"\nda", Region{Len: 1, Events: 1, DoneAt: -1}},
		{"ta: [DONE]\n\n", Region{Len: 14, Events: 1, Done: true, DoneAt: 0}},
		{": long good-bye", Region{Len: 15, Done: true, DoneAt: -1, Open: true}},
		{"\r\r", Region{Len: 2, Done: true, DoneAt: -1}},
		{"\n", Region{Len: 1, Done: true, DoneAt: -1}},
	}
	for i, step := range steps {
		if got := s.Feed([]byte(step.chunk)); got != step.want {
			t.Fatalf("step %d: %+v, want %+v", i, got, step.want)
		}
	}
}

func TestParserLimits(t *testing.T) {
	for _, stream := range []string{
		"data: 0123456789abcdef\n\n",
		"data: 0123\ndata: 0123\ndata: 0123\n\n",
		": 0123456789abcdef",
	} {
		p := Parser{Max: 12}
		for _, chunk := range chunksOf(stream, 1) {
			p.Feed(chunk)
			if ev, ok := p.Next(); ok {
				t.Errorf("%q gave %q", stream, ev.Data)
			}
		}
		if p.Err() == nil || p.Err().Error() != "parse event: larger than 12 bytes" {
			t.Errorf("%q: error %v", stream, p.Err())
		}
	}
}

func TestParserPartial(t *testing.T) {
	for stream, want := range map[string]bool{
		"":               false,
		"data: x\n\n":    false,
		"data: x\r\n\r":  false,
		"data: x\n":      true,
		"data: x":        true,
		"data: x\n\nd":   true,
		"data: x\n\n: c": true,
	} {
		var p Parser
		p.Feed([]byte(stream))
		for _, ok := p.Next(); ok; _, ok = p.Next() {
		}
		if p.Partial() != want {
			t.Errorf("%q: partial %v", stream, p.Partial())
		}
	}
}

func FuzzAppend(f *testing.F) {
	for _, text := range []string{"", "{}", "a\nb", "a\r\nb\rc\n", "\n", " x", "[DONE]"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want := strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
		out := appendComment(appendData([]byte(": before\n\n"), []byte(text)), []byte(text))
		events := []string{`comment "before"`, fmt.Sprintf("%q %q", "", want)}
		for line := range strings.SplitSeq(want, "\n") {
			events = append(events, fmt.Sprintf("comment %q", line))
		}
		if diff := cmp.Diff(events, parse(t, [][]byte{out})); diff != "" {
			t.Fatal(diff)
		}
		if _, _, s := split(t, 1<<20, [][]byte{out}); s.Held() != 0 {
			t.Fatalf("%q is not whole", out)
		}
	})
}

func chunk(events int, end string) []byte {
	one := `data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}`
	return bytes.Repeat([]byte(one+end+end), events)
}

func TestNoAllocation(t *testing.T) {
	b := chunk(8, "\r\n")
	var s Splitter
	var p Parser
	events := 0
	feed := func() {
		s.Feed(b[:len(b)-99])
		s.Feed(b[len(b)-99:])
		for _, part := range [2][]byte{b[:99], b[99:]} {
			p.Feed(part)
			for _, ok := p.Next(); ok; _, ok = p.Next() {
				events++
			}
		}
	}
	feed()
	if n := testing.AllocsPerRun(100, feed); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if events != 8*102 {
		t.Errorf("%d events", events)
	}
}

// A parser that waits for the next event keeps nothing of those before, in however many chunks
// they came.
func TestParserKeepsNothing(t *testing.T) {
	b := []byte("event: token\ndata: 1\ndata: 2\n\n")
	for cut := range b {
		var p Parser
		for _, part := range [2][]byte{b[:cut], b[cut:]} {
			p.Feed(part)
			for ev, ok := p.Next(); ok; ev, ok = p.Next() {
				if string(ev.Name) != "token" || string(ev.Data) != "1\n2" {
					t.Errorf("cut at %d: %q, %q", cut, ev.Name, ev.Data)
				}
			}
		}
		if p.line != nil || p.name != nil || p.data != nil {
			t.Errorf("cut at %d: %v, %q, %q", cut, p.line, p.name, p.data)
		}
	}
}

func BenchmarkSplitter(b *testing.B) {
	for _, bench := range []struct {
		name   string
		events int
		end    string
	}{{"1 LF", 1, "\n"}, {"64 LF", 64, "\n"}, {"64 CRLF", 64, "\r\n"}, {"64 CR", 64, "\r"}} {
		b.Run(bench.name, func(b *testing.B) {
			in := chunk(bench.events, bench.end)
			var s Splitter
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			for b.Loop() {
				s.Feed(in)
			}
		})
	}
}

func BenchmarkParser(b *testing.B) {
	in := chunk(64, "\n")
	var p Parser
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		p.Feed(in)
		for _, ok := p.Next(); ok; _, ok = p.Next() {
		}
	}
}

// Joining the lines of an event's data costs in proportion to them, however many there
// are.
func TestWalkerManyLines(t *testing.T) {
	const lines = 10_000
	region := []byte(strings.Repeat("data:\n", lines) + "\n")
	var w Walker
	read := func() Block {
		b, next := w.Block(region, w.Begin(region))
		if next != len(region) {
			t.Fatalf("%d of %d", next, len(region))
		}
		return b
	}
	if b := read(); b.Lines != lines || string(b.Data) != strings.Repeat("\n", lines-1) {
		t.Errorf("%d lines, %d bytes", b.Lines, len(b.Data))
	}
	// A buffer that doubles: 14 times, and not once a line.
	if n := testing.AllocsPerRun(10, func() { read() }); n > 30 {
		t.Errorf("%v allocations for %d lines", n, lines)
	}
}

// appendData appends one event with payload as its data. A payload with line
// ends in it becomes several data lines; whatever they were, its reader gets
// them back as LF.
func appendData(dst, payload []byte) []byte {
	return appendBlock(dst, "data: ", payload)
}

// appendComment appends a block of comment lines, which readers of events pass
// over.
func appendComment(dst, text []byte) []byte {
	return appendBlock(dst, ": ", text)
}

func appendBlock(dst []byte, prefix string, text []byte) []byte {
	for {
		dst = append(dst, prefix...)
		end := bytes.IndexAny(text, "\r\n")
		if end < 0 {
			dst = append(dst, text...)
			return append(dst, "\n\n"...)
		}
		dst = append(dst, text[:end]...)
		dst = append(dst, '\n')
		if text[end] == '\r' && end+1 < len(text) && text[end+1] == '\n' {
			end++
		}
		text = text[end+1:]
	}
}
