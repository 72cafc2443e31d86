//go:build linux

package client

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/lab/cell"
)

// reading is a verifier with what it has seen.
type reading struct {
	verifier
	account account
	times   []int64
}

func newReading(relayed bool, w *cell.Words, b *cell.Board) *reading {
	r := &reading{account: account{usage: -1}}
	r.verifier = verifier{relayed: relayed, words: w, board: b, seen: func(at int64) { r.times = append(r.times, at) }}
	return r
}

// The relayed engine's bytes, read by the client's own parts, say what the
// engine meant.
func TestNumberedStream(t *testing.T) {
	template := cell.NewEventTemplate()
	wire := []byte(testHead)
	const tokens = 5
	for i := range tokens {
		wire = append(wire, template.Fill(7, i, 1_767_225_600_000_000_000+int64(i))...)
	}
	wire = append(wire, cell.Ending(7, tokens, true)...)
	events, r, err := readAll(string(wire))
	if err != nil {
		t.Fatal(err)
	}
	v := newReading(true, nil, nil)
	for _, e := range events {
		if data := strings.TrimPrefix(e, "data: "); data != "[DONE]" && !json.Valid([]byte(data)) {
			t.Errorf("not JSON: %s", data)
		}
		v.event(&v.account, 7, []byte(e))
	}
	a := &v.account
	if a.received != tokens || a.lost() != 0 || a.wrong != 0 || a.events != tokens || a.judge(r, nil) != complete {
		t.Errorf("%+v, verdict %d", a, a.judge(r, nil))
	}
	if len(v.times) != tokens || v.times[4] != 1_767_225_600_000_000_004 {
		t.Errorf("send times %v", v.times)
	}
}

// fates says what each kind of damage to the numbered events 0 to 4 must show.
func TestNumberedDamage(t *testing.T) {
	for _, c := range []struct {
		name              string
		numbers           []int
		usage             int
		lost, wrong, seen int
	}{
		{"whole", []int{0, 1, 2, 3, 4}, 5, 0, 0, 5},
		{"one lost", []int{0, 1, 3, 4}, 5, 1, 0, 4},
		{"first lost", []int{1, 2, 3, 4}, 5, 1, 0, 4},
		{"last lost", []int{0, 1, 2, 3}, 5, 1, 0, 4},
		{"lost and the count with it", []int{0, 1, 3, 4}, 4, 1, 0, 4},
		{"repeated", []int{0, 1, 1, 2, 3, 4}, 5, 0, 1, 5},
		{"exchanged", []int{0, 2, 1, 3, 4}, 5, 1, 1, 4},
	} {
		v := newReading(true, nil, nil)
		template := cell.NewEventTemplate()
		for _, n := range c.numbers {
			chunk := string(template.Fill(1, n, 42))
			_, event, _ := strings.Cut(chunk, "\r\n")
			v.event(&v.account, 1, []byte(strings.TrimSuffix(event, "\n\n\r\n")))
		}
		v.account.usage = c.usage
		if a := v.account; a.lost() != c.lost || a.wrong != c.wrong || len(v.times) != c.seen {
			t.Errorf("%s: lost %d, wrong %d, seen %d; want %d, %d, %d", c.name, a.lost(), a.wrong, len(v.times), c.lost, c.wrong, c.seen)
		}
	}
}

