package zmtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns two connected ends of the types given.
func pair(t *testing.T, a, b Config) (*Conn, *Conn) {
	t.Helper()
	one, other := net.Pipe()
	type result struct {
		c   *Conn
		err error
	}
	done := make(chan result)
	go func() {
		c, err := Handshake(buffered(other), b)
		done <- result{c, err}
	}()
	c, err := Handshake(buffered(one), a)
	r := <-done
	if err != nil || r.err != nil {
		t.Fatal(err, r.err)
	}
	t.Cleanup(func() { c.Close(); r.c.Close() })
	return c, r.c
}

// buffered returns a pipe's end writes that do not wait for the other end's reads,
// as a socket's do not.
func buffered(c net.Conn) net.Conn {
	b := &buffer{Conn: c, wake: make(chan []byte, 1024)}
	go func() {
		for p := range b.wake {
			if _, err := c.Write(p); err != nil {
				for range b.wake {
				}
				return
			}
		}
	}()
	return b
}

type buffer struct {
	net.Conn
	wake   chan []byte
	closed bool
}

func (b *buffer) Write(p []byte) (int, error) {
	b.wake <- bytes.Clone(p)
	return len(p), nil
}

func (b *buffer) Close() error {
	if !b.closed {
		b.closed = true
		close(b.wake)
	}
	return b.Conn.Close()
}

// Messages arrive as they were sent, however the stream is cut.
func TestMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := rapid.Custom(func(t *rapid.T) []byte {
			n := rapid.SampledFrom([]int{0, 1, 255, 256, 300, 70_000, 300_000}).Draw(t, "size")
			return bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(t, "byte"))}, n)
		})
		messages := rapid.SliceOfN(rapid.SliceOfN(frame, 1, 5), 1, 5).Draw(t, "messages")
		var wire []byte
		for _, m := range messages {
			wire = AppendMessage(wire, m...)
		}
		var src io.Reader = bytes.NewReader(wire)
		if rapid.Bool().Draw(t, "one byte at a time") && len(wire) < 10_000 {
			src = iotest.OneByteReader(src)
		}
		r := reader{src: src, limit: 4 << 20}
		for i, m := range messages {
			got, command, err := r.next()
			if err != nil || command || len(got) != len(m) {
				t.Fatalf("message %d: %d frames, command %v, %v; want %d", i, len(got), command, err, len(m))
			}
			for j := range m {
				if !bytes.Equal(got[j], m[j]) {
					t.Fatalf("message %d, frame %d: %d bytes, want %d", i, j, len(got[j]), len(m[j]))
				}
			}
		}
		if _, _, err := r.next(); err != io.EOF {
			t.Fatalf("after the last: %v", err)
		}
	})
}

