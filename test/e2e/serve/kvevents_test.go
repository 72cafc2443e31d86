package serve

import (
	"encoding/binary"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/wire/zmtp"
	"weir/test/e2e/harness"
)

// kvBatch is what vLLM publishes of blocks of 64 of the ids: that they are stored, or
// removed from the given one on.
func kvBatch(kind string, ids []uint32, from int) []byte {
	const size = 64
	n := len(ids)/size - from
	b := msgp.AppendArrayHeader(msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1), 1)
	b = msgp.AppendMapHeader(b, 6)
	b = msgp.AppendString(msgp.AppendString(b, "type"), kind)
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(n))
	for i := range n {
		b = msgp.AppendUint64(b, uint64(1000+from+i))
	}
	b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), uint32(n*size))
	for _, id := range ids[from*size : (from+n)*size] {
		b = msgp.AppendUint32(b, id)
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), size)
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "extra_keys"), uint32(n))
	for range n {
		b = msgp.AppendNil(b)
	}
	return msgp.AppendInt(b, 0)
}

// The events that an engine publishes of its KV cache decide where a prompt would go, although
// weir has sent it none. The gateway stops trusting them when the publisher cannot be heard.
func TestKVEvents(t *testing.T) {
	harness.Beside(t, harness.Light)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := startPair(t, "plane", kvSim, kvSim)
	events := "kv-events=tcp://" + l.Addr().String() + ",kv-topic=kv@"
	g := harness.StartGateway(t, "serve", "--engine", p.engines[0].Spec("plane")+",name=a", "--engine", p.engines[1].Spec("plane")+",name=b,"+events)

	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(harness.Patience)); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, err := zmtp.Handshake(conn, zmtp.Config{Type: zmtp.Pub})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	frames, err := c.Recv()
	if topic, on, ok := zmtp.Subscription(frames); err != nil || !ok || !on || topic != "kv@" {
		t.Fatalf("%q asks for nothing, %v", frames, err)
	}
	seq := uint64(0)
	publish := func(batch []byte) {
		t.Helper()
		if err := c.Send([]byte("kv@m"), binary.BigEndian.AppendUint64(nil, seq), batch); err != nil {
			t.Fatal(err)
		}
		seq++
	}
	ids := make([]uint32, 600)
	for i := range ids {
		ids[i] = uint32(100 + i)
	}
	// cached is how much of the prompt weir believes to be at the engine that it would go to.
	cached := func(n int) (engine string, tokens int) {
		t.Helper()
		body, err := json.Marshal(map[string]any{"model": "weir-sim", "prompt": ids[:n], "max_tokens": 8})
		if err != nil {
			t.Fatal(err)
		}
		out, stderr, code := harness.Finish(t, string(body), "why", "--request", "-", "--path", "/v1/completions", "--json", "--admin", g.Admin)
		var r struct {
			Attempts []struct {
				Choice struct {
					Engine    string `json:"engine"`
					Predicted int    `json:"predicted_cached_tokens"`
				} `json:"choice"`
			} `json:"attempts"`
		}
		if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil || len(r.Attempts) != 1 {
			t.Fatalf("exit code %d, %v: %s%s", code, err, out, stderr)
		}
		return r.Attempts[0].Choice.Engine, r.Attempts[0].Choice.Predicted
	}
	blocks := func(n float64) {
		t.Helper()
		harness.Eventually(t, "blocks known by events", func() bool {
			return harness.Metric(t, g.Admin, "weir_engine_kv_event_blocks", `engine="b"`) == n && harness.Metric(t, g.Admin, "weir_engine_kv_knowledge", `engine="b"`, `"known"`) == 1
		}, g.Process)
	}
	if _, n := cached(600); n != 0 {
		t.Errorf("%d tokens before anything was heard", n)
	}
	publish(kvBatch("BlockStored", ids, 0))
	blocks(9)
	for n, want := range map[int]int{600: 576, 577: 576, 576: 512, 300: 256} { // whole blocks, without the last token
		if engine, got := cached(n); engine != "b" || got != want {
			t.Errorf("of %d tokens %d are believed to be at %s, want %d at b", n, got, engine, want)
		}
	}
	publish(kvBatch("BlockRemoved", ids, 4))
	blocks(4)
	if engine, got := cached(600); engine != "b" || got != 256 {
		t.Errorf("after a removal %d at %s", got, engine)
	}
	out, _, _ := harness.Finish(t, "", "engines", "--admin", g.Admin)
	t.Logf("weir engines says:\n%s", out)
	if !strings.Contains(out, "b: its KV cache is known by events, 4 blocks") || strings.Contains(out, "a: its KV cache") {
		t.Errorf("weir engines says:\n%s", out)
	}
	l.Close()
	c.Close()
	harness.Eventually(t, "the loss", func() bool {
		return harness.Metric(t, g.Admin, "weir_engine_kv_knowledge", `engine="b"`, `"unknown"`) == 1
	}, g.Process)
	if _, n := cached(600); n != 0 {
		t.Errorf("%d tokens are believed after the loss", n)
	}
	harness.Eventually(t, "why", func() bool {
		out, _, _ := harness.Finish(t, "", "engines", "--admin", g.Admin)
		return strings.Contains(out, "b: its KV cache is not known by events: KV events at tcp://")
	}, g.Process)
}
