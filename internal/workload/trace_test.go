package workload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"
)

// all reads a workload to its end.
func all(t testing.TB, s Source) []Request {
	t.Helper()
	var rs []Request
	for {
		var r Request
		err := s.Next(&r)
		if err == io.EOF {
			return rs
		}
		if err != nil {
			t.Fatal(err)
		}
		r.Parts = slices.Clone(r.Parts)
		rs = append(rs, r)
	}
}

func trace(t testing.TB, text string, kind Kind, o Options) []Request {
	t.Helper()
	w, err := NewTrace(strings.NewReader(text), "trace", kind, o)
	if err != nil {
		t.Fatal(err)
	}
	return all(t, w)
}

const (
	mooncakeText = `{"timestamp": 27000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}

{"timestamp": 27000.5, "input_length": 600, "output_length": 1, "hash_ids": [46, 9007199254740993], "session": {"a": [1]}}
{"timestamp": 28000, "input_length": 7, "output_length": 0}`
	azureText = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n" +
		"2023-11-16 18:15:46.6805900,374,44\r\n" +
		"2023-11-16 18:15:50.9951690,396,109\r\n"
	azure2024Text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" +
		"2024-05-10 00:00:00.009930+00:00,2162,5\n" +
		"2024-05-10 00:00:01+00:00,2399,6\n"
	burstText = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n" +
		"5,,1.5,ChatGPT,472,18,490,Conversation log\n" +
		"45.25,,2,GPT-4,0,0,0,Conversation log\n" +
		"10500000.5,,2,GPT-4,7,8,15,\"API, log\"\n"
)

// TestTraces reads each form, found by its beginning.
func TestTraces(t *testing.T) {
	type row struct {
		at            time.Duration
		input, output int
		line          int
	}
	for _, c := range []struct {
		kind Kind
		text string
		want []row
	}{
		{Mooncake, mooncakeText, []row{{0, 1100, 52, 1}, {500 * time.Microsecond, 600, 1, 3}, {time.Second, 7, 0, 4}}},
		{Azure, azureText, []row{{0, 374, 44, 2}, {4314579 * time.Microsecond, 396, 109, 3}}},
		{Azure, azure2024Text, []row{{0, 2162, 5, 2}, {990070 * time.Microsecond, 2399, 6, 3}}},
		{BurstGPT, burstText, []row{{0, 472, 18, 2}, {40250 * time.Millisecond, 0, 0, 3}, {10499995500 * time.Millisecond, 7, 8, 4}}},
	} {
		for _, kind := range []Kind{unknown, c.kind} {
			w, err := NewTrace(iotest.OneByteReader(strings.NewReader(c.text)), "trace", kind, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if w.Kind != c.kind {
				t.Errorf("kind %s, want %s", w.Kind, c.kind)
			}
			var got []row
			for _, r := range all(t, w) {
				got = append(got, row{r.At, r.Input(), r.Output, r.Line})
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", c.kind, got, c.want)
			}
		}
	}
}

// TestPromptsShare holds that prompts have a beginning in common exactly where
// the trace says so.
func TestPromptsShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.IntRange(1, 20).Draw(t, "block")
		seed := rapid.Uint64().Draw(t, "seed")
		var text strings.Builder
		var hashes [][]uint64
		var inputs []int
		for range rapid.IntRange(1, 6).Draw(t, "requests") {
			ids := rapid.SliceOfN(rapid.Uint64Range(0, 3), 1, 5).Draw(t, "hash_ids")
			input := block*(len(ids)-1) + rapid.IntRange(1, block).Draw(t, "last")
			hashes, inputs = append(hashes, ids), append(inputs, input)
			fmt.Fprintf(&text, "{\"timestamp\":0,\"input_length\":%d,\"output_length\":1,\"hash_ids\":%s}\n", input, strings.ReplaceAll(fmt.Sprint(ids), " ", ","))
		}
		w, err := NewTrace(strings.NewReader(text.String()), "trace", "", Options{Block: block, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		var prompts [][]uint32
		for {
			var r Request
			if err := w.Next(&r); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			prompts = append(prompts, r.AppendPrompt(nil, 1<<30))
		}
		for i, a := range prompts {
			if len(a) != inputs[i] {
				t.Fatalf("a prompt of %d tokens, want %d", len(a), inputs[i])
			}
			for j, b := range prompts {
				blocks := 0
				for blocks < min(len(hashes[i]), len(hashes[j])) && hashes[i][blocks] == hashes[j][blocks] {
					blocks++
				}
				want := min(blocks*block, len(a), len(b))
				common := 0
				for common < min(len(a), len(b)) && a[common] == b[common] {
					common++
				}
				if common != want {
					t.Fatalf("prompts of blocks %v and %v have %d tokens in common, want %d", hashes[i], hashes[j], common, want)
				}
			}
		}
	})
}

