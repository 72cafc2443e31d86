package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FaultKind is a way in which an engine fails. Its word is the same in the
// flag, in the admin call and in the documents.
type FaultKind uint8

// The kinds of faults. A result is a token's event over HTTP and a step over the plane. A
// fault that breaks a connection breaks the gateway's whole session over the plane. "After
// After tokens" is the moment when the next token would be sent; a request that has no next
// token is spared.
const (
	// Faults of connections.
	Refuse FaultKind = iota // closed as soon as it is accepted
	Deaf                    // accepted, and nothing is ever read of it

	// Faults of requests.
	Unavailable // answered 503, or UNAVAILABLE
	Fail        // answered 500, or INTERNAL
	Throttle    // answered 429 with a Retry-After of Delay, or RESOURCE_EXHAUSTED
	Hang        // read and never answered
	Slow        // the answer's head, or the acknowledgement, comes Delay late
	Stall       // after After tokens nothing more comes, the connection stays
	Cut         // after After tokens the connection ends (FIN), nothing terminates the answer
	Truncate    // after After tokens the answer ends cleanly but incomplete
	Reset       // after After tokens the connection is reset (RST)
	Abort       // after After tokens the engine gives the request up and reports it
	Miscount    // the token count reported at the end is one too high
	Skip        // the result that follows After tokens is never sent
	Repeat      // the result that follows After tokens is sent twice
	Garble      // the result that follows After tokens ends in the middle of its own bytes
	Stray       // the result after After tokens is also sent for a slot, or a choice, that no request has
	Split       // the result that follows After tokens is written in two at byte At, or byte by byte, Delay apart
	Drip        // from the result that follows After tokens on, Bytes are written at a time, Delay apart
	Pause       // before the result that follows After tokens the whole engine stands still for Delay

	// Faults of the legs of pairs; whole requests are spared.
	Unmet   // the legs never hear of each other
	Misrank // the leg is, or looks for its partner, at another DP rank
	Stuck   // its KV is never transferred
	Evict   // the KV of a prefill leg is gone as soon as it is there
	Die     // the engine ends when a leg comes to Stage

	// Faults of the plane; over HTTP they have no effect.
	Backward // the result that follows After tokens has a count below the one before
	Swap     // the result that follows After tokens comes after the next one
	Oversize // the result that follows After tokens is over the plane's limit of size

	// Faults of the engine.
	Retract   // every Every all that generate are sent back to the queue
	Wedge     // the engine's loop, or that of one rank, stands still; all else goes on
	NoPrefill // no prompt is computed, what generates goes on
	Drag      // each step takes By times as long
	Idle      // it reports that nothing runs and nothing waits
	Mute      // its KV events are lost on their way to those who listen
	Offload   // its KV events have a placeholder for each page, as vLLM's with CPU offloading
	Restart   // its connections are reset, and all that it had is gone

	numFaultKinds
)

var faultNames = [numFaultKinds]string{
	Refuse: "refuse", Deaf: "deaf",
	Unavailable: "unavailable", Fail: "fail", Throttle: "throttle", Hang: "hang", Slow: "slow", Stall: "stall", Cut: "cut", Truncate: "truncate",
	Reset: "reset", Abort: "abort", Miscount: "miscount", Skip: "skip", Repeat: "repeat", Garble: "garble", Stray: "stray",
	Split: "split", Drip: "drip", Pause: "pause",
	Unmet: "unmet", Misrank: "misrank", Stuck: "stuck", Evict: "evict", Die: "die",
	Backward: "backward", Swap: "swap", Oversize: "oversize",
	Retract: "retract", Wedge: "wedge", NoPrefill: "noprefill", Drag: "drag", Idle: "idle", Mute: "mute", Offload: "offload", Restart: "restart",
}

// String returns the kind's word.
func (k FaultKind) String() string { return faultNames[k] }

// scope is the thing that a fault is drawn for: a connection, a request or the engine.
type scope uint8

const (
	ofRequests scope = iota
	ofConnections
	ofEngine
)

func (k FaultKind) scope() scope {
	switch k {
	case Refuse, Deaf:
		return ofConnections
	case Retract, Wedge, NoPrefill, Drag, Idle, Mute, Offload, Restart:
		return ofEngine
	}
	return ofRequests
}

