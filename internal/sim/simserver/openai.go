package simserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"weir/internal/infer"
	"weir/internal/sim/simserver/conns"
)

// maxBody bounds a request's body.
const maxBody = 64 << 20

// ServeOpenAI serves the OpenAI API and the admin calls on l until ctx ends and every
// request has been answered or broken off. It closes l. The engine must have a Tokenizer.
func (e *Engine) ServeOpenAI(ctx context.Context, l net.Listener) error {
	if err := e.wantTokenizer(l, "openai"); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.completion(chatDialect, plain))
	mux.HandleFunc("POST /v1/completions", e.completion(textDialect, plain))
	mux.HandleFunc("POST /v1/embeddings", e.embeddings(plain, writeError, nil))
	mux.HandleFunc("GET /v1/models", e.models)
	mux.HandleFunc("GET /v1/models/{model...}", e.model("weir"))
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/admin/", e.AdminHandler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, infer.Errorf(infer.CodeNotFound, "no %s %s here", r.Method, r.URL.Path))
	})
	return e.serveHTTP(ctx, e.opts.Access.secured(e.listen(l)), guarded(mux, e.opts.Access.vllmKeys))
}

// wantTokenizer refuses to serve an engine without a tokenizer, and closes l.
func (e *Engine) wantTokenizer(l net.Listener, server string) error {
	if e.tokenizer != nil {
		return nil
	}
	l.Close()
	return fmt.Errorf("serve %s: the engine has no tokenizer", server)
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
	retryAfter(w, e.Code)
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

// modelCard is a model as /v1/models lists it.
type modelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen *int   `json:"max_model_len"`
}

// engineCard is a model as vLLM and SGLang list it: LoRA adapters are models
// with a parent.
type engineCard struct {
	modelCard
	Root   string  `json:"root"`
	Parent *string `json:"parent"`
}

// cards lists the engine's model and its LoRA adapters.
func (e *Engine) cards(owner string) []modelCard {
	list := []modelCard{{ID: e.prepare.Model, MaxModelLen: &e.prepare.ContextLength}}
	for _, name := range e.prepare.LoRAs {
		list = append(list, modelCard{ID: name})
	}
	for i := range list {
		list[i].Object, list[i].Created, list[i].OwnedBy = "model", 1700000000, owner
	}
	return list
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	writeModels(w, e.cards("weir"))
}

// engineModels serves /v1/models as vLLM and SGLang do.
func (e *Engine) engineModels(owner string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var list []engineCard
		for i, c := range e.cards(owner) {
			one := engineCard{modelCard: c, Root: c.ID}
			if i > 0 {
				one.Parent = &e.prepare.Model
			}
			list = append(list, one)
		}
		writeModels(w, list)
	}
}

func writeModels[T any](w http.ResponseWriter, data []T) {
	writeJSON(w, http.StatusOK, struct {
		Object string `json:"object"`
		Data   []T    `json:"data"`
	}{"list", data})
}

// model serves the card of one model.
func (e *Engine) model(owner string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, c := range e.cards(owner) {
			if c.ID == r.PathValue("model") {
				writeJSON(w, http.StatusOK, c)
				return
			}
		}
		writeError(w, e.noModel(r.PathValue("model")))
	}
}

// noModel is the error of a name that is not the engine's.
func (e *Engine) noModel(name string) error {
	return &infer.Error{Code: infer.CodeNotFound, Param: "model", Message: "the model " + strconv.Quote(name) + " does not exist; this engine serves " + strconv.Quote(e.prepare.Model)}
}

// lora returns the LoRA adapter that a request selects by its model or, on SGLang, by its
// lora_path; empty is none. A request without a model gets the engine's own. SGLang accepts
// any name for the model, and MODEL:ADAPTER.
func (e *Engine) lora(v voice, model string, path *string) (string, error) {
	if v == sglang {
		if path != nil {
			return *path, nil
		}
		if _, adapter, ok := strings.Cut(model, ":"); ok && adapter != "" {
			return adapter, nil
		}
		return "", nil
	}
	switch {
	case model == "" || model == e.prepare.Model:
		return "", nil
	case slices.Contains(e.prepare.LoRAs, model):
		return model, nil
	}
	return "", e.noModel(model)
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
