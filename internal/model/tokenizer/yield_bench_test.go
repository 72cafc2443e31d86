package tokenizer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/model/tokenizer"
)

// BenchmarkYield measures the longest stretch between two yields of an Encode:
// of many Encodes the least and the median, because on a busy machine whatever
// takes the core away counts too.
func BenchmarkYield(b *testing.B) {
	m := sim(b)
	for _, text := range []struct{ name, text string }{
		{"english 160K", goText(b, 160<<10, ".html", ".md")},
		{"code 160K", goText(b, 160<<10, ".go")},
		{"chinese 1M", strings.Repeat("数据库连接失败,请检查网络设置。这是一个测试文本,用来测量速度。", 11<<10)},
		{"a 1M", strings.Repeat("a", 1<<20)},
		{"a 16M", strings.Repeat("a", 16<<20)},
		{"Han 1M", strings.Repeat("字", 1<<20/3)},
		{"space 1M", strings.Repeat(" ", 1<<20)},
		{"mark 1M", strings.Repeat("\u0301", 1<<19)},
		{"dot 1M", strings.Repeat(".", 1<<20)},
		{"bracket 1M", strings.Repeat("<", 1<<20)},
		{"code 16M", strings.Repeat(goText(b, 1<<20, ".go"), 16)},
	} {
		b.Run(text.name, func(b *testing.B) {
			enc := m.Tokenizer.NewEncoder()
			var longest []time.Duration
			var ids []uint32
			for b.Loop() {
				enc.Forget()
				longest = append(longest, 0)
				most := &longest[len(longest)-1]
				last := time.Now()
				yield := func() {
					now := time.Now()
					*most = max(*most, now.Sub(last))
					last = now
				}
				var err error
				if ids, err = enc.Encode(b.Context(), ids[:0], text.text, tokenizer.EncodeOptions{Yield: yield}); err != nil {
					b.Fatal(err)
				}
				yield()
			}
			slices.Sort(longest)
			b.ReportMetric(float64(longest[0])/1e3, "least-us")
			b.ReportMetric(float64(longest[len(longest)/2])/1e3, "median-us")
		})
	}
}
