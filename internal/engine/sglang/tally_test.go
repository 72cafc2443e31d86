package sglang

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/engine/idstream"
	"weir/internal/infer"
)

// said returns an event as a server writes it.
func said(ids []uint32, completion int, finish string) []byte {
	b, err := json.Marshal(append([]uint32{}, ids...))
	if err != nil {
		panic(err)
	}
	return fmt.Appendf(nil, `{"text":"x","output_ids":%s,"meta_info":{"finish_reason":%s,"completion_tokens":%d}}`, b, finish, completion)
}

// follow reads events as a generation does, and gives the ids, how many were
// counted and not sent, and what did not add up.
func follow(f form, events ...[]byte) (ids []uint32, unsent int, form form, err error) {
	t := tally{form: f}
	s := newScanner()
	for _, data := range events {
		var e event
		if err := s.scan(data, &e); err != nil {
			return ids, unsent, t.form, err
		}
		fresh, more, err := t.take(s, &e)
		if err != nil {
			return ids, unsent, t.form, err
		}
		got, err := t.read(s, &e, fresh)
		if err != nil {
			return ids, unsent, t.form, err
		}
		ids, unsent = append(ids, got...), unsent+more
	}
	return ids, unsent, t.form, nil
}

// However an engine merges its chunks, and whether it says their form or not,
// the ids come out as they were generated; and any one event whose ids or count
// are changed is found.
func TestTally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom([]form{cumulative, incremental}).Draw(t, "form")
		told := rapid.Bool().Draw(t, "told")
		ids := rapid.SliceOfN(rapid.Uint32Range(0, 5), 1, 40).Draw(t, "ids")
		matched := rapid.Bool().Draw(t, "matched")
		trimmed := matched && rapid.Bool().Draw(t, "trimmed")
		if matched && !trimmed {
			ids[len(ids)-1] = 7
		}
		var events [][]byte
		for from := 0; from < len(ids); {
			to := rapid.IntRange(from+1, len(ids)).Draw(t, "to")
			shown, completion, finish := ids[from:to], to, "null"
			if to == len(ids) {
				finish = `{"type":"length"}`
				if matched {
					finish = `{"type":"stop","matched":7}`
				}
				if trimmed {
					completion++
				}
			}
			if f == cumulative {
				shown = ids[:to]
			}
			events = append(events, said(shown, completion, finish))
			from = to
		}
		start := f
		if !told {
			start = unknownForm
		}
		got, unsent, learned, err := follow(start, events...)
		if err != nil || !slices.Equal(got, ids) || (unsent == 1) != trimmed {
			t.Fatalf("got %v and %d unsent, want %v: %v", got, unsent, ids, err)
		}
		if learned != f && (told || learned != unknownForm) {
			t.Fatalf("took %v for %v", f, learned)
		}

		// One event is lost, or comes twice. Of the last one the finish reason tells.
		if f == incremental && len(events) > 1 {
			at := rapid.IntRange(0, len(events)-2).Draw(t, "at")
			lost := slices.Delete(slices.Clone(events), at, at+1)
			if got, _, _, err := follow(f, lost...); err == nil {
				t.Fatalf("event %d was lost, and nobody saw it: %v of %v", at, got, ids)
			}
			twice := slices.Insert(slices.Clone(events), at, events[at])
			if _, _, _, err := follow(f, twice...); err == nil {
				t.Fatalf("event %d came twice, and nobody saw it", at)
			}
		}
	})
}

func TestTallyRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		form   form
		events [][]byte
		reason string
	}{
		{"count back", incremental, [][]byte{said([]uint32{1, 2}, 2, "null"), said([]uint32{3}, 1, "null")}, "count_backwards"},
		{"no count", incremental, [][]byte{[]byte(`{"output_ids":[1],"meta_info":{}}`)}, "no_count"},
		{"one too many", incremental, [][]byte{said([]uint32{1, 2}, 1, "null")}, "total_mismatch"},
		{"one too few", cumulative, [][]byte{said([]uint32{1}, 1, "null"), said([]uint32{1}, 2, "null")}, "total_mismatch"},
		{"the wrong form", cumulative, [][]byte{said([]uint32{1}, 1, "null"), said([]uint32{2}, 2, "null")}, "total_mismatch"},
		{"the other wrong form", incremental, [][]byte{said([]uint32{1}, 1, "null"), said([]uint32{1, 2}, 2, "null")}, "total_mismatch"},
		{"counted and not sent without a stop", incremental, [][]byte{said([]uint32{1}, 2, `{"type":"length"}`)}, "total_mismatch"},
		{"other ids than before", cumulative, [][]byte{said([]uint32{1}, 1, "null"), said([]uint32{9, 2}, 2, "null")}, "changed_ids"},
		{"a changed form", unknownForm, [][]byte{said([]uint32{1}, 1, "null"), said([]uint32{1, 2}, 2, "null"), said([]uint32{3}, 3, "null")}, "total_mismatch"},
	} {
		_, _, _, err := follow(c.form, c.events...)
		var m *idstream.Mismatch
		if !errors.As(err, &m) || m.Reason != c.reason {
			t.Errorf("%s: %v, want %s", c.name, err, c.reason)
		}
	}
}

