package sglangserver

import (
	"testing"

	"weir/internal/engine"
)

// The KV events of /server_info are read: the address of rank 0, from which the others follow.
func TestKVEvents(t *testing.T) {
	for text, want := range map[string]engine.KVEvents{
		`{"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"replay_endpoint_port_base":5600,"topic":"kv","block_size":64,"dp_size":2}}`: {
			Endpoint: "tcp://*:5557", Replay: "tcp://*:5600", Topic: "kv", BlockTokens: 64, Host: "10.0.0.5"},
		`{"kv_events":{"publisher":"zmq","endpoint_host":"[::]","endpoint_port_base":5557}}`: {Endpoint: "tcp://[::]:5557", Host: "10.0.0.5"},
		`{"kv_events":{"publisher":"null","endpoint_host":"*","endpoint_port_base":5557}}`:   {},
		`{"kv_events":null}`: {},
		`{}`:                 {},
	} {
		m, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := m.KVEvents("10.0.0.5"); got != want {
			t.Errorf("%s: %+v", text, got)
		}
	}
	e := engine.KVEvents{Endpoint: "tcp://*:5557", Replay: "tcp://*:5600"}
	if got := e.OfRank(3); got.Endpoint != "tcp://*:5560" || got.Replay != "tcp://*:5603" || got.Why != "" {
		t.Errorf("%+v", got)
	}
	e.Endpoint = "tcp://*:65535"
	if got := e.OfRank(1); got.Why == "" {
		t.Errorf("%+v", got)
	}
	for version, tells := range map[string]bool{"0.5.22": false, "0.5.23": true, "0.6.0": true} {
		skip := false
		if m := (&Mode{Version: version, SkipTokenizer: &skip}); m.TellsAdapters() != tells {
			t.Errorf("%s tells adapters' blocks from the model's: %v", version, !tells)
		}
	}
}
