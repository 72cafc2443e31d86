package engines

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/internal/engine/sglangipc/schedtest"
	"weir/internal/engine/vllmcore/coretest"
	"weir/test/e2e/harness"
)

// The wires over which weir is the front end of an engine are spoken by engines that are
// played in this process. What a decode engine says follows from the prompt that it has
// fetched, and not from its own: so equal texts say that the halves met.

// The stages at which a played pair can be held.
const (
	heldPrefill  = "prefill"  // the prefill engine computes the prompt
	heldTransfer = "transfer" // the prompt's KV is kept, and not fetched yet
	heldDecode   = "decode"   // the first id is said
)

// playedPair is what two engines are to each other.
type playedPair struct {
	t   *testing.T
	way string // pull, push or room
	ids []uint32

	mu       sync.Mutex
	held     string
	reached  int // halves that stand at the stage that is held
	prefills map[string]*playedHalf
	decodes  map[string]*playedHalf
	lapsed   map[string]bool // keys of KV that is kept no more
	met      int             // pairs whose KV was fetched
	aborted  int             // halves, before their end
}

// playedHalf is a request that an engine has, or whose pages it keeps.
type playedHalf struct {
	id, key string // key is that of its other half; empty: it is whole
	prompt  []uint32
	limit   int
	held    bool // it was counted as one that is held
	kept    bool // prefill: its KV is kept
	fetched bool
	gone    bool // its end was said
	begun   bool // its first id was said
	// said says ids, of which there are this many in all by then, and how it ends, if it does.
	said func(ids []uint32, total int, end string)
}

// hold holds halves at a stage, or lets all go on.
func (p *playedPair) hold(stage string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.reached = stage, 0
	p.advance()
}

// stands reports whether a half stands at a stage.
func (p *playedPair) stands(h *playedHalf, stage string) bool {
	if p.held != stage {
		return false
	}
	if !h.held {
		h.held = true
		p.reached++
	}
	return true
}

// add takes a half in.
func (p *playedPair) add(prefill bool, h *playedHalf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if prefill {
		p.prefills[h.id] = h
	} else {
		p.decodes[h.id] = h
	}
	p.advance()
}

// of returns the half of a key at the other engine.
func of(halves map[string]*playedHalf, key string) *playedHalf {
	for _, h := range halves {
		if h.key == key {
			return h
		}
	}
	return nil
}

// advance has every half go as far as it can.
func (p *playedPair) advance() {
	for _, id := range slices.Sorted(maps.Keys(p.prefills)) {
		h := p.prefills[id]
		if h.kept || p.way == "room" && of(p.decodes, h.key) == nil || p.stands(h, heldPrefill) {
			continue
		}
		if h.kept = true; p.way != "room" {
			h.gone = true
			h.said(p.ids[:1], 1, "length")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.decodes)) {
		h := p.decodes[id]
		if h.key != "" && !h.fetched {
			from := of(p.prefills, h.key)
			if from == nil || !from.kept || p.stands(h, heldTransfer) {
				continue
			}
			p.met++
			h.fetched, h.prompt = true, from.prompt
			delete(p.prefills, from.id)
			if !from.gone {
				from.said(p.ids[:1], 1, "length")
			}
			if h.gone { // its pages alone were there yet
				delete(p.decodes, id)
				continue
			}
		}
		for n := 0; n < h.limit; n++ {
			end := ""
			if n == h.limit-1 {
				end = "length"
			}
			if n > 0 || !h.begun {
				h.begun = true
				h.said([]uint32{p.ids[(len(h.prompt)+int(h.prompt[len(h.prompt)-1])+n)%len(p.ids)]}, n+1, end)
			}
			if end == "" && p.stands(h, heldDecode) {
				break
			}
			if end != "" {
				delete(p.decodes, id)
			}
		}
	}
}

