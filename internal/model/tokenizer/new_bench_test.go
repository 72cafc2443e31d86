package tokenizer_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"weir/internal/model/tokenizer"
	"weir/internal/workload/gotext"
)

// BenchmarkNew measures texts of 160 KB that nobody has seen, of words that recur, with an
// encoder that has encoded others. Where it lets others run, as it does about every 250 us, these
// push its tables out of the processor's own caches; beside is with such others, whose time
// does not count.
func BenchmarkNew(b *testing.B) {
	m := sim(b)
	paragraphs, err := gotext.ReadParagraphs()
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	var texts []string
	for range 64 {
		texts = append(texts, paragraphs.Draw(r, 160<<10))
	}
	for _, name := range []string{"alone", "beside"} {
		b.Run(name, func(b *testing.B) {
			enc := m.Tokenizer.NewEncoder()
			other := make([]byte, 128<<20)
			var ids []uint32
			var o tokenizer.EncodeOptions
			var elsewhere time.Duration
			if name == "beside" {
				o.Yield = func() {
					began := time.Now()
					for at := 0; at < len(other); at += 4096 + 64 {
						other[at]++
					}
					elsewhere += time.Since(began)
				}
			}
			tokens := 0
			for i := 0; b.Loop(); i++ {
				var err error
				if ids, err = enc.Encode(b.Context(), ids[:0], texts[i%len(texts)], o); err != nil {
					b.Fatal(err)
				}
				tokens += len(ids)
			}
			b.ReportMetric(float64((b.Elapsed()-elsewhere).Nanoseconds())/float64(tokens), "ns/token")
			b.ReportMetric(0, "ns/op")
		})
	}
}
