package otlp

import (
	"strings"

	"weir/internal/infer"
	"weir/internal/trace"
)

// schema is the version of OpenTelemetry's semantic conventions that the names below are
// of. The GenAI names are marked "development" there: they change with the version, here
// and nowhere else.
const schema = "https://opentelemetry.io/schemas/1.37.0"

// The names of attributes, of the conventions' registry.
const (
	nameOperation    = "gen_ai.operation.name"
	nameProvider     = "gen_ai.provider.name"
	nameRequestModel = "gen_ai.request.model"
	nameInput        = "gen_ai.usage.input_tokens"
	nameOutput       = "gen_ai.usage.output_tokens"
	nameErrorType    = "error.type"
	nameStatus       = "http.response.status_code"
	nameMethod       = "http.request.method"
	namePath         = "url.path"
	nameClient       = "client.address"
	nameService      = "service.name"
	nameVersion      = "service.version"
)

// Attribute names that the conventions do not define. Durations are seconds.
const (
	nameRequestID = "weir.request_id"
	nameOutcome   = "weir.outcome"
	nameCached    = "weir.usage.cached_tokens"
	nameTTFT      = "weir.ttft"
	nameStage     = "weir.stage." // and the stage's
	nameAttempt   = "weir.attempt"
	nameEngine    = "weir.engine.name"
	nameKind      = "weir.engine.kind"
	nameRank      = "weir.engine.dp_rank"
	nameRole      = "weir.engine.role"
	nameWire      = "weir.engine.request_id"
	nameWhy       = "weir.choice.why"
	nameLive      = "weir.live_at_first_token"
)

// operation returns the conventions' name for the operation of a path.
func operation(path string) string {
	switch {
	case strings.HasSuffix(path, "/embeddings"):
		return "embeddings"
	case path == "/v1/completions", path == "/generate":
		return "text_completion"
	case path == "/v1/chat/completions", path == "/v1/messages", path == "/v1/responses":
		return "chat"
	}
	return strings.Trim(path, "/")
}

// failure is the class of error with which a request ended; empty if it ended well, or if its
// client did not stay to the end.
func failure(r *trace.Record) string {
	if r.Outcome == infer.Finished || r.Outcome == infer.Cancelled {
		return ""
	}
	return r.Code
}
