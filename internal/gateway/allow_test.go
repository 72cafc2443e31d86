package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/internal/dialect/allow"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/models"
)

// A client steers no engine: neither one that takes ids nor a relay is handed a field
// that may not pass, and a body without any is relayed byte for byte.
func TestSteeringIsRefused(t *testing.T) {
	e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
	inBubble(t, Options{}, []any{e, r}, func(t *testing.T, b *bench) {
		carryPriority(b)
		for _, test := range []struct{ path, model, fields, param string }{
			{chatPath, "relayed", `"messages":[],"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"10.0.0.1"}`, "kv_transfer_params"},
			{chatPath, "relayed", `"messages":[],"\u006bv_transfer_params":{}`, "kv_transfer_params"},
			{completionsPath, "relayed", `"prompt":"a","priority":null,"priority":-1`, "priority"},
			{"/v1/responses", "relayed", `"input":"a","cache_salt":"b"`, "cache_salt"},
			{"/v1/messages", "relayed", `"messages":[],"max_tokens":1,"vllm_xargs":{"a":1}`, "vllm_xargs"},
			{"/v1/embeddings", "relayed", `"input":"a","lora_path":"/etc"`, "lora_path"},
			{"/v1/embeddings", "relayed", `"input":[{"image":"/etc/passwd"}]`, "input[0].image"},
			{"/v1/messages", "relayed", `"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://10.0.0.1/"}}]}]`, "messages[0].content[0].source.url"},
			{chatPath, models.SimName, `"messages":[{"role":"user","content":"a"}],"priority":3`, "priority"},
			{"/generate", models.SimName, `"text":"a","priority":3`, "priority"},
			{"/generate", models.SimName, `"text":"a","bootstrap_host":"b"`, "bootstrap_host"},
		} {
			a := b.post(test.path, fmt.Sprintf(`{"model":%q,%s}`, test.model, test.fields)).answer()
			if a.status != 400 || !strings.Contains(string(a.body), test.param) {
				t.Errorf("%s %s: %d %s", test.path, test.fields, a.status, a.body)
			}
		}
		c := b.post(chatPath, `{"model":"relayed","messages":[]}`, "X-Data-Parallel-Rank", "1")
		if a := c.answer(); a.status != 400 || !strings.Contains(string(a.body), "X-Data-Parallel-Rank") {
			t.Errorf("%d %s", a.status, a.body)
		}
		if len(e.handed()) != 0 || len(r.handed()) != 0 {
			t.Errorf("engines were handed %d and %d requests", len(e.handed()), len(r.handed()))
		}
	})
}

// A field that the operator allows by name passes unchanged.
func TestSteeringIsAllowed(t *testing.T) {
	fields, err := allow.ParseFields([]string{"priority", "x-data-parallel-rank"})
	if err != nil {
		t.Fatal(err)
	}
	e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
	inBubble(t, Options{Prepare: prepare.Options{Allow: allow.Rules{Fields: fields}}}, []any{e, r}, func(t *testing.T, b *bench) {
		carryPriority(b)
		c := b.post(completionsPath, `{"model":"`+models.SimName+`","prompt":"a","priority":3}`)
		call := e.call(t, 1)
		if p := call.req.Priority; p == nil || *p != 3 {
			t.Errorf("priority %v", p)
		}
		call.end(infer.ReasonStop)
		c.answer()
		const body = `{"model":"relayed", "messages":[],"priority":1e0 }`
		d := b.post(chatPath, body, "X-Data-Parallel-Rank", "1")
		f := r.forward(t, 1)
		if string(f.req.Body) != body || !slices.Equal(f.req.Header["X-Data-Parallel-Rank"], []string{"1"}) {
			t.Errorf("relayed %s, %v", f.req.Body, f.req.Header)
		}
		f.end()
		d.answer()
	})
}

// carryPriority has the token engine carry a priority.
func carryPriority(b *bench) {
	m := b.g.opts.Snapshot().Models[models.SimName]
	m.ByIDs.Carries |= infer.CarriesPriority
	m.Targets[0].Facts.Carries |= infer.CarriesPriority
}
