// Package live shows a run while it is under way: a few lines that are redrawn in place on
// a terminal, or a plain line from time to time without a terminal.
//
// A [View] is pure: it takes a reading and the time, and returns lines of a given width. A
// [Screen] is its shell: one goroutine that reads the run's figures four times a second and
// writes. The figures are atomic counters, for which no request waits. A terminal that is
// slow, narrow or resized can only spoil the display.
package live

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir/internal/load"
)

// Target is the goal of a run, as far as it is known.
type Target struct {
	// Title names the server and the load.
	Title string
	// Requests and For are the run's bounds; 0 is none.
	Requests int
	For      time.Duration
}

// View holds what is shown of a run.
type View struct {
	target  Target
	now     load.Reading
	at      time.Duration
	marks   []mark // a second or more apart, the latest last
	history []span // between marks
}

// mark is a reading and when it was taken.
type mark struct {
	at time.Duration
	r  load.Reading
}

// span is the activity between two marks.
type span struct {
	length              time.Duration
	begun, done, tokens float64 // a second
	ttft50, ttft99      time.Duration
	tpot50, tpot99      time.Duration
	hasTTFT, hasTPOT    bool
}

// maxHistory is as many spans as the widest sparkline has.
const maxHistory = 120

// spanLength is how long a span is at least.
const spanLength = time.Second

// NewView makes a view of a run that begins at 0.
func NewView(t Target) *View { return &View{target: t, marks: []mark{{}}} }

// Take takes a reading; times do not go back.
func (v *View) Take(at time.Duration, r load.Reading) {
	v.at, v.now = at, r
	last := &v.marks[len(v.marks)-1]
	if at-last.at < spanLength {
		return
	}
	v.history = append(v.history, between(last, &mark{at, r}))
	if len(v.history) > maxHistory {
		v.history = slices.Delete(v.history, 0, 1)
	}
	v.marks = append(v.marks[:0], mark{at, r})
}

// between works out a span.
func between(a, b *mark) span {
	s := span{length: b.at - a.at}
	seconds := s.length.Seconds()
	s.begun = float64(b.r.Begun-a.r.Begun) / seconds
	s.done = float64(b.r.Complete-a.r.Complete) / seconds
	s.tokens = float64(b.r.Tokens-a.r.Tokens) / seconds
	ttft, tpot := b.r.TTFT.Since(&a.r.TTFT), b.r.TPOT.Since(&a.r.TPOT)
	s.ttft50, s.hasTTFT = ttft.Quantile(0.5)
	s.ttft99, _ = ttft.Quantile(0.99)
	s.tpot50, s.hasTPOT = tpot.Quantile(0.5)
	s.tpot99, _ = tpot.Quantile(0.99)
	return s
}

// latest is the last span.
func (v *View) latest() span {
	if len(v.history) == 0 {
		return span{}
	}
	return v.history[len(v.history)-1]
}

// share returns the finished share of the run; ok is false if the run has no bound. If it
// has two, the nearer one counts.
func (v *View) share() (share float64, ok bool) {
	if n := v.target.Requests; n > 0 {
		share, ok = float64(v.now.Ended())/float64(n), true
	}
	if d := v.target.For; d > 0 {
		share, ok = max(share, v.at.Seconds()/d.Seconds()), true
	}
	return min(1, share), ok
}

// extent returns how much was done, of how much.
func (v *View) extent() string {
	of := func(text string) string {
		if text == "" {
			return ""
		}
		return " of " + text
	}
	bound, count := "", ""
	if v.target.For > 0 {
		bound = v.target.For.String()
	}
	if v.target.Requests > 0 {
		count = fmt.Sprint(v.target.Requests)
	}
	return fmt.Sprintf("%.0fs%s, %d%s requests begun", v.at.Seconds(), of(bound), v.now.Begun, of(count))
}

// failures returns what went wrong, the most frequent kinds first.
func (v *View) failures() string {
	kinds := slices.Collect(maps.Keys(v.now.Errors))
	slices.SortFunc(kinds, func(a, b load.Kind) int {
		return cmp.Or(cmp.Compare(v.now.Errors[b], v.now.Errors[a]), cmp.Compare(a, b))
	})
	parts := make([]string, len(kinds))
	for i, k := range kinds {
		parts[i] = fmt.Sprintf("%s %d", k, v.now.Errors[k])
	}
	return strings.Join(parts, ", ")
}

