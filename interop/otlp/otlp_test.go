//go:build interop

// Package otlp has a gateway send its spans to a collector that OpenTelemetry's own Python
// protobufs make.
//
//	go test -tags interop ./interop/otlp/
package otlp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

type span struct {
	Port                             int
	Service, Schema, Scope           string
	Trace, Span, Parent, State, Name string
	Kind, Status                     int
	Start, End                       int64
	Attributes                       map[string]any
}

// The spans of a request are the collector's, in the caller's trace, below the caller's
// span, with children within it; one whose caller wants none has none.
func TestCollector(t *testing.T) {
	cmd := exec.Command(harness.Python(t), "collector.py")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	lines := make(chan span, 1000)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			var s span
			if json.Unmarshal(in.Bytes(), &s) == nil {
				lines <- s
			}
		}
	}()
	next := func() span {
		t.Helper()
		select {
		case s, ok := <-lines:
			if !ok {
				t.Fatal("the collector has ended: are the packages of interop/requirements.txt there?")
			}
			return s
		case <-time.After(time.Minute):
			t.Fatal("no span comes")
		}
		return span{}
	}
	sim := harness.StartSim(t, harness.FastSim...)
	g := harness.StartGateway(t, "serve", "--engine", sim.Spec("plane")+",name=sim", "--otlp", fmt.Sprintf("http://127.0.0.1:%d", next().Port))
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"
	for _, flag := range []string{"0", "1"} {
		a := harness.Post(t, g.URL+"/v1/chat/completions", `{"model":"weir-sim","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`, "Traceparent", parent+flag, "Tracestate", "x=y")
		if a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	g.Balanced()
	byID := map[string]span{}
	root := next()
	if root.Name != "chat weir-sim" || root.Parent != "00f067aa0ba902b7" || root.Kind != 2 || root.Status != 0 || root.Service != "weir" || root.Attributes["gen_ai.usage.output_tokens"] != 5.0 ||
		root.Attributes["gen_ai.request.model"] != "weir-sim" || root.Attributes["gen_ai.operation.name"] != "chat" || !strings.Contains(root.Schema, "opentelemetry.io/schemas/") {
		t.Errorf("%+v", root)
	}
	byID[root.Span] = root
	names := map[string]bool{}
	for !names["prefill"] { // the last
		s := next()
		names[s.Name], byID[s.Span] = true, s
		p, ok := byID[s.Parent]
		if !ok || s.Trace != "4bf92f3577b34da6a3ce929d0e0e4736" || s.State != "x=y" || s.Start < p.Start || s.End > p.End || s.Kind != 1 && s.Kind != 3 {
			t.Errorf("%+v in %+v", s, p)
		}
	}
	for _, name := range []string{"read", "tokenize", "output", "full sim"} {
		if !names[name] {
			t.Errorf("no span %q in %v", name, names)
		}
	}
	sent := func() float64 { return harness.Metric(t, g.Admin, "weir_otlp_requests_sent_total") }
	for deadline := time.Now().Add(time.Minute); sent() == 0 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
	}
	if n := sent(); n != 1 {
		t.Errorf("%v requests are counted as sent, want that of the caller who asked", n)
	}
}