// TestPrompts holds what else is to be known of ids: they are a vocabulary's,
// spread over it, the same for the same seed, and a request's own are nobody
// else's.
func TestPrompts(t *testing.T) {
	const size = 1000
	lines := strings.Repeat(`{"timestamp":0,"input_length":5000,"output_length":1}`+"\n", 2)
	a := trace(t, lines, "", Options{Seed: 1})
	b := trace(t, lines, "", Options{Seed: 1})
	c := trace(t, lines, "", Options{Seed: 2})
	counts := make([]int, size)
	for _, id := range a[0].AppendPrompt(nil, size) {
		counts[id]++ // or panic
	}
	for id, n := range counts {
		if n > 30 { // of a mean of 5
			t.Errorf("id %d is there %d times", id, n)
		}
	}
	// The trace's block 0 is not what the first request has of its own.
	lines = `{"timestamp":0,"input_length":500,"output_length":1}
{"timestamp":0,"input_length":500,"output_length":1,"hash_ids":[0]}`
	if d := trace(t, lines, "", Options{Seed: 1}); d[0].Parts[0].Key == d[1].Parts[0].Key {
		t.Error("a block and a request's own have the same ids")
	}
	prompt := func(r Request) []uint32 { return r.AppendPrompt(nil, size) }
	if !slices.Equal(prompt(a[0]), prompt(b[0])) || !slices.Equal(prompt(a[1]), prompt(b[1])) {
		t.Error("the same seed gives other prompts")
	}
	if slices.Equal(prompt(a[0])[:10], prompt(c[0])[:10]) || slices.Equal(prompt(a[0])[:10], prompt(a[1])[:10]) {
		t.Error("prompts that share nothing have the same ids")
	}
}

func TestLimits(t *testing.T) {
	text := "Timestamp,Request tokens,Response tokens\n"
	for i := range 10 {
		text += fmt.Sprintf("%d,1,1\n", 100+10*i)
	}
	for _, c := range []struct {
		o    Options
		n    int
		last time.Duration
	}{
		{Options{}, 10, 90 * time.Second},
		{Options{Requests: 3}, 3, 20 * time.Second},
		{Options{For: 40 * time.Second}, 4, 30 * time.Second},
		{Options{Speed: 2, For: 40 * time.Second}, 8, 35 * time.Second},
		{Options{Speed: 0.5}, 10, 180 * time.Second},
	} {
		rs := trace(t, text, "", c.o)
		if len(rs) != c.n || rs[len(rs)-1].At != c.last {
			t.Errorf("%+v: %d requests, the last at %v; want %d and %v", c.o, len(rs), rs[len(rs)-1].At, c.n, c.last)
		}
	}
}

