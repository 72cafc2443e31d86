package flags

import (
	"cmp"
	"time"
)

// VLLM are the flags of the server that speaks like vLLM, by vLLM's names.
type VLLM struct {
	// PerRequestMetrics adds the object metrics to answers
	// (--enable-per-request-metrics).
	PerRequestMetrics bool
	// PromptTokensDetails adds cached_tokens to the usage
	// (--enable-prompt-tokens-details).
	PromptTokensDetails bool
	// LoadTracking makes /load count (--enable-server-load-tracking).
	LoadTracking bool
	// Fingerprint is system_fingerprint (--fingerprint-value); empty: there is none
	// (--fingerprint-mode none).
	Fingerprint string
	// ScaleOut has /inference/v1/generate served (--enable-scale-out).
	ScaleOut bool
	// Transfer lets requests be legs of pairs (--kv-transfer-config); nil: none can.
	Transfer *Transfer
}

// VLLMVersion is the version that the server reports. Its formats follow the documents of
// that version.
const VLLMVersion = "0.32.0"

// Transfer holds the settings of vLLM's --kv-transfer-config, and the address at which
// others find the engine.
type Transfer struct {
	// Push has prefill engines write KV (NixlPushConnector), otherwise decode
	// engines read it (NixlConnector).
	Push bool
	// Lease is kv_lease_duration; default 30 s.
	Lease time.Duration
	// Recompute computes a prompt whose KV did not come (kv_load_failure_policy); otherwise
	// the request fails.
	Recompute bool
	// Host and Port are the side channel's.
	Host string
	Port int
}

// defaultLease is the default of kv_lease_duration.
const defaultLease = 30 * time.Second

// KeyOf returns the key of a pair: the prefill leg's whole id in pull mode, the common
// prefix of both legs' ids in push mode.
func (t *Transfer) KeyOf(whole, base string) string {
	if t.Push {
		return "push/" + base
	}
	return "pull/" + whole
}

// SetDefaults sets what is not given.
func (o *VLLM) SetDefaults() {
	if t := o.Transfer; t != nil {
		o.Transfer = new(*t)
		o.Transfer.Lease = cmp.Or(t.Lease, defaultLease)
	}
}
