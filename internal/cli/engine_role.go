package cli

import (
	"cmp"
	"crypto/rand"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver"
)

// roleFlags give an engine one half of requests. Flags that begin with disaggregation are
// SGLang's.
type roleFlags struct {
	Role string `default:"both" enum:"both,prefill,decode" help:"Part of a request that the engine serves: both halves, or one of them (docs/simulated-engine.md#prefill-and-decode-apart)."`

	KVBytesPerToken int           `name:"kv-bytes-per-token" default:"131072" placeholder:"N" help:"Size of a token's KV in a transfer to a decode engine (${default}, as for Llama 3.1 8B)."`
	KVBandwidth     byteRate      `name:"kv-bandwidth" default:"0" placeholder:"BYTES/S" help:"decode: bandwidth of the link over which KV arrives, for each data-parallel rank, such as 25GB. 0 is no limit."`
	KVLatency       time.Duration `name:"kv-latency" default:"0s" help:"decode: latency of each transfer of KV."`

	DisaggregationMode          string `default:"" enum:",null,prefill,decode" placeholder:"MODE" help:"SGLang's form of --role: null, prefill or decode."`
	DisaggregationBootstrapPort int    `default:"8998" placeholder:"PORT" help:"sglang, prefill: port of the bootstrap registry, at the wire's host (${default}; 0 takes a free one). decode: bootstrap port of requests that name none."`
	DisaggregationRadixCache    bool   `name:"disaggregation-decode-enable-radix-cache" help:"sglang, decode: look for prompts in its own cache."`
	DisaggregationBackup        string `name:"disaggregation-decode-retraction-backup" default:"cpu_tensor" enum:"cpu_tensor,host_pool,none" placeholder:"WHERE" help:"sglang, decode: where the KV of a retracted request is kept, cpu_tensor or host_pool. With none the request is aborted."`

	KVTransferConfig string `name:"kv-transfer-config" placeholder:"JSON" help:"vllm: connector between prefill and decode engines, in vLLM's format: kv_connector NixlConnector or NixlPushConnector, engine_id, kv_load_failure_policy, kv_connector_extra_config.kv_lease_duration. With --role it is NixlConnector by default."`
	SideChannelPort  int    `name:"nixl-side-channel-port" default:"5600" placeholder:"PORT" help:"vllm: port of the side channel, at the wire's host (VLLM_NIXL_SIDE_CHANNEL_PORT; ${default}; 0 takes a free one)."`

	BootstrapTimeout time.Duration `default:"300s" help:"sglang, prefill: longest wait of a request for its decode engine (SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT; ${default})."`
	WaitingTimeout   time.Duration `default:"300s" help:"sglang, decode: longest wait of a request for its KV (SGLANG_DISAGGREGATION_WAITING_TIMEOUT; ${default})."`
	HeartbeatTimeout time.Duration `default:"10s" help:"sglang, decode: time after which a lost prefill engine is noticed (${default}: two of SGLang's heartbeats)."`
}

// apply turns the flags into options.
func (f *roleFlags) apply(o *simserver.Options, wires []string) error {
	word := f.Role
	if mode := strings.Replace(f.DisaggregationMode, "null", "both", 1); mode != "" {
		if word != "both" && word != mode {
			return wrongf("--role %s and --disaggregation-mode %s contradict each other; give one of them", f.Role, f.DisaggregationMode)
		}
		word = mode
	}
	var err error
	if o.Role, err = infer.ParseRole(word); err != nil {
		return wrongf("--role: %w", err)
	}
	switch {
	case o.Role != infer.RoleBoth && !slices.ContainsFunc(wires, hasLegs):
		return wrongf("--role %s needs a wire that carries halves of requests, which %s do not; add --wire sglang or --wire vllm", word, strings.Join(wires, ", "))
	case f.KVBytesPerToken < 0 || !(f.KVBandwidth >= 0) || f.KVLatency < 0:
		return wrongf("--kv-bytes-per-token, --kv-bandwidth and --kv-latency must not be negative")
	case f.DisaggregationBootstrapPort < 0 || f.DisaggregationBootstrapPort > 65535:
		return wrongf("--disaggregation-bootstrap-port %d: want a port from 0 to 65535", f.DisaggregationBootstrapPort)
	case f.BootstrapTimeout <= 0 || f.WaitingTimeout <= 0 || f.HeartbeatTimeout <= 0:
		return wrongf("--bootstrap-timeout, --waiting-timeout and --heartbeat-timeout must be positive")
	}
	o.Sim.Transfer = sim.Transfer{BytesPerToken: f.KVBytesPerToken, Bandwidth: float64(f.KVBandwidth), Latency: f.KVLatency}
	if o.Role == infer.RoleDecode && slices.ContainsFunc(wires, func(wire string) bool { return wire == "sglang" || strings.HasPrefix(wire, "sglang=") }) {
		// vLLM recomputes a retracted request.
		if o.Sim.Retraction = sim.RetractRestore; f.DisaggregationBackup == "none" {
			o.Sim.Retraction = sim.RetractRefuse
		}
	}
	o.Legs = simserver.LegsOptions{
		BootstrapTimeout: f.BootstrapTimeout, WaitingTimeout: f.WaitingTimeout, HeartbeatTimeout: f.HeartbeatTimeout,
		BootstrapPort: f.DisaggregationBootstrapPort, RadixCache: f.DisaggregationRadixCache,
	}
	return f.connector(o)
}

