package vllmcore

import (
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine/mux"
	"weir/internal/infer"
)

// batch is one message of an engine, EngineCoreOutputs: the output of one step for all
// requests, or the answer to a call, or a notice about a wave. It is decoded in one
// pass without allocating, into buffers that are reused; its slices point into the
// message's bytes.
//
// Its structures are positional and grow at the end. Positions that moved between
// versions are recognized by their content.
type batch struct {
	rank      int
	timestamp int64 // engine's clock, ns
	outputs   []output
	ids       []uint32 // of all outputs
	message   []byte

	drafts   bool // the statistics have something of drafts
	stats    bool // the three below were said
	running  int
	waiting  int
	kvUsage  float64
	utility  bool // an answer to a call
	call     int64
	failure  []byte // why the call failed; empty: it did not
	refused  bool   // what the call gave is false
	waves    bool   // word of a wave
	complete int64  // the wave that has ended; -1: none
	start    int64  // the wave to start; -1: none
}

// output is what a batch says of one request.
type output struct {
	id       []byte
	from, to uint32 // of the batch's ids
	// Where the message has their log probabilities, as the engine encoded them; two
	// zeros: nowhere. An output is small, as there are thousands of them.
	scores, scoresEnd uint32
	// Where the message has its kv_transfer_params, likewise.
	transfer, transferEnd uint32
	finish                int // one of the finish reasons; -1 while it runs
	stop                  stopReason

	queued, scheduled int64 // engine's clock, ns; 0: not reported
	preempted         int   // times since the output before
	// For the first prefill; -1: not reported.
	promptTokens, cachedTokens int
	// With finishError, of versions that say it.
	errorCode, errorText []byte
}

// stopReason is the id or the word that ended a generation.
type stopReason struct {
	given bool
	isID  bool
	id    int64
	word  []byte
}

// The finish reasons of the wire.
const (
	finishStop       = 0
	finishLength     = 1
	finishAbort      = 2
	finishError      = 3
	finishRepetition = 4
)

// The positions that have been the same in every version.
const (
	posLogprobs    = 2
	posFinish      = 5
	posStop        = 6
	posEvents      = 7
	posTransfer    = 8
	posMoving      = 9 // from here on fields are recognized by their content
	outputsMinimum = 8
	batchMinimum   = 4
)

var errNoID = errors.New("an id that is not a 32-bit number")

// logprobs returns an output's log probabilities as they were encoded.
func (d *batch) logprobs(o *output) []byte { return d.message[o.scores:o.scoresEnd] }

// params returns an output's kv_transfer_params as they were encoded.
func (d *batch) params(o *output) []byte { return d.message[o.transfer:o.transferEnd] }

// The number of elements to make room for in a batch, which the message before has filled.
const (
	keepOutputs = 1 << 15
	keepIDs     = 1 << 16
)

// decode takes in the first frame of a message.
func (d *batch) decode(b []byte) error {
	d.outputs, d.ids, d.message = infer.Reuse(d.outputs, keepOutputs), infer.Reuse(d.ids, keepIDs), b
	d.stats, d.utility, d.waves = false, false, false
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return fmt.Errorf("outputs: %w", err)
	}
	if n < batchMinimum {
		return fmt.Errorf("outputs: %d fields, want at least %d", n, batchMinimum)
	}
	for i := range n {
		if i != 0 && i != 3 && len(b) > 0 && b[0] == msgpNil {
			b = b[1:]
			continue
		}
		if b, err = d.field(int(i), b); err != nil {
			return fmt.Errorf("outputs: field %d: %w", i, err)
		}
	}
	if len(b) > 0 {
		return fmt.Errorf("outputs: %d bytes after the end", len(b))
	}
	return nil
}

const (
	msgpNil   = 0xc0
	msgpFalse = 0xc2
)

func (d *batch) field(i int, b []byte) ([]byte, error) {
	switch i {
	case 0:
		rank, b, err := msgp.ReadInt64Bytes(b)
		if err == nil && (rank < 0 || rank > math.MaxUint16) {
			return b, fmt.Errorf("engine_index %d", rank)
		}
		d.rank = int(rank)
		return b, err
	case 1:
		return d.all(b)
	case 2:
		return d.schedulerStats(b)
	case 3:
		at, b, err := readSeconds(b)
		d.timestamp = at
		return b, err
	case 4:
		return d.answer(b)
	case 6, 7:
		wave, b, err := msgp.ReadInt64Bytes(b)
		if !d.waves {
			d.waves, d.complete, d.start = true, -1, -1
		}
		if i == 6 {
			d.complete = wave
		} else {
			d.start = wave
		}
		return b, err
	}
	return msgp.Skip(b)
}

