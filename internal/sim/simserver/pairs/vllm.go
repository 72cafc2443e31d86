package pairs

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/web"
)

// errKeyless is the failure of vLLM's engine core when a member is missing.
func errKeyless(name string) error {
	return fmt.Errorf("EngineCore encountered a fatal error: KeyError: '%s' (kv_transfer_params): %w", name, flags.ErrDies)
}

// VLLM makes an output a leg of a pair, as its kv_transfer_params say. base is the part of the
// request's id that both legs of a pushed pair have in common. vLLM looks at few of their members before it relies on them, and neither does this.
func VLLM(t *flags.Transfer, o *exchange.Output, p *sim.Params, raw jsontext.Value, base string) error {
	if t == nil || raw.Kind() == 0 || raw.Kind() == 'n' {
		return nil
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(raw, &members); err != nil {
		return infer.Invalid("kv_transfer_params", "kv_transfer_params must be an object: %v", err)
	}
	said := func(name string) bool { return members[name].Kind() == 't' }
	text := func(name string) (s string) { _ = json.Unmarshal(members[name], &s); return s }
	number := func(name string) (n int) { _ = json.Unmarshal(members[name], &n); return n }
	var random [4]byte
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	o.Pair = &exchange.Pair{ID: base + "-" + hex.EncodeToString(random[:]), Cached: -1}
	switch {
	case said("do_remote_decode"):
		p.Leg, p.Lease = sim.LegPrefill, t.Lease
		o.Leg = &engine.Leg{Key: t.KeyOf(o.Pair.ID, base)}
		return nil
	case !said("do_remote_prefill"):
		return nil
	}
	if n := members["remote_prefill_cached_tokens"]; n.Kind() == '0' {
		o.Pair.Cached = number("remote_prefill_cached_tokens")
	}
	p.Leg = sim.LegDecode
	if t.Push {
		p.Pages = sim.PagesOwed
	}
	o.Explain = func(*sim.Done) error { return infer.Errorf(infer.CodeEngine, "Internal server error") }
	o.Leg = &engine.Leg{
		Addr: net.JoinHostPort(text("remote_host"), strconv.Itoa(number("remote_port"))), Engine: text("remote_engine_id"),
		// Its handshake waits for 5 s.
		Manner: engine.Manner{Tries: 6, Every: time.Second, Loss: 0, Pull: !t.Push, Frees: true, Renew: t.Lease / 6, Recompute: t.Recompute, Gone: "handshake_failed"},
	}
	key := t.KeyOf(text("remote_request_id"), base)
	o.Leg.KeyOf = func(int) string { return key }
	if t.Push {
		o.Leg.Manner.Loss = -1 // nobody looks
		for _, name := range []string{"remote_engine_id", "remote_host", "remote_port", "tp_size", "remote_request_id"} {
			if members[name] == nil {
				return errKeyless(name)
			}
		}
		return nil
	}
	var blocks []jsontext.Value
	if _ = json.Unmarshal(members["remote_block_ids"], &blocks); len(blocks) == 0 {
		return fmt.Errorf("EngineCore encountered a fatal error: AssertionError (num_external_tokens without remote_block_ids): %w", flags.ErrDies)
	}
	for _, name := range []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port"} {
		if members[name] == nil {
			// vLLM logs "This request will not utilize KVTransfer", and the request waits
			// for KV that is never fetched.
			o.Leg.Addr = ""
		}
	}
	return nil
}

// AppendParams appends the kv_transfer_params of a prefill leg's answer, or null.
func AppendParams(b []byte, run *engine.Engine, t *flags.Transfer, o *exchange.Output) []byte {
	if o.Pair == nil || o.Pair.Kept == nil {
		return append(b, "null"...)
	}
	k := o.Pair.Kept
	pages := k.Pages
	if pages == nil {
		// In a cache without a limit pages are not counted.
		for i := range (k.Tokens + run.Options().PageSize - 1) / run.Options().PageSize {
			pages = append(pages, int32(i))
		}
	}
	b = append(b, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[`...)
	for i, page := range pages {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(page)+1, 10) // block 0 is vLLM's own
	}
	b = append(b, `]],"remote_engine_id":`...)
	b = append(b, web.Quote(run.Legs().EngineID)...)
	b = append(b, `,"remote_request_id":`...)
	b = append(b, web.Quote(o.Pair.ID)...)
	b = append(b, `,"remote_host":`...)
	b = append(b, web.Quote(t.Host)...)
	b = append(b, `,"remote_port":`...)
	b = strconv.AppendInt(b, int64(t.Port), 10)
	b = append(b, `,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":`...)
	b = strconv.AppendInt(b, int64(k.Tokens), 10)
	if t.Push {
		b = append(b, `,"transfer_mode":"push"`...)
	} else {
		b = append(b, `,"remote_blocks_expiry_time":null,"transfer_mode":"pull"`...)
	}
	b = append(b, `,"remote_prefill_cached_tokens":`...)
	b = strconv.AppendInt(b, int64(k.Cached), 10)
	return append(b, '}')
}
