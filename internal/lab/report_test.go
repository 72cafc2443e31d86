//go:build linux

package lab

import (
	"strings"
	"testing"

	"weir/internal/lab/cell"
	"weir/internal/lab/client"
)

// A flood's figure is set against that of the same gateway without one.
func TestPrintFloods(t *testing.T) {
	var out strings.Builder
	PrintFloods(&out, []*client.Result{{Load: Alone, Gateway: Relay, P99: 2}, {Load: Alone, Gateway: Nginx, P99: 1}, {Load: cell.HangUps, Gateway: Relay, P99: 3, Flooded: 50}})
	if !strings.Contains(out.String(), "| hang-ups | weir relay | 50 | 3.00 | 2.00 | 1.50 | – |") || strings.Contains(out.String(), "| nginx |") {
		t.Errorf("%s", &out)
	}
	out.Reset()
	PrintFloods(&out, []*client.Result{{Load: Alone, Gateway: Relay, P99: 2}, {Load: Alone, Gateway: Nginx, P99: 1}, {Load: cell.HangUps, Gateway: Nginx, P99: 2, Flooded: 50}, {Load: cell.HangUps, Gateway: Relay, P99: 3, Flooded: 50}})
	if !strings.Contains(out.String(), "| hang-ups | weir relay | 50 | 3.00 | 2.00 | 1.50 | 2.00 |") {
		t.Errorf("%s", &out)
	}
	out.Reset()
	if PrintFloods(&out, []*client.Result{{Load: cell.HangUps, Gateway: Relay, P99: 3, Flooded: 50}}); out.Len() > 0 {
		t.Errorf("without a figure to compare with: %s", &out)
	}
}

func TestProbesOf(t *testing.T) {
	var lines strings.Builder
	lines.WriteString(`{"request_id":"stream-1","output_path_delay":99000000000}` + "\n")
	for _, ms := range []string{"3", "1", "2"} {
		lines.WriteString(`{"request_id":"probe-9","output_path_delay":` + ms + "000000}\n")
	}
	got, err := probesOf([]byte(lines.String()))
	if err != nil || got.Count != 3 || got.P99 != 2 && got.P99 != 3 || got.Max != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := probesOf([]byte(`{"request_id":"stream-1","output_path_delay":1}`)); err == nil {
		t.Error("a timeline without probes was taken")
	}
}

func TestMedians(t *testing.T) {
	m := Medians([]*client.Result{
		{Load: "a", Gateway: "x", P99: 3, Lost: 1}, {Load: "a", Gateway: "y", P99: 9},
		{Load: "a", Gateway: "x", P99: 1}, {Load: "a", Gateway: "x", P99: 2, Lost: 1},
	})
	if len(m) != 2 || m[0].P99 != 2 || m[0].Lost != 2 || m[1].P99 != 9 {
		t.Errorf("%+v %+v", m[0], m[1])
	}
}
