package attempt

import (
	"testing"

	"weir/internal/gateway/drive"
	"weir/internal/gateway/place"
	"weir/internal/gateway/record"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// A stream that waits keeps no room for a large delta.
func TestCellsAreTrimmed(t *testing.T) {
	const ids = 50_000
	l := &tokenLeg{
		engineWait: engineWait{of: new(Attempts), booking: new(place.Booking), rec: &record.Request{Record: new(trace.Record)}},
		cells:      []stream.Cell{{IDs: make([]uint32, ids), Logprobs: &infer.Logprobs{Top: make([]float32, 4*ids)}}},
	}
	if ok, err := l.Take(new(drive.Hand), 1); ok || err != nil {
		t.Fatal(ok, err)
	}
	if c := &l.cells[0]; cap(c.IDs) > 8<<10 || c.Logprobs != nil && cap(c.Logprobs.Top) > 64<<10 {
		t.Errorf("it keeps room for %d ids", cap(c.IDs))
	}
}
