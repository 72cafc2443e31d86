package sglang

import (
	"context"
	"strings"
	"testing"

	"weir/internal/engine"
	"weir/internal/engine/enginetest"
	"weir/internal/engine/remote"
	"weir/internal/engine/sglangserver"
	"weir/internal/infer"
)

// A half says where it meets the other, and for a prefill half no more than one id is asked
// for. A server gets what is of its role alone.
func TestAppendHalf(t *testing.T) {
	half := func(role infer.Role, rank int) *infer.Request {
		return &infer.Request{ID: "0123", Prompt: []uint32{5}, MaxTokens: 9, MinTokens: 2, Half: &infer.Half{Role: role,
			Bootstrap: infer.Bootstrap{Host: "fe80::1%eth0", Port: 8998, Room: 1<<63 - 1, Rank: rank}}}
	}
	const meet = `"bootstrap_host":"fe80::1%eth0","bootstrap_port":8998,"bootstrap_room":9223372036854775807`
	skips := false
	of := func(mode string) *server {
		srv := serverOf(infer.CarriesAll)
		srv.mode = &sglangserver.Mode{Version: "0.5.23", SkipTokenizer: &skips, Disaggregation: mode}
		return srv
	}
	for _, c := range []struct {
		mode string
		req  *infer.Request
		rank int
		want string // empty: refused
	}{
		{"prefill", half(infer.RolePrefill, -1), -1, `{"rid":"0123",` + meet + `,"stream":true,"input_ids":[5],"sampling_params":{"max_new_tokens":1,"min_new_tokens":1}}`},
		{"prefill", half(infer.RolePrefill, 1), 1, `{"rid":"0123","routed_dp_rank":1,` + meet + `,"disagg_prefill_dp_rank":1,"stream":true,"input_ids":[5],"sampling_params":{"max_new_tokens":1,"min_new_tokens":1}}`},
		{"decode", half(infer.RoleDecode, -1), -1, `{"rid":"0123",` + meet + `,"stream":true,"input_ids":[5],"sampling_params":{"max_new_tokens":9,"min_new_tokens":2}}`},
		{"decode", half(infer.RoleDecode, 1), 0, `{"rid":"0123","routed_dp_rank":0,` + meet + `,"disagg_prefill_dp_rank":1,"stream":true,"input_ids":[5],"sampling_params":{"max_new_tokens":9,"min_new_tokens":2}}`},
		{"decode", half(infer.RolePrefill, -1), -1, ""},
		{"prefill", half(infer.RoleDecode, -1), -1, ""},
		{"null", half(infer.RoleDecode, -1), -1, ""},
		{"prefill", &infer.Request{ID: "0123", Prompt: []uint32{5}, MaxTokens: 9}, -1, ""},
	} {
		b, bad := of(c.mode).appendRequest(nil, c.req, c.rank)
		if string(b) != c.want || (bad == nil) != (c.want != "") || bad != nil && bad.Code != infer.CodeUnsupported {
			t.Errorf("to a server of mode %s: %s, %v; want %s", c.mode, b, bad, c.want)
		}
	}
	media := half(infer.RolePrefill, -1)
	media.ToContext = true
	if most, least := Limits(media); most != 1 || least != 1 {
		t.Errorf("a prefill half may have %d to %d ids", least, most)
	}
}

