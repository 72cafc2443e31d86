package tokenizer_test

import (
	"fmt"
	"strings"
	"testing"

	"weir/internal/model/stop"
	"weir/internal/model/tokenizer"
	"weir/internal/workload/gotext"
	"weir/models"
)

func sim(t testing.TB) *tokenizer.Model {
	t.Helper()
	m, err := tokenizer.Load(models.Sim())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// goText is Go's documentation and sources, as prompts.
func goText(t testing.TB, size int, suffixes ...string) string {
	t.Helper()
	text, err := gotext.Text(size, size, suffixes...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// BenchmarkEncode measures one encoder on one core. Cold encoders are new for
// every text, as after a start; warm ones have seen it before.
func BenchmarkEncode(b *testing.B) {
	m := sim(b)
	prose := strings.Repeat("The pool runs its work on a bounded number of workers, so that nobody waits for long; what was measured, 12345 times, isn't what we'd expected. ", 1200)
	texts := []struct{ name, text string }{
		{"english", goText(b, 160<<10, ".html", ".md")},
		{"code", goText(b, 160<<10, ".go")},
		{"prose", prose[:160<<10]},
		{"chinese", strings.Repeat("数据库连接失败,请检查网络设置。这是一个测试文本,用来测量速度。", 1900)[:160<<10-1]},
		{"spaces", strings.Repeat("    \n\t  ", 20<<10)},
	}
	for _, text := range texts {
		for _, size := range []int{2 << 10, 160 << 10} {
			s := strings.ToValidUTF8(text.text[:min(size, len(text.text))], "")
			for _, warm := range []bool{false, true} {
				name := fmt.Sprintf("%s/%dK/cold", text.name, size>>10)
				if warm {
					name = fmt.Sprintf("%s/%dK/warm", text.name, size>>10)
				}
				b.Run(name, func(b *testing.B) { benchEncode(b, m.Tokenizer, s, warm) })
			}
		}
	}
}

func benchEncode(b *testing.B, t *tokenizer.Tokenizer, s string, warm bool) {
	enc := t.NewEncoder()
	ids := make([]uint32, 0, len(s))
	b.SetBytes(int64(len(s)))
	tokens := 0
	for b.Loop() {
		if !warm {
			enc.Forget()
		}
		var err error
		if ids, err = enc.Encode(b.Context(), ids[:0], s, tokenizer.EncodeOptions{}); err != nil {
			b.Fatal(err)
		}
		tokens += len(ids)
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds()/1e6, "Mtok/s")
	b.ReportMetric(float64(len(ids)), "tokens")
}

// BenchmarkRun measures long runs, which must cost no more than linear time.
func BenchmarkRun(b *testing.B) {
	m := sim(b)
	for name, unit := range map[string]string{"a": "a", "space": " ", "mark": "\u0301"} {
		for _, size := range []int{64 << 10, 256 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dK", name, size>>10), func(b *testing.B) {
				benchEncode(b, m.Tokenizer, strings.Repeat(unit, size/len(unit)), false)
			})
		}
	}
}

// BenchmarkDetokenize measures a stream of single tokens.
func BenchmarkDetokenize(b *testing.B) {
	m := sim(b)
	ids, err := m.Tokenizer.NewEncoder().Encode(b.Context(), nil, goText(b, 16<<10, ".go"), tokenizer.EncodeOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for name, stops := range map[string][]string{"plain": nil, "stops": {"\n\n\nUser:", "<|never|>"}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			d := tokenizer.NewDetokenizer(m.Tokenizer, tokenizer.DetokenizerOptions{Stops: stop.New(stops)})
			buf := make([]byte, 0, 1<<10)
			for i := 0; b.Loop(); i++ {
				buf, _, _ = d.Append(buf[:0], ids[i%len(ids):i%len(ids)+1])
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		sim(b)
	}
}

// BenchmarkPrefix measures prompts of which 95 % were seen before: a chat's
// earlier turns, and a document in one message with another question to it.
// The rate is that of the whole text, from its bytes to its ids; cold is an
// encoder that has seen nothing, without cache.
func BenchmarkPrefix(b *testing.B) {
	m := sim(b)
	for _, kind := range []struct{ name, text string }{
		{"english", goText(b, 160<<10, ".html", ".md")},
		{"code", goText(b, 160<<10, ".go")},
		{"chinese", strings.Repeat("数据库连接失败,请检查网络设置。\nA 这是一个测试文本,用来测量速度。", 1900)[:160<<10-1]},
	} {
		text := strings.ToValidUTF8(kind.text, "")
		const turns = 20
		chat := func(last string) string {
			var t strings.Builder
			for i := range turns {
				part := text[i*len(text)/turns : (i+1)*len(text)/turns]
				if i == turns-1 {
					part = last
				}
				fmt.Fprintf(&t, "<|im_start|>user\n%s<|im_end|>\n", strings.ToValidUTF8(part, ""))
			}
			return t.String()
		}
		document := func(last string) string {
			return "<|im_start|>user\n" + strings.ToValidUTF8(text[:len(text)*(turns-1)/turns], "") + "\nAnd then: " + last + "<|im_end|>\n"
		}
		// The new twentieth is other text each time.
		last := func(i int) string {
			size := len(text) / turns
			at := i * 997 % (len(text) - size)
			return strings.ToValidUTF8(text[at:at+size], "")
		}
		for _, shape := range []struct {
			name   string
			prompt func(last string) string
		}{{"chat", chat}, {"document", document}} {
			var prompts []string
			for i := range 64 {
				prompts = append(prompts, shape.prompt(fmt.Sprintf("%d %s", i, last(i))))
			}
			for _, shared := range []bool{false, true} {
				name := kind.name + "/" + shape.name + "/cold"
				if shared {
					name = kind.name + "/" + shape.name + "/shared"
				}
				b.Run(name, func(b *testing.B) { benchPrefix(b, m.Tokenizer, prompts, shared) })
			}
		}
	}
}

func benchPrefix(b *testing.B, t *tokenizer.Tokenizer, prompts []string, shared bool) {
	enc := t.NewEncoder()
	ids := make([]uint32, 0, len(prompts[0]))
	tokens := 0
	var o tokenizer.EncodeOptions
	for i := 0; b.Loop(); i++ {
		if !shared {
			enc.Forget()
		} else if i%len(prompts) == 0 {
			// A cache that has seen what is shared and none of what is not.
			b.StopTimer()
			o.Prefix = tokenizer.NewPrefixCache(64 << 20)
			if _, err := enc.Encode(b.Context(), nil, prompts[0], o); err != nil {
				b.Fatal(err)
			}
			i++
			b.StartTimer()
		}
		var err error
		if ids, err = enc.Encode(b.Context(), ids[:0], prompts[i%len(prompts)], o); err != nil {
			b.Fatal(err)
		}
		tokens += len(ids)
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds()/1e6, "Mtok/s")
	if shared {
		s := o.Prefix.Stats()
		b.ReportMetric(100*float64(s.Reused)/float64(s.Tokens), "%reused")
	}
}
