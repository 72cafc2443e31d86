package engine

import (
	"context"
	"errors"
)

// Prober is an Adapter that can ask its engine for a sign of its core: of what
// computes, not of what answers health checks. Each kind of adapter says what that is
// on its wire: a fence through the engine's loop where there is one, else a request of
// one token.
//
// Probe waits until the engine has given the sign, and then returns nil. Its own end by
// ctx says nothing about the engine: how long one may take is the caller's to judge. An
// error that wraps syscall.ECONNREFUSED says that nobody is there, ErrBusy that the
// engine has no room, ErrNoProbe that it cannot be asked; any other one is a failure of
// the engine's. A Probe uses a connection of its own where the wire has one for each
// request.
type Prober interface {
	Adapter
	Probe(ctx context.Context, p Probe) error
	// Generates says that the probe makes the engine generate. A fence does not: it
	// says nothing about an engine that fails all that it is asked.
	Generates() bool
}

// Probe says what a sign is wanted of.
type Probe struct {
	Rank  int    // of data parallelism; -1: of all ranks
	Model string // as the engine knows it
	// Path is that of the latest request, whose kind a Relay's probe is of. Empty is a
	// chat.
	Path string
}

var (
	// ErrBusy says that the engine has no room for a probe. It speaks neither for nor
	// against it.
	ErrBusy = errors.New("the engine has no room for the probe")
	// ErrNoProbe says that the engine does not know the probe, or refuses it.
	ErrNoProbe = errors.New("the engine cannot be probed")
)
