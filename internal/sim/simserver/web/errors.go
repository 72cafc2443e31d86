package web

import (
	"net/http"
	"strconv"

	"weir/internal/infer"
)

// WriteVLLMError answers in vLLM's error format, whose code is the HTTP status.
func WriteVLLMError(w http.ResponseWriter, err error) {
	e := infer.AsError(err)
	status, kind := StatusOf(e.Code)
	var body struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    int     `json:"code"`
		} `json:"error"`
	}
	body.Error.Message, body.Error.Type, body.Error.Code = e.Message, kind, status
	if e.Param != "" {
		body.Error.Param = &e.Param
	}
	RetryAfter(w, e.Code)
	WriteJSON(w, status, &body)
}

// AppendVLLMError appends the error of a stream that has begun.
func AppendVLLMError(b []byte, err error) []byte {
	e := infer.AsError(err)
	status, kind := StatusOf(e.Code)
	b = append(b, `{"error":{"message":`...)
	b = append(b, Quote(e.Message)...)
	b = append(b, `,"type":"`...)
	b = append(b, kind...)
	b = append(b, `","param":null,"code":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	return append(b, "}}"...)
}

// sglangError is SGLang's shape of an error on its OpenAI endpoints, and of all
// that the server is to blame for.
type sglangError struct {
	Object  string  `json:"object"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// WriteSGLangError answers in the shape of SGLang's OpenAI endpoints.
func WriteSGLangError(w http.ResponseWriter, err error) {
	e := infer.AsError(err)
	status, kind := StatusOf(e.Code)
	if status >= http.StatusInternalServerError {
		kind = strconv.Itoa(status)
	}
	WriteJSON(w, status, &sglangError{Object: "error", Message: e.Message, Type: kind, Code: status})
}

// AppendSGLangError appends the error of a stream that has begun.
func AppendSGLangError(b []byte, err error) []byte {
	e := infer.AsError(err)
	status, _ := StatusOf(e.Code)
	b = append(b, `{"error":{"object":"error","message":`...)
	b = append(b, Quote(e.Message)...)
	kind := "SERVICE_UNAVAILABLE"
	if status == http.StatusInternalServerError {
		kind = "INTERNAL_SERVER_ERROR"
	}
	b = append(b, `,"type":"`+kind+`","param":null,"code":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	return append(b, "}}"...)
}