// all takes in the outputs.
func (d *batch) all(b []byte) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return b, err
	}
	if n > mux.MaxRequests {
		return b, fmt.Errorf("outputs of %d requests, of at most %d", n, mux.MaxRequests)
	}
	for i := range n {
		if b, err = d.one(b); err != nil {
			return b, fmt.Errorf("output %d: %w", i, err)
		}
	}
	return b, nil
}

// one takes in one output.
func (d *batch) one(b []byte) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return b, err
	}
	if n < outputsMinimum {
		return b, fmt.Errorf("%d fields, want at least %d", n, outputsMinimum)
	}
	d.outputs = append(d.outputs, output{finish: -1, promptTokens: -1, cachedTokens: -1})
	o := &d.outputs[len(d.outputs)-1]
	if o.id, b, err = msgp.ReadStringZC(b); err != nil {
		return b, fmt.Errorf("request_id: %w", err)
	}
	o.from = uint32(len(d.ids))
	if d.ids, b, err = readIDs(d.ids, b); err != nil {
		return b, fmt.Errorf("new_token_ids: %w", err)
	}
	o.to = uint32(len(d.ids))
	for i := 2; i < int(n); i++ {
		if len(b) > 0 && b[0] == msgpNil {
			b = b[1:]
			continue
		}
		at := uint32(len(d.message) - len(b))
		switch i {
		case posLogprobs:
			// Whether they are wanted, and how many, is the request's to know.
			b, err = msgp.Skip(b)
			o.scores, o.scoresEnd = at, uint32(len(d.message)-len(b))
		case posTransfer:
			b, err = msgp.Skip(b)
			o.transfer, o.transferEnd = at, uint32(len(d.message)-len(b))
		default:
			b, err = o.field(i, b)
		}
		if err != nil {
			return b, fmt.Errorf("field %d: %w", i, err)
		}
	}
	return b, nil
}

// field takes in a field that is not nil.
func (o *output) field(i int, b []byte) ([]byte, error) {
	switch {
	case i == posFinish:
		finish, b, err := msgp.ReadIntBytes(b)
		if err == nil && (finish < finishStop || finish > finishRepetition) {
			return b, fmt.Errorf("finish_reason %d", finish)
		}
		o.finish = finish
		return b, err
	case i == posStop:
		return o.stop.read(b)
	case i == posEvents:
		return o.events(b)
	case i >= posMoving && len(b) > 0 && isMap(b[0]):
		return o.record(b)
	}
	return msgp.Skip(b)
}

func (s *stopReason) read(b []byte) (rest []byte, err error) {
	s.given = true
	if msgp.NextType(b) == msgp.StrType {
		s.word, rest, err = msgp.ReadStringZC(b)
		return rest, err
	}
	s.isID = true
	s.id, rest, err = msgp.ReadInt64Bytes(b)
	return rest, err
}

// The events of a request.
const (
	eventQueued    = 1
	eventScheduled = 2
	eventPreempted = 3
)

// events notes when the request was queued and when it was first scheduled.
func (o *output) events(b []byte) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	for range n {
		if err != nil {
			return b, err
		}
		var kind, at int64
		b, err = eachField(b, func(name, b []byte) ([]byte, error) {
			var err error
			switch string(name) {
			case "type":
				kind, b, err = msgp.ReadInt64Bytes(b)
			case "timestamp":
				at, b, err = readSeconds(b)
			default:
				b, err = msgp.Skip(b)
			}
			return b, err
		})
		switch {
		case kind == eventQueued && o.queued == 0:
			o.queued = at
		case kind == eventScheduled && o.scheduled == 0:
			o.scheduled = at
		case kind == eventPreempted:
			o.preempted++
		}
	}
	return b, err
}

// record takes in a map at one of the moving positions. Prefill statistics and
// errors are told by their first field; the rest is skipped.
func (o *output) record(b []byte) ([]byte, error) {
	_, inner, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return b, err
	}
	first, _, err := readName(inner)
	if err != nil {
		return msgp.Skip(b) // {} or a map with other keys
	}
	switch string(first) {
	case "num_prompt_tokens":
		return eachField(b, func(name, b []byte) ([]byte, error) {
			var err error
			switch string(name) {
			case "num_prompt_tokens":
				o.promptTokens, b, err = msgp.ReadIntBytes(b)
			case "num_cached_tokens":
				o.cachedTokens, b, err = msgp.ReadIntBytes(b)
			default:
				b, err = msgp.Skip(b)
			}
			return b, err
		})
	case "code":
		return eachField(b, func(name, b []byte) ([]byte, error) {
			var err error
			switch string(name) {
			case "code":
				o.errorCode, b, err = msgp.ReadStringZC(b)
			case "message":
				o.errorText, b, err = msgp.ReadStringZC(b)
			default:
				b, err = msgp.Skip(b)
			}
			return b, err
		})
	}
	return msgp.Skip(b)
}

