package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"
)

func readTable(t testing.TB, text string) *Table {
	t.Helper()
	table, err := ReadTable(strings.NewReader(text), "cost.csv")
	if err != nil {
		t.Fatal(err)
	}
	return table
}

const tableText = `# measured on a machine of ours
phase,tokens,batch,ms
prefill,100,,10
prefill,1000,,40
prefill,500,,20

decode, 1000, 1, 5
decode,1000,3,7
decode,2000,1,6
decode,2000,3,12
`

// TestTable holds the table's values at, between and beyond its points.
func TestTable(t *testing.T) {
	table := readTable(t, tableText)
	for _, c := range []struct {
		batch Batch
		ms    float64
	}{
		{Batch{Prefill: 100, Chunks: 1}, 10},
		{Batch{Prefill: 500, Chunks: 3}, 20}, // of the whole step
		{Batch{Prefill: 300, Chunks: 1}, 15},
		{Batch{Prefill: 1, Chunks: 1}, 10},
		{Batch{Prefill: 2000, Chunks: 1}, 80}, // 40 + 1000 × 20/500
		{Batch{Decode: 1, Context: 1000}, 5},
		{Batch{Decode: 3, Context: 6000}, 12}, // three of 2000
		{Batch{Decode: 2, Context: 3000}, 7.5},
		{Batch{Decode: 1, Context: 10}, 5},
		{Batch{Decode: 1, Context: 3000}, 7},
		{Batch{Decode: 5, Context: 5000}, 9},
		{Batch{Decode: 5, Context: 15000}, 27}, // 9 to 18 by batch, as far again by tokens
		{Batch{Prefill: 100, Chunks: 1, Decode: 1, Context: 1000}, 15},
		{Batch{}, 0},
	} {
		if got := table.StepTime(c.batch); got != time.Duration(c.ms*1e6) {
			t.Errorf("%+v takes %v, want %v ms", c.batch, got, c.ms)
		}
	}
	falling := readTable(t, "ms,phase,tokens,batch\n9,decode,,1\n8,decode,,2\n3,prefill,5,\n")
	for n, ms := range map[int]float64{1: 9, 2: 8, 3: 8, 100: 8} {
		if got := falling.StepTime(Batch{Decode: n, Context: 7}); got != time.Duration(ms*1e6) {
			t.Errorf("a batch of %d takes %v, want %v ms", n, got, ms)
		}
	}
}

// TestTableLaws holds that a table gives its own points back, lies between them
// in between, and does not depend on the order of rows.
func TestTableLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		axis := func(name string, least int) []int {
			a := rapid.SliceOfNDistinct(rapid.IntRange(1, 5000), least, 5, rapid.ID[int]).Draw(t, name)
			slices.Sort(a)
			return a
		}
		tokens, batch := axis("tokens", 1), axis("batch", 2)
		ms := rapid.SliceOfN(rapid.Float64Range(0, 1e6), len(tokens)*len(batch), len(tokens)*len(batch)).Draw(t, "ms")
		rows := []string{"prefill,1,,1"}
		for i, b := range batch {
			for j, n := range tokens {
				rows = append(rows, fmt.Sprintf("decode,%d,%d,%v", n, b, ms[i*len(tokens)+j]))
			}
		}
		rows = rapid.Permutation(rows).Draw(t, "rows")
		table, err := ReadTable(strings.NewReader("phase,tokens,batch,ms\n"+strings.Join(rows, "\n")), "cost.csv")
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range batch {
			for j, n := range tokens {
				got := table.StepTime(Batch{Decode: b, Context: int64(n * b)})
				if want := milliseconds(ms[i*len(tokens)+j]); (got - want).Abs() > time.Microsecond {
					t.Fatalf("%d of %d tokens take %v, want %v", b, n, got, want)
				}
			}
		}
		// Anywhere inside the grid the cost is between the least and the most.
		n := rapid.IntRange(tokens[0], tokens[len(tokens)-1]).Draw(t, "n")
		b := rapid.IntRange(batch[0], batch[len(batch)-1]).Draw(t, "b")
		got := table.StepTime(Batch{Decode: b, Context: int64(n * b)})
		if got < milliseconds(slices.Min(ms))-time.Microsecond || got > milliseconds(slices.Max(ms))+time.Microsecond {
			t.Fatalf("%d of %d tokens take %v", b, n, got)
		}
		// Beyond it the cost is never below the edge's.
		far := Batch{Decode: batch[len(batch)-1] + rapid.IntRange(0, 1e6).Draw(t, "further"), Context: int64(rapid.IntRange(0, 1e9).Draw(t, "context"))}
		if table.StepTime(far) < milliseconds(slices.Min(ms))-time.Microsecond {
			t.Fatalf("%+v takes %v", far, table.StepTime(far))
		}
	})
}

