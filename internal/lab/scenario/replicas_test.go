//go:build linux

package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/load"
)

// replicaResults are those of a run in which all is as it must be.
func replicaResults() *Replicas {
	all := &Replicas{
		Killed: Widowed{Gateways: 4, Own: 100, OwnFailed: 50, Others: 300},
		Restarted: []Restarted{
			{Kind: "plane", Covered: true, Streams: 4000, Complete: 4000},
			{Kind: "plane", Streams: 3000, Complete: 1800, Explicit: 1200},
		},
	}
	for _, where := range []string{"offline", "live"} {
		for _, x := range replicaRuns() {
			x.Where, x.Measured, x.Requests, x.Cached, x.TTFT99 = where, 40, 1000, 0.8, 0.4
			if where == "offline" {
				x.Seeds = replicaSeeds
			}
			if x.Alone {
				x.Cached, x.TTFT99 = 0.6, 2
			}
			all.Runs = append(all.Runs, x)
		}
	}
	return all
}

func TestJudgeReplicas(t *testing.T) {
	const one, two, aloneFour = 5, 6, 9 // live
	for _, c := range []struct {
		name           string
		change         func(all *Replicas)
		failed, missed string // part of the one such verdict; empty: none
	}{
		{"as it must be", func(*Replicas) {}, "", ""},
		{"reuse is lost", func(all *Replicas) { all.Runs[two].Cached = 0.75 }, "", "live, 2 gateways: at least 0.95 of one's reuse is captured: 0.938"},
		{"they are late", func(all *Replicas) { all.Runs[1].TTFT99 = 0.5 }, "", "offline, 2 gateways: TTFT p99 is at most 1.1 times that of one in the geometric mean of 8 seeds: 1.25"},
		{"the machine was slow for one", func(all *Replicas) {
			all.Runs[one].Lost = 0.03
			all.Runs[two+1].TTFT99, all.Runs[two].TTFT99 = 0.4, 0.4
		}, "", "*"},
		{"a load is too short", func(all *Replicas) {
			all.Runs[aloneFour].Measured, all.Runs[aloneFour].Cached = 39, 0.8
		}, "", "live, 4 gateways: not judged: 39 s after the caches have warmed up are too short for a p99; give at least --duration 9m0s"},
		{"a request fails", func(all *Replicas) { all.Runs[two].Failed, all.Runs[two].FirstError = 1, "status_503" }, "1, such as status_503 failed", ""},
		{"a token is lost", func(all *Replicas) { all.Runs[one].Corrupt = 1 }, "live, 1 gateways: each request is answered", ""},
		{"the control keeps up", func(all *Replicas) { all.Runs[aloneFour].Cached, all.Runs[aloneFour].TTFT99 = 0.8, 0.4 }, "it kept up, so this run shows nothing", ""},
		{"the control is soon", func(all *Replicas) { all.Runs[aloneFour].TTFT99 = 0.4 }, "it kept up, so this run shows nothing", ""},
		{"others notice", func(all *Replicas) { all.Killed.Noticed, all.Killed.FirstError = 2, "cut" }, "failed: 2, such as cut", ""},
		{"nobody was killed", func(all *Replicas) { all.Killed.OwnFailed = 0 }, "its own clients notice: 0 of 100", ""},
		{"the kill was not measured", func(all *Replicas) { all.Killed.NotMeasured = "no port" }, "not measured: no port", ""},
		{"a restart breaks a stream", func(all *Replicas) {
			all.Restarted[0].Complete, all.Restarted[0].Explicit, all.Restarted[0].FirstError = 3999, 1, "gone"
		}, "3999 of 4000 are whole; not: 1, such as gone", ""},
		{"a stream ends without a word", func(all *Replicas) { all.Restarted[1].Otherwise, all.Restarted[1].FirstError = 1, "cut: EOF" }, "otherwise: 1, such as cut: EOF", ""},
		{"the restarts met nobody", func(all *Replicas) { all.Restarted[1].Explicit = 0 }, "so the restarts met some: 0", ""},
		{"a restart was not measured", func(all *Replicas) { all.Restarted[0].NotMeasured = "no port" }, "the rolling restart was not measured: no port", ""},
		{"no restarts", func(all *Replicas) { all.Restarted = nil }, "no rolling restart was run", ""},
	} {
		all := replicaResults()
		c.change(all)
		failed, missed := outcomes(&Report{Verdicts: judgeReplicas(all)})
		wantOne(t, c.name, "failed", failed, c.failed)
		if c.missed == "*" {
			if len(missed) != 2 { // of two and of four
				t.Errorf("%s: missed %q", c.name, missed)
			}
			continue
		}
		wantOne(t, c.name, "missed", missed, c.missed)
	}
	if failed, _ := outcomes(&Report{Verdicts: judgeReplicas(&Replicas{})}); len(failed) < 4 {
		t.Errorf("nothing at all passed: %q", failed)
	}
}

