package sglang

import (
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver"
	"weir/internal/sim/simtest"
)

// Halves over /generate, before two simulated halves, in both forms of the chunks.
func TestPairs(t *testing.T) {
	for _, form := range []form{incremental, cumulative} {
		t.Run(form.String(), func(t *testing.T) {
			enginetest.RunPairs(t, func(t *testing.T, o enginetest.PairOptions) enginetest.PairRig { return pairRig(t, form, o) })
		})
	}
}

func pairRig(t *testing.T, f form, o enginetest.PairOptions) enginetest.PairRig {
	var prefill *simtest.Engine
	start := func(role infer.Role) enginetest.PairEngine {
		options := simserver.Options{Role: role, SGLang: simserver.SGLangOptions{Incremental: f == incremental},
			Sim:  sim.Options{DPSize: o.Ranks, KVTokens: 1 << 17},
			Legs: simserver.LegsOptions{HeartbeatTimeout: 100 * time.Millisecond}}
		if o.Brief {
			options.Legs.BootstrapTimeout, options.Legs.WaitingTimeout = time.Second/10, time.Second/10
		}
		if role == infer.RoleBoth {
			options.Sim.DPSize = 1
		}
		e := simtest.Start(t, options)
		if role == infer.RolePrefill {
			prefill = e
		}
		return enginetest.PairEngine{Adapter: New(Options{Name: role.String(), URL: e.SGLang}), Fault: e.Fault, Left: e.Left}
	}
	return enginetest.PairRig{
		Prefill: start(infer.RolePrefill), Decode: start(infer.RoleDecode), Whole: start(infer.RoleBoth), Way: engine.ByRoom, Bounded: true,
		Halves: func(_ string, n, rank int) (p, d *infer.Half) {
			b := infer.Bootstrap{Host: "127.0.0.1", Port: prefill.Bootstrap, Room: int64(n), Rank: rank}
			return &infer.Half{Role: infer.RolePrefill, Bootstrap: b}, &infer.Half{Role: infer.RoleDecode, Bootstrap: b}
		},
	}
}