func TestTableErrors(t *testing.T) {
	const header = "phase,tokens,batch,ms\n"
	for _, c := range []struct{ text, want string }{
		{"", "cost.csv: the file is empty"},
		{"phase,tokens,batch\n", "cost.csv:1: no column ms"},
		{"phase,tokens,batch,ms,gpu\n", `cost.csv:1:23: unknown column "gpu"`},
		{"phase,tokens,ms,batch,ms\n", "cost.csv:1:23: a second column ms"},
		{header, "cost.csv: no row of phase prefill"},
		{header + "prefill,1,,1\n", "cost.csv: no row of phase decode"},
		{header + "# a note\nfill,1,,1\n", `cost.csv:3:1: phase: "fill" is neither`},
		{header + "prefill,1,,1,1\n", "cost.csv:2: it does not have the 4 columns"},
		{header + "prefill,x,,1\n", `cost.csv:2:9: tokens: "x" is not a number`},
		{header + "prefill,1,-1,1\n", `cost.csv:2:11: batch: "-1" is not a number`},
		{header + "prefill,1,,\n", `cost.csv:2:12: ms: "" is not a number`},
		{header + "prefill,1,,NaN\n", `cost.csv:2:12: ms: "NaN" is not a number`},
		{header + "prefill,1,,1e10\n", `cost.csv:2:12: ms: "1e10" is not a number`},
		{header + "prefill,,,1\n", "cost.csv:2:9: tokens: tokens and batch are both empty"},
		{header + "prefill,1,,1\nprefill,2,1,1\n", "cost.csv:3:11: batch: all prefill rows have it or none; line 2 is otherwise"},
		{header + "prefill,1,,1\ndecode,1,1,1\ndecode,1,2,1\nprefill,1.0,,2\n", "cost.csv:5: the same point as on line 2"},
		{header + "prefill,1,,1\ndecode,1,1,1\ndecode,1,2,1\ndecode,2,1,1\n", "cost.csv: no decode row for 2 tokens and a batch of 2"},
		{header + "prefill,1,,1\ndecode,1,1,1\ndecode,2,2,1\n", "cost.csv: no decode row for 2 tokens and a batch of 1"},
		{header + "prefill,1,1,1\nprefill,2,1,1\ndecode,1,,1\n", "cost.csv: all prefill rows have a batch of 1"},
		{header + "prefill,\"1,,1\n", "cost.csv:2:"},
	} {
		if _, err := ReadTable(strings.NewReader(c.text), "cost.csv"); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, c.want)
		}
	}
	if _, err := ReadTable(iotest.ErrReader(fmt.Errorf("disk on fire")), "cost.csv"); err == nil || err.Error() != "cost.csv: read: disk on fire" {
		t.Errorf("a broken disk: %v", err)
	}
}

func FuzzReadTable(f *testing.F) {
	f.Add(tableText)
	f.Fuzz(func(t *testing.T, text string) {
		table, err := ReadTable(strings.NewReader(text), "cost.csv")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "cost.csv:") {
				t.Fatalf("error without a place: %v", err)
			}
			return
		}
		for _, b := range []Batch{
			{Prefill: 1, Chunks: 1}, {Prefill: 1 << 20, Chunks: 64}, {Decode: 1, Context: 1}, {Decode: 4096, Context: 1 << 40}, {Decode: 3},
		} {
			if d := table.StepTime(b); d < 0 {
				t.Fatalf("%+v takes %v", b, d)
			}
		}
	})
}

// TestProfiles holds each profile against its publisher's formula, worked out
// apart from the code, and that it says where it is from.
func TestProfiles(t *testing.T) {
	names := map[string]bool{}
	for _, p := range Profiles() {
		if names[p.Name] || p.What == "" || p.Source == "" || p.KVTokens <= 0 {
			t.Errorf("profile %+v", p)
		}
		names[p.Name] = true
		// A larger step never takes less.
		small, large := Batch{Prefill: 10, Chunks: 1, Attended: 100}, Batch{Prefill: 4000, Chunks: 2, Attended: 8e6, Decode: 100, Context: 100_000}
		if a, b := p.Cost.StepTime(small), p.Cost.StepTime(large); a <= 0 || b <= a {
			t.Errorf("%s: %v, then %v", p.Name, a, b)
		}
	}
	for _, c := range []struct {
		name  string
		batch Batch
		want  float64 // us
	}{
		{"llama-3.1-8b-h100", Batch{Prefill: 2048, Chunks: 1, Attended: 2048 * 2048}, 5752.705191348184 + 2048*17.25086436834028},
		{"llama-3.1-8b-h100", Batch{Prefill: 100, Chunks: 1, Decode: 64, Context: 64000}, 5752.705191348184 + 100*17.25086436834028 + 64*5.999143920128404},
		{"dynamo-mocker", Batch{Prefill: 1000, Chunks: 1, Attended: 1e6}, 1e3 * (0.4209989 + 15.18344 + 16.50142)},
		{"dynamo-mocker", Batch{Decode: 10, Context: 524288}, 1e3 * (-25.74/4 + 54.01/2 + 5.74)},
		{"dynamo-mocker", Batch{Decode: 10, Context: 1 << 30}, 1e3 * (-25.74 + 54.01 + 5.74)},
	} {
		for _, p := range Profiles() {
			if p.Name == c.name {
				if got := float64(p.Cost.StepTime(c.batch)) / 1e3; math.Abs(got-c.want) > 0.002 {
					t.Errorf("%s, %+v: %v us, want %v", c.name, c.batch, got, c.want)
				}
			}
		}
		if !names[c.name] {
			t.Errorf("no profile %s", c.name)
		}
	}
}

func BenchmarkTable(b *testing.B) {
	table := readTable(b, tableText)
	b.ReportAllocs()
	for b.Loop() {
		table.StepTime(Batch{Prefill: 300, Chunks: 2, Decode: 7, Context: 9000})
	}
}
