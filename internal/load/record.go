package load

import (
	"bufio"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// Record is everything that a run measured, request by request. Its report can be made from
// it again, alone or together with the other workers of its schedule ([Merge]). The zero
// value is empty and ready for [Record.Add].
type Record struct {
	// Report is the run's own.
	Report *Report

	mu      sync.Mutex
	samples []recorded
}

// recorded is a sample with its unexported fields.
type recorded struct {
	Sample     Sample
	Gaps, Late []int64
	Loose      []loose
	Whole      bool
}

// Add records a request that has ended, for Plan.OnSample.
func (r *Record) Add(s *Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := recorded{Sample: *s, Gaps: slices.Clone(s.gaps), Late: slices.Clone(s.late), Loose: slices.Clone(s.loose), Whole: s.whole}
	x.Sample.Chunks = nil
	r.samples = append(r.samples, x)
}

// recordMark begins a record; its number is that of the form.
const recordMark = "weir record 2\n"

// recordHead is the first part of a record's file.
type recordHead struct {
	Report  *Report
	Samples int
}

// Write writes the record. extra is stored with it, for further facts of callers about the
// run.
func (r *Record) Write(w io.Writer, extra []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := bufio.NewWriter(w)
	if _, err := b.WriteString(recordMark); err != nil {
		return err
	}
	enc := gob.NewEncoder(b)
	if err := errors.Join(enc.Encode(recordHead{r.Report, len(r.samples)}), enc.Encode(extra)); err != nil {
		return err
	}
	for i := range r.samples {
		if err := enc.Encode(&r.samples[i]); err != nil {
			return err
		}
	}
	return b.Flush()
}

// ReadRecord reads what Write wrote.
func ReadRecord(in io.Reader) (r *Record, extra []byte, err error) {
	b := bufio.NewReader(in)
	mark := make([]byte, len(recordMark))
	if _, err := io.ReadFull(b, mark); err != nil || string(mark) != recordMark {
		return nil, nil, errors.New("not a record of weir bench --record")
	}
	dec := gob.NewDecoder(b)
	var h recordHead
	if err := errors.Join(dec.Decode(&h), dec.Decode(&extra)); err != nil {
		return nil, nil, fmt.Errorf("the record is damaged: %w", err)
	}
	if h.Report == nil {
		return nil, nil, errors.New("the record has no report")
	}
	r = &Record{Report: h.Report}
	for range h.Samples {
		var x recorded
		if err := dec.Decode(&x); err != nil {
			return nil, nil, fmt.Errorf("the record is damaged after %d of %d requests: %w", len(r.samples), h.Samples, err)
		}
		if int(x.Sample.Outcome) >= len(outcomeNames) {
			return nil, nil, fmt.Errorf("the record is damaged: request %d has no outcome", x.Sample.Index)
		}
		r.samples = append(r.samples, x)
	}
	return r, extra, nil
}

// mergedOrigin is where the schedule begins on the clock of a merged report, so
// that 0 still means never.
const mergedOrigin = int64(1e18)

// Merge makes the report that a single worker would have made if it had sent all requests
// of the schedule. Every request is counted anew, with its times since its own worker's
// start of the schedule. The records must be those of all workers of one schedule.
func Merge(records []*Record) (*Report, error) {
	if err := mergeable(records); err != nil {
		return nil, err
	}
	first := records[0].Report
	a := newAccount(first.InputTokensExact, first.Generator.Cores)
	var all []recorded
	for _, r := range records {
		by := mergedOrigin - r.Report.Origin
		for _, x := range r.samples {
			x.Sample.shift(by)
			x.Sample.gaps, x.Sample.late, x.Sample.loose, x.Sample.whole = x.Gaps, x.Late, x.Loose, x.Whole
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(x, y recorded) int { return cmp.Compare(x.Sample.Index, y.Sample.Index) })
	for i := range all {
		if i > 0 && all[i].Sample.Index == all[i-1].Sample.Index {
			return nil, fmt.Errorf("request %d is in two records", all[i].Sample.Index)
		}
		a.add(&all[i].Sample)
	}
	m := a.report()
	m.settings(first)
	m.Started, m.Origin = first.Started, mergedOrigin
	m.Worker, m.Workers = 0, first.Workers
	m.Generator, m.CPUSeconds = Generator{}, 0
	for _, r := range records {
		if r.Report.Started.Before(m.Started) {
			m.Started = r.Report.Started
		}
		m.Interrupted = m.Interrupted || r.Report.Interrupted
		m.Problem = cmp.Or(m.Problem, r.Report.Problem)
		if r.Report.Receive.Stamps != m.Receive.Stamps { // the worse of them
			m.Receive.Stamps, m.Receive.Why = ReaderStamps, cmp.Or(m.Receive.Why, r.Report.Receive.Why)
		}
		if c := r.Report.Calibration; c != nil && (m.Calibration == nil || c.TTFTError.P99 > m.Calibration.TTFTError.P99) {
			m.Calibration = c // the worst of them
		}
		g := &r.Report.Generator
		m.CPUSeconds += r.Report.CPUSeconds
		m.Generator.Cores += g.Cores
		m.Generator.GCs += g.GCs
		// One worker that was late makes the run late.
		m.Generator.CPUShare = max(m.Generator.CPUShare, g.CPUShare)
		m.Generator.SchedP50 = max(m.Generator.SchedP50, g.SchedP50)
		m.Generator.SchedP99 = max(m.Generator.SchedP99, g.SchedP99)
		m.Generator.SchedMax = max(m.Generator.SchedMax, g.SchedMax)
		m.Generator.PauseMax = max(m.Generator.PauseMax, g.PauseMax)
	}
	m.CPUPerEvent = 0
	if m.Events > 0 {
		m.CPUPerEvent = m.CPUSeconds * 1e6 / float64(m.Events)
	}
	m.judge()
	return m, nil
}

// settings copies the settings of another report.
func (r *Report) settings(from *Report) {
	r.URL, r.API, r.Model, r.Stream, r.Verified = from.URL, from.API, from.Model, from.Stream, from.Verified
	r.Concurrency, r.Rate, r.Arrival, r.CV = from.Concurrency, from.Rate, from.Arrival, from.CV
	r.Workload, r.Skipped, r.Seed = from.Workload, from.Skipped, from.Seed
	r.Images, r.ImageBytes = from.Images, from.ImageBytes
	r.InputTokens, r.InputTokensExact, r.OutputTokens = from.InputTokens, from.InputTokensExact, from.OutputTokens
	r.Receive.Stamps, r.Receive.Why, r.Receive.DelayedAcks = from.Receive.Stamps, from.Receive.Why, from.Receive.DelayedAcks
}

// mergeable refuses records that are not all workers' of one schedule.
func mergeable(records []*Record) error {
	if len(records) == 0 {
		return errors.New("no records")
	}
	first := records[0].Report
	seen := map[int]bool{}
	for _, r := range records {
		x := r.Report
		switch {
		case x.Worker == 0 || x.Origin == 0:
			return errors.New("a record is not of a worker: run each with --worker K/N")
		case x.Workers != first.Workers:
			return fmt.Errorf("one is from a run with %d workers and one from a run with %d", first.Workers, x.Workers)
		case seen[x.Worker]:
			return fmt.Errorf("two are from worker %d", x.Worker)
		case x.API != first.API || x.Model != first.Model || x.Rate != first.Rate || x.Arrival != first.Arrival || x.CV != first.CV || x.Workload != first.Workload ||
			x.Seed != first.Seed || x.InputTokens != first.InputTokens || x.OutputTokens != first.OutputTokens || x.Stream != first.Stream || x.Verified != first.Verified:
			return fmt.Errorf("workers %d and %d were asked for different loads", first.Worker, x.Worker)
		}
		seen[x.Worker] = true
	}
	for k := 1; k <= first.Workers; k++ {
		if !seen[k] {
			return fmt.Errorf("the record of worker %d of %d is missing", k, first.Workers)
		}
	}
	return nil
}

// shift moves a sample's stamps; what never came stays so.
func (s *Sample) shift(by int64) {
	for _, stamp := range []*int64{&s.Intended, &s.Started, &s.Sent, &s.FirstByte, &s.FirstContent, &s.FirstToken, &s.LastToken, &s.LastByte,
		&s.FirstContentSince, &s.FirstTokenSince, &s.LastTokenSince} {
		if *stamp != 0 {
			*stamp += by
		}
	}
}