// lapse ends the leases of KV that nobody fetches any more, as the gateway has no request left. The
// leases of vLLM's engines last for minutes. One of so many milliseconds would end on a busy machine
// before the decode half has come.
func (p *playedPair) lapse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, h := range p.prefills {
		if p.way != "room" && h.gone && of(p.decodes, h.key) == nil {
			delete(p.prefills, id)
			p.lapsed[h.key] = true
		}
	}
	for id, h := range p.decodes { // one that comes late, and is not wanted either
		if p.way == "pull" && !h.fetched && p.lapsed[h.key] {
			if !h.gone {
				h.said(nil, 0, "lost")
			}
			delete(p.decodes, id)
		}
	}
}

// abort ends a half that is not wanted any more. An engine of vLLM's keeps the pages of a
// decode half until KV has come into them. One of SGLang's gives them to others at once,
// which is why it must not be told before.
func (p *playedPair) abort(prefill bool, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.prefills[id]; prefill && h != nil && !h.gone {
		p.aborted++
		delete(p.prefills, id)
		h.said(nil, 0, "abort")
		if d := of(p.decodes, h.key); p.way == "room" && d != nil && !d.fetched { // SGLang's tells it
			d.gone = true
			d.said(nil, 0, "lost")
			delete(p.decodes, d.id)
		}
	}
	h := p.decodes[id]
	if prefill || h == nil || h.gone {
		return
	}
	p.aborted++
	h.gone = true
	h.said(nil, 0, "abort")
	waits := h.key != "" && !h.fetched
	if waits && p.way == "room" && of(p.prefills, h.key) != nil {
		p.t.Errorf("the decode half %s is aborted while its KV may be written", id)
	}
	if !waits || p.way == "room" {
		delete(p.decodes, id)
	}
	p.advance()
}

// dies forgets what an engine had, before its connections close: what a gateway says on their
// close comes after it.
func (p *playedPair) dies(prefill bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if prefill {
		clear(p.prefills)
	} else {
		clear(p.decodes)
	}
}

// notices has the other engine notice that one has died, as a real one does: vLLM's decode
// engine when it reads the KV itself, SGLang's of either side.
func (p *playedPair) notices(prefill bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.way == "push" || p.way == "pull" && !prefill {
		return
	}
	other := p.prefills
	if prefill {
		other = p.decodes
	}
	for id, h := range other {
		if h.key == "" || h.fetched {
			continue
		}
		if !h.gone {
			h.said(nil, 0, "lost")
		}
		delete(other, id)
	}
}

// aborts returns how many halves were aborted before their end.
func (p *playedPair) aborts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.aborted
}

// left returns what either engine has of requests that the gateway has no more.
func (p *playedPair) left() (prefills, decodes int) {
	p.lapse()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.prefills), len(p.decodes)
}

// standing returns how many halves are held, or have been.
func (p *playedPair) standing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reached
}

// playedWire starts played engines of a kind.
type playedWire struct {
	way    string
	specs  func(p *playedEngines) []string // --engine of the prefill engine, the decode engine, and one alone
	start  func(p *playedEngines, which int) (end func())
	wholes bool // the decode engine serves whole requests too
}

// playedEngines are those of a test.
type playedEngines struct {
	*playedPair
	wire   playedWire
	places [3]string
	ends   [3]func()
	env    []string
}

var playedWires = map[string]playedWire{
	"vllm-core, pull": {way: "pull", specs: coreSpecs, start: startPlayedCore, wholes: true},
	"vllm-core, push": {way: "push", specs: coreSpecs, start: startPlayedCore, wholes: true},
	"sglang-ipc":      {way: "room", specs: schedulerSpecs, start: startPlayedScheduler},
}

func coreSpecs(p *playedEngines) (specs []string) {
	for i, more := range []string{",name=p,role=prefill", ",name=d,role=decode", ""} {
		p.places[i] = harness.FreeAddress(p.t)
		specs = append(specs, "vllm-core=tcp://"+p.places[i]+",model=weir-sim"+more)
	}
	return specs
}