func TestBrokenFrames(t *testing.T) {
	for _, test := range []struct {
		name, wire, want string
	}{
		{"reserved bits", "\x08\x00", "reserved bits"},
		{"a command that goes on", "\x05\x00", "goes on in another frame"},
		{"a command in a message", "\x01\x01a\x04\x01b", "in the middle of a message"},
		{"too large", "\x02\x00\x00\x00\x00\x7f\x00\x00\x00", "more than 1000 bytes"},
		{"larger than an int", "\x02\xff\xff\xff\xff\xff\xff\xff\xff", "more than 1000 bytes"},
		{"too large together", strings.Repeat("\x01\xff"+strings.Repeat("x", 255), 4) + "\x00\x00", "more than 1000 bytes"},
		{"cut in a head", "\x02\x00", "unexpected EOF"},
		{"cut in a body", "\x00\x05abc", "unexpected EOF"},
		{"cut between frames", "\x01\x01a", "unexpected EOF"},
	} {
		r := reader{src: strings.NewReader(test.wire), limit: 1000}
		if _, _, err := r.next(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	r := reader{src: strings.NewReader(strings.Repeat("\x01\x00", maxFrames+1)), limit: 1 << 20}
	if _, _, err := r.next(); err == nil || !strings.Contains(err.Error(), "frames") {
		t.Errorf("too many frames: %v", err)
	}
}

// A promise of a large message does not make room for it.
func TestRoomGrowsWithWhatComes(t *testing.T) {
	r := reader{src: strings.NewReader("\x02\x00\x00\x00\x00\x3f\x00\x00\x00abc"), limit: 1 << 30}
	if _, _, err := r.next(); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	if len(r.buf) > readSize {
		t.Errorf("%d bytes of room for 12", len(r.buf))
	}
}

func TestHandshake(t *testing.T) {
	front, engine := pair(t, Config{Type: Router}, Config{Type: Dealer, Identity: []byte{1, 0}})
	if got := front.Identity(); !bytes.Equal(got, []byte{1, 0}) {
		t.Errorf("identity %q", got)
	}
	if err := engine.Send([]byte("a"), nil, []byte("b")); err != nil {
		t.Fatal(err)
	}
	got, err := front.Recv()
	if err != nil || len(got) != 3 || string(got[0]) != "a" || len(got[1]) != 0 || string(got[2]) != "b" {
		t.Fatalf("%q, %v", got, err)
	}
	engine.Close()
	if _, err := front.Recv(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
}

// Each beginning that a peer may send, byte by byte.
func TestPeersThatDoNotFit(t *testing.T) {
	hello := func(edit func(g []byte)) string {
		g := greeting()
		edit(g)
		return string(g)
	}
	fine := hello(func([]byte) {})
	said := func(name string, body string) string {
		return string(appendFrame(nil, flagCommand, command(name, []byte(body))))
	}
	for _, test := range []struct {
		name, says, want string
	}{
		{"HTTP", "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: somebody who is at the wrong door\r\n\r\n", "does not speak ZMTP"},
		{"version 2", hello(func(g []byte) { g[10] = 1 }), "version 1"},
		{"CURVE", hello(func(g []byte) { copy(g[12:], "CURVE\x00") }), `"CURVE"`},
		{"a PUB socket", fine + said("READY", string(ready{kind: "PUB"}.body())), "PUB socket"},
		{"an error", fine + said("ERROR", "\x03bad"), `refused the connection: "bad"`},
		{"another command", fine + said("HELLO", ""), `"HELLO" where READY`},
		{"a message first", fine + "\x00\x01a", "before its READY"},
		{"no type", fine + said("READY", "\x01X\x00\x00\x00\x01a"), "no Socket-Type"},
		{"a READY cut short", fine + said("READY", "\x0bSocket-Type\x00\x00\x00\x09PUSH"), "cut short"},
		{"a long identity", fine + said("READY", string(ready{kind: Dealer, identity: make([]byte, 256)}.body())), "identity has 256 bytes"},
		{"nothing", "", "read the greeting"},
		{"half a greeting", fine[:30], "read the greeting"},
	} {
		one, other := net.Pipe()
		go func() {
			go io.Copy(io.Discard, other)
			io.WriteString(other, test.says)
			if len(test.says) < greetingSize {
				other.Close()
			}
		}()
		if _, err := Handshake(one, Config{Type: Router}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
		if _, err := one.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%s: the connection was left open (%v)", test.name, err)
		}
		other.Close()
	}
}

// A peer that says nothing, and one that does not read, hold nobody up for ever.
func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := net.Pipe()
		go io.Copy(io.Discard, other)
		began := time.Now()
		if _, err := Handshake(one, Config{Type: Pull}); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a silent peer: %v", err)
		}
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("after %v", d)
		}
		other.Close()

		one, other = net.Pipe() // which nobody reads
		defer other.Close()
		c := &Conn{conn: one, write: 5 * time.Second}
		defer c.Close()
		began = time.Now()
		if err := c.Send([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a peer that does not read: %v", err)
		}
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("after %v", d)
		}
	})
}

func TestCommands(t *testing.T) {
	a, b := pair(t, Config{Type: Dealer}, Config{Type: Router})
	if err := a.Write(appendFrame(nil, flagCommand, command("PING", []byte("\x00\x0acontext")))); err != nil {
		t.Fatal(err)
	}
	if err := a.Write(appendFrame(nil, flagCommand, command("LATER", nil))); err != nil {
		t.Fatal(err)
	}
	if err := a.Send([]byte("m")); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Recv(); err != nil || string(got[0]) != "m" {
		t.Fatalf("%q, %v", got, err)
	}
	got, isCommand, err := a.in.next()
	if err != nil || !isCommand || string(got[0]) != "\x04PONGcontext" {
		t.Errorf("%q, %v, %v", got, isCommand, err)
	}
	// Between the frames of a message, as libzmq sends them.
	wire := appendFrame(nil, flagMore, []byte("a"))
	wire = appendFrame(wire, flagCommand, command("PING", []byte("\x00\x0ax")))
	wire = appendFrame(wire, 0, bytes.Repeat([]byte("b"), 300))
	if err := a.Write(wire); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Recv(); err != nil || len(got) != 2 || string(got[0]) != "a" || len(got[1]) != 300 {
		t.Fatalf("%q, %v", got, err)
	}
	if got, isCommand, err := a.in.next(); err != nil || !isCommand || string(got[0]) != "\x04PONGx" {
		t.Errorf("%q, %v, %v", got, isCommand, err)
	}
	if err := a.Write(appendFrame(nil, flagCommand, command("ERROR", []byte("\x04gone")))); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Recv(); err == nil || !strings.Contains(err.Error(), `"gone"`) {
		t.Errorf("after an ERROR: %v", err)
	}
}

