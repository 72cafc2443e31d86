package sglang

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"weir/internal/engine"
	"weir/internal/engine/sglangmode"
)

// A probe is a generation of one id. SGLang refuses some with 200.
func TestProbe(t *testing.T) {
	came, answers := make(chan string), make(chan string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		came <- r.URL.Path + " " + string(body)
		select {
		case a := <-answers:
			io.WriteString(w, a)
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	e := New(Options{Name: "e", URL: at})
	done := make(chan error)
	failed := errors.New("any")
	for answer, want := range map[string]error{
		`{"output_ids":[7],"meta_info":{"finish_reason":{"type":"length","length":1}}}`:                         nil,
		`{"output_ids":[],"meta_info":{"finish_reason":{"type":"abort","message":"full","status_code":503}}}`:   engine.ErrBusy,
		`{"output_ids":[],"meta_info":{"finish_reason":{"type":"abort","message":"no","status_code":400}}}`:     engine.ErrNoProbe,
		`{"output_ids":[],"meta_info":{"finish_reason":{"type":"abort","message":"broke","status_code":500}}}`:  failed,
		`{"output_ids":[],"meta_info":{"finish_reason":{"type":"abort","message":"broke","status_code":null}}}`: failed,
		`<html>`: failed,
	} {
		go func() { done <- e.Probe(t.Context(), engine.Probe{Rank: -1}) }()
		if got := <-came; got != `/generate {"input_ids":[0],"sampling_params":{"max_new_tokens":1,"temperature":0}}` {
			t.Fatal(got)
		}
		answers <- answer
		err := <-done
		if ok := errors.Is(err, want) && (err == nil) == (want == nil); want != failed && !ok || want == failed && (err == nil || errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrNoProbe)) {
			t.Errorf("%s: %v", answer, err)
		}
	}
	// Where the server says how many ranks it has, each can be asked.
	e.server.Store(&server{mode: &sglangmode.Mode{}, ranks: 2})
	for rank, want := range map[int]string{1: `"routed_dp_rank":1,`, 2: "", -1: ""} {
		go func() { done <- e.Probe(t.Context(), engine.Probe{Rank: rank}) }()
		if got := <-came; got != `/generate {"input_ids":[0],`+want+`"sampling_params":{"max_new_tokens":1,"temperature":0}}` {
			t.Errorf("rank %d: %s", rank, got)
		}
		answers <- `{"output_ids":[7],"meta_info":{}}`
		if err := <-done; err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	hung, giveUp := context.WithCancel(t.Context())
	go func() { done <- e.Probe(hung, engine.Probe{Rank: -1}) }()
	<-came
	giveUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a hung engine: %v", err)
	}
}
