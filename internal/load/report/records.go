package report

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"weir/internal/disk"
	"weir/internal/infer"
	"weir/internal/load"
	"weir/internal/trace"
)

// recordBegins is how each line of a gateway's timeline begins.
const recordBegins = `{"request_id":`

// OfRecord makes the row of a request that only its gateway has seen. The client's times
// are the gateway's, from the arrival of the request to the write of its last byte.
func OfRecord(g *Record) Row {
	r := Row{Gateway: g}
	r.RequestID, r.Intended, r.Started, r.Sent = g.RequestID, g.Arrival, g.Arrival, g.Arrival
	r.FirstContent, r.LastToken, r.LastByte = g.FirstFlushed, g.Finished, g.Finished
	switch g.Outcome {
	case infer.Finished.String():
		r.Outcome = load.Complete
	case infer.Cancelled.String():
		r.Outcome = load.Abandoned
	default:
		r.Outcome, r.Detail = load.Errored, g.Code
	}
	r.join(Clock{})
	return r
}

// Of makes the Record of a trace record, as if it had been read from the timeline.
func Of(t *trace.Record) *Record {
	g := &Record{
		RequestID: t.RequestID, Model: t.Model, Stream: t.Stream, Outcome: t.Outcome.String(), Code: t.Code, Error: t.Message, CompletionTokens: t.CompletionTokens,
		Arrival: t.Arrival, Received: t.Received, Parsed: t.Parsed, Rendered: t.Rendered, TokenizeStart: t.TokenizeStart, TokenizeEnd: t.TokenizeEnd,
		Queued: t.Queued, Routed: t.Routed, FirstReceived: t.FirstReceived, FirstSent: t.FirstSent(), FirstFlushed: t.FirstFlushed, Finished: t.Finished,
		LiveAtArrival: int(t.LiveAtArrival), LiveAtFirstToken: int(t.LiveAtFirstToken), PendingAtArrival: int(t.PendingAtArrival), PendingAtFirstToken: int(t.PendingAtFirstToken),
		Stages: map[string]int64{}, Residual: t.Residual(), Attempts: make([]Attempt, len(t.Attempts)),
	}
	if p := t.Pace; p != nil {
		if g.LastReceived = p.Last; p.Gap.For > 0 {
			g.Gap = &Gap{For: p.Gap.For, Token: int(p.Gap.Token), Tokens: int(p.Tokens), Before: p.Gap.Before, Weir: p.Gap.Weir(), Client: p.Gap.Client}
			if legs := t.Attempts[p.Gap.Attempt].Legs; len(legs) > 0 {
				g.Gap.Engine = legs[len(legs)-1].Engine
			}
		}
	}
	for s, ns := range t.Ledger.Spent {
		if ns != 0 {
			g.Stages[trace.Stage(s).String()] = ns
		}
	}
	for _, s := range t.Stalls {
		g.Stalls = append(g.Stalls, Stall{s.Start, s.End - s.Start, s.Why})
	}
	if p, ok := t.Pair(); ok {
		g.Pair = pairOf(&p)
	}
	for i := range t.Attempts {
		a := &t.Attempts[i]
		for k := range a.Legs {
			l, s := &a.Legs[k], &a.Legs[k].Stamps
			g.Attempts[i].Legs = append(g.Attempts[i].Legs, Leg{
				Role: l.Role, Engine: l.Engine, Kind: l.Kind, Outcome: l.Outcome, Handed: l.Handed, ToServer: l.ToServer, Acked: l.Acked,
				ServerCreated: s.ServerCreated, QueueStart: s.QueueStart, QueueEnd: s.QueueEnd, PrefillStart: s.PrefillStart, PrefillEnd: s.PrefillEnd,
				FirstToken: s.FirstToken, FirstOutput: s.FirstOutput, Uncertain: s.ClockUncertain, Retracted: s.Retracted,
			})
		}
		if c := &a.Choice; len(c.Best) > 0 {
			g.Attempts[i].Choice = &Choice{Engines: int(c.Of), Prompt: int64(c.Length), Regret: int64(float64(c.Regret) * 1e6)}
			if c.Cached >= 0 {
				g.Attempts[i].Choice.Cached = new(int64(c.Cached))
			}
		}
	}
	return g
}

