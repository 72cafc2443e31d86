//go:build linux

package client

import (
	"os"

	"weir/internal/lab/cell"
	"weir/internal/lab/proc"
)

// window is the usage within the measured window.
type window struct {
	gateway proc.Usage // CPU and writes within it, resident at its end
	engine  float64
	client  float64
	other   float64 // CPU seconds of everything else on the machine
	sent    int64   // by the engine
	flooded int64   // requests
	err     error
}

// sampleWindow samples at the window's two ends.
func sampleWindow(c *cell.Cell, from, to int64) *window {
	w := &window{}
	b, err := c.OpenBoard()
	if err != nil {
		w.err = err
		return w
	}
	defer b.Close()
	var gateway [2]proc.Usage
	var engine, client, flood [2]proc.Usage
	var sent, flooded [2]int64
	var busy [2]float64
	for i, at := range []int64{from, to} {
		cell.SleepUntil(at)
		for _, x := range []struct {
			pids []int
			into *proc.Usage
		}{{c.PIDs, &gateway[i]}, {[]int{c.EnginePID}, &engine[i]}, {[]int{os.Getpid()}, &client[i]}, {c.FloodPIDs, &flood[i]}} {
			if len(x.pids) == 0 {
				continue
			}
			if *x.into, w.err = proc.Of(x.pids); w.err != nil {
				return w
			}
		}
		sent[i], flooded[i] = b.Sent().Load(), b.Flooded().Load()
		if busy[i], w.err = proc.MachineCPU(); w.err != nil {
			return w
		}
	}
	w.gateway = proc.Usage{CPU: gateway[1].CPU - gateway[0].CPU, Writes: gateway[1].Writes - gateway[0].Writes, Resident: gateway[1].Resident}
	w.engine, w.client = engine[1].CPU-engine[0].CPU, client[1].CPU-client[0].CPU
	w.sent, w.flooded = sent[1]-sent[0], flooded[1]-flooded[0]
	w.other = busy[1] - busy[0] - w.gateway.CPU - w.engine - w.client - (flood[1].CPU - flood[0].CPU)
	return w
}
