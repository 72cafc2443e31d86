// Package sglangserver determines from an SGLang server's description of itself how it
// was started, and which fields of requests it therefore ignores, refuses, or does not
// survive. The answer is the same for all three adapters: by ids over HTTP, in place of
// the front end, and relayed.
//
// The rules were derived from SGLang's sources, 0.3.6 to 0.5.23 (docs/fields.md).
package sglangserver

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/engine"
	"weir/internal/infer"
)

// Mode is the content of a server's /server_info. Other kinds of server may answer
// there too, so Known reports whether the server is SGLang.
type Mode struct {
	Version         string         `json:"version"`
	SkipTokenizer   *bool          `json:"skip_tokenizer_init"`
	Grammar         string         `json:"grammar_backend"`
	Speculative     string         `json:"speculative_algorithm"`
	Deterministic   bool           `json:"enable_deterministic_inference"`
	Disaggregation  string         `json:"disaggregation_mode"`
	Truncates       bool           `json:"allow_auto_truncate"`
	Defaults        string         `json:"sampling_defaults"`
	Preferred       jsontext.Value `json:"preferred_sampling_params"`
	ReasoningParser string         `json:"reasoning_parser"`
	// CompletionTemplate is what makes a prompt of one with a suffix.
	CompletionTemplate string `json:"completion_template"`
	MaxInput           int    `json:"max_req_input_len"`
	BootstrapPort      int    `json:"disaggregation_bootstrap_port"`
	Ranks              int    `json:"dp_size"`
	PageSize           int    `json:"page_size"`
	// Transfer is what carries KV from prefill engines to decode engines.
	Transfer    string `json:"disaggregation_transfer_backend"`
	NoRadix     bool   `json:"disable_radix_cache"`
	DecodeRadix bool   `json:"disaggregation_decode_enable_radix_cache"`
	// Incremental says whether chunks hold the new ids only, as Stream did before 2026-03.
	Incremental *bool `json:"incremental_streaming_output"`
	Stream      *bool `json:"stream_output"`
	MaxGiven    int   `json:"max_running_requests"`
	KVTokens    int   `json:"max_total_num_tokens"` // of each rank
	Chunk       int   `json:"chunked_prefill_size"` // -1: prompts are not divided
	Attention   bool  `json:"enable_dp_attention"`  // MaxGiven is then the number of all ranks
	Context     int   `json:"context_length"`
	Priorities  bool  `json:"enable_priority_scheduling"`
	// Events is null where the server publishes none.
	Events jsontext.Value `json:"kv_events"`
	// Startup is how long each phase of its start took, or when it was.
	Startup jsontext.Value `json:"startup_time"`
	// States are those of its schedulers, which know what they really run with.
	States []struct {
		Grammar    string `json:"grammar_backend"`
		MaxRunning int    `json:"effective_max_running_requests_per_dp"`
	} `json:"internal_states"`

	members []string
}

// Parse reads a /server_info. Members that it does not know, and null, are passed over.
func Parse(data []byte) (*Mode, error) {
	m := &Mode{}
	all := map[string]jsontext.Value{}
	err := json.Unmarshal(data, m, jsontext.AllowDuplicateNames(true))
	if err == nil {
		err = json.Unmarshal(data, &all, jsontext.AllowDuplicateNames(true))
	}
	if err != nil {
		return nil, fmt.Errorf("/server_info cannot be read: %w", err)
	}
	m.members = slices.Sorted(maps.Keys(all))
	return m, nil
}

// half reports whether an answer lacks members that an earlier one of the same process has.
func (m *Mode) half(had *Mode) bool {
	return slices.ContainsFunc(had.members, func(name string) bool {
		_, there := slices.BinarySearch(m.members, name)
		return !there
	})
}

// Told reports whether anything was read of the server.
func (m *Mode) Told() bool { return len(m.members) > 0 }

// Known reports whether this is SGLang's word: every release has the flag.
func (m *Mode) Known() bool { return m.SkipTokenizer != nil }

// Started is a word that a process of the server keeps to and the next one does not have: the time
// of its start, which later releases divide into the microseconds of its phases. Empty: it has none.
func (m *Mode) Started() string {
	if k := m.Startup.Kind(); !m.Known() || k != '{' && k != '0' {
		return ""
	}
	said := m.Startup.Clone()
	if said.Canonicalize() != nil {
		return ""
	}
	h := fnv.New64a()
	h.Write(said)
	return strconv.FormatUint(h.Sum64(), 16)
}

