package simserver

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/infer"
)

// maxBody bounds a request's body.
const maxBody = 64 << 20

// ServeOpenAI serves the OpenAI API and the admin calls on l until ctx ends;
// every request has been answered or broken off then. It closes l. The engine
// must have a Tokenizer.
func (e *Engine) ServeOpenAI(ctx context.Context, l net.Listener) error {
	if e.tokenizer == nil {
		l.Close()
		return errors.New("serve openai: the engine has no tokenizer")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.completion(chatDialect))
	mux.HandleFunc("POST /v1/completions", e.completion(textDialect))
	mux.HandleFunc("POST /v1/embeddings", e.embeddings)
	mux.HandleFunc("GET /v1/models", e.models)
	mux.HandleFunc("GET /v1/models/{model...}", e.model)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/admin/", e.AdminHandler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, infer.Errorf(infer.CodeNotFound, "no %s %s here", r.Method, r.URL.Path))
	})
	return e.serveHTTP(ctx, e.listen(l), mux)
}

// serveHTTP serves until ctx ends and all handlers have returned.
func (e *Engine) serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
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

// errorBody is OpenAI's shape of an error.
type errorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

func writeError(w http.ResponseWriter, err error) {
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
		w.Header().Set("Retry-After", "1")
	case infer.CodeUnavailable:
		status, kind = http.StatusServiceUnavailable, "service_unavailable"
	}
	var body errorBody
	body.Error.Message, body.Error.Type = e.Message, kind
	if e.Param != "" {
		body.Error.Param = &e.Param
	}
	if code != "" {
		body.Error.Code = &code
	}
	writeJSON(w, status, &body)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
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

type modelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"`
}

func (e *Engine) card() modelCard {
	return modelCard{ID: e.prepare.Model, Object: "model", Created: 1700000000, OwnedBy: "weir", MaxModelLen: e.prepare.ContextLength}
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", []modelCard{e.card()}})
}

func (e *Engine) model(w http.ResponseWriter, r *http.Request) {
	if err := e.checkModel(r.PathValue("model")); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, e.card())
}

// checkModel refuses any name but the engine's; none at all means it too.
func (e *Engine) checkModel(name string) error {
	if name == "" || name == e.prepare.Model {
		return nil
	}
	return &infer.Error{Code: infer.CodeNotFound, Param: "model", Message: "the model " + strconv.Quote(name) + " does not exist; this engine serves " + strconv.Quote(e.prepare.Model)}
}

// readBody reads a request's body to its end.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
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

// decode reads JSON as engines do: fields it does not know are accepted.
func decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return &infer.Error{Code: infer.CodeInvalid, Message: "the body is not valid: " + err.Error(), Cause: err}
	}
	return nil
}