// An abort's chunk may repeat the last id; what is new in it counts.
func TestTallyAbort(t *testing.T) {
	const aborted = `{"type":"abort","message":"x","status_code":503}`
	for _, c := range []struct {
		form   form
		events [][]byte
		want   []uint32
	}{
		{incremental, [][]byte{said([]uint32{1, 2}, 2, "null"), said([]uint32{2}, 2, aborted)}, []uint32{1, 2}},
		{cumulative, [][]byte{said([]uint32{1, 2}, 2, "null"), said([]uint32{2}, 2, aborted)}, []uint32{1, 2}},
		{incremental, [][]byte{said([]uint32{1, 2}, 2, "null"), said([]uint32{3}, 3, aborted)}, []uint32{1, 2, 3}},
		{cumulative, [][]byte{said([]uint32{1, 2}, 2, "null"), said([]uint32{1, 2, 3}, 3, aborted)}, []uint32{1, 2, 3}},
		{cumulative, [][]byte{said([]uint32{1, 2}, 2, "null"), said([]uint32{3}, 3, aborted)}, []uint32{1, 2}},
		{incremental, [][]byte{said(nil, 0, aborted)}, nil},
	} {
		if got, _, _, err := follow(c.form, c.events...); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v %s: %v, %v, want %v", c.form, c.events, got, err, c.want)
		}
	}
}

