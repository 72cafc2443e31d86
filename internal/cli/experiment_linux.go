package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"weir/internal/infer"
	"weir/internal/lab"
	"weir/internal/lab/proc"
	"weir/internal/load"
	"weir/internal/load/experiment"
)

// testFleet is the engines and the gateway of a single run.
type testFleet struct {
	processes []*lab.Process
	url       string // of what is loaded
	admin     string // of the gateway, empty where there is none
}

// stop ends the gateway first, and then the engines.
func (f *testFleet) stop() {
	for i := len(f.processes) - 1; i >= 0; i-- {
		f.processes[i].Stop()
	}
}

// kinds maps a wire to the gateway's engine option.
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
	env := lab.Environment()
	start := func(args ...string) (*lab.Process, error) {
		p, err := lab.Start(append([]string{binary}, args...), env)
		if err == nil {
			f.processes = append(f.processes, p)
		}
		return p, err
	}
	fleet := e.Fleet(c)
	n := fleet.Engines()
	serve := []string{"serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--log-level=error"}
	for i := 1; i <= n; i++ {
		name := fmt.Sprintf("engine-%d", i)
		args := []string{"engine", "--wire=" + e.Wire + "=127.0.0.1:0", "--name=" + name}
		if fleet.Apart() {
			args = append(args, "--role="+fleet.Role(i).String(), "--disaggregation-bootstrap-port=0", "--nixl-side-channel-port=0")
		}
		p, err := start(append(args, e.EngineArgs(c, i)...)...)
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
		engine := "--engine=" + fmt.Sprintf(kinds[e.Wire], addr) + ",name=" + name
		if fleet.Role(i) != infer.RoleBoth && e.Wire == "vllm" { // SGLang's say it themselves
			engine += ",role=" + fleet.Role(i).String()
		}
		serve = append(serve, engine)
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
			return nil
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
}

// Before its load a fleet answers requests that are not counted. The first requests of a
// process touch its code and memory for the first time, some 80 page faults. They made the
// first request of a run 1 to 3 ms slower than the next, however long the fleet had rested.
const (
	// warmFaults is how many page faults a request may cost all processes together
	// once they are warm.
	warmFaults = 8
	// warmTime bounds the rounds of requests, where they never cost so few.
	warmTime = 3 * time.Second
	// restWindow is the time in which a fleet at rest uses no CPU that the kernel
	// counts, 10 ms, and restTime bounds the wait for it.
	restWindow = 50 * time.Millisecond
	restTime   = 2 * time.Second
)

// warm has a fleet answer requests like those of its load, two an engine at a
// time, until they cost no more page faults, and then waits until nothing that
// they left is under way. That they fail is for the load to find out.
func (f *testFleet) warm(ctx context.Context, like load.Plan, engines int) error {
	plan := load.Plan{
		URL: like.URL, API: like.API, Model: like.Model, Body: like.Body, Header: like.Header, Images: like.Images, Count: like.Count,
		InputTokens: like.InputTokens, OutputTokens: min(like.OutputTokens, warmTokens), NoStream: like.NoStream,
		Concurrency: engines, Requests: 2 * engines, Timeout: like.Timeout, RequestID: "warm",
	}
	for begun := time.Now(); time.Since(begun) < warmTime; {
		before, err := proc.Of(f.pids())
		if err != nil {
			return err
		}
		plan.Seed++ // prompts that are in no cache
		if _, err := load.Run(ctx, plan); err != nil {
			break
		}
		after, err := proc.Of(f.pids())
		if err != nil {
			return err
		}
		if after.Faults-before.Faults <= int64(warmFaults*plan.Requests) {
			break
		}
	}
	return f.rest(ctx)
}

// rest waits until the fleet uses no CPU.
func (f *testFleet) rest(ctx context.Context) error {
	for range int(restTime / restWindow) {
		before, err := proc.Of(f.pids())
		if err != nil {
			return err
		}
		select {
		case <-time.After(restWindow):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := proc.Of(f.pids())
		if err != nil {
			return err
		}
		if after.CPU == before.CPU {
			return nil
		}
	}
	return nil
}

func (f *testFleet) pids() (all []int) {
	for _, p := range f.processes {
		all = append(all, p.PIDs()...)
	}
	return all
}

// up counts the engines that are ready, and returns why another one is not.
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
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
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
