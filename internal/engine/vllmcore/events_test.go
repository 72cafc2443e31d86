package vllmcore

import (
	"testing"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
)

// The address of an engine's KV events is read. A value that is not an address does not keep the
// engine from serving.
func TestKVEvents(t *testing.T) {
	word := func(events map[string]any) []byte {
		b, err := msgp.AppendMapStrIntf(nil, map[string]any{"max_model_len": 4096, "block_size": 128, "kv_events_config": events})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	config := func(change func(m map[string]any)) map[string]any {
		m := map[string]any{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv", "buffer_steps": 10000}
		change(m)
		return m
	}
	want := engine.KVEvents{Endpoint: "tcp://*:5557", Replay: "tcp://*:5558", Topic: "kv"}
	without := want
	without.Replay = ""
	for name, test := range map[string]struct {
		events map[string]any
		want   engine.KVEvents
	}{
		"zmq":          {config(func(map[string]any) {}), want},
		"no replay":    {config(func(m map[string]any) { m["replay_endpoint"] = nil }), without},
		"off":          {config(func(m map[string]any) { m["enable_kv_cache_events"] = false }), engine.KVEvents{}},
		"null":         {config(func(m map[string]any) { m["publisher"] = "null" }), engine.KVEvents{}},
		"another form": {config(func(m map[string]any) { m["endpoint"] = 7 }), engine.KVEvents{}},
		"none":         {nil, engine.KVEvents{}},
	} {
		r, err := decodeReady(word(test.events))
		if err != nil || r.events != test.want || r.contextLength != 4096 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	r, err := decodeReady(word(config(func(map[string]any) {})))
	if err != nil {
		t.Fatal(err)
	}
	s := &session{ready: r, peer: "10.0.0.5"}
	want.BlockTokens, want.Host = 128, "10.0.0.5"
	if got := s.kvEvents(); got != want {
		t.Errorf("%+v", got)
	}
}
