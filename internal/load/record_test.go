package load

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/internal/workload"
)

// schedule returns what a worker draws of a schedule: each request's index and
// time.
func schedule(t *rapid.T, p Plan, worker, workers int) (drawn []string) {
	p.Worker, p.Workers = worker, workers
	target, err := p.normalize()
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{plan: p}
	if r.message, err = newMessage(&r.plan, target, "m"); err != nil {
		t.Fatal(err)
	}
	r.message.prompts = prompts{words: words}
	s, err := workload.NewSchedule(p.loop(), p.Seed)
	if err != nil {
		t.Fatal(err)
	}
	x := &exchange{}
	for {
		when, ok := r.prepare(x, s.Next)
		if !ok {
			return drawn
		}
		drawn = append(drawn, fmt.Sprintf("%08d %v %s %s", x.ask.index, when, x.id, x.wire))
	}
}

// The union of the workers' schedules is the single one's, whatever their
// number: each request, at its time, with its prompt, from exactly one of them.
func TestWorkersShareASchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Plan{URL: "http://h", Rate: rapid.Float64Range(0.1, 1e5).Draw(t, "rate"), Requests: rapid.IntRange(1, 40).Draw(t, "requests"),
			Seed: rapid.Uint64().Draw(t, "seed"), RequestID: "r", InputTokens: 3}
		workers := rapid.IntRange(1, 9).Draw(t, "workers")
		var union []string
		for k := range workers {
			union = append(union, schedule(t, p, k+1, workers)...)
		}
		slices.Sort(union)
		if diff := cmp.Diff(schedule(t, p, 0, 0), union); diff != "" {
			t.Fatal(diff)
		}
	})
}

// drawSamples draws the samples of a run, with times since its schedule's
// beginning.
func drawSamples(t *rapid.T) []Sample {
	all := make([]Sample, rapid.IntRange(1, 60).Draw(t, "samples"))
	at := int64(0)
	for i := range all {
		s := &all[i]
		at += rapid.Int64Range(0, 1e9).Draw(t, "gap")
		step := func() int64 { return rapid.Int64Range(1, 1e9).Draw(t, "step") }
		s.Index, s.Intended = i, at
		s.Started = s.Intended + step()/1000
		s.Outcome = Outcome(rapid.IntRange(0, int(Unfinished)).Draw(t, "outcome"))
		s.Sent = s.Started + step()/1000
		s.FirstByte = s.Sent + step()
		s.FirstContent = s.FirstByte
		if rapid.Bool().Draw(t, "answered") {
			s.FirstToken = s.FirstContent + step()
		}
		s.LastToken = s.FirstContent + step() + 1e9
		s.LastByte = s.LastToken + step()
		s.Tokens, s.PromptTokens, s.Events = rapid.IntRange(0, 9).Draw(t, "tokens"), 5, 3
		s.gaps = rapid.SliceOfN(rapid.Int64Range(0, 1e9), 0, 4).Draw(t, "gaps")
		s.Unknown = rapid.IntRange(0, 3).Draw(t, "unknown")
		s.FirstContentSince, s.FirstTokenSince, s.LastTokenSince = s.FirstContent, s.FirstToken, s.LastToken-step()
		if rapid.Bool().Draw(t, "first unknown") {
			s.FirstContentSince -= step() / 1000
		}
		for k, gap := range s.gaps {
			if rapid.Bool().Draw(t, "loose") {
				s.loose = append(s.loose, loose{k, gap / 2, gap + step()})
			}
		}
		s.late = rapid.SliceOfN(rapid.Int64Range(0, 1e6), 0, 2).Draw(t, "late")
		if s.Outcome == Errored {
			s.fail(KindReset, "reset")
		}
	}
	return all
}

