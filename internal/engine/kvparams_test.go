package engine

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Answers of vLLM 0.32 to a prefill half (NixlConnector, and NixlPushConnector).
const (
	pulled = `{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1,2,3]], "remote_engine_id": "0e7b", "remote_request_id": "cmpl-a-0-80d7c9d5", "remote_host": "127.0.0.1", "remote_port": 5601, "tp_size": 2, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": 722, "remote_blocks_expiry_time": null, "transfer_mode": "pull"}`
	pushed = `{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1]], "remote_engine_id": "P1_dp3", "remote_request_id": "r", "remote_host": "10.0.0.1", "remote_port": 5604, "tp_size": 4, "dcp_size": 1, "pp_size": 2, "remote_num_tokens": 1, "transfer_mode": "push"}`
)

// The halves that vLLM is asked for have every member that its engine relies on.
func TestKVParams(t *testing.T) {
	pull, push := &Meets{Way: ByPull}, &Meets{Way: ByPush, Host: "10.0.0.1", Port: 5601, EngineID: "P1", TP: 4, PP: 2}
	for _, x := range []struct{ got, want string }{
		{string(pull.PrefillParams("a")), `{"do_remote_decode":true,"do_remote_prefill":false}`},
		{string(push.PrefillParams("a\"")), `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"a\""}`},
		{string(push.DecodeParams(-1, "a")), `{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":"P1","remote_request_id":"a","remote_block_ids":null,"remote_host":"10.0.0.1","remote_port":5601,"tp_size":4,"dcp_size":1,"pp_size":2,"transfer_id":"a"}`},
		{string(push.DecodeParams(3, "a")), `{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":"P1_dp3","remote_request_id":"a","remote_block_ids":null,"remote_host":"10.0.0.1","remote_port":5604,"tp_size":4,"dcp_size":1,"pp_size":2,"transfer_id":"a"}`},
	} {
		if x.got != x.want {
			t.Errorf("%s, want %s", x.got, x.want)
		}
	}
}

// An engine is known by what it answers to a prefill half, each rank by itself.
func TestReadMeets(t *testing.T) {
	for _, x := range []struct {
		params string
		rank   int
		want   Meets
	}{
		{pulled, -1, Meets{Way: ByPull, Host: "127.0.0.1", Port: 5601, EngineID: "0e7b", TP: 2, DCP: 1, PP: 1, Whole: true}},
		{pushed, -1, Meets{Way: ByPush, Host: "10.0.0.1", Port: 5604, EngineID: "P1_dp3", TP: 4, DCP: 1, PP: 2, Whole: true}},
		{pushed, 3, Meets{Way: ByPush, Host: "10.0.0.1", Port: 5601, EngineID: "P1", TP: 4, DCP: 1, PP: 2, Whole: true}},
	} {
		got, err := ReadMeets([]byte(x.params), x.rank)
		if err != nil || got != x.want {
			t.Errorf("%+v, %v; want %+v", got, err, x.want)
		}
	}
	for _, x := range []struct {
		params string
		rank   int
		says   string
	}{
		{"", -1, "--kv-transfer-config"}, {"null", -1, "--kv-transfer-config"}, {"[]", -1, "cannot be read"}, {pulled, 0, "_dp0"},
		{strings.Replace(pushed, `"push"`, `"carrier pigeon"`, 1), 3, "carrier pigeon"},
	} {
		if m, err := ReadMeets([]byte(x.params), x.rank); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %+v, %v", x.params, m, err)
		}
	}
}

// Parameters that would end a decode engine are not handed on.
func TestCheckHanded(t *testing.T) {
	if err := CheckHanded([]byte(pulled)); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"do_remote_prefill", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"} {
		for _, value := range []any{nil, []any{}, ""} {
			var members map[string]any
			if err := json.Unmarshal([]byte(pulled), &members); err != nil {
				t.Fatal(err)
			}
			members[name] = value
			if value == "" {
				delete(members, name)
			}
			b, err := json.Marshal(members)
			if err != nil {
				t.Fatal(err)
			}
			if err := CheckHanded(b); err == nil {
				t.Errorf("%s may be %v", name, value)
			}
		}
	}
}

func TestFilled(t *testing.T) {
	for value, want := range map[string]bool{`[[1]]`: true, " [\n 1 ]": true, `[]`: false, " [ \t] ": false, `null`: false, `{"a":1}`: false, `"[1]"`: false} {
		if got := filled(jsontext.Value(value)); got != want {
			t.Errorf("%s: %v", value, got)
		}
	}
}

func TestHandedCached(t *testing.T) {
	for params, want := range map[string]int{
		`{"remote_block_ids":[[1]],"remote_prefill_cached_tokens":32}`: 32,
		`{"remote_prefill_cached_tokens":0}`:                           0,
		`{"remote_prefill_cached_tokens":null}`:                        -1,
		`{"remote_prefill_cached_tokens":-5}`:                          -1,
		`{"remote_prefill_cached_tokens":"9"}`:                         -1,
		`{}`:                                                           -1, ``: -1, `[`: -1,
	} {
		if got := HandedCached([]byte(params)); got != want {
			t.Errorf("%s: %d, want %d", params, got, want)
		}
	}
}
