package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/engine/vllmcore/coretest"
	"weir/internal/trace"
)

// Said is the sentence that an engine core repeats.
const Said = "The quick brown fox jumps over the lazy dog and counts to seven. "

// Sayer is what engines in this process that say the sentence share. They say one
// id an output and all that was asked for at once, or the first id only while they
// hold back.
type Sayer struct {
	T   *testing.T
	IDs []uint32 // of the sentence

	still    sync.RWMutex // held while the engines stand still
	mu       sync.Mutex
	holdBack bool
	aborted  int
}

// SaidIDs tokenizes the sentence.
func SaidIDs(t testing.TB) (ids []uint32) {
	t.Helper()
	printed, stderr, code := Tokenize(t, Said, "-")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if err := json.Unmarshal([]byte(printed), &ids); err != nil {
		t.Fatal(err)
	}
	return ids
}

// NewSayer tokenizes the sentence.
func NewSayer(t *testing.T) *Sayer { return &Sayer{T: t, IDs: SaidIDs(t)} }

// Hear counts requests that were aborted, and reports whether to hold back.
func (c *Sayer) Hear(aborted int) (holdBack bool) {
	c.still.RLock()
	defer c.still.RUnlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted += aborted
	return c.holdBack
}

// Hold makes the engines hold back, or not.
func (c *Sayer) Hold(back bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holdBack = back
}

// Stand has the engines stand still as stopped processes do, connected and without reading
// anything, until goOn is called or the test ends.
func (c *Sayer) Stand() (goOn func()) {
	c.still.Lock()
	goOn = sync.OnceFunc(c.still.Unlock)
	c.T.Cleanup(goOn)
	return goOn
}

// WereAborted returns how many requests were aborted.
func (c *Sayer) WereAborted() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aborted
}

// Cores are vLLM engine cores in this process.
type Cores struct {
	*Sayer
	adapters map[string]int // requests by the adapter that they carry; the sayer's mutex guards it
}

// NewCores returns no core yet.
func NewCores(t *testing.T) *Cores { return &Cores{NewSayer(t), map[string]int{}} }

// Start connects a core. Where o has a Receive, it is called before the core takes a message
// in, and may wait.
func (c *Cores) Start(o coretest.Options) *coretest.Core {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), time.Minute)
	defer cancel()
	before := o.Receive
	o.Receive = func(core *coretest.Core, m coretest.Message) {
		if before != nil {
			before(core, m)
		}
		c.receive(core, m)
	}
	core, err := coretest.Start(ctx, o)
	if err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(core.Close)
	return core
}

// Adapters returns how many requests carried each adapter, by name=path.
func (c *Cores) Adapters() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.adapters)
}

func (c *Cores) receive(core *coretest.Core, m coretest.Message) {
	holdBack := c.Hear(len(m.Abort))
	if l := m.Add.Adapter; l != nil {
		c.mu.Lock()
		c.adapters[l.Name+"="+l.Path]++
		c.mu.Unlock()
	}
	if m.Type == 3 {
		b := coretest.Batch{Call: m.Call, Given: true}
		if l := m.Adapter; l != nil && !strings.HasPrefix(l.Path, "/adapters/") {
			b.Failure = "Call to add_lora method failed: there is no " + l.Path
		}
		core.Send(b)
	}
	if m.Type != 0 {
		return
	}
	now := trace.Now()
	limit := int(coretest.Number(m.Add.Sampling["max_tokens"]))
	for i := range limit {
		o := coretest.Output{ID: m.Add.ID, IDs: []uint32{c.IDs[i%len(c.IDs)]}, Finish: -1}
		if i == 0 {
			o.Prompt, o.Cached, o.Queued, o.Scheduled = len(m.Add.Prompt), 1, now, now+1
		}
		if i == limit-1 {
			o.Finish = 1
		}
		core.Send(coretest.Batch{Outputs: []coretest.Output{o}})
		if holdBack {
			return
		}
	}
}

// SocketDir returns a folder whose path is short enough for that of a socket in it.
func SocketDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "vc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// ShortTemp returns a SocketDir, and an environment in which weir puts its own
// sockets there.
func ShortTemp(t testing.TB) (dir string, env []string) {
	dir = SocketDir(t)
	return dir, []string{"TMPDIR=" + dir, "XDG_RUNTIME_DIR="}
}

// LosesEngine wants a hang-up to reach the gateway's only engine, and a stream
// whose engine dies to end with an error. The gateway is not ready afterwards.
func (g *Gateway) LosesEngine(s *Sayer, kill func()) {
	g.T.Helper()
	s.Hold(true)
	g.Begun().Body.Close()
	Eventually(g.T, "aborted", func() bool { return s.WereAborted() == 1 })

	cut := g.Begun()
	kill()
	rest := Read(cut)
	if _, done := Streamed(rest); done || !bytes.Contains(rest.Body, []byte(`"error"`)) {
		g.T.Errorf("a stream whose engine died: %s, %v", rest.Body, rest.Err)
	}
	Eventually(g.T, "not ready", func() bool { return Get(g.T, g.Admin+"/readyz").Status != http.StatusOK })
	s.Hold(false)
}
