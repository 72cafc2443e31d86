package plane

import (
	"testing"

	"weir/internal/engine"
	"weir/internal/engine/plane/planepb"
)

// Where an engine publishes is followed at the engine's own host. One that says nothing of it,
// or of its ranks, is one whole that publishes nothing.
func TestFactsOfEvents(t *testing.T) {
	e := New(Options{Name: "e", Addr: "engine.example:9001"})
	for _, test := range []struct {
		said       *planepb.Facts
		events     engine.KVEvents
		sideBySide int
	}{
		{&planepb.Facts{}, engine.KVEvents{}, 0},
		{&planepb.Facts{KvEvents: []*planepb.KVEvents{{Topic: "kv"}}}, engine.KVEvents{}, 0},
		{&planepb.Facts{Ranks: 1, KvEvents: []*planepb.KVEvents{{Endpoint: "tcp://*:5557"}}}, engine.KVEvents{Endpoint: "tcp://*:5557", Host: "engine.example"}, 1},
		{
			&planepb.Facts{Ranks: 2, KvEvents: []*planepb.KVEvents{
				{Endpoint: "tcp://*:5557", ReplayEndpoint: "tcp://*:5600", Topic: "kv@m", BlockTokens: 64},
				{Endpoint: "tcp://*:5558", ReplayEndpoint: "tcp://*:5601", Topic: "kv@m", BlockTokens: 64},
			}},
			engine.KVEvents{Endpoint: "tcp://*:5557", Replay: "tcp://*:5600", Topic: "kv@m", BlockTokens: 64, Host: "engine.example"}, 2,
		},
		{&planepb.Facts{Ranks: 1 << 31, KvEvents: []*planepb.KVEvents{{Endpoint: "x", BlockTokens: 1 << 31}}}, engine.KVEvents{Endpoint: "x", Host: "engine.example"}, 0},
	} {
		if got := e.factsOf(test.said); got.KVEvents != test.events || got.SideBySide != test.sideBySide {
			t.Errorf("%v: %+v, %d side by side", test.said, got.KVEvents, got.SideBySide)
		}
	}
	// An engine that is reached by its port alone is this machine's.
	if got := New(Options{Name: "e", Addr: ":9001"}).factsOf(&planepb.Facts{KvEvents: []*planepb.KVEvents{{Endpoint: "tcp://10.1.2.3:1"}}}); got.KVEvents.Host != "127.0.0.1" {
		t.Errorf("%+v", got.KVEvents)
	}
}