func startPlayedCore(p *playedEngines, which int) func() {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	c, err := coretest.Start(ctx, coretest.Options{Handshake: "tcp://" + p.places[which], Receive: func(c *coretest.Core, m coretest.Message) {
		switch m.Type {
		case 0:
			p.coreHalf(c, &m.Add)
		case 1:
			for _, id := range m.Abort {
				p.abort(which == 0, id)
			}
		case 3:
			_ = c.Send(coretest.Batch{Call: m.Call, Given: true})
		}
	}})
	if err != nil {
		p.t.Fatal(err)
	}
	return c.Close
}

// coreHalf takes a request of vLLM's in.
func (p *playedEngines) coreHalf(c *coretest.Core, r *coretest.Request) {
	h := &playedHalf{id: r.ID, prompt: r.Prompt, limit: int(coretest.Number(r.Sampling["max_tokens"]))}
	params := r.Transfer()
	prefill := params["do_remote_decode"] == true
	switch {
	case prefill:
		h.key = h.id
	case params["do_remote_prefill"] == true && p.way == "push":
		h.key = h.id // 0.32 knows the halves by it
	case params["do_remote_prefill"] == true:
		h.key = params["remote_request_id"].(string)
	}
	request := *r
	h.said = func(ids []uint32, total int, end string) {
		o := coretest.Output{ID: h.id, IDs: ids, Finish: -1}
		if total == 1 {
			o.Prompt = len(h.prompt)
		}
		switch end {
		case "length":
			o.Finish = 1
		case "abort":
			o.Finish = 2
		case "lost":
			o.Finish = 3
		}
		if prefill && end == "length" {
			o.Transfer = coretest.Prefilled(&request, "P", "127.0.0.1", 5600, p.way == "push")
		}
		_ = c.Send(coretest.Batch{Outputs: []coretest.Output{o}}) // it may be dead
	}
	p.add(prefill, h)
}

func schedulerSpecs(p *playedEngines) (specs []string) {
	for i, more := range []string{",name=p", ",name=d", ""} {
		p.places[i] = filepath.Join(harness.SocketDir(p.t), "s")
		specs = append(specs, "sglang-ipc="+p.places[i]+",model=weir-sim"+more)
	}
	return specs
}

func startPlayedScheduler(p *playedEngines, which int) func() {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	mode := []any{"prefill", "decode", "null"}[which]
	s, err := schedtest.Start(ctx, schedtest.Options{Dir: p.places[which], Receive: func(s *schedtest.Scheduler, m schedtest.Message) {
		switch m.Tag {
		case "ConfigureLoggingReq":
			_ = s.Answer(m)
		case "GetInternalStateReq":
			_ = s.State(48)
		case "AbortReq":
			p.abort(which == 0, m.ID())
		case "TokenizedGenerateReqInput":
			p.schedulerHalf(s, m, which)
		}
	}})
	if err != nil {
		p.t.Fatal(err)
	}
	word := schedtest.Manifest(map[string]any{"lora": map[string]any{}, "bootstrap_host": "10.0.0.1",
		"started": map[string]any{"skip_tokenizer_init": false, "disaggregation_mode": mode, "disaggregation_bootstrap_port": 8998}})
	if err := schedtest.Write(p.places[which], word); err != nil {
		p.t.Fatal(err)
	}
	return s.Close
}

// schedulerHalf takes a request of SGLang's in. One at a host that is nowhere is the
// engine's health check, which has no other half.
func (p *playedEngines) schedulerHalf(s *schedtest.Scheduler, m schedtest.Message, which int) {
	h := &playedHalf{id: m.ID(), prompt: m.Prompt(), limit: m.Limit()}
	if which < 2 && m.Fields["bootstrap_host"] != "2.2.2.2" {
		h.key = fmt.Sprint(m.Fields["bootstrap_host"], m.Fields["bootstrap_port"], m.Fields["bootstrap_room"])
	}
	h.said = func(ids []uint32, total int, end string) {
		o := schedtest.Output{ID: h.id, IDs: ids, Count: total, Prompt: len(h.prompt)}
		switch end {
		case "length":
			o.Finish = map[string]any{"type": "length", "length": total}
		case "abort":
			o.Finish = map[string]any{"type": "abort", "message": "Aborted by AbortReq.", "status_code": nil, "err_type": nil}
		case "lost":
			o.Finish = map[string]any{"type": "abort", "message": "Decode transfer failed for request rank=0 with exception KVTransferError: Lost connection with prefill instance", "status_code": 500, "err_type": nil}
			if which == 0 {
				o.Finish["message"] = "Prefill transfer failed for request rank=0 with exception KVTransferError: Failed to send kv chunk"
			}
		}
		_ = s.Step(0, o) // it may be dead
	}
	p.add(which == 0 && h.key != "", h)
}

