package sglangipc

import (
	"encoding/binary"
	"math"

	"weir/internal/infer"
)

// times are a scheduler's stamps of a request, in seconds of the clock that Python's performance
// counter reads: CLOCK_MONOTONIC, which all processes of a machine share. Zero is not known.
type times [numTimes]float64

// The stamps that are read.
const (
	queued    = iota // entered the waiting queue
	forwarded        // its first prefill began
	prefilled        // its last prefill ended, and brought the first id
	numTimes
)

var timeNames = [numTimes]string{queued: "wait_queue_entry_time", forwarded: "forward_entry_time", prefilled: "prefill_finished_time"}

// stamp adds the stamps to those of a request, or of a half of one.
func (t *times) stamp(s *infer.Stamps, role infer.Role) {
	set := func(to *int64, seconds float64) {
		if *to == 0 && seconds > 0 && seconds < math.MaxInt64/1e9 {
			*to = int64(seconds * 1e9)
		}
	}
	set(&s.QueueStart, t[queued])
	set(&s.QueueEnd, t[forwarded])
	set(&s.PrefillStart, t[forwarded])
	set(&s.PrefillEnd, t[prefilled])
	set(&s.FirstToken, t[prefilled])
	s.Met(role)
}

// The opcodes of Python's pickles, protocol 4 and 5, that a list of a scheduler's time stats has. An
// operand of n bytes follows some.
var pickleOperands = [256]int8{
	0x80: 1,                         // PROTO
	0x95: 8,                         // FRAME
	'J':  4, 'K': 1, 'M': 2, 'G': 8, // BININT, BININT1, BININT2, BINFLOAT
	'h': 1, 'j': 4, // BINGET, LONG_BINGET
}

// readStats reads the stamps of outputs from a pickled list of objects, one for each, whose states
// are flat dictionaries. Nothing is executed, and nothing allocated. It reports false if the pickle
// has another shape: then the outputs have no stamps.
//
// A name that was written once is later a number, its place in the memo.
func readStats(b []byte, outs []output) (ok bool) {
	defer func() {
		for i := range outs {
			if !ok {
				outs[i].times = times{}
			}
		}
	}()
	memo := [numTimes]int{-1, -1, -1}
	memoized, objects := 0, 0
	var at *times
	key := -1 // the name whose value comes next
	for len(b) > 0 {
		op := b[0]
		b = b[1:]
		n := int(pickleOperands[op])
		if op == 0x8c { // SHORT_BINUNICODE
			if len(b) == 0 {
				return false
			}
			n, b = int(b[0]), b[1:]
		}
		if n > len(b) {
			return false
		}
		operand := b[:n]
		b = b[n:]
		was := key
		key = -1
		switch op {
		case 0x80, 0x95: // PROTO, FRAME: between any two
			key = was
		case 0x8c:
			key = named(operand)
		case 0x94: // MEMOIZE
			if key = was; key >= 0 {
				memo[key] = memoized
			}
			memoized++
		case 'h', 'j':
			place := int(operand[0])
			if op == 'j' {
				place = int(binary.LittleEndian.Uint32(operand))
			}
			for k, has := range memo {
				if has == place {
					key = k
				}
			}
		case 'G':
			if was >= 0 && at != nil {
				at[was] = math.Float64frombits(binary.BigEndian.Uint64(operand))
			}
		case 0x81: // NEWOBJ
			if objects == len(outs) {
				return false
			}
			at = &outs[objects].times
			*at = times{}
			objects++
		case 'b': // BUILD: its state is whole
			at = nil
		case '.': // STOP
			return len(b) == 0 && objects == len(outs)
		case '(', ')', ']', '}', 'N', 'J', 'K', 'M', 0x88, 0x89, 0x93, 'a', 'e', 's', 'u', 0x85, 0x86, 0x87, 't': // of which nothing is needed
		default:
			return false
		}
	}
	return false
}

func named(text []byte) int {
	for k, name := range timeNames {
		if string(text) == name {
			return k
		}
	}
	return -1
}
