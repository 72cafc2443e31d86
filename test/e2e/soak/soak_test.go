package soak

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/load"
	"weir/models"
	"weir/test/e2e/harness"
)

// soakSample is the gateway at a moment of the soak.
type soakSample struct {
	at         time.Duration
	live       float64
	resident   float64 // bytes
	goroutines float64
}

// Streams come and go for a while, of which 2 % are read slowly and 5 % hung up on: every stream is
// whole, and the gateway's memory and goroutines do not grow. WEIR_SOAK, for example 20m, sets its
// length, and its full size.
func TestSoak(t *testing.T) {
	duration, streams, step := 15*time.Second, 256, 50*time.Millisecond
	text := os.Getenv("WEIR_SOAK")
	if testing.Short() && text == "" {
		t.Skip("make soak runs it for longer")
	}
	if text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil || duration < 15*time.Second {
			t.Fatalf("WEIR_SOAK=%s: want a duration of at least 15s", text)
		}
		streams, step = 4096, 250*time.Millisecond
	}
	for _, path := range []string{"plane", "relay"} {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Heavy) // half of the streams each
			soak(t, path, duration, streams/2, step)
		})
	}
}

// soakEngine starts a simulated engine that serves as a model, and returns the flags with which the
// gateway finds it.
func soakEngine(t *testing.T, path, model string, streams int, step time.Duration) (*harness.Sim, []string) {
	args := []string{"--cost", "constant", "--prefill-cost", "2ms", "--decode-cost", step.String(), "--max-running-requests", fmt.Sprint(2 * streams)}
	var flags []string
	if model != models.SimName {
		named := model + "=../../../models/" + models.SimName
		args = append(args, "--model", named)
		if path == "plane" {
			flags = append(flags, "--model", named)
		}
	}
	s := harness.StartSim(t, args...)
	return s, append(flags, "--engine", s.Spec(path))
}