// connector reads --kv-transfer-config.
func (f *roleFlags) connector(o *simserver.Options) error {
	var c struct {
		Connector string `json:"kv_connector"`
		Role      string `json:"kv_role"`
		EngineID  string `json:"engine_id"`
		Failure   string `json:"kv_load_failure_policy"`
		Extra     struct {
			Lease float64 `json:"kv_lease_duration"`
		} `json:"kv_connector_extra_config"`
	}
	switch {
	case f.KVTransferConfig != "":
		if err := json.Unmarshal([]byte(f.KVTransferConfig), &c); err != nil {
			return wrongf("--kv-transfer-config: %w", err)
		}
	case o.Role != infer.RoleBoth:
		c.Connector = "NixlConnector"
	default:
		return nil
	}
	t := &simserver.VLLMTransfer{Push: c.Connector == "NixlPushConnector", Recompute: c.Failure == "recompute", Lease: time.Duration(c.Extra.Lease * float64(time.Second)), Port: f.SideChannelPort}
	switch {
	case !slices.Contains([]string{"NixlConnector", "NixlPullConnector", "NixlPushConnector"}, c.Connector):
		return wrongf("--kv-transfer-config: kv_connector is %q; only NixlConnector (pull) and NixlPushConnector are simulated", c.Connector)
	case !slices.Contains([]string{"", "kv_producer", "kv_consumer", "kv_both"}, c.Role):
		return wrongf("--kv-transfer-config: kv_role is %q; want kv_producer, kv_consumer or kv_both (it changes nothing)", c.Role)
	case !slices.Contains([]string{"", "fail", "recompute"}, c.Failure):
		return wrongf("--kv-transfer-config: kv_load_failure_policy is %q; want fail or recompute", c.Failure)
	case c.Extra.Lease < 0:
		return wrongf("--kv-transfer-config: kv_lease_duration must not be negative")
	case f.SideChannelPort < 0 || f.SideChannelPort > 65535:
		return wrongf("--nixl-side-channel-port %d: want a port from 0 to 65535", f.SideChannelPort)
	}
	o.VLLM.Transfer, o.Legs.EngineID = t, cmp.Or(c.EngineID, rand.Text())
	return nil
}

// hasLegs reports whether requests may come in halves over a wire.
func hasLegs(wire string) bool {
	kind, _, _ := strings.Cut(wire, "=")
	return kind == "sglang" || kind == "vllm"
}

// legs listens for the engines of other halves: at the registry of a prefill engine in
// SGLang's form, and at the side channel of one in vLLM's form.
func (p *simProcess) legs(o *simserver.Options) error {
	for _, f := range slices.Clone(p.servers) {
		host, _, err := net.SplitHostPort(f.l.Addr().String())
		if err != nil {
			return err
		}
		switch {
		case f.kind == "sglang" && o.Role == infer.RolePrefill:
			if o.Legs.BootstrapPort, err = p.other("bootstrap", "--disaggregation-bootstrap-port", host, o.Legs.BootstrapPort); err != nil {
				return err
			}
		case f.kind == "vllm" && o.VLLM.Transfer != nil:
			t := o.VLLM.Transfer
			t.Host = host
			if t.Port, err = p.other("nixl", "--nixl-side-channel-port", host, t.Port); err != nil {
				return err
			}
		}
	}
	return nil
}

// other listens at a port, and returns the actual one.
func (p *simProcess) other(kind, flag, host string, port int) (int, error) {
	if err := p.listen(kind, flag, net.JoinHostPort(host, strconv.Itoa(port))); err != nil {
		return 0, err
	}
	if a, ok := p.servers[len(p.servers)-1].l.Addr().(*net.TCPAddr); ok {
		port = a.Port
	}
	return port, nil
}
