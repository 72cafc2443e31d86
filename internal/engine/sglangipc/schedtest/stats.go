package schedtest

import (
	"encoding/binary"
	"math"
)

// Stats are the stamps of outputs as a scheduler with --enable-metrics pickles them: a list of
// objects, whose class and names are written once and then named by their places in the memo.
func Stats(outs []Output) []byte {
	const sinceEpoch = 1796003869.1387906 // of the clock, which differs from machine to machine
	b := []byte{']', 0x94}                // EMPTY_LIST, MEMOIZE
	memo := map[string]int{}
	memoized := 1
	text := func(s string) {
		if at, ok := memo[s]; ok {
			b = append(b, 'h', byte(at)) // BINGET
			return
		}
		b = append(append(b, 0x8c, byte(len(s))), s...) // SHORT_BINUNICODE
		b = append(b, 0x94)
		memo[s] = memoized
		memoized++
	}
	float := func(name string, v float64) {
		text(name)
		b = binary.BigEndian.AppendUint64(append(b, 'G'), math.Float64bits(v)) // BINFLOAT
	}
	if len(outs) > 1 {
		b = append(b, '(') // MARK
	}
	for i, o := range outs {
		if i == 0 {
			text("sglang.srt.observability.req_time_stats")
			text("SchedulerReqTimeStats")
			b = append(b, 0x93, 0x94) // STACK_GLOBAL
			memoized++
		} else {
			b = append(b, 'h', 3) // the class
		}
		b = append(b, ')', 0x81, 0x94, '}', 0x94, '(') // EMPTY_TUPLE, NEWOBJ, EMPTY_DICT, MARK
		memoized += 2
		text("has_timing_data")
		b = append(b, 0x88) // NEWTRUE
		float("wait_queue_entry_time", o.Queued)
		float("forward_entry_time", o.Forwarded)
		float("prefill_finished_time", o.Prefilled)
		float("queue_duration_s", 0)
		text("storage_prefetch_wait_s")
		b = append(b, 'N') // NONE
		text("storage_staging_wait_s")
		b = append(b, 'N')
		float("diff_realtime_monotonic", sinceEpoch)
		b = append(b, 'u', 'b') // SETITEMS, BUILD
	}
	switch {
	case len(outs) > 1:
		b = append(b, 'e') // APPENDS
	case len(outs) == 1:
		b = append(b, 'a') // APPEND
	}
	b = append(b, '.')                                                              // STOP
	head := binary.LittleEndian.AppendUint64([]byte{0x80, 4, 0x95}, uint64(len(b))) // PROTO, FRAME
	return append(head, b...)
}
