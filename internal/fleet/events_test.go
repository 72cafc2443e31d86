package fleet

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/route"
	"weir/internal/zmtp"
)

// An engine's events are followed for as long as its books are kept: from when it is ready
// and says where they are, over a loss that it may have outlived, anew with another life;
// and never where they cannot be used, or were not to be.
func TestKVEventsAreFollowed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	joined, gone := make(chan struct{}, 10), make(chan struct{}, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c, err := zmtp.Handshake(conn, zmtp.Config{Type: zmtp.Pub})
			if err != nil {
				continue
			}
			joined <- struct{}{}
			go func() {
				for {
					if _, err := c.Recv(); err != nil {
						c.Close()
						gone <- struct{}{}
						return
					}
				}
			}()
		}
	}()
	await := func(what string, c chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatal(what)
		}
	}
	at := "tcp://" + l.Addr().String()
	_, port, _ := net.SplitHostPort(l.Addr().String())

	a, off, several, given := tokenMember("a", ""), tokenMember("off", ""), tokenMember("several", ""), tokenMember("given", "")
	off.NoKVEvents = true
	given.KVEvents = engine.KVEvents{Endpoint: at}
	told := make(chan string, 100)
	f, err := New(Options{Members: []Member{a, off, several, given}, Folders: map[string][]string{"m": nil},
		Events: func(m Member, err error) {
			if err == nil {
				told <- m.Name
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); f.Run(ctx) }()
	// say has an engine report, and waits until the snapshot has it.
	say := func(m Member, s engine.State) {
		t.Helper()
		m.Adapter.(*tokens).states <- s
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			for _, e := range f.Snapshot().Engines {
				if e.Name == m.Name && e.Ready == s.Ready && (!s.Ready || e.Facts.Instance == s.Facts.Instance) {
					return
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the report has not come", m.Name)
			}
		}
	}
	events := func(name string) bool {
		for _, e := range f.Snapshot().Engines {
			if e.Name == name {
				return e.Events() != nil
			}
		}
		return false
	}
	state := func(instance string, events engine.KVEvents) engine.State {
		s := ready("m")
		s.Facts.Instance, s.Facts.KVEvents = instance, events
		return s
	}
	say(a, state("1", engine.KVEvents{Endpoint: "tcp://*:" + port, Host: "127.0.0.1"}))
	await("nobody follows", joined)
	if name := <-told; name != "a" || !events("a") {
		t.Errorf("%s is followed", name)
	}
	say(off, state("1", engine.KVEvents{Endpoint: at, Host: "127.0.0.1"}))
	say(several, state("1", engine.KVEvents{Endpoint: at, Host: "127.0.0.1", Why: "it has several"}))
	if events("off") || events("several") {
		t.Error("what is not to be followed is")
	}
	say(several, state("2", engine.KVEvents{Endpoint: "tcp://10.1.2.3:5557", Host: "10.9.9.9"}))
	for _, e := range f.Snapshot().Engines {
		if e.Name == "several" && (events("several") || !strings.Contains(e.Note, "kv-events=")) {
			t.Errorf("another host's events: %q", e.Note)
		}
	}
	say(given, state("1", engine.KVEvents{}))
	await("nobody follows what was given", joined)

	// A loss that it has outlived changes nothing.
	of := func() *route.Events { return f.Snapshot().Engines[0].Events() }
	here := of()
	say(a, engine.State{})
	say(a, state("1", engine.KVEvents{Endpoint: "tcp://*:" + port, Host: "127.0.0.1"}))
	if of() != here {
		t.Error("its events are followed anew")
	}
	// Another life has other events.
	say(a, state("2", engine.KVEvents{Endpoint: "tcp://*:" + port, Host: "127.0.0.1"}))
	await("the old life's are followed still", gone)
	await("the new life's are not followed", joined)
	if of() == here {
		t.Error("its new life has the events of the old one")
	}
	cancel()
	for range 2 {
		await("they are followed after the end", gone)
	}
	<-ended
}