func soak(t *testing.T, path string, duration time.Duration, streams int, step time.Duration) {
	// Slow readers are those who read slower than their engine speaks, so theirs
	// is a swift one: three times as fast as they are where nothing else runs, and
	// what they have not read grows to half a megabyte, more than the kernel holds for
	// them. It holds more where connections before were quick.
	const tokens, swiftTokens, swift = 48, 4096, "swift"
	slow, hangUps := max(1, streams*2/100), max(1, streams*5/100)
	s, flags := soakEngine(t, path, models.SimName, streams, step)
	swiftly, more := soakEngine(t, path, swift, slow, time.Millisecond)
	// The cache of prompts grows to its bound, which is to be early.
	g := harness.StartGateway(t, append(append([]string{"serve", "--prefix-cache", "4194304", "--submit-timeout", harness.Unhurried}, flags...), more...)...)

	shape := func(concurrency int) load.Plan {
		return load.Plan{URL: g.URL, Model: models.SimName, Verify: harness.Words(t), Concurrency: concurrency, Duration: duration,
			OutputTokens: tokens, Timeout: 2 * time.Minute, Body: map[string]any{"ignore_eos": true}}
	}
	usual, unhurried, fickle := shape(streams-slow-hangUps), shape(slow), shape(hangUps)
	unhurried.Model, unhurried.OutputTokens = swift, swiftTokens
	unhurried.ReadRate, unhurried.ReceiveBuffer = 48000, 4<<10
	fickle.HangUpAfter = tokens / 2

	sum := map[string]int{}
	var slowly *load.Report
	round := func() (samples []soakSample) {
		type result struct {
			report *load.Report
			err    error
		}
		results := make([]chan result, 3)
		for i, plan := range []load.Plan{usual, unhurried, fickle} {
			results[i] = make(chan result, 1)
			go func() {
				report, err := load.Run(t.Context(), plan)
				results[i] <- result{report, err}
			}()
		}

		const count = 30
		begin := time.Now()
		tick := time.NewTicker(duration / count)
		defer tick.Stop()
		for range count - 1 {
			<-tick.C
			samples = append(samples, soakSample{time.Since(begin), harness.Metric(t, g.Admin, "weir_requests_in_flight"),
				harness.Metric(t, g.Admin, "process_resident_memory_bytes"), harness.Metric(t, g.Admin, "go_goroutines")})
		}
		for i, name := range []string{"usual", "slow", "hung up on"} {
			r := <-results[i]
			if r.err != nil {
				t.Fatal(r.err)
			}
			if r.report.Corrupt != 0 || r.report.Errored != 0 || r.report.Lost != 0 || r.report.Unfinished != 0 || r.report.Requests == 0 {
				t.Errorf("%s: %d requests, %d corrupt, %d errored, %d unfinished, %d tokens lost: %v %v", name, r.report.Requests,
					r.report.Corrupt, r.report.Errored, r.report.Unfinished, r.report.Lost, r.report.Errors, r.report.Examples)
			}
			if i == 1 {
				slowly = r.report
			}
			sum["received"] += r.report.Requests
			sum["finished"] += r.report.Complete
			sum["cancelled"] += r.report.Abandoned
		}
		return samples
	}
	// A busy machine is late to warm up, and what grew for that grows no more in another
	// round. A leak does.
	for rounds := 3; ; {
		grew := growth(t, round(), streams)
		if rounds--; grew == "" || t.Failed() {
			break
		}
		if rounds == 0 {
			t.Error(grew)
			break
		}
		t.Logf("%s: it is watched for another %v", grew, duration)
	}
	// A stream that was hung up on may all have been on its way already.
	ended := g.Balanced()
	unseen := sum["cancelled"] - ended["cancelled"]
	if unseen < 0 || ended["received"] != sum["received"] || ended["finished"] != sum["finished"]+unseen {
		t.Errorf("by the client's count %v, by the gateway's %v", sum, ended)
	}
	if ended["cancelled"] == 0 {
		t.Error("no stream was hung up on")
	}
	// Output merges only where the gateway must wait for a reader's socket.
	if slowly.FramesPerToken > 0.95 {
		t.Errorf("the slow readers kept up (%.3f HTTP chunks per token): nothing was shown about them", slowly.FramesPerToken)
	}
	for _, e := range []*harness.Sim{s, swiftly} {
		harness.Eventually(t, "rid of all requests in the engine", func() bool { st := harness.EngineState(t, e.Admin); return st.Running == 0 && st.Waiting == 0 })
	}
	t.Logf("%d streams at once for %v: %v; slow readers had %.3f HTTP chunks per token", streams, duration, sum, slowly.FramesPerToken)
	g.Interrupt()
}

// growth wants the last third's median close to the middle third's, and returns the figures that
// are not; the first third warms up. The margins are those of a heap between collections, and of
// goroutines of requests that are just beginning: the streams drift apart, so that there are more
// of these at any moment as time goes on. One leaked by each request would soon be several times
// the streams.
func growth(t *testing.T, samples []soakSample, streams int) (grew string) {
	t.Helper()
	var table strings.Builder
	fmt.Fprintf(&table, "\n%9s %9s %12s %11s\n", "time", "in flight", "resident MB", "goroutines")
	for _, s := range samples {
		fmt.Fprintf(&table, "%8.1fs %9.0f %12.1f %11.0f\n", s.at.Seconds(), s.live, s.resident/1e6, s.goroutines)
	}
	t.Log(table.String())
	third := len(samples) / 3
	for _, of := range []struct {
		name         string
		value        func(soakSample) float64
		share, slack float64
	}{
		{"resident bytes", func(s soakSample) float64 { return s.resident }, 0.15, 16e6},
		{"goroutines", func(s soakSample) float64 { return s.goroutines }, 0.15, 64 + float64(streams)/4},
	} {
		median := func(part []soakSample) float64 {
			values := make([]float64, 0, len(part))
			for _, s := range part {
				values = append(values, of.value(s))
			}
			slices.Sort(values)
			return values[len(values)/2]
		}
		middle, last := median(samples[third:2*third]), median(samples[2*third:])
		if limit := middle*(1+of.share) + of.slack; last > limit {
			grew += fmt.Sprintf("%s grew: median %.0f in the middle third, %.0f in the last, more than %.0f; ", of.name, middle, last, limit)
		}
	}
	return strings.TrimSuffix(grew, "; ")
}