// startPlayed starts a pair of engines and a gateway before them, which waits so long for a
// transfer, and one alone with another gateway.
func startPlayed(t *testing.T, name, transfer string) (p *playedEngines, g, one *harness.Gateway) {
	t.Helper()
	w := playedWires[name]
	p = &playedEngines{playedPair: &playedPair{t: t, way: w.way, ids: harness.SaidIDs(t), prefills: map[string]*playedHalf{}, decodes: map[string]*playedHalf{}, lapsed: map[string]bool{}}, wire: w}
	_, p.env = harness.ShortTemp(t)
	specs := w.specs(p)
	g = harness.StartUnreadyWith(t, p.env, "serve", "--policy", "round-robin", "--transfer-timeout", transfer, "--engine", specs[0], "--engine", specs[1])
	one = harness.StartUnreadyWith(t, p.env, "serve", "--engine", specs[2])
	for i := range p.ends {
		p.begin(i)
	}
	p.ready(g, 2)
	p.ready(one, 1)
	return p, g, one
}

// begin starts an engine.
func (p *playedEngines) begin(which int) {
	p.ends[which] = sync.OnceFunc(p.wire.start(p, which))
	p.t.Cleanup(p.ends[which])
}

// kill ends one as the end of its process does.
func (p *playedEngines) kill(which int) {
	p.dies(which == 0)
	p.ends[which]()
	p.notices(which == 0)
}

// ready waits until this many engines of a gateway's are.
func (p *playedEngines) ready(g *harness.Gateway, n int) {
	p.t.Helper()
	harness.Eventually(p.t, fmt.Sprint(n, " engines ready"), func() bool {
		var page []struct{ Ready bool }
		ready := 0
		err := json.Unmarshal(harness.Get(p.t, g.Admin+"/engines").Body, &page)
		for _, e := range page {
			if e.Ready {
				ready++
			}
		}
		return err == nil && ready == n
	}, g.Process)
}

// free waits until neither engine nor the gateway has anything left of a request.
func (p *playedEngines) free(g *harness.Gateway) {
	p.t.Helper()
	g.Balanced()
	harness.Eventually(p.t, "both engines free", func() bool { a, b := p.left(); return a+b == 0 }, g.Process)
}

// completion asks for an answer.
func completion(t *testing.T, g *harness.Gateway, i, limit int, stream bool) (text string, a harness.Answer) {
	a = harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":"Once upon a time number %d","max_tokens":%d,"temperature":0,"stream":%v}`, i, limit, stream))
	if stream {
		text, _ = harness.Streamed(a)
		return text, a
	}
	var o struct{ Choices []struct{ Text string } }
	if json.Unmarshal(a.Body, &o) == nil && len(o.Choices) == 1 {
		text = o.Choices[0].Text
	}
	return text, a
}

// A pair says what one engine says, streamed and not, of many requests at once, and leaves
// nothing behind.
func TestPlayedPairs(t *testing.T) {
	harness.Beside(t, harness.Light)
	for name := range playedWires {
		t.Run(name, func(t *testing.T) {
			p, g, one := startPlayed(t, name, harness.Unhurried)
			const n = 24
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					got, a := completion(t, g, i, 5+i, i%2 == 0)
					want, _ := completion(t, one, i, 5+i, i%2 == 0)
					if a.Status != http.StatusOK || got != want || got == "" {
						t.Errorf("request %d: the pair says %d %q, one engine %q: %s", i, a.Status, got, want, a.Body)
					}
				})
			}
			all.Wait()
			p.free(g)
			if ended := g.Balanced(); ended["finished"] != n || p.met != n {
				t.Errorf("ended %v, and %d pairs met", ended, p.met)
			}
			g.Interrupt()
			one.Interrupt()
			c := couple{Gateway: g}
			for _, legs := range c.pairs() {
				// A prefill half is given up whose word comes half a second after the whole answer.
				if len(legs) != 2 || legs[0] != "p finished" && legs[0] != "p cancelled" || legs[1] != "d finished" {
					t.Errorf("legs %v", legs)
				}
			}
		})
	}
}

