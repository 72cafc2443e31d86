package vllmcore

import (
	"cmp"
	"net"
	"time"

	"weir/internal/engine/coreclient"
	"weir/internal/wire/zmtp"
)

// Options say where engines are to be waited for, and what they serve. Name and
// Model, which the wire does not say, are required, and either Handshake or both
// listeners.
type Options struct {
	coreclient.Options

	// EndIDs are the ids that end an answer of the model. The engine does not
	// know them: without them every answer runs to its limit.
	EndIDs []uint32
	// Vocab is the width of the model's output: ids are below it. 0: not known.
	Vocab int
	// LoRA are the adapters that requests make the engines load: the paths at which
	// the engines find them, by the names under which they are served.
	LoRA map[string]string
	// Priorities is set if the engines schedule by priority. They do not report it, and
	// otherwise ignore the priority of a request.
	Priorities bool
	// Speculative is set if the engines decode speculatively (--speculative-config),
	// which they do not say before they have drafted something.
	Speculative bool
	// AskHalves has each engine asked how its halves of requests meet, by a prefill half of
	// one id when it has come; without an answer it is not ready.
	AskHalves bool
	// First is the index of the first engine, and Engines how many there are: the
	// ranks of a data-parallel group. Defaults 0 and 1.
	First, Engines int
	// Lockstep is set if the ranks step together, as those of a mixture of experts do,
	// and have to be woken together.
	Lockstep bool

	// Coordinated is set if vLLM's coordinator wakes the ranks. Since 0.33 engines
	// themselves send it the information that it needs; older ones are refused.
	Coordinated bool

	// Handshake is the address at which engines send HELLO (vllm serve --headless).
	// Input and Output are the addresses that they then connect to. All are bound
	// while Run runs.
	Handshake, Input, Output zmtp.Endpoint
	// InputListener and OutputListener are used in their place where somebody
	// else has bound them and does the handshake. Run closes them.
	InputListener, OutputListener net.Listener
	// Memory is a file for the engines' descriptions of themselves. With it weir
	// recognizes after a restart the engines that are still running. Empty: nothing
	// is kept.
	Memory string

	// AdoptAfter is how long weir waits for a description from a known engine that
	// has connected again; default 500 ms.
	AdoptAfter time.Duration
}

func (o Options) withDefaults() Options {
	o.Options = o.WithDefaults()
	o.Engines = max(o.Engines, 1)
	o.AdoptAfter = cmp.Or(o.AdoptAfter, 500*time.Millisecond)
	return o
}