// The short way of reading an event and the full one agree.
func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"text":"a","output_ids":[1,2],"meta_info":{"id":"r","finish_reason":{"type":"stop","matched":[5,6]},"prompt_tokens":5,"completion_tokens":2,"cached_tokens":4,"queue_time":0.1,"forward_entry_time":1.5e9}}`))
	f.Add([]byte(`{"text":"\"output_ids\":[9],\"meta_info\":{","output_ids":[],"meta_info":{"completion_tokens":null}}`))
	f.Add([]byte(`{"output_ids": [1, 2], "meta_info": {"completion_tokens": 2}, "index": 0}`))
	f.Add([]byte(`{"error":{"message":"no","type":"invalid_request_error","code":400,"retryable":false}}`))
	f.Add([]byte(`{"output_ids":null,"meta_info":{"finish_reason":{"type":"abort","status_code":503,"message":"full"},"completion_tokens":0}}`))
	f.Add([]byte(`{"output_ids":[1],"meta_info":{"output_token_logprobs":[[-0.5,1,null]],"output_top_logprobs":[[[-0.5,1,null]]],"completion_tokens":1}}`))
	f.Add([]byte(`{"output_ids":[1],"meta_info":{"completion_tokens":1,"output_token_logprobs":[[-0.5,1,null]]}}`))
	f.Add([]byte(`{"output_ids":[1],"meta_info":{"completion_tokens":1,"x":[{"output_token_logprobs":[1]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		same(t, data, false)
		same(t, data, true)
	})
}

// An event that is read in place is read as encoding/json reads it, and as the general way does.
// So is a long one of which only the end is read, if it is JSON.
func FuzzShort(f *testing.F) {
	for _, data := range []string{
		`{"text":"a\n\u00e9 \"output_ids\":[9]","output_ids":[1,2],"meta_info":{"id":"r","finish_reason":null,"prompt_tokens":5,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":2,"cached_tokens":4}}`,
		`{"output_ids":[1,2],"x":[3],"meta_info":{"finish_reason":null,"completion_tokens":2}}`,
		`{"x":{"output_ids":[9]},"output_ids":[1],"meta_info":{"finish_reason":null,"completion_tokens":1}}`,
		`{"x":{"output_ids":[9],"meta_info":{"finish_reason":null,"completion_tokens":1}},"meta_info":{"completion_tokens":3}}`,
		`{"output_ids":[ 1 , 2 ],"output_ids":[],"meta_info":{"completion_tokens":0,"completion_tokens":7}}`,
		`{"output_ids":[01],"meta_info":{"completion_tokens":+1}}`,
		`{"output_ids":[1.0,2e0,4294967296],"meta_info":{"completion_tokens":-0}}`,
		`{"output_ids":[1],"meta_info":{"completion_tokens":1},"meta_info":{"cached_tokens":1}}`,
		`{"output\u005fids":[1],"output_ids":[2],"meta_info":{"completion_tokens":1,"x":{"completion_tokens":2}}}`,
		`{"output_ids":[1],"meta_info":{"completion_tokens":1,"dp_rank":0,"y":-1.5e+3,"z":[true,false,null]}} `,
		`{"text":"\ud800","output_ids":[1],"meta_info":{"completion_tokens":1}}x`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got := event{completion: -1, prompt: -1, cached: -1}
		ok := short(data, &got)
		if !ok {
			got = event{completion: -1, prompt: -1, cached: -1}
			var err error
			if ok, err = newScanner().usual(data, &got); !ok || err != nil || !json.Valid(data) || got.finish != "" {
				return
			}
		}
		var all, meta map[string]json.RawMessage
		if err := json.Unmarshal(data, &all); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		general := event{completion: -1, prompt: -1, cached: -1}
		s := newScanner()
		again := s.full(data, &general) // it takes less than encoding/json: no name that comes twice
		var ids []uint32
		if err := json.Unmarshal(all["output_ids"], &ids); err != nil && again != nil {
			return // the end alone does not show it, and its ids cannot be read
		} else if err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if err := json.Unmarshal(all["meta_info"], &meta); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		read, err := s.Tail(got.array, got.n)
		if err != nil || !slices.Equal(read, ids) {
			t.Fatalf("%v, %v: %s", read, err, data)
		}
		for name, n := range map[string]int{"completion_tokens": got.completion, "prompt_tokens": got.prompt, "cached_tokens": got.cached} {
			if n < 0 {
				continue // not looked at, or not there
			}
			var want int
			if err := json.Unmarshal(meta[name], &want); err != nil || n != want {
				t.Fatalf("%s: %d, %v: %s", name, n, err, data)
			}
		}
		if v := string(meta["finish_reason"]); v != "" && v[0] == '{' {
			t.Fatalf("it does not go on: %s", data)
		}
		if again == nil && (got.completion != general.completion || got.n != general.n || general.failed || general.finish != "") {
			t.Fatalf("%+v and %+v: %s", got, general, data)
		}
	})
}

// same holds the short way of reading an event to the full one.
func same(t *testing.T, data []byte, scored bool) {
	short, full := newScanner(), newScanner()
	short.scored, full.scored = scored, scored
	a, b := event{}, event{completion: -1, prompt: -1, cached: -1}
	errA, errB := short.scan(data, &a), full.full(data, &b)
	if errB != nil {
		// The short way looks at less; what it does look at must be valid, or
		// its ids cannot be read.
		return
	}
	if errA != nil {
		t.Fatalf("the short way fails: %v", errA)
	}
	if a.n != b.n || a.completion != b.completion || a.finish != b.finish || a.matched != b.matched || a.failed != b.failed || a.message != b.message {
		t.Fatalf("%+v and %+v", a, b)
	}
	x, errA := short.Tail(a.array, a.n)
	y, errB := full.Tail(b.array, b.n)
	if errA != nil || errB != nil || !slices.Equal(x, y) {
		t.Fatalf("%v %v and %v %v", x, errA, y, errB)
	}
}