// pairOf makes the pair that is read of a timeline's line.
func pairOf(p *trace.Pair) *Pair {
	of, stages := &Pair{Handed: p.Handed, Met: p.At[trace.Met], Prefilled: p.At[trace.Prefilled], Transferred: p.At[trace.Transferred], Running: p.At[trace.Running]}, p.Stages()
	for i, to := range [trace.NumPairStages]**int64{&of.Bootstrap, &of.Prefill, &of.Transfer, &of.WaitingToRunning, &of.Decode} {
		if stages[i] >= 0 {
			*to = &stages[i]
		}
	}
	if handover := p.Handover(); handover >= 0 {
		of.Handover = &handover
	}
	return of
}

// streamedRows are the rows of the records that have times of a stream.
func streamedRows(records []*Record) (rows []Row) {
	for _, g := range records {
		if g.Stream {
			rows = append(rows, OfRecord(g))
		}
	}
	return rows
}

// Shares returns where the time of streams went, as Attribute does, and behind the bands of
// each metric that of the median.
func Shares(records []*Record) []Band {
	firsts, wholes := parted(streamedRows(records))
	return slices.Concat(banded("ttft", firsts), median("ttft", firsts), banded("e2e", wholes), median("e2e", wholes))
}

// Delay is how late weir gave a request's first output to the kernel, counted from its reading,
// and how much was going on.
type Delay struct {
	RequestID string  `json:"request_id"`
	Live      int     `json:"live"`    // requests in flight
	Pending   int     `json:"pending"` // streams whose output waited to be taken
	Delay     float64 `json:"delay_ms"`
	// Hop is the time from the engine's stamp of the output until it was read. Nil: the engine does
	// not stamp it.
	Hop *float64 `json:"hop_ms,omitzero"`
}

// DelayOf returns the output delay of a request, if it had output.
func DelayOf(g *Record) (d Delay, ok bool) {
	d = Delay{RequestID: g.RequestID, Live: g.LiveAtFirstToken, Pending: g.PendingAtFirstToken}
	if leg := g.leg(); leg != nil && leg.FirstOutput != 0 {
		if hop, ok := between(leg.FirstOutput, g.FirstReceived); ok {
			d.Hop = new(float64(max(hop, 0)) / 1e6)
		}
	}
	ns, ok := between(g.FirstReceived, cmp.Or(g.FirstSent, g.FirstFlushed))
	d.Delay = float64(ns) / 1e6
	return d, ok && g.Stream
}

// IsTimeline reports whether a file has a gateway's timeline.
func IsTimeline(name string) (bool, error) {
	f, err := disk.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	begin := make([]byte, len(recordBegins))
	n, err := io.ReadFull(f, begin)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, err
	}
	return string(begin[:n]) == recordBegins, nil
}

// readRecords reads the lines of a timeline. The last one may be torn.
func readRecords(r io.Reader) (records []*Record, torn bool, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxRecord)
	whole := true
	lines.Split(func(data []byte, end bool) (int, []byte, error) {
		advance, line, err := bufio.ScanLines(data, end)
		whole = advance > 0 && data[advance-1] == '\n'
		return advance, line, err
	})
	n := 1
	for ; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		g := &Record{}
		if err := json.Unmarshal(line, g); err != nil || !bytes.HasPrefix(line, []byte(recordBegins)) {
			if !whole {
				return records, true, nil
			}
			return nil, false, fmt.Errorf("line %d is not a record of a timeline: %w", n, cmp.Or(err, errors.New(`it does not begin with "request_id"`)))
		}
		records = append(records, g)
	}
	if err = lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("line %d is longer than %d MiB: it is no record of a timeline", n, maxRecord>>20)
	}
	return records, false, err
}