func testBoard(t *testing.T, streams, tokens int) *cell.Board {
	t.Helper()
	b, err := cell.OpenBoard(filepath.Join(t.TempDir(), "board"), streams, tokens)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func chunkOf(text string) []byte {
	return fmt.Appendf(nil, `data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}],"usage":null}`, text)
}

// Words lost from a stream are counted exactly, however the rest is merged,
// and each word that arrived has its own send time.
func TestWordedStream(t *testing.T) {
	w, err := cell.LoadWords()
	if err != nil {
		t.Fatal(err)
	}
	const tokens = 60
	b := testBoard(t, 3, tokens)
	for i := range tokens {
		b.Stamp(2, i, int64(1000+i))
	}
	rapid.Check(t, func(t *rapid.T) {
		v := newReading(false, w, b)
		v.event(&v.account, 2, chunkOf("")) // the role
		lost := 0
		text := ""
		var want []int64
		for i := range tokens {
			if rapid.IntRange(0, 9).Draw(t, "fate") == 0 {
				lost++
				continue
			}
			text += w.Text(2, i)
			want = append(want, int64(1000+i))
			if rapid.Bool().Draw(t, "cut") {
				v.event(&v.account, 2, chunkOf(text))
				text = ""
			}
		}
		v.event(&v.account, 2, chunkOf(text))
		v.account.usage = tokens
		if v.account.lost() != lost || v.account.wrong != 0 || v.account.received != tokens-lost {
			t.Fatalf("%+v: lost %d, want %d", v.account, v.account.lost(), lost)
		}
		if fmt.Sprint(v.times) != fmt.Sprint(want) {
			t.Fatalf("send times %v, want %v", v.times, want)
		}
	})
}

func TestWordedDamage(t *testing.T) {
	w, err := cell.LoadWords()
	if err != nil {
		t.Fatal(err)
	}
	b := testBoard(t, 1, 10)
	for i := range 5 {
		b.Stamp(0, i, 1)
	}
	word := func(i int) string { return w.Text(0, i) }
	for _, c := range []struct{ name, text string }{
		{"repeated", word(0) + word(1) + word(1)},
		{"exchanged", word(1) + word(0)},
		{"no word", word(0) + " xyzzyx"},
		{"a piece of a word", word(0) + word(1)[:2]},
		{"never sent", word(0) + word(1) + word(2) + word(3) + word(4) + word(5)},
	} {
		v := newReading(false, w, b)
		v.event(&v.account, 0, chunkOf(c.text))
		if v.account.wrong == 0 {
			t.Errorf("%s was taken: %+v", c.name, v.account)
		}
	}
}

func TestJudgeStream(t *testing.T) {
	ended := &response{state: ended}
	whole := account{usage: 3, received: 3, finished: true, done: true}
	change := func(f func(*account)) account { a := whole; f(&a); return a }
	for _, c := range []struct {
		name   string
		a      account
		r      *response
		broken error
		want   verdict
	}{
		{"whole", whole, ended, nil, complete},
		{"no finish", change(func(a *account) { a.finished = false }), ended, nil, errored},
		{"no [DONE]", change(func(a *account) { a.done = false }), ended, nil, errored},
		{"no usage", change(func(a *account) { a.usage = -1 }), ended, nil, errored},
		{"error event", change(func(a *account) { a.errorText = "x" }), ended, nil, errored},
		{"cut", whole, &response{state: inChunk}, nil, cut},
		{"broken", whole, ended, errHeld, errored},
	} {
		if got := c.a.judge(c.r, c.broken); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestEvents(t *testing.T) {
	v := newReading(true, nil, nil)
	a := &v.account
	v.event(a, 0, []byte(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":null}`))
	v.event(a, 0, []byte(`data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":12,"total_tokens":16}}`))
	v.event(a, 0, []byte("data: [DONE]"))
	if !a.finished || a.usage != 12 || !a.done || a.wrong != 0 {
		t.Errorf("%+v", a)
	}
	v.event(a, 0, []byte("data: {}"))
	v.account.done = false
	v.event(a, 0, []byte(": ping"))
	v.event(a, 0, []byte(`data: {"choices":[{"delta":{"content":"not numbered"}}]}`))
	if a.wrong != 3 {
		t.Errorf("wrong %d, want 3", a.wrong)
	}
	v.event(a, 0, []byte(`data: {"error":{"message":"engine gone"}}`))
	if a.errorText == "" {
		t.Error("the error event was not seen")
	}
}

// A read of the client allocates nothing, whoever relays what.
func TestReadingAllocates(t *testing.T) {
	w, err := cell.LoadWords()
	if err != nil {
		t.Fatal(err)
	}
	b := testBoard(t, 1, 1<<16)
	for i := range 1 << 16 {
		b.Stamp(0, i, 1)
	}
	for _, relayed := range []bool{true, false} {
		a, r := account{usage: -1}, response{state: inSize}
		sum := int64(0)
		v := verifier{relayed: relayed, words: w, board: b, seen: func(at int64) { sum += at }}
		onEvent := func(e []byte) { v.event(&a, 0, e) }
		template := cell.NewEventTemplate()
		wire := make([]byte, 0, 512)
		n := 0
		allocs := testing.AllocsPerRun(1000, func() {
			wire = append(wire[:0], template.Fill(0, n, 1)...)
			if !relayed {
				const head, tail = `data: {"choices":[{"index":0,"delta":{"content":"`, "\"}}]}\n\n"
				word := w.Text(0, n)
				size := len(head) + len(word) + len(tail)
				wire = append(wire[:0], "0123456789abcdef"[size>>4], "0123456789abcdef"[size&15], '\r', '\n')
				wire = append(append(append(append(wire, head...), word...), tail...), "\r\n"...)
			}
			n++
			if err := r.feed(wire, onEvent); err != nil {
				t.Error(err)
			}
		})
		if allocs != 0 || a.received != n || a.wrong != 0 {
			t.Errorf("relayed %t: %v allocations per read; %+v after %d", relayed, allocs, a, n)
		}
	}
}