// A client that hangs up in any stage of a pair frees both engines.
func TestPlayedPairsHangUp(t *testing.T) {
	harness.Beside(t, harness.Light)
	for name := range playedWires {
		t.Run(name, func(t *testing.T) {
			p, g, _ := startPlayed(t, name, "2s")
			for _, stage := range []string{heldPrefill, heldTransfer, heldDecode} {
				before := p.aborts()
				p.hold(stage)
				conn := beginStream(t, g)
				harness.Eventually(t, "a half at "+stage, func() bool { return p.standing() > 0 }, g.Process)
				if stage == heldDecode {
					if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
						t.Error(err)
					}
				}
				conn.Close()
				harness.Eventually(t, "an abort at "+stage, func() bool { return p.aborts() > before }, g.Process)
				p.hold("")
				p.free(g)
			}
			if text, a := completion(t, g, 1, 9, false); a.Status != http.StatusOK || text == "" {
				t.Errorf("afterwards: %d %s", a.Status, a.Body)
			}
			p.free(g)
			g.Interrupt()
		})
	}
}

// beginStream sends a request for a stream.
func beginStream(t *testing.T, g *harness.Gateway) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	body := `{"model":"weir-sim","prompt":"Once upon a time","max_tokens":99,"stream":true}`
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return conn
}

// Either engine is killed in each stage of a pair. The client gets its whole answer, or an
// error that gives the reason, while the other engine still stands at its stage. Neither
// engine keeps anything, except that vLLM's decode engine keeps pages for pushed KV that never
// comes.
func TestPlayedPairsKilled(t *testing.T) {
	harness.Beside(t, harness.Light)
	for name, w := range playedWires {
		for which, killed := range []string{"prefill", "decode"} {
			t.Run(name+"/"+killed, func(t *testing.T) {
				p, g, one := startPlayed(t, name, "2s")
				want, _ := completion(t, one, 7, 9, false)
				for _, stage := range []string{heldPrefill, heldTransfer, heldDecode} {
					p.hold(stage)
					answered := make(chan struct{})
					var text string
					var a harness.Answer
					go func() {
						defer close(answered)
						text, a = completion(t, g, 7, 9, false)
					}()
					harness.Eventually(t, "a half at "+stage, func() bool { return p.standing() > 0 }, g.Process)
					p.kill(which)
					if which == 0 && stage == heldDecode || which == 1 && stage == heldPrefill && w.way == "pull" {
						p.hold("") // it has its KV, or is not asked yet: nothing has failed
					}
					<-answered
					p.hold("")
					whole := which == 0 && (stage == heldDecode || stage == heldPrefill && w.wholes)
					if whole && (a.Status != http.StatusOK || text != want) || !whole && (a.Status < 500 || !strings.Contains(string(a.Body), `"error"`)) {
						t.Errorf("killed at %s: %d %s, want it whole: %v", stage, a.Status, a.Body, whole)
					}
					g.Balanced()
					owed := 0
					if which == 0 && w.way == "push" && stage != heldDecode {
						owed = 1
					}
					harness.Eventually(t, "both engines free", func() bool { a, b := p.left(); return a == 0 && b == owed }, g.Process)
					p.forget()
					p.begin(which)
					p.ready(g, 2)
					if text, a := completion(t, g, 7, 9, false); a.Status != http.StatusOK || text != want {
						t.Errorf("afterwards: %d %s", a.Status, a.Body)
					}
					p.free(g)
				}
				g.Interrupt()
			})
		}
	}
}

// forget is a new start of both engines.
func (p *playedPair) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.prefills)
	clear(p.decodes)
}
