package sglang

import (
	"github.com/go-json-experiment/json"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// ModelInfo answers GET /model_info. Values that the gateway does not know are
// omitted.
type ModelInfo struct {
	ModelPath         string    `json:"model_path"` // its name
	TokenizerPath     string    `json:"tokenizer_path"`
	IsGeneration      bool      `json:"is_generation"`
	PreferredSampling *struct{} `json:"preferred_sampling_params"`
	Image             bool      `json:"has_image_understanding"`
	Audio             bool      `json:"has_audio_understanding"`
}

// ServerInfo answers GET /server_info.
type ServerInfo struct {
	ModelPath       string        `json:"model_path,omitempty"` // where one model is served
	ServedModelName string        `json:"served_model_name,omitempty"`
	Models          []string      `json:"served_model_names"`
	Version         string        `json:"version"`
	Incremental     bool          `json:"incremental_streaming_output"`
	StreamOutput    bool          `json:"stream_output"` // its name before 2026-03
	SkipTokenizer   bool          `json:"skip_tokenizer_init"`
	Deterministic   bool          `json:"enable_deterministic_inference"` // a seed is heeded, or refused
	ContextLength   int           `json:"context_length,omitzero"`
	MaxRunning      int           `json:"max_running_requests,omitzero"`
	DPSize          int           `json:"dp_size"`
	InternalStates  []EngineState `json:"internal_states"`
}

// EngineState is one engine behind the gateway. It omits the engine's name, which is
// often its address, and its kind, because callers must not learn them.
type EngineState struct {
	DPRank int  `json:"dp_rank"` // counts the engines
	Ready  bool `json:"ready"`
}

// Loads answers GET /v1/loads.
type Loads struct {
	Timestamp string `json:"timestamp"` // RFC 3339
	Version   string `json:"version"`
	Loads     []Load `json:"loads"`
}

// Load is what one engine last reported of its load. Engines that report nothing have
// none.
type Load struct {
	DPRank     int     `json:"dp_rank"` // counts the engines
	Running    int     `json:"num_running_reqs"`
	Waiting    int     `json:"num_waiting_reqs"`
	MaxRunning int     `json:"max_running_requests,omitzero"`
	TokenUsage float64 `json:"token_usage"` // 0 if the engine does not state it
}

// Marshal returns the body of one of these answers.
func Marshal[T ModelInfo | ServerInfo | Loads](v T) ([]byte, error) { return json.Marshal(v) }

// Abort is the body of POST /abort_request.
type Abort struct {
	RID string
	All bool
}

var abortNames = dialect.NewNames("rid", "abort_all")

// ParseAbort reads the body of POST /abort_request.
func ParseAbort(body []byte) (a Abort, err error) {
	h, err := dialect.ParseHead(body, abortNames, func(_ *dialect.Head, name string, value []byte) (err error) {
		switch {
		case dialect.KindOf(value) == 'n':
		case name == "rid":
			a.RID, err = dialect.StringOf(name, value)
		case name == "abort_all":
			a.All, err = dialect.BoolOf(name, value)
		}
		return err
	})
	if err == nil {
		err = h.Unambiguous()
	}
	switch {
	case err != nil:
	case a.All:
		err = &infer.Error{Code: infer.CodeUnsupported, Param: "abort_all",
			Message: "abort_all would end the requests of other callers too; send the rid of each request to abort"}
	case a.RID == "":
		err = infer.Invalid("rid", "rid is required: the id that the request to abort was given")
	}
	return a, err
}
