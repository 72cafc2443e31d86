//go:build interop

package kvevents

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir/internal/fleet/kvevents"
	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// read is a batch as SGLang's own classes have it.
type read struct {
	Live   bool // heard, and not asked for
	Seq    uint64
	Rank   int
	TS     float64
	Events []struct {
		Tag       string
		Hashes    []int64  `json:"block_hashes"`
		Parent    *int64   `json:"parent_block_hash"`
		TokenIDs  []uint32 `json:"token_ids"`
		BlockSize int      `json:"block_size"`
	}
}

// reader is SGLang's reader, which listens.
type reader struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Scanner

	heard []read // while it was asked for others
}

func startReader(t *testing.T, file, endpoint, replay string) *reader {
	t.Helper()
	cmd := exec.Command(python(), "reader.py", file, endpoint, replay, "kv@m")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r := &reader{t: t}
	var err error
	if r.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	r.out = bufio.NewScanner(out)
	r.out.Buffer(nil, 1<<22)
	if line := r.line(); line != "ready" {
		t.Fatalf("the reader says %q", line)
	}
	return r
}

func (r *reader) line() string {
	r.t.Helper()
	if !r.out.Scan() {
		r.t.Fatalf("the reader has ended: %v", r.out.Err())
	}
	return r.out.Text()
}

func (r *reader) batch(line string) (b read) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(line), &b); err != nil {
		r.t.Fatalf("%v: %s", err, line)
	}
	return b
}

// next is the next batch that is heard.
func (r *reader) next() read {
	r.t.Helper()
	if len(r.heard) == 0 {
		return r.batch(r.line())
	}
	b := r.heard[0]
	r.heard = r.heard[1:]
	return b
}

// ask asks for all batches from the first one on.
func (r *reader) ask() *cache {
	r.t.Helper()
	c := &cache{t: r.t, prompt: map[int64][]uint32{}}
	fmt.Fprintln(r.in, 0)
	for line := r.line(); line != "end"; line = r.line() {
		if b := r.batch(line); b.Live {
			r.heard = append(r.heard, b)
		} else {
			c.take(b)
		}
	}
	return c
}

// cache is what a reader knows of one by its events.
type cache struct {
	t      *testing.T
	prompt map[int64][]uint32 // up to the end of each block
	next   uint64
}

// take takes a batch, and wants it to follow the one before.
func (c *cache) take(b read) {
	c.t.Helper()
	if b.Seq != c.next || b.Rank != 0 || b.TS < 1e9 {
		c.t.Fatalf("batch %d of rank %d at %v, want %d", b.Seq, b.Rank, b.TS, c.next)
	}
	c.next++
	for _, e := range b.Events {
		switch e.Tag {
		case "AllBlocksCleared":
			clear(c.prompt)
		case "BlockRemoved":
			for _, h := range e.Hashes {
				if _, ok := c.prompt[h]; !ok {
					c.t.Errorf("%x is removed, and was not there", h)
				}
				delete(c.prompt, h)
			}
		case "BlockStored":
			var before []uint32
			if e.Parent != nil {
				var ok bool
				if before, ok = c.prompt[*e.Parent]; !ok {
					c.t.Errorf("it follows %x, which is not there", *e.Parent)
				}
			}
			if len(e.TokenIDs) != len(e.Hashes)*e.BlockSize || e.BlockSize != 16 {
				c.t.Fatalf("%d ids in %d blocks of %d", len(e.TokenIDs), len(e.Hashes), e.BlockSize)
			}
			for i, h := range e.Hashes {
				before = slices.Concat(before, e.TokenIDs[i*16:(i+1)*16])
				c.prompt[h] = before
				// SGLang's publisher in publisher.py names it so, too.
				if len(before) == 16 && uint64(h) != kvevents.FirstHash(before) {
					c.t.Errorf("%v is named %x", before, h)
				}
			}
		default:
			c.t.Errorf("an event %q", e.Tag)
		}
	}
}

// SGLang's own classes read the events that the simulated engine publishes, over libzmq, in the
// form of either release: live and replayed, while it evicts, clears, and begins anew.
func TestEngineIsRead(t *testing.T) {
	for form, file := range releases(t) {
		t.Run(form, func(t *testing.T) {
			release := map[string]string{"array": "0.5.3", "map": "0.5.23"}[form]
			port := freePort(t)
			events, replay := fmt.Sprintf("tcp://127.0.0.1:%d", port), fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))
			p := harness.Start(t, "engine", "--wire", "sglang=127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--sglang-version", release,
				"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "1ms", "--max-total-tokens", "1024",
				"--kv-events-config", `{"endpoint":"`+events+`","replay_endpoint":"`+replay+`","topic":"kv@m"}`)
			url, admin := p.Line("sglang"), p.Line("admin")
			r := startReader(t, file, events, replay)
			known := &cache{t: t, prompt: map[int64][]uint32{}}
			ask := func(ids []uint32) {
				t.Helper()
				text := strings.ReplaceAll(fmt.Sprint(ids), " ", ",")
				a := harness.Post(t, url+"/generate", `{"input_ids":`+text+`,"sampling_params":{"max_new_tokens":20,"ignore_eos":true}}`)
				if a.Status != http.StatusOK {
					t.Fatalf("%d %s", a.Status, a.Body)
				}
			}
			// until takes what is heard until the cache has a prompt's whole blocks, or has
			// nothing.
			until := func(ids []uint32) {
				t.Helper()
				has := func() bool {
					for _, p := range known.prompt {
						if len(p) >= len(ids)/16*16 && slices.Equal(p[:len(ids)/16*16], ids[:len(ids)/16*16]) {
							return true
						}
					}
					return len(known.prompt) == 0 && len(ids) == 0
				}
				for !has() {
					known.take(r.next())
				}
			}
			small := func(seed, n int) []uint32 { // of the built-in vocabulary
				all := make([]uint32, n)
				for i := range all {
					all[i] = uint32(300 + seed*100 + i%90)
				}
				return all
			}
			for i := range 12 { // more than it holds
				ask(small(i, 200))
				until(small(i, 200))
			}
			if n := len(known.prompt); n > 1024/16 || n < 20 {
				t.Errorf("%d blocks of 16 tokens in a cache of 1024", n)
			}
			if a := harness.Post(t, url+"/flush_cache", ``); a.Status != http.StatusOK {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			until(nil)
			ask(small(3, 100))
			until(small(3, 100))

			// The same again, by asking.
			again := r.ask()
			for known.next < again.next {
				known.take(r.next())
			}
			if again.next != known.next || len(again.prompt) != len(known.prompt) {
				t.Errorf("asked for again, %d batches and %d blocks; heard were %d and %d", again.next, len(again.prompt), known.next, len(known.prompt))
			}

			// One that begins anew has no past.
			if a := harness.Post(t, admin+"/admin/faults", `{"faults":["restart"]}`); a.Status/100 != 2 {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			harness.Eventually(t, "it begins anew", func() bool { return r.ask().next == 0 }, p)
			ask(small(5, 64))
			harness.Eventually(t, "the first of the new one", func() bool { return len(r.ask().prompt) >= 4 }, p)
		})
	}
}