func TestEndpoints(t *testing.T) {
	for _, s := range []string{"tcp://127.0.0.1:5570", "tcp://[::1]:1", "ipc:///tmp/x"} {
		if e, err := ParseEndpoint(s); err != nil || e.String() != s {
			t.Errorf("%s: %v, %v", s, e, err)
		}
	}
	for _, s := range []string{"", "127.0.0.1:1", "tcp://127.0.0.1", "tcp://x:", "ipc://", "ipc://@x", "inproc://a", "ipc://" + strings.Repeat("x", 108)} {
		if e, err := ParseEndpoint(s); err == nil {
			t.Errorf("%s: %v", s, e)
		}
	}
}

// A socket's file that was left behind is replaced, that of a living process and a
// file that is none are not.
func TestListen(t *testing.T) {
	dir, err := os.MkdirTemp("", "z")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at := Endpoint{"unix", filepath.Join(dir, "s")}
	l, err := Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(at); err == nil {
		t.Error("a living listener was replaced")
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as a process that is killed leaves it
	l.Close()
	l, err = Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		z, err := Handshake(c, Config{Type: Pull})
		if err == nil {
			_, err = z.Recv()
			z.Close()
		}
		done <- err
	}()
	c, err := Dial(context.Background(), EndpointOf(l), Config{Type: Push})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Send([]byte("x")), <-done); err != nil {
		t.Error(err)
	}
	c.Close()
	l.Close()
	if err := os.WriteFile(at.Address, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(at); err == nil {
		t.Error("a file was replaced")
	}
}

func TestReceivingAllocatesNothing(t *testing.T) {
	wire := AppendMessage(nil, bytes.Repeat([]byte("x"), 100_000), []byte("y"))
	src := &endless{wire: wire}
	r := reader{src: src, limit: 1 << 20}
	if _, _, err := r.next(); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := r.next(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

// endless gives the same bytes for ever, in reads of odd sizes.
type endless struct {
	wire []byte
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), 8191)], e.wire[e.at:])
	e.at = (e.at + n) % len(e.wire)
	return n, nil
}

func FuzzReader(f *testing.F) {
	f.Add(AppendMessage(nil, []byte("a"), bytes.Repeat([]byte("b"), 300)))
	f.Add(appendFrame(nil, flagCommand, command("PING", []byte("\x00\x00"))))
	f.Fuzz(func(t *testing.T, wire []byte) {
		read := func(src io.Reader) (out []string, end string) {
			r := reader{src: src, limit: 1 << 16, obey: func(c []byte) error { out = append(out, fmt.Sprintf("between %q", c)); return nil }}
			for {
				frames, command, err := r.next()
				if err != nil {
					return out, err.Error()
				}
				out = append(out, fmt.Sprintf("%v %q", command, frames))
			}
		}
		whole, end := read(bytes.NewReader(wire))
		cut, endCut := read(iotest.OneByteReader(bytes.NewReader(wire)))
		if fmt.Sprint(whole) != fmt.Sprint(cut) || end != endCut {
			t.Fatalf("whole: %v, %s; byte by byte: %v, %s", whole, end, cut, endCut)
		}
	})
}

func FuzzCommand(f *testing.F) {
	f.Add(command("READY", ready{kind: Dealer, identity: []byte{0, 0}}.body()))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, body, err := parseCommand(b)
		if err != nil {
			return
		}
		if !bytes.Equal(command(name, body), b) {
			t.Fatalf("%q is not %q", command(name, body), b)
		}
		r, err := parseReady(body)
		if err != nil {
			return
		}
		again, err := parseReady(r.body())
		if err != nil || again.kind != r.kind {
			t.Fatalf("%v again is %v, %v", r, again, err)
		}
		_ = refusal(body)
	})
}