// TestTraceErrors holds that every error has its place and says what is wrong.
func TestTraceErrors(t *testing.T) {
	good := `{"timestamp":10,"input_length":5,"output_length":1}` + "\n"
	azure, burst := "TIMESTAMP,ContextTokens,GeneratedTokens\n", "Timestamp,Request tokens,Response tokens\n"
	for _, c := range []struct{ text, want string }{
		{"", "t.x: the file is empty"},
		{"  \n\t", "t.x"},
		{"a,b\n", "t.x:1: neither a JSON object nor a known header"},
		{good + `{"input_length":5,"output_length":1}`, "t.x:2: timestamp: it is missing"},
		{good + `{"timestamp":10,"output_length":1}`, "t.x:2: input_length: it is missing"},
		{good + `{"timestamp":10,"input_length":5}`, "t.x:2: output_length: it is missing"},
		{good + `{"timestamp":"10","input_length":5,"output_length":1}`, "t.x:2: timestamp: a JSON string is not a number"},
		{good + `{"timestamp":10,"input_length":5.5,"output_length":1}`, "t.x:2: input_length: 5.5"},
		{good + `{"timestamp":10,"input_length":-5,"output_length":1}`, "t.x:2: input_length: -5 is negative"},
		{good + `{"timestamp":10,"input_length":5,"output_length":999999999}`, "t.x:2: output_length: 999999999 is more than"},
		{good + `{"timestamp":10,"input_length":5,"output_length":1,"hash_ids":[1,-1]}`, "t.x:2: hash_ids: -1"},
		{good + `{"timestamp":10,"input_length":5,"output_length":1,"hash_ids":["a"]}`, "t.x:2: hash_ids: a JSON string is not a whole number"},
		{good + `{"timestamp":10,"input_length":5,"output_length":1,"hash_ids":7}`, "t.x:2: hash_ids: "},
		{good + `{"timestamp":10,"input_length":513,"output_length":1,"hash_ids":[1]}`, "t.x:2: hash_ids: there are 1 for an input_length of 513; blocks of 512 tokens need 2"},
		{good + `{"timestamp":9,"input_length":5,"output_length":1}`, "t.x:2: timestamp: it is 1ms before the request on the line before; sort"},
		{good + `{"timestamp":-1,"input_length":5,"output_length":1}`, "t.x:2: timestamp: -1 is not"},
		{good + `{"timestamp":1e300,"input_length":5,"output_length":1}`, "t.x:2: timestamp: 1e+300 is not"},
		{good + `{"timestamp":10,`, "t.x:2: "},
		{good + `[1]`, "t.x:2: "},
		{good + `{"timestamp":10,"input_length":5,"output_length":1} {}`, "t.x:2: not valid JSON at byte 53"},
		{good + `{"timestamp":10,"timestamp":11,"input_length":5,"output_length":1}`, "t.x:2: timestamp: "},
		{azure + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:45.5,1,2\n", "t.x:3: TIMESTAMP: it is 500ms before"},
		{azure + "yesterday,1,2\n", `t.x:2: TIMESTAMP: "yesterday" is not a time such as`},
		{azure + "1923-11-16 18:15:46,1,2\n", "t.x:2: TIMESTAMP: \"1923-11-16 18:15:46\" is not in this century"},
		{azure + "2023-11-16 18:15:46,1\n", "t.x:2: it does not have the 3 columns of the header"},
		{azure + "2023-11-16 18:15:46,x,2\n", `t.x:2: ContextTokens: "x" is not a whole number of tokens`},
		{azure + "2023-11-16 18:15:46,1,-2\n", "t.x:2: GeneratedTokens: -2 is negative"},
		{azure + "2023-11-16 18:15:46,1,\"2\n", "t.x:2: column 26"},
		{burst + "\n\nlater,1,2\n", `t.x:4: Timestamp: "later" is not a number of seconds`},
		{burst + "NaN,1,2\n", `t.x:2: Timestamp: "NaN" is not a number of seconds`},
		{burst + "1,1e3,2\n", `t.x:2: Request tokens: "1e3" is not a whole number of tokens`},
	} {
		w, err := NewTrace(strings.NewReader(c.text), "t.x", "", Options{})
		for err == nil {
			var r Request
			err = w.Next(&r)
		}
		var e *Error
		if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q:\n got %v\nwant %s", c.text, err, c.want)
		}
	}
	if _, err := NewTrace(strings.NewReader("Timestamp,Request tokens\n"), "t.x", BurstGPT, Options{}); err == nil || !strings.HasPrefix(err.Error(), "t.x:1: Response tokens: the header has no such column") {
		t.Errorf("a column short: %v", err)
	}
	broken := errors.New("disk on fire")
	for _, text := range []string{"", good, azure + "2023-11-16 18:15:46,1,2\n"} {
		w, err := NewTrace(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken)), "t.x", "", Options{})
		for err == nil {
			err = w.Next(new(Request))
		}
		if !errors.Is(err, broken) {
			t.Errorf("%q, then a broken disk: %v", text, err)
		}
	}
}