// defaultDelay returns a kind's delay if none is given, and 0 for a kind without a delay.
func (k FaultKind) defaultDelay() time.Duration {
	switch k {
	case Slow, Throttle, Pause:
		return time.Second
	case Drip:
		return 10 * time.Millisecond
	case Split:
		return time.Millisecond
	}
	return 0
}

// Defaults of a fault's settings.
const (
	defaultBytes = 16
	defaultEvery = time.Second
	defaultBy    = 10
)

// Fault is one instruction to fail. A request must match every selector that
// is set; without any, all requests match.
type Fault struct {
	Kind  FaultKind
	After int           // tokens, for the kinds that count them
	Delay time.Duration // for the kinds that have one; 0 is the kind's own
	At    int           // for Split: the byte of the result; 0 is each byte by itself
	Bytes int           // for Drip; 0 is 16
	Every time.Duration // for Retract; 0 is a second
	By    float64       // for Drag; 0 is 10
	One   bool          // for Wedge: only DP rank Rank stands still
	Rank  int
	Stage string // for Die: one of LegStages

	Rate   float64 // share of requests, drawn by ordinal; 0 is all
	Nth    uint64  // the ordinal, counted from 1; 0 is any
	ID     string  // a part of the request id
	Marker string  // a part of the prompt's text
	Times  uint64  // how often it strikes at most; 0 is no bound
}

// LegStages are the stages of a leg in their order. A prefill leg passes bootstrap (the
// engine has the leg), prefill (its partner is met, or none is awaited) and transfer (its
// KV is there). A decode leg passes bootstrap, transfer (its KV can be fetched) and decode
// (it has its KV).
var LegStages = []string{"bootstrap", "prefill", "transfer", "decode"}

// ParseFault reads a fault in the form of flags and the admin call: the kind's name and its
// settings, as in "cut,after=20,rate=0.01". The settings are after, delay, at, bytes,
// every, by, rank, stage, rate, nth, id, marker and times.
func ParseFault(text string) (Fault, error) {
	word, rest, more := strings.Cut(text, ",")
	f := Fault{Kind: numFaultKinds}
	for k, name := range faultNames {
		if name == word {
			f.Kind = FaultKind(k)
		}
	}
	if f.Kind == numFaultKinds {
		return Fault{}, fmt.Errorf("no fault %q; the faults are %s", word, strings.Join(faultNames[:], ", "))
	}
	for more {
		var setting string
		setting, rest, more = strings.Cut(rest, ",")
		if err := f.set(setting); err != nil {
			return Fault{}, fmt.Errorf("fault %s: %w", word, err)
		}
	}
	return f, f.check()
}

