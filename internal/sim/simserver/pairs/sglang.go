// Package pairs makes outputs the legs of pairs on two engines, as requests to SGLang and vLLM ask for.
package pairs

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/flags"
)

// fakeHost is the bootstrap host of a leg that has no partner: warm-ups and health
// checks send it.
const fakeHost = "2.2.2.2"

// DefaultBootstrapPort is the default port of SGLang's registry.
const DefaultBootstrapPort = 8998

// SGLang makes an output a leg of a pair, as the engine's role is. How much is
// asked for of a prefill leg does not matter: it is one id.
func SGLang(x *exchange.Exchange, f *flags.SGLang, o *exchange.Output, p *sim.Params, g *fields.Pairing) error {
	role, opts := x.Run.Role(), x.Run.Legs()
	beside := 0
	if x.Faulty && x.Fault.Kind == sim.Misrank {
		beside = 1
	}
	switch {
	case role == infer.RoleBoth:
		return nil
	case g.Room == nil:
		return infer.Invalid("bootstrap_room", "Invalid request: Disaggregated request received without bootstrap room id. req.rid=%s", pyQuote(o.Name))
	}
	if role == infer.RolePrefill {
		p.MaxTokens, p.MinTokens = 1, 0
	}
	if g.Host == fakeHost {
		return nil
	}
	room, rid := *g.Room, o.Name
	if g.Shared { // the first has the room, and the others fail the request
		what, prefix, why := "Prefill bootstrap failed", "req.", "Duplicate or cancelled bootstrap room"
		if role == infer.RoleDecode {
			what, prefix, why = "Decode handshake failed", "decode_req.req.", "Duplicate decode bootstrap room"
		}
		return transferError(what, prefix, rid, room, infer.Errorf(infer.CodeEngine, "%s", why))
	}
	p.Await = true
	if role == infer.RoleDecode {
		p.Leg, p.Patience, p.Fresh = sim.LegDecode, opts.WaitingTimeout, !opts.RadixCache
		p.Pages = f.Pages()
		port := cmp.Or(g.Port, opts.BootstrapPort, DefaultBootstrapPort)
		o.Leg = &engine.Leg{Addr: net.JoinHostPort(g.Host, strconv.Itoa(port)), Manner: sglangManner(opts)}
		rank := g.PrefillRank
		o.Leg.KeyOf = func(dpSize int) string {
			if rank != nil {
				return roomKey(*rank+beside, room)
			}
			return roomKey(int(room%int64(max(1, dpSize)))+beside, room)
		}
		o.Explain = func(d *sim.Done) error {
			what := "Decode transfer failed"
			if d.Stage == sim.StageBootstrap {
				what = "Decode handshake failed"
			}
			return transferError(what, "decode_req.req.", rid, room, d.Err)
		}
		return nil
	}
	p.Leg, p.Patience = sim.LegPrefill, opts.BootstrapTimeout
	o.Mute = true
	o.Explain = func(d *sim.Done) error {
		what := "Prefill transfer failed"
		if d.Stage == sim.StageBootstrap {
			what = "Prefill bootstrap failed"
		}
		return transferError(what, "req.", rid, room, d.Err)
	}
	rank := int(room % int64(x.Run.Options().DPSize))
	if p.DPRank != nil && *p.DPRank != rank && g.PrefillRank == nil {
		return transferError("Prefill bootstrap failed", "req.", rid, room, infer.Errorf(infer.CodeEngine,
			"follow_bootstrap_room conflict: dispatched to dp_rank %d but bootstrap_room %d implies dp_rank %d. Set SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1 to allow mixed routing.",
			*p.DPRank, room, rank))
	}
	if p.DPRank == nil {
		p.DPRank = &rank
	}
	o.Leg = &engine.Leg{Key: roomKey(*p.DPRank+beside, room)}
	return nil
}

// transferError returns the words of SGLang's scheduler for a pair that came to
// nothing; those who look for the cause find them in its log and in the answer.
func transferError(what, prefix, rid string, room int64, why *infer.Error) error {
	reason := why.Message
	if why.Code == infer.CodeUnavailable {
		return why
	}
	if len(reason) > 5 && reason[:5] == "timed" {
		reason = fmt.Sprintf("Request %d %s", room, reason)
	}
	return infer.Errorf(infer.CodeEngine, "%s for request rank=0 %srid=%s %sbootstrap_room=%d with exception KVTransferError(bootstrap_room=%d): %s",
		what, prefix, pyQuote(rid), prefix, room, room, reason)
}

// pyQuote quotes as Python's repr does what has no quotes in it.
func pyQuote(s string) string { return "'" + s + "'" }

// sglangManner is that of SGLang: its scheduler asks for a prefill engine's facts
// once a second, fifteen times, and its heartbeat finds a lost one.
func sglangManner(o *engine.LegsOptions) engine.Manner {
	return engine.Manner{Tries: 15, Every: time.Second, Loss: o.HeartbeatTimeout, Gone: "Aborted by AbortReq."}
}

// roomKey returns the key of a pair of SGLang's: a room is a room of one DP rank.
func roomKey(rank int, room int64) string { return fmt.Sprintf("%d/%d", rank, room) }
