package outputparse

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tokens cuts text as a tokenizer would, roughly: before white space.
func tokens(text string) [][]byte {
	var all [][]byte
	for start, i := 0, 1; i <= len(text); i++ {
		if i == len(text) || text[i] == ' ' || text[i] == '\n' {
			all = append(all, []byte(text[start:i]))
			start = i
		}
	}
	return all
}

const prose = "It is 18 degrees in Paris, and by noon it may be 21; take a coat all the same, for the evening is cold.\n\nIn Rome it is 24. "

// BenchmarkContent is the common path: plain text in pieces of a token, with
// tools and reasoning looked for.
func BenchmarkContent(b *testing.B) {
	for _, o := range formats() {
		if len(o.Prompt) > 0 || o.Single || !o.Calls {
			continue
		}
		b.Run(o.Format.Tools(), func(b *testing.B) {
			pieces := tokens(strings.Repeat(prose, 20))
			p := New(o)
			if o.Format.Tools() == "harmony" {
				p.Append(nil, []byte("<|channel|>final<|message|>"), false)
			}
			var events []Event
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				events = p.Append(events[:0], pieces[i%len(pieces)], false)
				i++
			}
		})
	}
}

// BenchmarkNew is what a request costs that turns out to be plain content.
func BenchmarkNew(b *testing.B) {
	for _, tools := range []bool{false, true} {
		o := optionsOf(b, "hermes.txt")
		o.Calls = tools
		b.Run("tools="+strconv.FormatBool(tools), func(b *testing.B) {
			b.ReportAllocs()
			piece := []byte("It")
			for b.Loop() {
				New(o).Append(nil, piece, false)
			}
		})
	}
}

// BenchmarkCall is a call with arguments of some KB, in pieces of a token.
func BenchmarkCall(b *testing.B) {
	for name, text := range longCalls(200) {
		b.Run(name, func(b *testing.B) {
			o := optionsOf(b, name+".txt")
			pieces := tokens(text)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				p := New(o)
				var events []Event
				for _, piece := range pieces {
					events = p.Append(events[:0], piece, false)
				}
				p.Append(events[:0], nil, true)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pieces)), "ns/token")
		})
	}
}

// longCalls are calls with n times some text in an argument, a form each.
func longCalls(n int) map[string]string {
	value := strings.Repeat("some text of it ", n)
	return map[string]string{
		"hermes":      `<tool_call>{"name": "f", "arguments": {"a": "` + value + `"}}</tool_call>`,
		"qwen3-coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\n" + value + "\n</parameter>\n</function>\n</tool_call>",
		"glm-4.5":     "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>" + value + "</arg_value>\n</tool_call>",
		"pythonic":    "[f(a='" + value + "')]",
		"harmony":     `<|channel|>commentary to=functions.f<|message|>{"a": "` + value + `"}<|call|>`,
	}
}

// TestPlainContentAllocatesNothing, once the buffers have grown.
func TestPlainContentAllocatesNothing(t *testing.T) {
	for _, o := range formats() {
		pieces := tokens(strings.Repeat(prose, 4))
		p := New(o)
		if o.Format.Tools() == "harmony" {
			p.Append(nil, []byte("<|channel|>final<|message|>"), false)
		}
		var events []Event
		all := func() {
			for _, piece := range pieces {
				events = p.Append(events[:0], piece, false)
			}
		}
		all()
		if n := testing.AllocsPerRun(20, all); n != 0 {
			t.Errorf("%s, prompt %q: %v allocations for %d pieces", o.Format.Tools(), o.Prompt, n, len(pieces))
		}
	}
}

// BenchmarkBoundLinear fails where a text that keeps a format waiting does not
// take time in proportion to its length, also where it comes by bytes: quadratic
// work takes sixteen times as long for four times the text.
func BenchmarkBoundLinear(b *testing.B) {
	const size = 5_000
	for _, o := range formats() {
		if o.Single || !o.Calls || len(o.Prompt) > 0 {
			continue
		}
		b.Run(o.Format.Tools(), func(b *testing.B) {
			for b.Loop() {
				for _, head := range openings(o.Format) {
					for _, fill := range []string{"\n", head + " "} {
						boundGrowth(b, o, head, fill, size)
					}
				}
			}
		})
	}
}

// boundGrowth compares the time that size bytes take with that of four times as many.
func boundGrowth(b *testing.B, o Options, head, fill string, size int) {
	short, long := head+strings.Repeat(fill, size/len(fill)), head+strings.Repeat(fill, 4*size/len(fill))
	// The processor's time, and the best of many tries, is what a machine does
	// that is let be; the slack is more than linear work of this size, and
	// less than quadratic.
	best := [2]time.Duration{time.Hour, time.Hour}
	linear := func() bool { return best[1] <= 9*best[0]+5*time.Millisecond }
	for try := 0; try < 2 || try < 20 && !linear(); try++ {
		for i, text := range []string{short, long} {
			start := processorTime(b)
			read1(o, text)
			best[i] = min(best[i], processorTime(b)-start)
		}
	}
	if !linear() {
		b.Errorf("%s: %q and then %q: %v for %d bytes, %v for four times as many", o.Format.Tools(), head, fill, best[0], size, best[1])
	}
}

// processorTime is what this process has had of the processors.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// read1 feeds a text by bytes and forgets what it hears.
func read1(o Options, text string) {
	p := New(o)
	var events []Event
	b := []byte(text)
	for i := range b {
		events = p.Append(events[:0], b[i:i+1], false)
	}
	p.Append(events[:0], nil, true)
}