// MaxRunning is how many requests a rank runs at once, and how many all ranks do together. Zero is
// not known. The number that a rank states precedes the server's argument, which may not be given.
// The argument is the number of all ranks if they share the attention.
func (m *Mode) MaxRunning() (rank, all int) {
	ranks := max(m.Ranks, 1)
	for i := range m.States {
		rank = max(rank, m.States[i].MaxRunning)
	}
	switch given := max(m.MaxGiven, 0); {
	case rank > 0:
		return rank, rank * ranks
	case m.Attention:
		return (given + ranks - 1) / ranks, given
	default:
		return given, given * ranks
	}
}

// KVEvents is where the server, which is reached at a host, publishes what its KV cache holds, or its
// first rank does.
func (m *Mode) KVEvents(host string) engine.KVEvents {
	var said struct {
		Publisher string `json:"publisher"`
		Host      string `json:"endpoint_host"`
		Port      int    `json:"endpoint_port_base"` // of rank 0
		Replay    int    `json:"replay_endpoint_port_base"`
		Topic     string `json:"topic"`
		Block     int    `json:"block_size"`
	}
	if m.Events.Kind() != '{' || json.Unmarshal(m.Events, &said, jsontext.AllowDuplicateNames(true)) != nil || said.Publisher != "zmq" || said.Port <= 0 {
		return engine.KVEvents{}
	}
	at := func(port int) string {
		return "tcp://" + net.JoinHostPort(strings.Trim(said.Host, "[]"), strconv.Itoa(port))
	}
	e := engine.KVEvents{Endpoint: at(said.Port), Topic: said.Topic, BlockTokens: max(said.Block, 0), Host: host}
	if said.Replay > 0 {
		e.Replay = at(said.Replay)
	}
	return e
}

// TakesRank reports whether a request may name the data-parallel rank that it is for,
// as routed_dp_rank. Before 0.5.10 it has another name.
func (m *Mode) TakesRank() bool { return m.Known() && !m.before(0, 5, 10) }

// TellsAdapters reports whether its KV events distinguish an adapter's blocks from the
// model's: before 0.5.23 both have the same names.
func (m *Mode) TellsAdapters() bool { return m.Known() && !m.before(0, 5, 23) }

// Lacks returns what the server does not do with requests, and why.
func (m *Mode) Lacks() (lacks []infer.Lack) {
	if !m.Known() {
		return nil
	}
	lack := func(what infer.Carries, format string, args ...any) {
		lacks = append(lacks, infer.Lack{What: what, Why: fmt.Sprintf(format, args...)})
	}
	if *m.SkipTokenizer {
		lack(infer.CarriesGuides, "runs with --skip-tokenizer-init, and makes no grammar backend then")
		lack(infer.CarriesMinTokens, "runs with --skip-tokenizer-init, and does not know which ids to hold back then")
	}
	grammar := m.Grammar
	for i := range m.States {
		grammar = cmp.Or(m.States[i].Grammar, grammar)
	}
	switch {
	case grammar == "none" && m.Grammar == "none":
		lack(infer.CarriesGuides, "runs with --grammar-backend none")
	case grammar == "none":
		lack(infer.CarriesGuides, "has no grammar backend: it fell back to --grammar-backend none, because %s does not take its tokenizer", m.Grammar)
	case grammar == "outlines":
		lack(infer.CarriesGrammar|infer.CarriesStructuralTag, "runs with --grammar-backend outlines, which has neither grammars nor structural tags")
	}
	if m.before(0, 4, 7) {
		lack(infer.CarriesGuides, "is SGLang %s, which passes over a guide that does not compile; 0.4.7 and later refuse it", m.Version)
	}
	switch algorithm := m.Speculative; {
	case algorithm == "" || strings.EqualFold(algorithm, "none"):
	case strings.EqualFold(algorithm, "UNO"):
		lack(infer.CarriesGuides|infer.CarriesMinTokens|infer.CarriesMinP|infer.CarriesPenalties|infer.CarriesRepetitionPenalty|infer.CarriesLogitBias|infer.CarriesLogprobs|infer.CarriesPromptLogprobs,
			"runs with --speculative-algorithm %s", algorithm)
	default:
		lack(infer.CarriesMinP, "runs with --speculative-algorithm %s, which draws without it", algorithm)
		if m.before(0, 5, 4) {
			lack(infer.CarriesLogitBias, "is SGLang %s with --speculative-algorithm %s, which draws without it; 0.5.4 and later draw with it", m.Version, algorithm)
		}
	}
	if !m.Deterministic {
		lack(infer.CarriesSeed, "runs without --enable-deterministic-inference, and draws by no seed then")
	}
	if !m.before(0, 4, 4) && m.before(0, 5, 10) {
		lack(infer.CarriesRepetitionPenalty, "is SGLang %s, which passes over it; 0.5.10 and later do not", m.Version)
	}
	return lacks
}

