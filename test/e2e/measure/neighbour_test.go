//go:build measure

package measure

import (
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
	"weir/test/e2e/neighbour"
)

// The bad-neighbour matrix: 512 good streams alone, and then beside a neighbour. Each is
// whole, and the gateway's memory stays below what docs/operating.md states. On a quiet
// machine the 99th percentile of the times to the first word, and that of the words'
// lateness, is at most twice what it was alone; the figures are printed in any case.
func TestBadNeighbours(t *testing.T) {
	const streams, tokens, step, phase = 512, 40, 50 * time.Millisecond, 6 * time.Second
	limits := neighbour.Memory(t)
	for _, p := range neighbour.Protocols {
		for _, kind := range neighbour.Kinds {
			t.Run(string(p)+" "+string(kind), func(t *testing.T) {
				harness.Beside(t, harness.Alone)
				b := neighbour.Make(t, neighbour.Options{Protocol: p, Path: "plane", Streams: streams, Tokens: tokens, Step: step})
				phases := map[string]neighbour.CPU{"alone": b.Phase("alone", phase)}
				n := b.Bad(kind, neighbour.Full(t, kind))
				phases["beside"] = b.Phase("beside", phase)
				standing, answers := n.End()
				if kind == neighbour.Idle && standing < 15_000 {
					t.Errorf("%d idle connections, want at least 15,000: raise the limit of descriptors (ulimit -n)", standing)
				}
				peak := b.Peak()
				times := b.End()
				name := strings.Join([]string{"neighbour", string(p), strings.ReplaceAll(string(kind), " ", "-")}, "/")
				for _, phase := range []string{"alone", "beside"} {
					figure(name+"/"+phase+"/ttft-p99", times[phase].TTFT99, "ms")
					figure(name+"/"+phase+"/late-p99", times[phase].Late99, "ms")
					t.Logf("%s: %+v; CPUs %+v", phase, times[phase], phases[phase])
				}
				figure(name+"/memory", float64(peak)/1e6, "MB")
				alone, beside := times["alone"], times["beside"]
				t.Logf("%d standing, %v", standing, answers)
				others := max(phases["alone"].Others, phases["beside"].Others)
				if peak > limits[kind] {
					t.Errorf("%d MB resident, the docs say at most %d", peak/1e6, limits[kind]/1e6)
				}
				switch {
				case others > 0.25:
					t.Logf("not judged: others took %.2f CPUs", others)
				case beside.TTFT99 > 2*alone.TTFT99:
					t.Errorf("TTFT p99 %.1f ms, alone %.1f", beside.TTFT99, alone.TTFT99)
				case beside.Late99 > 2*alone.Late99:
					t.Errorf("lateness p99 %.1f ms, alone %.1f", beside.Late99, alone.Late99)
				}
			})
		}
	}
}