func (f *Fault) set(setting string) (err error) {
	key, value, _ := strings.Cut(setting, "=")
	switch key {
	case "after":
		f.After, err = strconv.Atoi(value)
	case "delay":
		f.Delay, err = time.ParseDuration(value)
	case "at":
		f.At, err = strconv.Atoi(value)
	case "bytes":
		f.Bytes, err = strconv.Atoi(value)
	case "every":
		f.Every, err = time.ParseDuration(value)
	case "by":
		f.By, err = strconv.ParseFloat(value, 64)
	case "rank":
		f.One = true
		f.Rank, err = strconv.Atoi(value)
	case "stage":
		f.Stage = value
	case "rate":
		f.Rate, err = strconv.ParseFloat(value, 64)
	case "nth":
		f.Nth, err = strconv.ParseUint(value, 10, 64)
	case "times":
		f.Times, err = strconv.ParseUint(value, 10, 64)
	case "id":
		f.ID = value
	case "marker":
		f.Marker = value
	default:
		return fmt.Errorf("no setting %q; the settings are after, delay, at, bytes, every, by, rank, stage, rate, nth, id, marker, times", key)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (f *Fault) check() error {
	where := f.Kind.scope()
	switch {
	case f.After < 0 || f.Delay < 0 || f.At < 0 || f.Bytes < 0 || f.Every < 0:
		return fmt.Errorf("fault %s: after, delay, at, bytes and every must not be negative", f.Kind)
	case !(f.Rate >= 0 && f.Rate <= 1):
		return fmt.Errorf("fault %s: rate %v is not between 0 and 1", f.Kind, f.Rate)
	case f.After > 0 && !f.Kind.counts():
		return fmt.Errorf("fault %s: it counts no tokens, leave after out", f.Kind)
	case f.Delay > 0 && f.Kind.defaultDelay() == 0:
		return fmt.Errorf("fault %s: it has no delay, leave delay out", f.Kind)
	case f.At > 0 && f.Kind != Split:
		return fmt.Errorf("fault %s: only split is at a byte", f.Kind)
	case f.Bytes > 0 && f.Kind != Drip:
		return fmt.Errorf("fault %s: only drip has bytes", f.Kind)
	case f.Every > 0 && f.Kind != Retract:
		return fmt.Errorf("fault %s: only retract has every", f.Kind)
	case f.By != 0 && f.Kind != Drag:
		return fmt.Errorf("fault %s: only drag has by", f.Kind)
	case f.By != 0 && !(f.By >= 1 && f.By <= 1e6):
		return fmt.Errorf("fault %s: by is %v; want 1 to 1e6", f.Kind, f.By)
	case (f.One || f.Rank != 0) && f.Kind != Wedge:
		return fmt.Errorf("fault %s: only wedge has a rank", f.Kind)
	case f.Stage != "" && f.Kind != Die:
		return fmt.Errorf("fault %s: only die has a stage", f.Kind)
	case f.Kind == Die && !slices.Contains(LegStages, f.Stage):
		return fmt.Errorf("fault die: stage is %q; it is one of %s", f.Stage, strings.Join(LegStages, ", "))
	case f.Rank < 0 || f.Rank >= maxRanks:
		return fmt.Errorf("fault %s: rank is %d; want 0 to %d", f.Kind, f.Rank, maxRanks-1)
	case f.Times > 0 && f.lasts():
		return fmt.Errorf("fault %s: it lasts until the faults are replaced, leave times out", f.Kind)
	case where == ofConnections && (f.ID != "" || f.Marker != ""):
		return fmt.Errorf("fault %s: it strikes before a request is read, leave id and marker out", f.Kind)
	case where == ofEngine && (f.ID != "" || f.Marker != "" || f.Nth > 0 || f.Rate > 0):
		return fmt.Errorf("fault %s: it strikes the whole engine, leave rate, nth, id and marker out", f.Kind)
	}
	return nil
}

// lasts reports whether the fault is a lasting state of the engine, not an event.
func (f *Fault) lasts() bool {
	switch f.Kind {
	case Wedge, NoPrefill, Drag, Idle, Mute, Offload:
		return true
	}
	return false
}

// counts reports whether the fault takes effect after a number of tokens.
func (k FaultKind) counts() bool {
	switch k {
	case Stall, Cut, Truncate, Reset, Abort, Skip, Repeat, Garble, Stray, Split, Drip, Pause, Backward, Swap, Oversize:
		return true
	}
	return false
}

// String is the inverse of ParseFault.
func (f Fault) String() string {
	b := []byte(f.Kind.String())
	if f.After > 0 {
		b = fmt.Appendf(b, ",after=%d", f.After)
	}
	if f.Delay > 0 {
		b = fmt.Appendf(b, ",delay=%v", f.Delay)
	}
	if f.At > 0 {
		b = fmt.Appendf(b, ",at=%d", f.At)
	}
	if f.Bytes > 0 {
		b = fmt.Appendf(b, ",bytes=%d", f.Bytes)
	}
	if f.Every > 0 {
		b = fmt.Appendf(b, ",every=%v", f.Every)
	}
	if f.By > 0 {
		b = fmt.Appendf(b, ",by=%v", f.By)
	}
	if f.One {
		b = fmt.Appendf(b, ",rank=%d", f.Rank)
	}
	if f.Stage != "" {
		b = fmt.Appendf(b, ",stage=%s", f.Stage)
	}
	if f.Rate > 0 {
		b = fmt.Appendf(b, ",rate=%v", f.Rate)
	}
	if f.Nth > 0 {
		b = fmt.Appendf(b, ",nth=%d", f.Nth)
	}
	if f.ID != "" {
		b = fmt.Appendf(b, ",id=%s", f.ID)
	}
	if f.Marker != "" {
		b = fmt.Appendf(b, ",marker=%s", f.Marker)
	}
	if f.Times > 0 {
		b = fmt.Appendf(b, ",times=%d", f.Times)
	}
	return string(b)
}

// Target is something that a fault may apply to.
type Target struct {
	ID string
	// Prompt returns the text of the prompt; it is called only when a fault has a
	// marker.
	Prompt func() []byte
}

// Faults is the set of faults of an engine, and how often each struck. It has no lock
// of its own.
type Faults struct {
	list    []Fault
	struck  []uint64
	request uint64 // requests drawn for
	conn    uint64 // connections drawn for
}

// NewFaults returns a set. Ordinals count from its making.
func NewFaults(list []Fault) (*Faults, error) {
	for i := range list {
		if err := list[i].check(); err != nil {
			return nil, err
		}
	}
	return &Faults{list: list, struck: make([]uint64, len(list))}, nil
}

// Request draws for the next request. The first fault that matches strikes.
func (f *Faults) Request(t Target) (Fault, bool) {
	f.request++
	return f.draw(f.request, t, ofRequests)
}

// Connection draws for the next connection: whether it is refused, or never
// heard.
func (f *Faults) Connection() (Fault, bool) {
	f.conn++
	return f.draw(f.conn, Target{}, ofConnections)
}

// Storm returns how often all that generate are to be retracted, 0 for never.
func (f *Faults) Storm() time.Duration {
	for i, x := range f.list {
		if x.Kind == Retract && (x.Times == 0 || f.struck[i] < x.Times) {
			return cmp.Or(x.Every, defaultEvery)
		}
	}
	return 0
}

// Condition is the state that the faults keep the engine in.
type Condition struct {
	Wedged    bool // its whole loop stands still
	Hindrance      // what hinders the loop that goes on
	Idle      bool // it reports that it is idle
	Mute      bool // nobody hears its KV events
	Offload   bool // its KV events have placeholders
}

// Condition returns the engine's condition under the faults. Each of them counts as having
// taken effect once.
func (f *Faults) Condition() (c Condition) {
	for i, x := range f.list {
		switch {
		case x.Kind == Wedge && x.One:
			c.Still |= 1 << x.Rank
		case x.Kind == Wedge:
			c.Wedged = true
		case x.Kind == NoPrefill:
			c.NoPrefill = true
		case x.Kind == Drag:
			c.Drag = cmp.Or(x.By, defaultBy)
		case x.Kind == Idle:
			c.Idle = true
		case x.Kind == Mute:
			c.Mute = true
		case x.Kind == Offload:
			c.Offload = true
		default:
			continue
		}
		f.struck[i] = 1
	}
	return c
}

// Restart reports whether the engine must restart now. It does so once, or as often as the
// fault's settings ask for.
func (f *Faults) Restart() bool {
	for i, x := range f.list {
		if x.Kind == Restart && f.struck[i] < max(x.Times, 1) {
			f.struck[i]++
			return true
		}
	}
	return false
}

// Stormed counts that they were.
func (f *Faults) Stormed() {
	for i, x := range f.list {
		if x.Kind == Retract && (x.Times == 0 || f.struck[i] < x.Times) {
			f.struck[i]++
			return
		}
	}
}

func (f *Faults) draw(ordinal uint64, t Target, of scope) (Fault, bool) {
	for i, x := range f.list {
		if x.Kind.scope() != of || !x.matches(ordinal, uint64(i), t) || (x.Times > 0 && f.struck[i] >= x.Times) {
			continue
		}
		f.struck[i]++
		x.Delay = cmp.Or(x.Delay, x.Kind.defaultDelay())
		if x.Kind == Drip {
			x.Bytes = cmp.Or(x.Bytes, defaultBytes)
		}
		return x, true
	}
	return Fault{}, false
}

func (f *Fault) matches(ordinal, salt uint64, t Target) bool {
	switch {
	case f.Nth > 0 && f.Nth != ordinal,
		f.ID != "" && !strings.Contains(t.ID, f.ID),
		f.Rate > 0 && share(ordinal, salt) >= f.Rate:
		return false
	case f.Marker != "":
		return t.Prompt != nil && bytes.Contains(t.Prompt(), []byte(f.Marker))
	}
	return true
}

// share returns an even draw from [0, 1) for an ordinal (splitmix64), the same
// in every run.
func share(ordinal, salt uint64) float64 {
	z := (ordinal + salt<<32) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}

// Struck is how often each fault struck.
type Struck struct {
	Fault string `json:"fault"`
	Times uint64 `json:"times"`
}

// Report lists the faults in their order.
func (f *Faults) Report() []Struck {
	out := make([]Struck, len(f.list))
	for i, x := range f.list {
		out[i] = Struck{Fault: x.String(), Times: f.struck[i]}
	}
	return out
}
