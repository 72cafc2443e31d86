// Package kvsub subscribes to the KV events of an engine rank. It owns the sockets;
// package kvevents interprets the events.
//
// One goroutine follows one publisher. It buffers only the current message. While it is
// busy, the publisher's queue fills and then drops messages, which shows as a gap in the
// numbers.
package kvsub

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"weir/internal/fleet/kvevents"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/zmtp"
)

// Options configure Follow.
type Options struct {
	// Events is the publisher's endpoint. Replay is the endpoint at which lost batches
	// can be requested, if Replays.
	Events, Replay zmtp.Endpoint
	Replays        bool
	Topic          string
	Rank           *kvevents.Rank
	// ReplayPause is the least time from one replay to the next, so that a publisher with
	// senseless numbers does not cause endless replays; default 1 s.
	ReplayPause time.Duration
	// Emptied is called when the engine has begun with an empty cache or has cleared it, so
	// that its former content is gone.
	Emptied func()
	// Told is called with the reason when events cease to come, and with nil when they
	// come. It must not block.
	Told func(err error)
	// Panicked is called for a panic, which ends Follow.
	Panicked func(*infer.Panic)
}

// The bounds of following.
const (
	maxMessage  = 8 << 20
	dialTimeout = 5 * time.Second
	firstPause  = 100 * time.Millisecond
	longPause   = 5 * time.Second
	replayPause = time.Second
	// A publisher looks for requests every 100 ms.
	replaySilence = 5 * time.Second
	replayTimeout = 30 * time.Second
)

// Follow follows a publisher until ctx ends.
func Follow(ctx context.Context, o Options) {
	if o.Told == nil {
		o.Told = func(error) {}
	}
	defer func() {
		if p := infer.Caught(recover(), o.Panicked); p != nil {
			o.Told(fmt.Errorf("its KV events are followed no more, restart weir: %w", p))
		}
		o.Rank.Close()
	}()
	f := &follower{Options: o}
	for pause := firstPause; ; {
		heard, err := f.once(ctx)
		if o.Rank.Lost(); ctx.Err() != nil {
			return
		}
		if o.Told(err); heard {
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, longPause)
	}
}

// Locate returns the address of an endpoint that an engine reports. host is the engine's
// address: it replaces a wildcard host. An endpoint on another machine is an error.
func Locate(endpoint, host string) (zmtp.Endpoint, error) {
	at, err := zmtp.ParseEndpoint(endpoint)
	if err != nil || at.Network == "unix" {
		return at, err
	}
	of, port, err := net.SplitHostPort(at.Address)
	if err != nil {
		return at, err
	}
	ip := net.ParseIP(of)
	switch {
	case of == "*" || of == "" || ip != nil && ip.IsUnspecified():
		if host == "" {
			host = "127.0.0.1"
		}
	case host == "" || of == host || ip != nil && ip.IsLoopback() && local(host):
		host = of
	default:
		return at, fmt.Errorf("%s is not at the engine's own address, %s", endpoint, host)
	}
	at.Address = net.JoinHostPort(host, port)
	return at, nil
}

func local(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

type follower struct {
	Options
	replayed time.Time // when it was asked for last
	empty    int64     // when the cache was, as far as was looked
}

// look says it when the cache was emptied.
func (f *follower) look() {
	if at := f.Rank.Empty(); at != f.empty {
		if f.empty = at; f.Emptied != nil {
			f.Emptied()
		}
	}
}

// errForm is of a message that is not one of a publisher of KV events.
var errForm = errors.New("a message that is not one of KV events: want topic, number and batch")

// once follows a publisher over one connection. heard reports whether a message
// arrived.
func (f *follower) once(ctx context.Context) (heard bool, err error) {
	c, err := dial(ctx, f.Events, zmtp.Sub)
	if err != nil {
		return false, fmt.Errorf("KV events at %v: %w", f.Events, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := c.Subscribe(f.Topic); err != nil {
		return false, fmt.Errorf("KV events at %v: %w", f.Events, err)
	}
	f.Told(nil)
	f.answer(ctx, f.Rank.Connected())
	for ctx.Err() == nil {
		frames, err := c.Recv()
		if err != nil {
			return heard, fmt.Errorf("KV events at %v: %w", f.Events, err)
		}
		if len(frames) != 3 || len(frames[1]) != 8 {
			return heard, fmt.Errorf("KV events at %v: %w", f.Events, errForm)
		}
		heard = true
		seq := binary.BigEndian.Uint64(frames[1])
		if r := f.Rank.Live(trace.Now(), seq, frames[2]); r.Replay {
			f.answer(ctx, r)
			f.Rank.Live(trace.Now(), seq, frames[2])
		}
		f.look()
	}
	return heard, ctx.Err()
}

// answer has batches replayed until the rank asks for no more.
func (f *follower) answer(ctx context.Context, r kvevents.Request) {
	for r.Replay && ctx.Err() == nil {
		if wait := cmp.Or(f.ReplayPause, replayPause) - time.Since(f.replayed); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
		f.replayed = time.Now()
		err := f.replay(ctx, r.From)
		if err != nil && ctx.Err() == nil {
			f.Told(fmt.Errorf("replay of KV events at %v: %w", f.Replay, err))
		}
		r = f.Rank.Ended(trace.Now(), err == nil)
		f.look()
	}
}

// replay asks for the batches from a number on, and hands them over as they come.
func (f *follower) replay(ctx context.Context, from uint64) error {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	c, err := dial(ctx, f.Replay, zmtp.Dealer)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	for {
		if err := c.NetConn().SetReadDeadline(time.Now().Add(replaySilence)); err != nil {
			return err
		}
		frames, err := c.Recv()
		if err != nil {
			return err
		}
		// Newer releases send the topic in front of the number.
		n := len(frames)
		if n < 3 || n > 4 || len(frames[0]) > 0 || len(frames[n-2]) != 8 {
			return errForm
		}
		seq := binary.BigEndian.Uint64(frames[n-2])
		if seq == math.MaxUint64 {
			return nil
		}
		f.Rank.Replayed(trace.Now(), seq, frames[n-1])
	}
}

// dial connects to a socket. A publisher may have nothing to say for hours, so that only
// the kernel notices when it is gone.
func dial(ctx context.Context, at zmtp.Endpoint, as zmtp.Type) (*zmtp.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}}
	conn, err := d.DialContext(ctx, at.Network, at.Address)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return zmtp.Handshake(conn, zmtp.Config{Type: as, MaxMessage: maxMessage, HandshakeTimeout: dialTimeout, WriteTimeout: dialTimeout})
}
