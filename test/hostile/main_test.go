//go:build linux

// Package hostile attacks the built binary, and looks at what is left behind. Each part starts
// weir, sends its attacks, which are rows of testdata, and then wants goroutines, descriptors,
// connections and requests back at their baseline, the live heap near it, and the peak of
// resident memory below the part's bound.
package hostile

import (
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

var (
	duration = flag.Duration("for", 30*time.Second, "how long the grammar's attacks last, from the start of the first part")
	seedFlag = flag.Uint64("seed", 0, "seed of the grammar's attacks; 0 draws one")
	only     = flag.String("row", "", "only rows whose title has this text")
)

func TestMain(m *testing.M) {
	if flag.Parse(); testing.Short() {
		os.Exit(m.Run()) // nothing to build
	}
	harness.Main(m)
}

// parts are the parts of the corpus. They run beside each other, each with processes of its own.
var parts = []struct {
	name string
	run  func(t *testing.T)
}{
	{"wire", testWire},
	{"http2", testHTTP2},
	{"engine", testEngine},
	{"bench", testBench},
	{"sockets", testSockets},
	{"slow", testSlow},
	{"files", testFiles},
	{"store", testStore},
	{"model", testModel},
	{"peers", testPeers},
	{"proxy", testProxy},
	{"killed", testKilled},
}

// start is when the first part began; seed is that of all that is drawn.
var (
	start time.Time
	seed  uint64
)

// TestHostile runs all parts.
func TestHostile(t *testing.T) {
	if testing.Short() {
		t.Skip("no part runs with -short: make hostile runs them all")
	}
	if start, seed = time.Now(), *seedFlag; seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d: go test ./test/hostile -args -for %v -seed %d", seed, *duration, seed)
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { t.Logf("%s over after %.1f s", p.name, time.Since(start).Seconds()) })
			p.run(t)
		})
	}
}

// random is a source of random numbers that the seed and a name determine.
func random(name string) *rand.Rand {
	var s [32]byte
	copy(s[8:], name)
	for i := range 8 {
		s[i] = byte(seed >> (8 * i))
	}
	return rand.New(rand.NewChaCha8(s))
}
