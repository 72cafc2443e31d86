package sglangserver

import (
	"strings"
	"testing"

	"weir/internal/engine"
	"weir/internal/infer"
)

// The effect of a server's --disaggregation-mode: its role, where halves meet, and which requests
// it takes.
func TestRole(t *testing.T) {
	requests := map[infer.Role]*infer.Request{
		infer.RoleBoth:    {},
		infer.RolePrefill: {Half: &infer.Half{Role: infer.RolePrefill}},
		infer.RoleDecode:  {Half: &infer.Half{Role: infer.RoleDecode}},
	}
	room := engine.Meets{Way: engine.ByRoom, Host: "h", Port: 8998, Ranks: 1}
	for _, c := range []struct {
		info  string
		role  infer.Role
		meets engine.Meets
		takes []infer.Role
	}{
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"null","disaggregation_bootstrap_port":8998}`, infer.RoleBoth, engine.Meets{}, []infer.Role{infer.RoleBoth}},
		{`{"skip_tokenizer_init":false}`, infer.RoleBoth, engine.Meets{}, []infer.Role{infer.RoleBoth}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998}`, infer.RolePrefill, room, []infer.Role{infer.RolePrefill}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9,"dp_size":4}`, infer.RolePrefill,
			engine.Meets{Way: engine.ByRoom, Host: "h", Port: 9, Ranks: 4}, []infer.Role{infer.RolePrefill}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"decode","disaggregation_bootstrap_port":8998,"dp_size":2,"page_size":64}`, infer.RoleDecode,
			engine.Meets{Way: engine.ByRoom, PageTokens: 64}, []infer.Role{infer.RoleDecode}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"decode","version":"0.5.20","disaggregation_transfer_backend":"mooncake"}`, infer.RoleDecode,
			engine.Meets{Way: engine.ByRoom}, []infer.Role{infer.RoleDecode}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"decode","version":"0.5.21","disaggregation_transfer_backend":"mori"}`, infer.RoleDecode,
			engine.Meets{Way: engine.ByRoom}, []infer.Role{infer.RoleDecode}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"decode","version":"0.5.21","disaggregation_transfer_backend":"nixl"}`, infer.RoleDecode,
			engine.Meets{Way: engine.ByRoom, HoldsPages: true}, []infer.Role{infer.RoleDecode}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"decode","version":"0.5.23","disaggregation_transfer_backend":"mooncake_tcp"}`, infer.RoleDecode,
			engine.Meets{Way: engine.ByRoom, HoldsPages: true}, []infer.Role{infer.RoleDecode}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"decode","version":"0.5.22.post1","disaggregation_transfer_backend":"mori"}`, infer.RoleDecode,
			engine.Meets{Way: engine.ByRoom, HoldsPages: true}, []infer.Role{infer.RoleDecode}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"decode","version":"unknown","disaggregation_transfer_backend":"mooncake"}`, infer.RoleDecode,
			engine.Meets{Way: engine.ByRoom}, []infer.Role{infer.RoleDecode}},
		{`{"skip_tokenizer_init":false,"disaggregation_mode":"prefill","version":"0.5.23","disaggregation_transfer_backend":"mooncake","disaggregation_bootstrap_port":8998}`, infer.RolePrefill, room, []infer.Role{infer.RolePrefill}},
		// Another server, or one that has not said anything yet: the caller knows.
		{`{"disaggregation_mode":"prefill"}`, infer.RoleBoth, engine.Meets{}, []infer.Role{infer.RoleBoth, infer.RolePrefill, infer.RoleDecode}},
	} {
		m, err := Parse([]byte(c.info))
		if err != nil || m.Fault() != nil {
			t.Fatal(err, m.Fault())
		}
		if role, meets := m.Role(), m.Meets("h"); role != c.role || meets != c.meets {
			t.Errorf("%s: %v %+v, want %v %+v", c.info, role, meets, c.role, c.meets)
		}
		for role, req := range requests {
			want := false
			for _, r := range c.takes {
				want = want || r == role
			}
			if bad := m.Takes(req); (bad == nil) != want || bad != nil && (bad.Code != infer.CodeUnsupported || !bad.Retryable || !bad.NotRun || !strings.Contains(bad.Message, "--disaggregation-mode "+m.mode())) {
				t.Errorf("%s: a request of role %v: %v", c.info, role, bad)
			}
		}
	}
}

// A half that has no other meets nobody, and its room is its rank's.
func TestAlone(t *testing.T) {
	m, err := Parse([]byte(`{"skip_tokenizer_init":false,"disaggregation_mode":"decode","disaggregation_bootstrap_port":8998}`))
	if err != nil {
		t.Fatal(err)
	}
	for rank, room := range map[int]int64{-1: 0, 0: 0, 3: 3} {
		if h, want := *m.Alone(rank), (infer.Bootstrap{Host: "2.2.2.2", Port: 8998, Room: room, Rank: rank}); h.Role != infer.RoleDecode || h.Bootstrap != want {
			t.Errorf("%+v, want %+v", h, want)
		}
	}
	if h := new(Mode).Alone(0); h != nil {
		t.Errorf("of whole requests it is %+v", h)
	}
}

// A mode that is not known is not guessed at.
func TestFault(t *testing.T) {
	for info, want := range map[string]bool{
		`{"skip_tokenizer_init":false,"disaggregation_mode":"encode"}`:  true,
		`{"skip_tokenizer_init":false,"disaggregation_mode":"prefill"}`: false,
		`{"disaggregation_mode":"encode"}`:                              false, // of another server
	} {
		m, err := Parse([]byte(info))
		if err != nil {
			t.Fatal(err)
		}
		if fault := m.Fault(); (fault != nil) != want || want && !strings.Contains(fault.Error(), "--disaggregation-mode encode") {
			t.Errorf("%s: %v", info, fault)
		}
	}
}

// A decode engine keeps no prompts unless it was told to, and others where they were not.
func TestForgets(t *testing.T) {
	for info, want := range map[string]bool{
		`"disaggregation_mode":"null"`:                                                                              false,
		`"disaggregation_mode":"prefill","disable_radix_cache":false`:                                               false,
		`"disaggregation_mode":"prefill","disable_radix_cache":true`:                                                true,
		`"disable_radix_cache":true`:                                                                                true,
		`"disaggregation_mode":"decode"`:                                                                            true,
		`"disaggregation_mode":"decode","disable_radix_cache":false`:                                                true, // from 0.5.19 on that is what was given
		`"disaggregation_mode":"decode","disaggregation_decode_enable_radix_cache":true`:                            false,
		`"disaggregation_mode":"decode","disaggregation_decode_enable_radix_cache":null,"disable_radix_cache":true`: true,
	} {
		m, err := Parse([]byte(`{"skip_tokenizer_init":false,` + info + `}`))
		if err != nil || m.Forgets() != want {
			t.Errorf("%s: %v, %v", info, m.Forgets(), err)
		}
	}
	if m, _ := Parse([]byte(`{"disable_radix_cache":true}`)); m.Forgets() {
		t.Error("another server is believed")
	}
}
