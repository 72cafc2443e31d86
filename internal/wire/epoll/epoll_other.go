//go:build !linux

package epoll

import "errors"

// Supported says whether sockets can be polled on this system.
const Supported = false

// Poller is not there on this system: its methods give errors.ErrUnsupported.
type Poller[W Worker] struct{}

// New makes a poller that polls nothing.
func New[W Worker](int, func() W) *Poller[W] { return &Poller[W]{} }

// Reads polls for what there is to read.
func (*Poller[W]) Reads(int, func(w W, hup bool)) (*Socket[W], error) {
	return nil, errors.ErrUnsupported
}

// HangUp polls for the end of the peer's side.
func (*Poller[W]) HangUp(int, func()) (*Socket[W], error) { return nil, errors.ErrUnsupported }

// Assist calls back what is ready.
func (*Poller[W]) Assist(W) {}

// Close ends the poller.
func (*Poller[W]) Close() {}

// Socket is a socket that is polled.
type Socket[W Worker] struct{}

// Stop ends the polling.
func (*Socket[W]) Stop() {}

// Forget is Stop for a socket that is closed already.
func (*Socket[W]) Forget() {}

// Again calls back once more.
func (*Socket[W]) Again() error { return errors.ErrUnsupported }

// Room calls back when there is room to write.
func (*Socket[W]) Room() error { return errors.ErrUnsupported }