// record makes a worker's, through its file.
func record(t *rapid.T, samples []Sample, worker, workers int, origin int64) *Record {
	r := &Record{Report: &Report{API: Chat, Rate: 5, Worker: worker, Workers: workers, Origin: origin, Started: time.Unix(100, 0).UTC(), CPUSeconds: 1}}
	for _, s := range samples {
		s.shift(origin)
		r.Add(&s)
	}
	var file bytes.Buffer
	if err := r.Write(&file, []byte("more")); err != nil {
		t.Fatal(err)
	}
	back, extra, err := ReadRecord(&file)
	if err != nil || string(extra) != "more" || len(back.samples) != len(samples) {
		t.Fatal(err, string(extra), len(back.samples))
	}
	return back
}

// A run split over any number of workers, whose clocks have nothing in common,
// gives to the last digit the report of the run that was not.
func TestMergeIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawSamples(t)
		single, err := Merge([]*Record{record(t, all, 1, 1, 77)})
		if err != nil {
			t.Fatal(err)
		}
		workers := rapid.IntRange(1, 5).Draw(t, "workers")
		var parts []*Record
		for k := range workers {
			var own []Sample
			for i := k; i < len(all); i += workers {
				own = append(own, all[i])
			}
			parts = append(parts, record(t, own, k+1, workers, rapid.Int64Range(1, 1e15).Draw(t, "origin")))
		}
		parts = rapid.Permutation(parts).Draw(t, "order")
		merged, err := Merge(parts)
		if err != nil {
			t.Fatal(err)
		}
		if merged.Requests != len(all) || merged.CPUSeconds != float64(workers) {
			t.Fatalf("%d requests, %v s", merged.Requests, merged.CPUSeconds)
		}
		merged.Workers, merged.CPUSeconds, merged.CPUPerEvent, merged.Generator = single.Workers, single.CPUSeconds, single.CPUPerEvent, single.Generator
		if a, b := string(marshal(single)), string(marshal(merged)); a != b {
			t.Fatal(cmp.Diff(a, b))
		}
	})
}

func TestMergeRefuses(t *testing.T) {
	of := func(worker, workers int, change func(*Report)) *Record {
		r := &Record{Report: &Report{Worker: worker, Workers: workers, Origin: 5}}
		if change != nil {
			change(r.Report)
		}
		return r
	}
	twice := func(r *Record) *Record { r.Add(&Sample{Index: 3}); return r }
	for want, records := range map[string][]*Record{
		"no records":                          nil,
		"not of a worker":                     {of(0, 0, nil)},
		"2 workers and one from a run with 3": {of(1, 2, nil), of(2, 3, nil)},
		"two are from worker 1":               {of(1, 2, nil), of(1, 2, nil)},
		"worker 2 of 2 is missing":            {of(1, 2, nil)},
		"different loads":                     {of(1, 2, nil), of(2, 2, func(r *Report) { r.Seed = 9 })},
		"in two records":                      {twice(of(1, 2, nil)), twice(of(2, 2, nil))},
	} {
		if _, err := Merge(records); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	var file bytes.Buffer
	if err := twice(of(1, 1, nil)).Write(&file, nil); err != nil {
		t.Fatal(err)
	}
	for n := range file.Len() {
		if _, _, err := ReadRecord(bytes.NewReader(file.Bytes()[:n])); err == nil {
			t.Fatalf("%d of %d bytes are read as a record", n, file.Len())
		}
	}
}

// Bytes that are accepted as a record can be merged into a report or are refused.
func FuzzRecord(f *testing.F) {
	var b bytes.Buffer
	var r Record
	r.Report = &Report{Worker: 1, Workers: 1}
	r.Add(&Sample{Index: 0, RequestID: "r"})
	if err := r.Write(&b, []byte("more")); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()-10])
	f.Add([]byte(recordMark))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, _, err := ReadRecord(bytes.NewReader(data))
		if err != nil {
			return
		}
		if report, err := Merge([]*Record{r}); (report == nil) == (err == nil) {
			t.Fatalf("%v, %v", report, err)
		}
	})
}