// TestLongLines holds that lines of any length are read, up to the bound.
func TestLongLines(t *testing.T) {
	const blocks = 40_000
	ids := strings.TrimSuffix(strings.Repeat("123456,", blocks), ",")
	line := fmt.Sprintf(`{"timestamp":0,"input_length":%d,"output_length":1,"hash_ids":[%s]}`, blocks*512, ids)
	if len(line) < 3*lineBuffer {
		t.Fatal("the line is too short to test")
	}
	if rs := trace(t, line+"\n"+line, "", Options{}); len(rs) != 2 || rs[1].Input() != blocks*512 || rs[1].Line != 2 {
		t.Errorf("%d requests", len(rs))
	}
	w, err := NewTrace(io.MultiReader(strings.NewReader("{"), endless{}), "t.x", "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Next(new(Request)); err == nil || err.Error() != "t.x:1: the line is longer than 64 MiB" {
		t.Errorf("an endless line: %v", err)
	}
	const long = "the record is longer than 64 MiB"
	if _, err := NewTrace(endless{}, "t.x", "", Options{}); err == nil || err.Error() != "t.x:1: "+long {
		t.Errorf("an endless header: %v", err)
	}
	for _, first := range []string{"", "\""} { // a field, and a field of many lines
		w, err := NewTrace(io.MultiReader(strings.NewReader("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n"+first), endless{}), "t.x", "", Options{})
		for err == nil {
			err = w.Next(new(Request))
		}
		if err.Error() != "t.x:3: "+long {
			t.Errorf("an endless record: %v", err)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// fuzz holds what is true of every trace: it ends or fails with a place, its
// times do not go back, and its prompts are as long as it says.
func fuzz(f *testing.F, kind Kind) {
	f.Fuzz(func(t *testing.T, text []byte) {
		w, err := NewTrace(bytes.NewReader(text), "t.x", kind, Options{})
		var last time.Duration
		for n := 0; err == nil; n++ {
			var r Request
			if err = w.Next(&r); err != nil {
				break
			}
			if r.At < last || r.Output < 0 || r.Input() < 0 || r.Line < 1 || n > len(text) {
				t.Fatalf("request %+v after %v", r, last)
			}
			last = r.At
			for _, p := range r.Parts {
				if p.Tokens <= 0 {
					t.Fatalf("a part of %d tokens", p.Tokens)
				}
			}
		}
		var e *Error
		if err != io.EOF && (!errors.As(err, &e) || e.File != "t.x" || err.Error() == "") {
			t.Fatalf("error without a place: %v", err)
		}
	})
}

func FuzzMooncake(f *testing.F) {
	f.Add([]byte(mooncakeText))
	f.Add([]byte(`{"timestamp":1e18,"input_length":9223372036854775807,"output_length":1,"hash_ids":[18446744073709551615]}`))
	fuzz(f, Mooncake)
}

func FuzzTable(f *testing.F) {
	f.Add([]byte(azureText))
	f.Add([]byte(azure2024Text))
	f.Add([]byte(burstText))
	fuzz(f, unknown)
}
