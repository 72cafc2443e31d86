//go:build linux

package flood

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"weir/internal/lab/cell"
)

// A flood's requests are whole requests of their kind, and name no stream of the client's.
func TestRequests(t *testing.T) {
	for _, kind := range []string{cell.HangUps, cell.BadBodies, cell.OneToken} {
		c := &cell.Cell{Load: cell.Load{Streams: 10, Probes: 2, Flood: kind}, Gateway: "127.0.0.1:1"}
		f := &flood{cell: c}
		for n := range int64(3 * c.Capacity()) {
			if testing.Short() && n%97 > 2 && n > 300 { // one goroutine: all of them without the race detector
				continue
			}
			r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(f.request(n))))
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			body, err := io.ReadAll(r.Body)
			if err != nil || len(body) == 0 {
				t.Fatalf("%s: %v: %s", kind, err, body)
			}
			var said struct {
				Seed int `json:"seed"`
				Most int `json:"max_tokens"`
			}
			err = json.Unmarshal(body, &said)
			switch {
			case kind == cell.BadBodies && err == nil:
				t.Fatalf("%s is JSON", body)
			case kind != cell.BadBodies && (err != nil || said.Seed < c.Clients() || said.Seed >= c.Capacity() || said.Most != 1):
				t.Fatalf("%v: %s", err, body)
			}
		}
	}
}
