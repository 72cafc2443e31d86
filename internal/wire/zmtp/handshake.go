package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Type is a socket's type, in the words of the wire.
type Type string

// The types that can be spoken and met.
const (
	Push   Type = "PUSH"
	Pull   Type = "PULL"
	Dealer Type = "DEALER"
	Router Type = "ROUTER"
	Pub    Type = "PUB"
	Sub    Type = "SUB"
)

// peers says which type a socket of a type may be connected to.
var peers = map[Type][]Type{
	Push: {Pull}, Pull: {Push}, Dealer: {Router, Dealer}, Router: {Dealer, Router, "REQ"},
	Pub: {Sub, "XSUB"}, Sub: {Pub, "XPUB"},
}

const greetingSize = 64

// greeting is what each side sends first: the signature, version 3.1, the NULL
// mechanism, not as server.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[8], g[9] = 0xff, 0x01, 0x7f
	g[10], g[11] = 3, 1
	copy(g[12:32], "NULL")
	return g
}

// checkGreeting judges what the peer sent first.
func checkGreeting(g []byte) error {
	if g[0] != 0xff || g[9] != 0x7f {
		return fmt.Errorf("zmtp: the peer does not speak ZMTP: it begins with %q", g[:10])
	}
	if g[10] < 3 {
		return fmt.Errorf("zmtp: the peer speaks version %d of ZMTP; 3 is needed (libzmq 4.0 or later)", g[10])
	}
	if m := string(bytes.TrimRight(g[12:32], "\x00")); m != "NULL" {
		return fmt.Errorf("zmtp: the peer asks for the security mechanism %q; only NULL is spoken", m)
	}
	return nil
}

// ready is what a READY command says.
type ready struct {
	kind     Type
	identity []byte
}

// command appends a command, without its frame's head: its name, then its body.
func command(name string, body []byte) []byte {
	c := append([]byte{byte(len(name))}, name...)
	return append(c, body...)
}

// body is the command's properties.
func (r ready) body() []byte {
	var b []byte
	property := func(name string, value []byte) {
		b = append(b, byte(len(name)))
		b = append(b, name...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
		b = append(b, value...)
	}
	property("Socket-Type", []byte(r.kind))
	if r.kind == Dealer || r.kind == Router {
		property("Identity", r.identity)
	}
	return b
}

// parseCommand splits a command into its name and its body.
func parseCommand(c []byte) (name string, body []byte, err error) {
	if len(c) == 0 || int(c[0]) == 0 || len(c) < 1+int(c[0]) {
		return "", nil, errors.New("zmtp: a command without a name")
	}
	n := 1 + int(c[0])
	return string(c[1:n]), c[n:], nil
}

// parseReady reads the properties of a READY command. Unknown ones are skipped.
func parseReady(b []byte) (ready, error) {
	var r ready
	for len(b) > 0 {
		n := int(b[0])
		if n == 0 || len(b) < 1+n+4 {
			return ready{}, errors.New("zmtp: the peer's READY is cut short")
		}
		name, rest := b[1:1+n], b[1+n:]
		size := binary.BigEndian.Uint32(rest)
		rest = rest[4:]
		if uint64(size) > uint64(len(rest)) {
			return ready{}, errors.New("zmtp: the peer's READY is cut short")
		}
		value := rest[:size]
		b = rest[size:]
		switch {
		case bytes.EqualFold(name, []byte("Socket-Type")):
			r.kind = Type(value)
		case bytes.EqualFold(name, []byte("Identity")):
			if len(value) > 255 {
				return ready{}, fmt.Errorf("zmtp: the peer's identity has %d bytes, of at most 255", len(value))
			}
			r.identity = bytes.Clone(value)
		}
	}
	if r.kind == "" {
		return ready{}, errors.New("zmtp: the peer's READY names no Socket-Type")
	}
	return r, nil
}

// refusal reads the reason of an ERROR command.
func refusal(body []byte) string {
	if len(body) > 0 && len(body) > int(body[0]) {
		return string(body[1 : 1+int(body[0])])
	}
	return "without a reason"
}
