package fleet

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/wire/zmtp"
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
	of := func() *route.Events { return f.Snapshot().Engines[0].Events()[0] }
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

// Each rank publishes where it says itself, or at the port that is its number behind the
// one that is given; and where requests cannot name their rank, what ranks publish is of
// no use.
func TestSourceOfRanks(t *testing.T) {
	at := func(port string) engine.KVEvents {
		return engine.KVEvents{Endpoint: "tcp://*:" + port, Replay: "tcp://*:1" + port, Topic: "kv", BlockTokens: 64, Host: "127.0.0.1"}
	}
	ranked := engine.Facts{SideBySide: 2, KVEvents: at("5557"), Ranks: []engine.Rank{{Number: 0, KVEvents: at("5557")}, {Number: 1, KVEvents: at("6666")}}}
	whole, silent := engine.Facts{KVEvents: at("5557")}, engine.Facts{SideBySide: 2, Ranks: []engine.Rank{{Number: 0}, {Number: 3}}}
	several, wrong := whole, ranked
	several.SideBySide = 2
	wrong.KVEvents.Why = "they tell too little"
	given := Member{KVEvents: engine.KVEvents{Endpoint: "tcp://10.0.0.1:7000", Replay: "tcp://10.0.0.1:8000", Topic: "x"}}
	path := Member{KVEvents: engine.KVEvents{Endpoint: "ipc:///run/kv"}}
	for _, test := range []struct {
		what             string
		m                Member
		rank             int
		facts            engine.Facts
		endpoint, replay string
		why              string
	}{
		{"one whole", Member{}, -1, whole, "tcp://*:5557", "tcp://*:15557", ""},
		{"its own word", Member{}, 1, ranked, "tcp://*:6666", "tcp://*:16666", ""},
		{"given", given, 0, ranked, "tcp://10.0.0.1:7000", "tcp://10.0.0.1:8000", ""},
		{"given, behind the first", given, 3, silent, "tcp://10.0.0.1:7003", "tcp://10.0.0.1:8003", ""},
		{"given, of one whole", given, -1, whole, "tcp://10.0.0.1:7000", "tcp://10.0.0.1:8000", ""},
		{"it publishes nothing", Member{}, 3, silent, "", "", ""},
		{"requests name no rank", Member{}, -1, several, "tcp://*:5557", "tcp://*:15557", "cannot name theirs"},
		{"what is given does not help", given, -1, several, "tcp://10.0.0.1:7000", "tcp://10.0.0.1:8000", "cannot name theirs"},
		{"nor here", given, 1, wrong, "tcp://10.0.0.1:7001", "tcp://10.0.0.1:8001", "too little"},
		{"a path has no port", path, 1, ranked, "ipc:///run/kv", "", "no port"},
		{"but of one it will do", path, -1, whole, "ipc:///run/kv", "", ""},
	} {
		got, _ := sourceOf(&test.m, test.rank, &test.facts)
		if got.Endpoint != test.endpoint || got.Replay != test.replay || !strings.Contains(got.Why, test.why) || (test.why == "") != (got.Why == "") {
			t.Errorf("%s: %+v", test.what, got)
		}
		if test.endpoint != "" && test.m.KVEvents.Endpoint == "" && (got.BlockTokens != 64 || got.Host != "127.0.0.1" || got.Topic != "kv") {
			t.Errorf("%s: %+v", test.what, got)
		}
	}
}

// The blocks that an engine was believed to hold are forgotten when it has cleared its cache.
func TestClearedCacheIsForgotten(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := tokenMember("a", "")
	a.KVEvents = engine.KVEvents{Endpoint: "tcp://" + l.Addr().String()}
	f, err := New(Options{Members: []Member{a}, Folders: map[string][]string{"m": nil}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); f.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	a.Adapter.(*tokens).states <- ready("m")
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, err := zmtp.Handshake(conn, zmtp.Config{Type: zmtp.Pub})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Recv(); err != nil { // it subscribes
		t.Fatal(err)
	}
	var cache *kvindex.Cache
	for deadline := time.Now().Add(time.Minute); cache == nil; time.Sleep(time.Millisecond) {
		if of := f.Snapshot().Engines[0].AllBooks(); len(of) > 0 {
			cache = of[0].Cache
		} else if time.Now().After(deadline) {
			t.Fatal("it has no books")
		}
	}
	cache.Place(kvindex.AppendChain(nil, route.Root("m", "", ""), make([]uint32, 4*route.BlockTokens), route.BlockTokens), 0)
	if cache.Used() != 4 {
		t.Fatalf("%d blocks are placed", cache.Used())
	}
	b := msgp.AppendMapHeader(msgp.AppendArrayHeader(msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 1), 1), 1)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "AllBlocksCleared")
	if err := c.Send(nil, make([]byte, 8), b); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); cache.Used() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d blocks are believed to be there", cache.Used())
		}
	}
}
