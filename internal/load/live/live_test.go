package live

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/internal/load"
)

// reading makes one with this many requests of some latencies.
func reading(begun, complete int64, ttft, tpot int) load.Reading {
	r := load.Reading{Begun: begun, Complete: complete, Tokens: 10 * complete}
	r.TTFT[ttft], r.TPOT[tpot] = complete, complete
	return r
}

func TestLines(t *testing.T) {
	v := NewView(Target{Title: "openai-chat http://127.0.0.1:8000, open loop 50/s poisson", Requests: 400, For: 10 * time.Second})
	v.Take(250*time.Millisecond, reading(12, 0, 0, 0))
	first := v.Lines(60)
	for i := range 9 {
		n := int64(50 * (i + 1))
		r := reading(n, 0, 0, 0)
		// Later requests are slower.
		for k := range i + 1 {
			r.TTFT[80+4*k] += 40
			r.TPOT[70] += 40
			r.Complete += 40
		}
		r.Tokens = 10 * r.Complete
		if i == 8 {
			r.Errored, r.Errors = 7, map[load.Kind]int{load.KindReset: 1, "status_503": 6}
		}
		v.Take(time.Duration(i+1)*time.Second, r)
	}
	for _, c := range []struct {
		width int
		want  []string
	}{
		{80, []string{
			"openai-chat http://127.0.0.1:8000, open loop 50/s poisson",
			"███████████████████████████████░░░   92 %  9s of 10s, 450 of 400 requests begun",
			"in flight 83   begun 50.0/s, complete 40.0/s, 400 tokens/s",
			"ttft  p50    171ms  p99    171ms  ▁▂▂▂▃▃▅▆█",
			"tpot  p50   4.50ms  p99   4.50ms  █████████",
			"errors  status_503 6, reset 1",
		}},
		{30, []string{
			"openai-chat http://127.0.0.1…",
			" 92 %  9s of 10s, 450 of 400…",
			"in flight 83   begun 50.0/s,…",
			"ttft  p50    171ms  p99    1…",
			"tpot  p50   4.50ms  p99   4.…",
			"errors  status_503 6, reset 1",
		}},
		{38, []string{
			"openai-chat http://127.0.0.1:8000, o…",
			" 92 %  9s of 10s, 450 of 400 request…",
			"in flight 83   begun 50.0/s, complet…",
			"ttft  p50    171ms  p99    171ms  ▅▆█",
			"tpot  p50   4.50ms  p99   4.50ms  ███",
			"errors  status_503 6, reset 1",
		}},
		{1, []string{"o", " ", "i", "t", "t", "e"}},
	} {
		if diff := cmp.Diff(c.want, v.Lines(c.width)); diff != "" {
			t.Errorf("%d columns:\n%s", c.width, diff)
		}
	}
	if first[3] != "ttft  p50        -  p99        -  " || !strings.Contains(first[1], "12 of 400") {
		t.Errorf("%q", first)
	}
	want1 := "9s of 10s, 450 of 400 requests begun: 83 in flight, 50.0/s begun, 40.0/s complete, 400 tokens/s, ttft p50 171ms p99 171ms, tpot p50 4.50ms p99 4.50ms; errors: status_503 6, reset 1"
	if got := v.Line(); got != want1 {
		t.Errorf("%q", got)
	}
}

