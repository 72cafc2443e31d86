// Package web has what the HTTP servers of a simulated engine have in common: how bodies are read,
// and answers and errors written. Errors have OpenAI's shape unless a server has its own.
package web

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim/simserver/conns"
)

// maxBody bounds a request's body.
const maxBody = 64 << 20

// Serve serves until ctx ends and all handlers have returned.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	// Each handler holds the lock for reading; whoever gets it for writing after
	// the server has stopped knows that all have returned.
	var handling sync.RWMutex
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handling.RLock()
			defer handling.RUnlock()
			h.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
		// Handlers see the end of ctx as the client's hang-up, and stop.
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: conns.With,
		ErrorLog:    log.New(io.Discard, "", 0),
	}
	stopped := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(stopped)
		bound, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if srv.Shutdown(bound) != nil {
			// Someone does not read his answer, or sends no request.
			srv.Close()
		}
		handling.Lock()
		defer handling.Unlock()
	})
	err := srv.Serve(l)
	if !unhook() {
		<-stopped
		return nil
	}
	srv.Close()
	return err
}

// ErrorBody is OpenAI's shape of an error.
type ErrorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

// WriteError answers with an error in OpenAI's shape.
func WriteError(w http.ResponseWriter, err error) {
	e := infer.AsError(err)
	status, kind, code := http.StatusInternalServerError, "server_error", ""
	switch e.Code {
	case infer.CodeInvalid:
		status, kind = http.StatusBadRequest, "invalid_request_error"
	case infer.CodeContext:
		status, kind, code = http.StatusBadRequest, "invalid_request_error", "context_length_exceeded"
	case infer.CodeTooLarge:
		status, kind = http.StatusRequestEntityTooLarge, "invalid_request_error"
	case infer.CodeNotFound:
		status, kind = http.StatusNotFound, "invalid_request_error"
		if e.Param == "model" {
			code = "model_not_found"
		}
	case infer.CodeOverloaded:
		status, kind = http.StatusServiceUnavailable, "overloaded_error"
	case infer.CodeUnavailable:
		status, kind = http.StatusServiceUnavailable, "service_unavailable"
	}
	var body ErrorBody
	body.Error.Message, body.Error.Type = e.Message, kind
	if e.Param != "" {
		body.Error.Param = &e.Param
	}
	if code != "" {
		body.Error.Code = &code
	}
	RetryAfter(w, e.Code)
	WriteJSON(w, status, &body)
}

// WriteJSON answers with a value of our own types as JSON.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		// All bodies are our own types.
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	// An error here is the client's hang-up.
	_, _ = w.Write(b)
}

// ReadBody reads a request's body to its end.
func ReadBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return nil, infer.Errorf(infer.CodeTooLarge, "the body is over the limit of %d bytes", big.Limit)
	case err != nil:
		return nil, &infer.Error{Code: infer.CodeInvalid, Message: "the body could not be read to its end", Cause: err}
	}
	return body, nil
}

// Decode reads JSON as engines do: fields it does not know are accepted.
func Decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return &infer.Error{Code: infer.CodeInvalid, Message: "the body is not valid: " + err.Error(), Cause: err}
	}
	return nil
}

// Read reads a request's body, which is JSON, into a value.
func Read(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := ReadBody(w, r)
	if err != nil {
		return err
	}
	return Decode(body, into)
}

// ReadJSON is Read of a body that says that it is JSON, as vLLM and SGLang want it.
func ReadJSON(w http.ResponseWriter, r *http.Request, into any) error {
	if err := WantJSON(r); err != nil {
		return err
	}
	return Read(w, r, into)
}

// StatusOf returns an error's HTTP status and the name that vLLM and SGLang have
// for it.
func StatusOf(c infer.Code) (int, string) {
	switch c {
	case infer.CodeInvalid, infer.CodeContext, infer.CodeMediaType:
		return http.StatusBadRequest, "BadRequestError"
	case infer.CodeTooLarge:
		return http.StatusRequestEntityTooLarge, "BadRequestError"
	case infer.CodeNotFound:
		return http.StatusNotFound, "NotFoundError"
	case infer.CodeOverloaded, infer.CodeUnavailable:
		return http.StatusServiceUnavailable, "ServiceUnavailableError"
	}
	return http.StatusInternalServerError, "InternalServerError"
}

// RetryAfter sets Retry-After on errors caused by load.
func RetryAfter(w http.ResponseWriter, c infer.Code) {
	if c == infer.CodeOverloaded {
		w.Header().Set("Retry-After", "1")
	}
}

// WantJSON refuses a body whose content type is not JSON, as vLLM and SGLang do.
func WantJSON(r *http.Request) error {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if strings.EqualFold(strings.TrimSpace(kind), "application/json") {
		return nil
	}
	return infer.Errorf(infer.CodeMediaType, "the Content-Type is %q; send application/json", r.Header.Get("Content-Type"))
}

// Quote returns s as a JSON string; invalid UTF-8 becomes U+FFFD.
func Quote(s string) string {
	b, _ := jsontext.AppendQuote(nil, s)
	return string(b)
}

// AppendText appends text as the inside of a JSON string. Words, which are nearly all of
// it, need no escape.
func AppendText[T string | []byte](b []byte, text T) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf || c == 0x7f {
			at := len(b)
			b, _ = jsontext.AppendQuote(b, text)
			// Without its quotes.
			copy(b[at:], b[at+1:])
			return b[:len(b)-2]
		}
	}
	return append(b, text...)
}

// AppendIDs appends ids as the inside of a JSON array. Package dialect of the gateway has
// the same function; the simulated engine shares no code with it, so that each checks the
// other.
func AppendIDs(b []byte, ids []uint32) []byte {
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return b
}

// EventStream sets the head of a stream of events.
func EventStream(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-cache")
}
