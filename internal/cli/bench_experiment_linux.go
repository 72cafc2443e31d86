package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"weir/internal/bench"
	"weir/internal/experiment"
)

// testFleet is the engines and the gateway that a run has for itself.
type testFleet struct {
	processes []*bench.Process
	url       string // of what is loaded
	admin     string // of the gateway, empty where there is none
}

// stop ends the gateway first, and then the engines.
func (f *testFleet) stop() {
	for i := len(f.processes) - 1; i >= 0; i-- {
		f.processes[i].Stop()
	}
}

// kinds is how the gateway is told of an engine by its wire.
var kinds = map[string]string{"weir": "weir=%s", "openai": "openai=http://%s", "sglang": "sglang=http://%s", "vllm": "openai=http://%s"}

// startFleet starts the engines and the gateway of a cell, in processes of this
// program's own binary, on addresses that the system chooses.
func startFleet(ctx context.Context, e *experiment.Experiment, c experiment.Cell) (f *testFleet, err error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f = &testFleet{}
	defer func() {
		if err != nil {
			f.stop()
		}
	}()
	env := bench.Environment()
	start := func(args ...string) (*bench.Process, error) {
		p, err := bench.Start(append([]string{binary}, args...), env)
		if err == nil {
			f.processes = append(f.processes, p)
		}
		return p, err
	}
	n := e.Engines(c)
	serve := []string{"serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--log-level=error"}
	for i := 1; i <= n; i++ {
		name := fmt.Sprintf("engine-%d", i)
		p, err := start(append([]string{"engine", "--wire=" + e.Wire + "=127.0.0.1:0", "--name=" + name}, e.EngineArgs(c, i)...)...)
		if err != nil {
			return f, err
		}
		addr, err := p.AwaitLine(ctx, e.Wire+" ")
		if err != nil {
			return f, fmt.Errorf("%s: %w", name, err)
		}
		if e.Wire != "weir" {
			addr = addr[len("http://"):]
		}
		f.url = "http://" + addr
		serve = append(serve, "--engine="+fmt.Sprintf(kinds[e.Wire], addr)+",name="+name)
	}
	if e.Direct {
		return f, nil
	}
	gateway, err := start(append(serve, e.GatewayArgs(c)...)...)
	if err != nil {
		return f, err
	}
	if f.url, err = gateway.AwaitLine(ctx, "gateway "); err != nil {
		return f, fmt.Errorf("gateway: %w", err)
	}
	if f.admin, err = gateway.AwaitLine(ctx, "admin "); err != nil {
		return f, fmt.Errorf("gateway: %w", err)
	}
	return f, f.ready(ctx, n)
}

// fleetRest is what a fleet gets between being ready and its load. What fresh
// processes still do then, collecting what loading a model left, made the first
// request of a run some 12 ms late.
const fleetRest = time.Second

// fleetPatience is how long a gateway may take to have all its engines.
const fleetPatience = 30 * time.Second

// ready waits until the gateway has all its engines.
func (f *testFleet) ready(ctx context.Context, n int) error {
	within, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		up, problem := f.up(within)
		if up == n {
			break
		}
		select {
		case <-poll.C:
		case <-within.Done():
			if err := ctx.Err(); err != nil {
				return err
			}
			return fmt.Errorf("the gateway has %d of %d engines after %v: %s", up, n, fleetPatience, problem)
		}
	}
	select {
	case <-time.After(fleetRest):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// up counts the engines that are ready, and says why another one is not.
func (f *testFleet) up(ctx context.Context) (n int, problem string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.admin+"/engines", nil)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxEngines))
	if err != nil {
		return 0, err.Error()
	}
	var views []engineView
	if err := json.Unmarshal(body, &views); err != nil {
		return 0, err.Error()
	}
	for i := range views {
		if views[i].Ready {
			n++
		} else {
			problem = views[i].Name + ": " + views[i].Error
		}
	}
	return n, problem
}