// For any input and any width of the terminal, no line is wider than the terminal, moves the
// cursor, or is not text; and memory stays bounded.
func TestLinesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := NewView(Target{Title: rapid.String().Draw(t, "title"), Requests: rapid.IntRange(0, 100).Draw(t, "requests"), For: time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "for"))})
		at := time.Duration(0)
		var r load.Reading
		for range rapid.IntRange(0, 300).Draw(t, "readings") {
			at += time.Duration(rapid.Int64Range(1, 5e9).Draw(t, "step"))
			r.Begun += rapid.Int64Range(0, 1e6).Draw(t, "begun")
			if r.Begun > r.Ended() {
				n := rapid.Int64Range(0, r.Begun-r.Ended()).Draw(t, "ended")
				r.Complete += n
				r.TTFT[rapid.IntRange(0, len(r.TTFT)-1).Draw(t, "bucket")] += n
			}
			v.Take(at, r)
		}
		width := rapid.IntRange(-1, 300).Draw(t, "width")
		for _, line := range v.Lines(width) {
			if n := utf8.RuneCountInString(line); n > max(1, width-1) || strings.ContainsAny(line, "\r\n\x1b\t") || !utf8.ValidString(line) {
				t.Fatalf("%d columns: %q", width, line)
			}
		}
		if len(v.history) > maxHistory || strings.Contains(v.Line(), "NaN") {
			t.Fatalf("%d spans, %q", len(v.history), v.Line())
		}
	})
}

// tty is a terminal that knows what a painter writes.
type tty struct {
	lines []string
	row   int
}

func (s *tty) write(t *testing.T, text string) {
	t.Helper()
	for len(text) > 0 {
		switch {
		case strings.HasPrefix(text, "\x1b[?7l"), strings.HasPrefix(text, "\x1b[?7h"):
			text = text[5:]
		case strings.HasPrefix(text, "\x1b[2K"):
			s.put("")
			text = text[4:]
		case strings.HasPrefix(text, "\x1b[J"):
			s.lines = s.lines[:min(len(s.lines), s.row)]
			text = text[3:]
		case strings.HasPrefix(text, "\x1b["):
			n, rest, _ := strings.Cut(text[2:], "A")
			if len(n) != 1 {
				t.Fatalf("%q", text)
			}
			s.row -= int(n[0] - '0')
			text = rest
		case text[0] == '\r':
			text = text[1:]
		case text[0] == '\n':
			s.row++
			text = text[1:]
		default:
			line := text[:strings.IndexAny(text+"\r", "\r\x1b")]
			s.put(line)
			text = text[len(line):]
		}
	}
}

func (s *tty) put(line string) {
	for len(s.lines) <= s.row {
		s.lines = append(s.lines, "")
	}
	s.lines[s.row] = line
}

// A new drawing replaces the one before, also when it is shorter, and is gone when it is cleared;
// lines above it stay.
func TestPainter(t *testing.T) {
	screen := &tty{}
	screen.write(t, "before\r\n")
	p := &painter{}
	for _, lines := range [][]string{{"a", "b", "c"}, {"dd", "ee"}, {"f", "g", "h", "i"}} {
		screen.write(t, string(p.draw(lines)))
		if diff := cmp.Diff(append([]string{"before"}, lines...), screen.lines); diff != "" {
			t.Fatal(diff)
		}
	}
	screen.write(t, string(p.clear()))
	if diff := cmp.Diff([]string{"before"}, screen.lines); diff != "" || screen.row != 1 {
		t.Fatal(diff, screen.row)
	}
	if len(p.clear()) != 0 {
		t.Error("clears twice")
	}
}

// guarded is a writer that a screen's goroutine writes to.
type guarded struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (g *guarded) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Write(p)
}

// Where there is no terminal, there is a line every five seconds; drawn in place
// it is four times a second, and gone at the end; off is nothing at all.
func TestShow(t *testing.T) {
	for _, c := range []struct {
		mode   Mode
		writes int
	}{{Auto, 2}, {Plain, 2}, {Lines, 48}, {Off, 0}} {
		synctest.Test(t, func(t *testing.T) {
			var out guarded
			s := Show(&out, c.mode, Target{Title: "t", Requests: 5}, &load.Live{})
			time.Sleep(12*time.Second + time.Millisecond)
			s.Close()
			text := out.b.String()
			if n := strings.Count(text, "of 5 requests begun"); n != c.writes {
				t.Errorf("%s: %d times", c.mode, n)
			}
			if c.mode == Lines && !strings.HasSuffix(text, "A\r\x1b[J") {
				t.Errorf("ends with %q", text[max(0, len(text)-20):])
			}
		})
	}
}