// A third of a short load, and 20 s of a long one, are not measured.
func TestReplicaWarms(t *testing.T) {
	for lasts, want := range map[time.Duration]time.Duration{30 * time.Second: 10 * time.Second, time.Minute: replicaWarm, time.Hour: replicaWarm} {
		if got := replicaWarms(&Options{Duration: 9 * lasts}); got != want {
			t.Errorf("a load of %v warms up for %v, want %v", lasts, got, want)
		}
	}
}

func TestReplicasText(t *testing.T) {
	var text, object bytes.Buffer
	report := &Report{Scenario: "replicas", Replicas: replicaResults()}
	if err := errors.Join(report.Text(&text), report.JSON(&object)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"live, 4 alone", "plane", "whole"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in %s", want, text.String())
		}
	}
	if !strings.Contains(object.String(), `"drain_covers_streams": true`) {
		t.Error(object.String())
	}
}

func TestReplicasOptions(t *testing.T) {
	s, err := Find("replicas")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string // empty: it is good
	}{
		{Options{Duration: 90 * time.Second}, ""},
		{Options{Duration: 30 * time.Second, Kinds: []string{"plane"}}, ""},
		{Options{Duration: 60 * time.Second}, "give at least 1m30s"},
		{Options{Duration: 90 * time.Second, Streams: replicaMost + 1}, "--streams: 4001"},
		{Options{Duration: 90 * time.Second, Kinds: []string{"grpc"}}, "vllm-ids"},
	} {
		err := c.o.check(s)
		var invalid Invalid
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %s", c.o, err, c.want)
		}
	}
}

// The requests that ended, and their outcomes.
func TestFlow(t *testing.T) {
	var f flow
	for _, s := range []load.Sample{
		{Outcome: load.Complete},
		{Outcome: load.Errored, Kind: load.KindErrorEvent, Detail: "the gateway ends"},
		{Outcome: load.Errored, Kind: "status_503"},
		{Outcome: load.Errored, Kind: load.KindCut},
		{Outcome: load.Errored, Kind: load.KindConnect},
		{Outcome: load.Corrupt, Kind: load.KindLost},
	} {
		f.take(&s)
	}
	x := Restarted{Covered: true}
	f.figures(&x)
	if x.Streams != 6 || x.Complete != 1 || x.Explicit != 2 || x.Otherwise != 3 || x.Corrupt != 1 || !strings.HasPrefix(x.FirstError, "cut") {
		t.Errorf("%+v", x)
	}
}

// A service gives connections to those that are ready alone, in turn.
func TestService(t *testing.T) {
	var ready [2]atomic.Bool
	var of []*replica
	for i := range ready {
		ready[i].Store(true)
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, i) }))
		defer api.Close()
		admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !ready[i].Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		defer admin.Close()
		of = append(of, &replica{url: api.URL, admin: admin.URL})
	}
	s, err := startService(of)
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	seen := func() (all string) {
		for range 4 {
			resp, err := client.Get(s.url)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			all += string(body)
		}
		return all
	}
	if got := seen(); strings.Count(got, "0") != 2 || strings.Count(got, "1") != 2 {
		t.Errorf("connections went to %s", got)
	}
	ready[0].Store(false)
	for end := time.Now().Add(time.Minute); seen() != "1111"; {
		if time.Now().After(end) {
			t.Fatal("a gateway that is not ready still gets connections after a minute")
		}
	}
	ready[1].Store(false)
	for end := time.Now().Add(time.Minute); ; {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Second / 4))
		_, err = c.Read(make([]byte, 1))
		if c.Close(); errors.Is(err, io.EOF) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("connections are taken although nobody is ready")
		}
	}
}