// Lines draws the view, each line narrower than width columns.
func (v *View) Lines(width int) []string {
	room := max(1, width-1) // a full line would wrap on some terminals
	s := v.latest()
	lines := []string{v.target.Title}
	extent := v.extent()
	if share, ok := v.share(); ok {
		percent := fmt.Sprintf("%3.0f %%  ", 100*share)
		if cells := min(40, room-len(percent)-len(extent)-2); cells >= 5 {
			full := int(share * float64(cells))
			extent = strings.Repeat("█", full) + strings.Repeat("░", cells-full) + "  " + percent + extent
		} else {
			extent = percent + extent
		}
	}
	lines = append(lines, extent,
		fmt.Sprintf("in flight %d   begun %.1f/s, complete %.1f/s, %.0f tokens/s", v.now.Begun-v.now.Ended(), s.begun, s.done, s.tokens))
	for _, m := range []struct {
		name     string
		has      bool
		p50, p99 time.Duration
		of       func(*span) (time.Duration, bool)
	}{
		{"ttft", s.hasTTFT, s.ttft50, s.ttft99, func(s *span) (time.Duration, bool) { return s.ttft99, s.hasTTFT }},
		{"tpot", s.hasTPOT, s.tpot50, s.tpot99, func(s *span) (time.Duration, bool) { return s.tpot99, s.hasTPOT }},
	} {
		text := fmt.Sprintf("%s  p50 %8s  p99 %8s  ", m.name, "-", "-")
		if m.has {
			text = fmt.Sprintf("%s  p50 %8s  p99 %8s  ", m.name, short(m.p50), short(m.p99))
		}
		lines = append(lines, text+v.spark(room-len([]rune(text)), m.of))
	}
	if bad := v.failures(); bad != "" {
		lines = append(lines, "errors  "+bad)
	}
	for i := range lines {
		lines[i] = cut(lines[i], room)
	}
	return lines
}

// Line is the view in one plain line.
func (v *View) Line() string {
	s := v.latest()
	text := fmt.Sprintf("%s: %d in flight, %.1f/s begun, %.1f/s complete, %.0f tokens/s", v.extent(), v.now.Begun-v.now.Ended(), s.begun, s.done, s.tokens)
	if s.hasTTFT {
		text += fmt.Sprintf(", ttft p50 %s p99 %s", short(s.ttft50), short(s.ttft99))
	}
	if s.hasTPOT {
		text += fmt.Sprintf(", tpot p50 %s p99 %s", short(s.tpot50), short(s.tpot99))
	}
	if bad := v.failures(); bad != "" {
		text += "; errors: " + bad
	}
	return text
}

// ticks are the heights of a sparkline.
var ticks = []rune("▁▂▃▄▅▆▇█")

// spark draws the latest spans' values, as many as there is room for, from 0 to
// their largest.
func (v *View) spark(room int, of func(*span) (time.Duration, bool)) string {
	some := v.history[max(0, len(v.history)-max(0, room)):]
	most := time.Duration(0)
	for i := range some {
		if d, ok := of(&some[i]); ok {
			most = max(most, d)
		}
	}
	var b strings.Builder
	for i := range some {
		d, ok := of(&some[i])
		if !ok {
			b.WriteRune(' ')
			continue
		}
		b.WriteRune(ticks[min(len(ticks)-1, int(float64(d)/float64(most)*float64(len(ticks)-1)+0.5))])
	}
	return b.String()
}

// short writes a time in three digits.
func short(d time.Duration) string {
	switch ms := float64(d) / 1e6; {
	case ms >= 9995:
		return fmt.Sprintf("%.1fs", ms/1e3)
	case ms >= 999.5:
		return fmt.Sprintf("%.2fs", ms/1e3)
	case ms >= 99.95:
		return fmt.Sprintf("%.0fms", ms)
	case ms >= 9.995:
		return fmt.Sprintf("%.1fms", ms)
	default:
		return fmt.Sprintf("%.2fms", ms)
	}
}

// cut shortens a line to this many columns, and replaces characters that would move the
// cursor.
func cut(text string, room int) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, text))
	if len(runes) <= room {
		return string(runes)
	}
	if room <= 1 {
		return string(runes[:room])
	}
	return string(runes[:room-1]) + "…"
}
