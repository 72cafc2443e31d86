package config

import (
	"fmt"
	"net"
	"slices"
	"strconv"
)

// Halves holds an operator's settings for an engine's part if prefill and decode run on two
// engines.
type Halves struct {
	Role string // both, prefill or decode; empty: as the engine reports
	// Handover is how the halves of a request meet: room, pull or push.
	Handover string
	// Host and Port are where a prefill engine is met: its bootstrap registry's (room), or
	// its side channel's (push).
	Host string
	Port int
	// EngineID is a prefill engine's name for itself (push).
	EngineID string
}

var (
	roles     = []string{"both", "prefill", "decode"}
	handovers = []string{"room", "pull", "push"}
)

// halves are the options of engines that may serve halves of requests, by their kinds.
var halves = map[string][]string{
	"auto":       {"role", "handover", "bootstrap-host", "bootstrap-port", "engine-id", "side-channel"},
	"openai":     {"role", "handover", "bootstrap-host", "bootstrap-port", "engine-id", "side-channel"},
	"sglang":     {"role", "bootstrap-host", "bootstrap-port"},
	"vllm":       {"role", "handover", "engine-id", "side-channel"},
	"sglang-ipc": {"role", "bootstrap-host", "bootstrap-port"},
	"vllm-core":  {"role", "handover", "engine-id", "side-channel"},
}

// option reads one of these options.
func (h *Halves) option(key, value string) (err error) {
	switch key {
	case "role":
		if h.Role = value; !slices.Contains(roles, value) {
			return fmt.Errorf("role=%s: want both, prefill or decode", value)
		}
	case "handover":
		if h.Handover = value; !slices.Contains(handovers, value) {
			return fmt.Errorf("handover=%s: want room (SGLang), pull or push (vLLM's NixlConnector and NixlPushConnector)", value)
		}
	case "bootstrap-host":
		h.Host = value
	case "bootstrap-port":
		h.Port, err = port(value)
		if err != nil {
			return fmt.Errorf("bootstrap-port=%s: want the port of the prefill engine's bootstrap registry (SGLang's --disaggregation-bootstrap-port), 1 to 65535", value)
		}
	case "engine-id":
		h.EngineID = value
	case "side-channel":
		host, at, splitErr := net.SplitHostPort(value)
		if h.Port, err = port(at); err != nil || splitErr != nil || host == "" {
			return fmt.Errorf("side-channel=%s: want HOST:PORT of the prefill engine's side channel (vLLM's VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT)", value)
		}
		h.Host = host
	}
	return nil
}

func port(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return int(n), err
}

// Ask reports whether weir must ask the engine how its half of a request meets the other:
// it has a role, and the operator has not set everything.
func (h *Halves) Ask() bool {
	switch {
	case h.Role != "prefill" && h.Role != "decode":
		return false
	case h.Handover == "push":
		return h.Role == "prefill" && (h.EngineID == "" || h.Port == 0)
	}
	return h.Handover == ""
}

// check refuses contradictory settings. keys are those that were given.
func (h *Halves) check(keys []string) error {
	registry := slices.Contains(keys, "bootstrap-port") || slices.Contains(keys, "bootstrap-host")
	channel := slices.Contains(keys, "engine-id") || slices.Contains(keys, "side-channel")
	switch {
	case registry && (h.Handover == "pull" || h.Handover == "push"):
		return fmt.Errorf("bootstrap-host= and bootstrap-port= are SGLang's, handover=%s is vLLM's; give one of them", h.Handover)
	case channel && h.Handover != "push":
		return fmt.Errorf("engine-id= and side-channel= go with handover=push, which is missing")
	case (registry || channel) && h.Role != "prefill":
		return fmt.Errorf("where halves of requests are met is the prefill engine's to say: add role=prefill")
	case h.Handover != "" && (h.Role == "" || h.Role == "both"):
		return fmt.Errorf("handover= goes with role=prefill or role=decode")
	}
	if registry {
		h.Handover = "room"
	}
	return nil
}
