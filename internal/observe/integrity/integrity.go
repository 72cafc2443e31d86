// Package integrity keeps the latest integrity failures of engines, such as counts that do
// not match, with the evidence for each, so that an operator can show the engine's
// developers what it sent. Everything is in memory and bounded: Keep records, with at most
// maxEvidence bytes of evidence each.
//
// Evidence may contain users' text. It is available only at the admin listener; the log
// contains only its size.
package integrity

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// Keep is how many failures are kept.
const Keep = 64

// The bounds of one record, in bytes and ids of requests.
const (
	maxEvidence = 16 << 10
	maxDetail   = 512
	maxRequests = 8
)

// Record is one failure. Detail states the contradiction in numbers.
type Record struct {
	Number   uint64    `json:"number"` // counts from 1 over the process's life
	Time     time.Time `json:"time"`
	Engine   string    `json:"engine"`
	Wire     string    `json:"wire"` // the engine's kind
	Reason   string    `json:"reason"`
	Detail   string    `json:"detail"`
	Requests int       `json:"requests"` // that it ended or sent elsewhere
	// RequestIDs are the first of the failed requests' ids, as clients know them.
	RequestIDs []string `json:"request_ids"`
	// Evidence is what the engine sent, as the wire's adapter kept it; absent if nothing
	// was available.
	Evidence jsontext.Value `json:"evidence,omitzero"`
}

// Options configure a Log. The zero value works.
type Options struct {
	// Log gets a line for each failure.
	Log *slog.Logger
	// Count is called once for each failure.
	Count func(engine, reason string)
}

// Log keeps the latest failures. Its methods may be called by anyone; a nil Log
// keeps nothing.
type Log struct {
	opts Options

	mu      sync.Mutex
	records []entry // a ring
	count   uint64
}

// entry is a record and the failure that it is of.
type entry struct {
	Record
	fault infer.Fault
}

// New makes an empty Log.
func New(o Options) *Log {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Count == nil {
		o.Count = func(string, string) {}
	}
	return &Log{opts: o}
}

// Add records the failure in err. Errors without an infer.Fault in their chain are ignored.
// request is empty if no request is known to be affected. A failure that ends many requests
// at once is one record and one count.
func (l *Log) Add(wire, engine, request string, err error) {
	var fault infer.Fault
	if l == nil || !errors.As(err, &fault) {
		return
	}
	shared, _ := fault.(interface{ Shared() bool })
	if shared != nil && shared.Shared() && l.join(fault, request) {
		return
	}
	r := Record{Time: time.Now().UTC(), Engine: engine, Wire: wire, Reason: fault.FaultReason(), Detail: detail(err, fault)}
	r.add(request)
	if keeps, ok := fault.(interface{ Evidence() any }); ok {
		r.Evidence = encode(keeps.Evidence())
	}
	l.mu.Lock()
	l.count++
	r.Number = l.count
	e := entry{r, fault}
	if len(l.records) < Keep {
		l.records = append(l.records, e)
	} else {
		l.records[(l.count-1)%Keep] = e
	}
	l.mu.Unlock()
	l.opts.Count(engine, r.Reason)
	l.opts.Log.Error("integrity failure", "number", r.Number, "engine", engine, "wire", wire, "reason", r.Reason,
		"request_id", request, "detail", r.Detail, "evidence_bytes", len(r.Evidence))
}

// join adds a request to the record of a failure that is known already.
func (l *Log) join(fault infer.Fault, request string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.records {
		if e := &l.records[i]; e.fault == fault {
			e.add(request)
			return true
		}
	}
	return false
}

func (r *Record) add(request string) {
	if request == "" {
		return
	}
	r.Requests++
	if len(r.RequestIDs) < maxRequests {
		// A reader may have the slice as it was.
		r.RequestIDs = append(r.RequestIDs[:len(r.RequestIDs):len(r.RequestIDs)], request)
	}
}

// detail returns the fault's text or, if that is only its reason, the error around it.
func detail(err error, fault infer.Fault) string {
	text := fault.Error()
	if text == fault.FaultReason() {
		text = infer.AsError(err).Message
	}
	return text[:min(len(text), maxDetail)]
}

// encode turns evidence into JSON. Evidence that does not fit was not bounded by its
// maker, and a word in its place is better than none.
func encode(evidence any) jsontext.Value {
	text, err := json.Marshal(evidence)
	switch {
	case err != nil:
		text, err = json.Marshal("the evidence cannot be shown: " + err.Error())
	case len(text) > maxEvidence:
		text, err = json.Marshal("the evidence is over its bound")
	}
	if err != nil {
		return nil
	}
	return text
}

// Records returns the failures that are kept, the latest first.
func (l *Log) Records() []Record {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Record, 0, len(l.records))
	for i := range uint64(len(l.records)) {
		out = append(out, l.records[(l.count-1-i)%Keep].Record)
	}
	return out
}
