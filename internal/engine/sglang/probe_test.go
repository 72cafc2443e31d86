package sglang

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/sglangserver"
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
	e.server.Store(&server{mode: &sglangserver.Mode{}, ranks: 2})
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

// A server that was started with other ranks since says so at the next look, although
// nobody noticed that it was gone.
func TestRanksChange(t *testing.T) {
	var ranks atomic.Int64
	ranks.Store(2)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","owned_by":"sglang"}]}`)
		case "/server_info":
			fmt.Fprintf(w, `{"version":"0.5.23","skip_tokenizer_init":false,"dp_size":%d,"max_total_num_tokens":1000,"max_running_requests":8}`, ranks.Load())
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	states := make(chan engine.State)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		New(Options{Name: "e", URL: at, ProbeInterval: time.Millisecond}).Run(ctx, func(s engine.State) {
			select {
			case states <- s:
			case <-ctx.Done():
			}
		})
	}()
	for _, want := range []int{2, 3, 0} {
		s := <-states
		if !s.Ready || len(s.Facts.Ranks) != want || want > 0 && !reflect.DeepEqual(s.Facts.Ranks[want-1], engine.Rank{Number: want - 1, Ready: true, KVTokens: 1000, MaxRunning: 8}) {
			t.Errorf("%+v, want %d ranks", s, want)
		}
		ranks.Store(int64(map[int]int{2: 3, 3: 1}[want]))
	}
	stop()
	<-ended
}

// The number of running requests that a server reports applies to each of its data-parallel ranks,
// unless these share the attention. A release that cannot be told a rank counts as one engine,
// which runs as many as its ranks together.
func TestRunningOfAllRanks(t *testing.T) {
	said := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","owned_by":"sglang"}]}`)
		case "/server_info":
			io.WriteString(w, <-said)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		said                   string
		ranks, running, ofRank int
	}{
		{`"version":"0.5.9","dp_size":4,"max_running_requests":8`, 0, 32, 0},
		{`"version":"0.5.9","dp_size":4,"enable_dp_attention":true,"max_running_requests":8`, 0, 8, 0},
		{`"version":"0.5.23","dp_size":4,"max_running_requests":8`, 4, 32, 8},
		{`"version":"0.5.23","dp_size":4,"enable_dp_attention":true,"max_running_requests":8`, 4, 8, 2},
		{`"version":"0.5.23","dp_size":1,"max_running_requests":8`, 0, 8, 0},
		{`"version":"0.5.23","dp_size":2,"max_running_requests":null,"internal_states":[{"effective_max_running_requests_per_dp":64},{"effective_max_running_requests_per_dp":64}]`, 2, 128, 64},
		{`"version":"0.5.23","dp_size":2,"enable_dp_attention":true,"max_running_requests":9,"internal_states":[{"effective_max_running_requests_per_dp":4}]`, 2, 8, 4},
		{`"version":"0.5.23","dp_size":-3,"max_running_requests":-8`, 0, 0, 0},
		{`"version":"0.5.23","dp_size":4,"max_running_requests":null`, 4, 0, 0},
	} {
		said <- `{"skip_tokenizer_init":false,` + test.said + `}`
		facts, err := New(Options{Name: "e", URL: at}).probe(t.Context())
		if err != nil {
			t.Fatal(test.said, err)
		}
		if len(facts.Ranks) != test.ranks || facts.MaxRunning != test.running || test.ranks > 0 && facts.Ranks[0].MaxRunning != test.ofRank {
			t.Errorf("%s: %+v", test.said, facts)
		}
	}
}