// The end of an aborted prefill half says whether anything of it was computed: in the words of
// SGLang 0.5.3 and of later releases.
func TestUnbegun(t *testing.T) {
	for said, want := range map[string]bool{
		`{"text":"","output_ids":[],"meta_info":{"id":"r","finish_reason":{"type":"abort","message":"Abort in waiting queue"},"weight_version":"default","e2e_latency":0.1,"completion_tokens":0}}`:                                                                                                                                                       true,
		`{"text":"","meta_info":{"id":"r","finish_reason":{"type":"abort","message":"Abort before prefill"},"prompt_tokens":0,"completion_tokens":0}}`:                                                                                                                                                                                                    true,
		`{"text":"","output_ids":[],"meta_info":{"id":"r","finish_reason":{"type":"abort","message":"Prefill bootstrap failed for request rank=0 req.rid='r' req.bootstrap_room=7 with exception KVTransferError(bootstrap_room=7): Aborted by AbortReq.","status_code":500,"err_type":null},"prompt_tokens":9,"completion_tokens":0,"cached_tokens":0}}`: true,
		`{"error":{"message":"Prefill bootstrap failed for request rank=0 req.rid='r'","type":"InternalServerError","param":null,"code":500}}`:                                                                                                                                                                                                            true,
		`{"text":"","output_ids":[],"meta_info":{"id":"r","finish_reason":{"type":"abort","message":"Prefill transfer failed for request rank=0 req.rid='r'","status_code":500,"err_type":null},"completion_tokens":0}}`:                                                                                                                                  false,
		`{"text":"","output_ids":[],"meta_info":{"id":"r","finish_reason":{"type":"abort","message":"Aborted","status_code":null,"err_type":null},"prompt_tokens":9,"completion_tokens":0,"cached_tokens":0}}`:                                                                                                                                            false,
		`{"text":"","output_ids":[5],"meta_info":{"id":"r","finish_reason":{"type":"length","length":0},"prompt_tokens":9,"completion_tokens":1,"cached_tokens":0}}`:                                                                                                                                                                                      false,
	} {
		var e event
		if err := newScanner().scan([]byte(said), &e); err != nil {
			t.Fatalf("%s: %v", said, err)
		}
		if got := e.unbegun(false); got != want {
			t.Errorf("%s: %v", said, got)
		}
		// Releases that abort between two chunks say so only of one that has met nobody.
		if got := e.unbegun(true); got != strings.Contains(said, bootstrapFailed) {
			t.Errorf("%s: %v from one that aborts between chunks", said, got)
		}
	}
}

// The abort of a decode half waits only where its server does not keep the pages by itself.
func TestDefersAborts(t *testing.T) {
	e := New(newPeer(t, incremental).options())
	for release, waits := range map[string]bool{"0.5.20": true, "0.5.21": false, "": true} {
		srv := serverOf(infer.CarriesAll)
		srv.mode = &sglangserver.Mode{Version: release, SkipTokenizer: new(false), Disaggregation: "decode", Transfer: "mooncake"}
		g := e.newGeneration(&infer.Request{Prompt: []uint32{1}, MaxTokens: 9, Half: &infer.Half{Role: infer.RoleDecode}}, 1, nil, srv)
		if got := g.Waits != nil; got != waits {
			t.Errorf("%q: its abort waits: %v", release, got)
		}
	}
}

// A half's times in the queue are those at which it met the other, or had its KV.
func TestHalfStamps(t *testing.T) {
	for role, want := range map[infer.Role]infer.Stamps{
		infer.RoleBoth:    {QueueStart: 1500, QueueEnd: 2000, PrefillEnd: 3000},
		infer.RolePrefill: {QueueStart: 1500, QueueEnd: 2000, PrefillEnd: 3000, BootstrapEnd: 1500},
		infer.RoleDecode:  {QueueStart: 1500, QueueEnd: 2000, PrefillEnd: 3000, TransferEnd: 1500, WaitingToRunning: 2000},
	} {
		g := &generation{e: new(Engine), role: role}
		g.e.server.Store(&server{clock: remote.Offset{Known: true}})
		if got := g.stamp(&event{forwardEntry: 2e-6, queueTime: .5e-6, prefillFinished: 3e-6}); got == nil || *got != want {
			t.Errorf("of %v: %+v, want %+v", role, got, want)
		}
	}
}