// A chunk of all ids so far must cost little more than its bytes: its array is
// not read, only counted and its end looked at.
func BenchmarkScan(b *testing.B) {
	for _, n := range []int{1, 1 << 10, 16 << 10} {
		ids := make([]uint32, n)
		text := make([]byte, 0, 5*n)
		for i := range ids {
			ids[i] = uint32(100_000 + i)
			text = append(text, " word"...)
		}
		array, err := json.Marshal(ids)
		if err != nil {
			b.Fatal(err)
		}
		data := fmt.Appendf(nil, `{"text":"%s","output_ids":%s,"meta_info":{"id":"0123456789abcdef0123","finish_reason":null,"prompt_tokens":5,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":%d,"cached_tokens":4}}`, text, array, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newScanner()
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				t := tally{form: cumulative, have: n - 1}
				if n > 1 {
					t.last = ids[n-2]
				}
				var e event
				if err := s.scan(data, &e); err != nil {
					b.Fatal(err)
				}
				fresh, _, err := t.take(s, &e)
				if err != nil || fresh != 1 {
					b.Fatal(fresh, err)
				}
				if _, err := t.read(s, &e, fresh); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkScanScored is BenchmarkScan with the log probabilities of all ids and
// five alternatives each, of which a chunk brings one.
func BenchmarkScanScored(b *testing.B) {
	const top = 5
	for _, n := range []int{1, 1 << 10, 16 << 10} {
		ids := make([]uint32, n)
		var all, l infer.Logprobs
		for i := range ids {
			ids[i] = uint32(100_000 + i)
			all.Own = append(all.Own, -float32(i)/7)
			for k := range top {
				all.TopIDs, all.Top = append(all.TopIDs, ids[i]+uint32(k)), append(all.Top, -float32(i+k)/7)
			}
		}
		array, err := json.Marshal(ids)
		if err != nil {
			b.Fatal(err)
		}
		data := fmt.Appendf(nil, `{"text":"x","output_ids":%s,"meta_info":{"id":"0123456789abcdef0123","finish_reason":null,"prompt_tokens":5%s,"completion_tokens":%d,"cached_tokens":4}}`, array, logprobsMeta(ids, &all), n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newScanner()
			s.scored = true
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				t := tally{form: cumulative, have: n - 1}
				if n > 1 {
					t.last = ids[n-2]
				}
				var e event
				if err := s.scan(data, &e); err != nil {
					b.Fatal(err)
				}
				fresh, _, err := t.take(s, &e)
				if err != nil || fresh != 1 {
					b.Fatal(fresh, err)
				}
				new, err := t.read(s, &e, fresh)
				if err != nil {
					b.Fatal(err)
				}
				if err := t.scores(&e, new, 0, top, &l); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// For any chunks that a server makes of an answer, in either form, with its stop counted and sent
// or counted only: each id comes with its log probabilities, wherever they are in meta_info and
// however they are written.
func TestScores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		form := rapid.SampledFrom([]form{cumulative, incremental, unknownForm}).Draw(t, "form")
		deltas := form == incremental || form == unknownForm && rapid.Bool().Draw(t, "incremental")
		top := rapid.IntRange(0, 3).Draw(t, "top")
		var all []uint32
		var want infer.Logprobs
		value := rapid.OneOf(rapid.Just(float32(math.Inf(-1))), rapid.Float32Max(0))
		add := func() {
			all = append(all, rapid.Uint32().Draw(t, "id"))
			want.Own = append(want.Own, value.Draw(t, "own"))
			for range top {
				want.TopIDs, want.Top = append(want.TopIDs, rapid.Uint32().Draw(t, "top id")), append(want.Top, value.Draw(t, "top"))
			}
		}
		counts := tally{form: form}
		s := newScanner()
		s.scored = true
		var got, l infer.Logprobs
		chunks := rapid.IntRange(1, 6).Draw(t, "chunks")
		for c := range chunks {
			from := len(all)
			for range rapid.IntRange(1, 4).Draw(t, "new ids") {
				add()
			}
			to, unsent := len(all), 0
			finish := "null"
			if last := c == chunks-1; last && rapid.Bool().Draw(t, "stopped") {
				add()
				finish = fmt.Sprintf(`{"type":"stop","matched":%d}`, all[to])
				if rapid.Bool().Draw(t, "stop is kept back") && all[to] != all[to-1] {
					unsent = 1
				} else {
					to++
				}
			}
			first := 0
			if deltas {
				first = from
			}
			part := want.Cut(first, len(all), top)
			ids, err := json.Marshal(all[first:to])
			if err != nil {
				t.Fatal(err)
			}
			scored := logprobsMeta(all[first:], &part)
			if rapid.Bool().Draw(t, "spaced") {
				scored = strings.ReplaceAll(scored, ",", ", ")
			}
			if rapid.Bool().Draw(t, "stamps") {
				scored += `,"queue_time":0.5`
			}
			data := fmt.Sprintf(`{"text":"a","output_ids":%s,"meta_info":{"id":"x","finish_reason":%s%s,"completion_tokens":%d,"cached_tokens":1}}`, ids, finish, scored, len(all))
			var e event
			if err := s.scan([]byte(data), &e); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
			fresh, held, err := counts.take(s, &e)
			if err != nil || held != unsent {
				t.Fatalf("%d fresh, %d unsent, %v: %s", fresh, held, err, data)
			}
			fid, err := counts.read(s, &e, fresh)
			if err != nil {
				t.Fatal(err)
			}
			if err := counts.scores(&e, fid, unsent, top, &l); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
			got.Append(&l)
			bad := slices.Clone(fid)
			bad[len(bad)-1]++
			if counts.scores(&e, bad, unsent, top, &l) == nil {
				t.Fatal("those of other ids are taken")
			}
			if e.own = nil; counts.scores(&e, fid, unsent, top, &l) == nil {
				t.Fatal("none are taken for some")
			}
			if unsent > 0 {
				part := want.Cut(0, to, top)
				want = part
			}
		}
		if !slices.Equal(got.Own, want.Own) || !slices.Equal(got.TopIDs, want.TopIDs) || !slices.Equal(got.Top, want.Top) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

// For any two events, the log probabilities that are taken belong to the ids that are taken, and
// contradictory counts are an error.
func FuzzScores(f *testing.F) {
	both := `,"output_token_logprobs":[[-0.5,1,null]],"output_top_logprobs":[[[-0.5,1,null],[-1,2,null]]]`
	one := `{"output_ids":[1],"meta_info":{"finish_reason":null,"completion_tokens":1` + both + `}}`
	f.Add([]byte(one), []byte(strings.Replace(one, `tokens":1`, `tokens":2`, 1)), uint8(2))
	f.Add([]byte(`{"output_ids":[1],"meta_info":{"completion_tokens":1,"output_token_logprobs":[[null,1,null]]}}`),
		[]byte(`{"output_ids":[1,7],"meta_info":{"completion_tokens":3,"finish_reason":{"type":"stop","matched":9},"output_token_logprobs":[[-Infinity,1,null],[-0.25,7,"x"],[-1,9,null]]}}`), uint8(0))
	f.Fuzz(func(t *testing.T, first, second []byte, top uint8) {
		s, counts := newScanner(), tally{}
		s.scored = true
		var l infer.Logprobs
		for _, data := range [][]byte{first, second} {
			var e event
			if s.scan(data, &e) != nil {
				return
			}
			fresh, unsent, err := counts.take(s, &e)
			if err != nil {
				return
			}
			ids, err := counts.read(s, &e, fresh)
			if err != nil {
				return
			}
			if top := int(top % 3); counts.scores(&e, ids, unsent, top, &l) == nil && !l.Fits(len(ids), top) {
				t.Fatalf("%v for %d ids with %d alternatives", l, len(ids), top)
			}
		}
	})
}

// drop takes deltas and keeps nothing.
type drop struct{}

func (drop) Offer(*infer.Delta) {}

// A token costs no allocation, in either form and with a server's stamps or without.
func TestTokenAllocatesNothing(t *testing.T) {
	e := New(Options{Name: "a", URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}})
	for _, form := range []form{incremental, cumulative} {
		for _, meta := range []string{"", `,"queue_time":0.5,"forward_entry_time":1.5e9`} {
			const runs = 50
			var events [][]byte
			var all []uint32
			for n := range uint32(runs + 2) {
				all = append(all, n)
				ids := all
				if form == incremental {
					ids = all[n:]
				}
				b, err := json.Marshal(ids)
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, fmt.Appendf(nil, `{"text":"x","output_ids":%s,"meta_info":{"id":"r","finish_reason":null,"prompt_tokens":2,"completion_tokens":%d,"cached_tokens":0%s}}`, b, n+1, meta))
			}
			srv := &server{form: form}
			e.server.Store(srv)
			g := e.newGeneration(&infer.Request{Prompt: make([]uint32, 2), MaxTokens: 999}, 1, drop{}, srv)
			s, next := newScanner().Scanner, 0
			token := func() {
				if g.Event(s, events[next], 1) {
					t.Fatalf("%s ends the answer", events[next])
				}
				next++
			}
			token() // whose stamps are news
			if n := testing.AllocsPerRun(runs, token); n != 0 {
				t.Errorf("%v %q: %v allocations a token", form, meta, n)
			}
		}
	}
}
