package offline

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// line is a record as one line of JSON. Stamps and durations are nanoseconds,
// under the names they have everywhere in weir.
type line struct {
	RequestID   string `json:"request_id"` // the place in the workload, from 1
	Line        int    `json:"line,omitempty"`
	Prompt      int    `json:"prompt_tokens"`
	Cached      int    `json:"cached_tokens"`
	Completion  int    `json:"completion_tokens"`
	Reason      string `json:"finish_reason,omitempty"`
	Retractions int    `json:"retractions"`
	Error       string `json:"error,omitempty"`

	Arrival     int64 `json:"arrival_time"`
	QueueStart  int64 `json:"queue_time_start,omitempty"`
	QueueEnd    int64 `json:"queue_time_end,omitempty"`
	Prefill     int64 `json:"prefill_start_time,omitempty"`
	PrefillEnd  int64 `json:"prefill_end_time,omitempty"`
	First       int64 `json:"server_first_token_time,omitempty"`
	Finish      int64 `json:"finish_time,omitempty"`
	TTFT        int64 `json:"ttft,omitempty"`
	TPOT        int64 `json:"tpot,omitempty"`
	PureQueue   int64 `json:"pure_queue_time"`
	ServerTotal int64 `json:"server_latency,omitempty"`
}

// WriteJSONL writes the record as one line of JSON.
func (r *Record) WriteJSONL(w io.Writer) error {
	l := line{
		RequestID: strconv.Itoa(r.Index + 1), Line: r.Line,
		Prompt: r.Input, Cached: r.Cached, Completion: r.Output, Reason: string(r.Reason), Retractions: r.Retractions,
		Arrival: r.Arrival,
	}
	if r.Refused != nil {
		l.Error = r.Refused.Error()
	} else {
		s := r.Stamps
		l.QueueStart, l.QueueEnd, l.Prefill, l.PrefillEnd, l.First, l.Finish = s.QueueStart, s.QueueEnd, s.PrefillStart, s.PrefillEnd, s.FirstToken, r.Finish
		l.TTFT, l.TPOT, l.PureQueue, l.ServerTotal = int64(r.TTFT()), int64(r.TPOT()), s.QueueEnd-s.QueueStart, r.Finish-r.Arrival
	}
	b, err := json.Marshal(&l)
	if err != nil {
		return fmt.Errorf("encode record %d: %w", r.Index+1, err)
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
