package gateway

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"sync/atomic"
	"time"

	"weir/internal/admit"
	"weir/internal/api"
	"weir/internal/infer"
	"weir/internal/route"
	"weir/internal/stream"
	"weir/internal/trace"
)

// exchange is one request on its way through the stages. It belongs to the one
// goroutine that serves the request; only the mailbox is shared.
type exchange struct {
	g    *Gateway
	w    http.ResponseWriter // with rc and r until the stream leaves net/http
	rc   *http.ResponseController
	r    *http.Request
	conn *conn // nil when it is not one of Listener's
	rec  *trace.Record
	err  *infer.Error // how the request ended

	ctx           context.Context // ends when the client hangs up, or at Cut
	cancel        context.CancelCauseFunc
	stopFollowing func() bool // net/http's own notice of the hang-up, until then
	client        client
	detached      bool // the stream has left net/http
	resumed       bool // and this is the goroutine that serves the rest
	stopBreaking  func() bool
	shard         *shard // the worker that drives the stream
	state         atomic.Int32
	blockedBytes  int // of the write that a slow client holds up

	// From decode and gate.
	body        []byte
	head        *api.Head
	endpoint    api.Endpoint
	req         *api.Request // token engines only
	reservation *admit.Reservation
	fleet       *route.Snapshot
	model       *route.Model
	relayed     bool
	folder      *Model // token engines only

	// From render and tokenize.
	text []byte // the rendered prompt
	ids  []uint32
	more []prompt // the prompts after the first

	reply *reply // what the answer may be besides text; nil: nothing

	tokenization *tokenization // of a request to the tokenizer, not to an engine

	// From queue to finish.
	attempt
	tried     []*route.Engine // by the attempts before
	mailbox   *stream.Mailbox // of all attempts; token engines only
	abortable abortable

	// Of the output.
	cells         []stream.Cell
	piece         []byte      // text of the cell at hand
	used          int         // ids of the cell at hand that count, up to a stop string
	out           []byte      // encoded, not yet written
	complete      bool        // the whole answer is encoded
	committed     bool        // the response head was written
	carriesSSE    bool        // the response is a stream of events
	relayedError  bool        // the engine's own word on its failure was passed on, whole
	bounded       bool        // a write deadline is set
	writeDeadline int64       // on trace's clock
	lastFlush     int64       // with a flush interval: when output was written last
	holding       *time.Timer // and until when it gathers

	delayed [trace.NumStages]bool
}

// begin opens the exchange and its record.
func (g *Gateway) begin(w http.ResponseWriter, r *http.Request) *exchange {
	c := connOf(r.Context())
	x := &exchange{
		g: g, w: w, r: r, conn: c,
		rc:       http.NewResponseController(w),
		endpoint: g.services.endpointOf(r.URL.Path),
		rec: &trace.Record{
			RequestID:        requestID(r.Header.Get("X-Request-Id"), g.ids),
			Endpoint:         r.URL.Path,
			Arrival:          c.arrival(),
			LiveAtArrival:    int(g.live.Add(1)) - 1,
			PendingAtArrival: int(g.waiting.Load()),
		},
	}
	x.client = httpClient{w, x.rc}
	x.ctx, x.cancel = context.WithCancelCause(g.base)
	x.stopFollowing = context.AfterFunc(r.Context(), func() { x.cancel(nil) })
	x.rec.Ledger.Start(trace.Read, x.rec.Arrival)
	setRequestID(w.Header(), x.endpoint, x.rec.RequestID)
	g.opts.Metrics.Received(g.services.label(r.URL.Path))
	x.delay(trace.Read)
	return x
}

// gone is why the request's context has ended.
func (x *exchange) gone() error { return infer.AsError(context.Cause(x.ctx)) }

// leg gives the record of the attempt at hand.
func (x *exchange) leg() *trace.Leg { return x.rec.Leg() }

// delay injects the configured delay of a stage, once per request.
func (x *exchange) delay(s trace.Stage) {
	d := x.g.opts.StageDelay[s]
	if d == 0 || x.delayed[s] {
		return
	}
	x.delayed[s] = true
	time.Sleep(d)
}

// requestIDs makes ids that are unique over gateways and restarts and all of
// one length, because some engines match aborts by prefix.
type requestIDs struct {
	instance string
	count    atomic.Uint64
}

func newRequestIDs() *requestIDs {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return &requestIDs{instance: hex.EncodeToString(b[:])}
}

func (ids *requestIDs) next() string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], ids.count.Add(1))
	return ids.instance + hex.EncodeToString(b[2:])
}

// requestID takes the client's id over when it can go into headers and logs as
// it is, and makes one otherwise.
func requestID(given string, ids *requestIDs) string {
	if given == "" || len(given) > 128 {
		return "req-" + ids.next()
	}
	for _, c := range []byte(given) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '-', c == '_', c == '.', c == ':':
		default:
			return "req-" + ids.next()
		}
	}
	return given
}