// A server that was patched for the timeline gives its stamps by their names there, as wall
// time or, which this machine alone can read, as the monotonic clock's; they say more than
// those that every server has.
func TestPatchedStamps(t *testing.T) {
	const wall = 1_800_000_000 // seconds
	var e event
	if err := newScanner().scan([]byte(`{"text":"","output_ids":[5],"meta_info":{"id":"r","finish_reason":null,"prompt_tokens":1,"num_retractions":2,"completion_tokens":1,"cached_tokens":0,`+
		`"server_created_time":1800000000.5,"queue_time_start":1800000001.5,"queue_time_end":1800000002.5,"prefill_start_time":1800000003.5,"prefill_end_time":1800000004.5,`+
		`"server_first_token_time":1800000005.5,"first_output_time":null,"queue_time":0.25,"forward_entry_time":1800000009.5}}`), &e); err != nil {
		t.Fatal(err)
	}
	half := func(s int64) int64 { return s*1e9 + 5e8 }
	want := infer.Stamps{ServerCreated: half(0), QueueStart: half(1), QueueEnd: half(2), PrefillStart: half(3), PrefillEnd: half(4), FirstToken: half(5), Retracted: 2}
	g := &generation{e: new(Engine)}
	g.e.server.Store(&server{clock: remote.Offset{Known: true, NS: wall * 1e9}})
	if got := g.stamp(&e); got == nil || *got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := g.stamp(&e); got != nil {
		t.Errorf("told again: %+v", got)
	}
	for _, oneClock := range []bool{false, true} {
		g := &generation{e: new(Engine)}
		g.e.server.Store(&server{clock: remote.Offset{Known: true}, oneClock: oneClock})
		var e event
		e.named[0] = 12.5
		if got := g.stamp(&e); oneClock != (got != nil && got.ServerCreated == 12.5e9) {
			t.Errorf("one clock %v: %+v", oneClock, got)
		}
	}
}

// A failure between two engines does not count against the engine that reports it.
func TestHandoverFailure(t *testing.T) {
	for message, want := range map[string]bool{
		"Decode transfer failed for request rank=0 decode_req.req.rid='r' with exception KVTransferError(bootstrap_room=7): Failed to get kvcache from prefill instance, it might be dead": true,
		"Decode handshake failed for request rank=0":                      true,
		"Prefill bootstrap failed for request rank=0 req.rid='r'":         true,
		"Prefill transfer failed for request rank=0":                      true,
		"Out of memory. Please set a smaller number for `--max-running`.": false,
		"": false,
	} {
		if err := Failure("e", 500, message); err.Handover != want || err.Code != infer.CodeEngine || !err.Retryable || err.Engine != "e" || err.Message == "" {
			t.Errorf("%q: %+v", message, err)
		}
	}
}

// The abort of a decode half reaches the engine when it has had an id, or when nothing is
// handed over any more; that of a prefill half at once.
func TestDeferredAbort(t *testing.T) {
	p := newPeer(t, incremental)
	b := enginetest.Start(t, enginetest.Rig{Engine: New(p.options()), Peer: p, Alone: true, Panics: &p.panics})
	half := func(role infer.Role) *enginetest.Call {
		req := b.Request(9)
		req.Half = &infer.Half{Role: role, Bootstrap: infer.Bootstrap{Host: "h", Port: 1, Room: 1, Rank: -1}}
		c := b.GoWith(b.Ctx, req)
		if b.Wait(c); c.Err != nil {
			t.Fatal(c.Err)
		}
		c.Gen.Abort()
		return c
	}
	over := func(c *enginetest.Call) {
		t.Helper()
		b.Must(p.Aborted(b.Ctx, c.Request.ID))
		p.Step(enginetest.Out{ID: c.Request.ID, Finish: infer.ReasonAbort})
		b.WantFinish(c, infer.ReasonAbort)
	}
	decoding, unmet := half(infer.RoleDecode), half(infer.RoleDecode)
	over(half(infer.RolePrefill))
	now, cancel := context.WithCancel(b.Ctx)
	cancel()
	for _, c := range []*enginetest.Call{decoding, unmet} {
		if p.Aborted(now, c.Request.ID) == nil {
			t.Errorf("the abort of %s did not wait", c.Request.ID)
		}
	}
	p.Step(enginetest.Out{ID: decoding.Request.ID, IDs: []uint32{7}})
	over(decoding)
	engine.Released(unmet.Gen)
	over(unmet)
	enginetest.GivenUp(b, infer.Bootstrap{Host: "h", Port: 1, Room: 1, Rank: -1})
}