// FromModel says that the server's own API draws by the model's
// generation_config.json where a request does not say how, except for the parameters
// that it names.
func (m *Mode) FromModel() (except []string, ok bool) {
	if m.Defaults != "model" {
		return nil, false
	}
	preferred := m.Preferred
	var text string
	if preferred.Kind() == '"' && json.Unmarshal(preferred, &text) == nil {
		preferred = jsontext.Value(text)
	}
	var named map[string]jsontext.Value
	if preferred.Kind() == '{' && json.Unmarshal(preferred, &named) == nil {
		for name := range named {
			except = append(except, name)
		}
		slices.Sort(except)
	}
	return except, true
}

// StopIDs are a request's stop ids for the server: its own, and those that end the
// model's answers where the server does not know all of them by itself. Without a
// tokenizer it has those of the model's configuration only, and up to 0.5.18
// min_new_tokens holds back the tokenizer's only.
func (m *Mode) StopIDs(req *infer.Request, ends []uint32) []uint32 {
	blind := m.SkipTokenizer != nil && *m.SkipTokenizer && !req.IgnoreEOS
	if !blind && (req.MinTokens == 0 || !m.before(0, 5, 19)) {
		return req.StopIDs
	}
	all := slices.Clone(req.StopIDs)
	for _, id := range ends {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// Reasons returns how a request's guide is held to from the end of reasoning on: by
// asking for it, which require_reasoning does from 0.5.7 on where the server knows by
// --reasoning-parser how reasoning ends. Before 0.5.7 such a server does so for every
// request, and holds nothing to a guide that has no reasoning before it; and one without
// the flag holds reasoning to the guide. Both are refused.
func (m *Mode) Reasons(req *infer.Request) (require bool, err *infer.Error) {
	refuse := func(why string) (bool, *infer.Error) {
		e := infer.Errorf(infer.CodeUnsupported, "the engine cannot hold the answer to a %s here: it %s", req.Guide.Kind.Needs(), why)
		e.Lacks, e.Retryable = req.Guide.Kind.Needs(), true // another may
		return false, e
	}
	switch {
	case req.Guide == nil || !m.Known():
		return false, nil
	case m.ReasoningParser == "" && req.Guide.Before() == infer.OpenReasoning:
		return refuse("runs without --reasoning-parser, and would hold the reasoning to it that the prompt has begun; start it with the model's, or ask for no reasoning")
	case m.ReasoningParser == "":
		return false, nil // the model has no room for reasoning then
	case !m.before(0, 5, 7):
		return req.Guide.Before() != infer.NoReasoning, nil
	case req.Guide.Before() == infer.NoReasoning:
		return refuse("is SGLang " + m.Version + " with --reasoning-parser, which waits for the end of reasoning, and none comes; 0.5.7 and later do not")
	}
	return false, nil
}

// before reports whether the server's release is known and older than one.
func (m *Mode) before(release ...int) bool {
	v, ok := parseVersion(m.Version)
	return ok && slices.Compare(v, release) < 0
}

// Collects reports whether the server takes stream_interval with a request. A release that does
// not know a sampling parameter refuses the request.
func (m *Mode) Collects() bool { return m.since(0, 5, 3) }

// since reports whether the release is known, and not before the given one.
func (m *Mode) since(release ...int) bool {
	v, ok := parseVersion(m.Version)
	return ok && slices.Compare(v, release) >= 0
}

// parseVersion reads the numbers that "0.5.3.post1" and "0.5.10rc1" begin with.
func parseVersion(s string) (v []int, ok bool) {
	for part := range strings.SplitSeq(s, ".") {
		end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(part)
		}
		n, err := strconv.Atoi(part[:end])
		if err != nil {
			break
		}
		v = append(v, n)
	}
	return v, len(v) >= 3
}
