package simserver

import (
	"net/http"
	"strconv"

	"weir/internal/infer"
)

// SGLangOptions shape the face that speaks like SGLang, by SGLang's own flags.
type SGLangOptions struct {
	// Incremental makes each event of /generate hold what is new, in place of
	// all so far (--incremental-streaming-output).
	Incremental bool
	// Metrics serves /metrics, and adds each stage's time to the answers of
	// /generate (--enable-metrics).
	Metrics bool
	// SkipTokenizer takes and gives ids only (--skip-tokenizer-init).
	SkipTokenizer bool
	// CacheReport adds cached_tokens to the usage (--enable-cache-report).
	CacheReport bool
	// WeightVersion is what answers say of the weights (--weight-version).
	// Default "default".
	WeightVersion string
}

// sglangError is SGLang's shape of an error on its OpenAI endpoints.
type sglangError struct {
	Object  string  `json:"object"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func writeSGLangError(w http.ResponseWriter, err error) {
	e := infer.AsError(err)
	status, kind := statusOf(e.Code)
	if status >= http.StatusInternalServerError {
		kind = strconv.Itoa(status)
	}
	writeJSON(w, status, &sglangError{Object: "error", Message: e.Message, Type: kind, Code: status})
}

// appendSGLangError appends the error of a stream that has begun.
func appendSGLangError(b []byte, err error) []byte {
	e := infer.AsError(err)
	status, _ := statusOf(e.Code)
	b = append(b, `{"error":{"object":"error","message":`...)
	b = append(b, quote(e.Message)...)
	b = append(b, `,"type":"SERVICE_UNAVAILABLE","param":null,"code":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	return append(b, "}}"...)
}