func (d *batch) schedulerStats(b []byte) ([]byte, error) {
	d.stats, d.drafts, d.running, d.waiting, d.kvUsage = true, false, 0, 0, 0
	return eachField(b, func(name, b []byte) ([]byte, error) {
		var err error
		switch string(name) {
		case "num_running_reqs":
			d.running, b, err = msgp.ReadIntBytes(b)
		case "num_waiting_reqs":
			var n int
			n, b, err = msgp.ReadIntBytes(b)
			d.waiting += n
		case "num_skipped_waiting_reqs":
			var n int
			n, b, err = msgp.ReadIntBytes(b)
			d.waiting += n
		case "spec_decoding_stats":
			d.drafts = !msgp.IsNil(b)
			b, err = msgp.Skip(b)
		case "kv_cache_usage":
			d.kvUsage, b, err = readFloat(b)
			if !(d.kvUsage >= 0 && d.kvUsage <= 1) {
				d.kvUsage = -1 // no share; no JSON has a word for a NaN
			}
		default:
			b, err = msgp.Skip(b)
		}
		return b, err
	})
}

// answer reads the answer to a call: an error, or a result, of which only false is
// reported. For a fence any answer counts.
func (d *batch) answer(b []byte) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil || n == 0 {
		return b, errors.Join(err, errEmptyAnswer(n))
	}
	d.utility, d.failure, d.refused = true, nil, false
	if d.call, b, err = msgp.ReadInt64Bytes(b); err != nil {
		return b, err
	}
	for i := range n - 1 {
		switch {
		case i == 0 && msgp.NextType(b) == msgp.StrType:
			d.failure, b, err = msgp.ReadStringZC(b)
		case i == 1 && len(b) > 2 && b[0] == 0x92 && b[1] == msgpNil: // [its type, the value]
			d.refused = b[2] == msgpFalse
			fallthrough
		default:
			b, err = msgp.Skip(b)
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

func errEmptyAnswer(n uint32) error {
	if n > 0 {
		return nil
	}
	return errors.New("an answer to no call")
}

// rankOf reads only which engine a message is from; -1 if not reported.
func rankOf(b []byte) int {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil || n == 0 {
		return -1
	}
	rank, _, err := msgp.ReadInt64Bytes(b)
	if err != nil || rank < 0 || rank > math.MaxUint16 {
		return -1
	}
	return int(rank)
}

// readIDs appends an array of ids. It is where a message's bytes are spent, one
// to five an id.
func readIDs(ids []uint32, b []byte) ([]uint32, []byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return ids, b, err
	}
	for range n {
		if len(b) == 0 {
			return ids, b, msgp.ErrShortBytes
		}
		switch c := b[0]; {
		case c < 0x80:
			ids, b = append(ids, uint32(c)), b[1:]
		case c == 0xcd && len(b) >= 3:
			ids, b = append(ids, uint32(b[1])<<8|uint32(b[2])), b[3:]
		case c == 0xce && len(b) >= 5:
			ids, b = append(ids, uint32(b[1])<<24|uint32(b[2])<<16|uint32(b[3])<<8|uint32(b[4])), b[5:]
		default:
			var id uint64
			if id, b, err = msgp.ReadUint64Bytes(b); err != nil {
				return ids, b, err
			}
			if id > math.MaxUint32 {
				return ids, b, errNoID
			}
			ids = append(ids, uint32(id))
		}
	}
	return ids, b, nil
}

func isMap(c byte) bool { return c&0xf0 == 0x80 || c == 0xde || c == 0xdf }

// eachField has f read each value of a map with names for keys; f gives what is
// left after it.
func eachField(b []byte, f func(name, b []byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return b, err
	}
	for range n {
		var name []byte
		if name, b, err = readName(b); err != nil {
			return b, err
		}
		if b, err = f(name, b); err != nil {
			return b, fmt.Errorf("%q: %w", name, err)
		}
	}
	return b, nil
}

func readName(b []byte) (name, rest []byte, err error) {
	if msgp.NextType(b) != msgp.StrType {
		return nil, b, errors.New("a key that is not a name")
	}
	return msgp.ReadStringZC(b)
}

// readFloat reads a number that Python may have written as an integer.
func readFloat(b []byte) (float64, []byte, error) {
	switch msgp.NextType(b) {
	case msgp.IntType, msgp.UintType:
		n, b, err := msgp.ReadInt64Bytes(b)
		return float64(n), b, err
	}
	return msgp.ReadFloat64Bytes(b)
}

// readSeconds reads a time in seconds and gives it in nanoseconds.
func readSeconds(b []byte) (int64, []byte, error) {
	s, b, err := readFloat(b)
	if err != nil {
		return 0, b, err
	}
	ns := s * 1e9
	if !(ns >= 0 && ns < math.MaxInt64) {
		return 0, b, fmt.Errorf("a time of %v s", s)
	}
	return int64(ns), b, nil
}
