package cli

import (
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"weir/internal/observe/metrics"
	"weir/internal/observe/watch"
	"weir/internal/sim/simserver"
)

// watchFlags control how a process observes itself, the same in every command that serves.
type watchFlags struct {
	StallThreshold   time.Duration `default:"250ms" help:"Report a stall when nothing could be read for this long (${default}). The log, /stalls and the records of the affected requests name what held the core. 0 disables the check."`
	SlowOperation    time.Duration `default:"100ms" help:"Log the name of an operation that holds a core for this long, with its request (${default}). 0 logs none."`
	WatchCPU         float64       `name:"watch-cpu" default:"0.8" placeholder:"SHARE" help:"Watch closely while the process uses this share of its cores for 5 s (${default}). Watching closely writes a log line every 5 s, and a profile if --profiles-dir is set (docs/watching.md). 0 disables this trigger."`
	ProfilesDir      string        `type:"path" placeholder:"DIR" help:"Directory for profiles. Whenever weir begins to watch closely, it keeps the preceding seconds of Go's flight recorder and a CPU profile of what follows. /profiles lists them. Off by default."`
	ProfilesPerHour  int           `default:"4" placeholder:"N" help:"Largest number of times per hour that profiles are kept for one trigger (${default})."`
	ProfilesDuration time.Duration `default:"5s" help:"Length of a CPU profile (${default})."`
	ProfilesKeep     int           `default:"20" placeholder:"N" help:"Number of profile files to keep; the oldest are deleted (${default})."`
	ProfilesMaxBytes byteSize      `default:"256MiB" placeholder:"BYTES" help:"Largest total size of the profile files (${default})."`
}

// loadFlags control when a gateway looks closer.
type loadFlags struct {
	WatchStreams     int64         `default:"800" placeholder:"N" help:"Watch closely while this many streams are open and, for a second, at least one in 20 had output waiting (${default}). 0 disables this trigger."`
	WatchOutputDelay time.Duration `default:"1s" help:"Watch closely while weir takes longer than this from the reading of the first output to its writing: the 99th percentile of the last 10 s (${default}). 0 disables this trigger."`
	WatchQueueWait   time.Duration `default:"30s" help:"Watch closely while a request has waited longer than this for an engine with room (${default}). 0 disables this trigger."`
}

// check refuses what cannot be meant.
func (f *watchFlags) check() error {
	if err := notNegative(amount{"--stall-threshold", int64(f.StallThreshold)}, amount{"--slow-operation", int64(f.SlowOperation)}); err != nil {
		return err
	}
	if f.StallThreshold > 0 && f.StallThreshold < minStall {
		return wrongf("--stall-threshold must be at least %v, because weir checks every 10 ms, or 0 to disable the check", minStall)
	}
	if math.IsNaN(f.WatchCPU) || f.WatchCPU < 0 || f.WatchCPU > 1 {
		return wrongf("--watch-cpu must be from 0 to 1")
	}
	if err := needPositive(amount{"--profiles-per-hour", int64(f.ProfilesPerHour)}, amount{"--profiles-duration", int64(f.ProfilesDuration)}); err != nil {
		return err
	}
	if f.ProfilesKeep < 2 {
		return wrongf("--profiles-keep must be at least 2, for a trace and a CPU profile")
	}
	if f.ProfilesMaxBytes < watch.LeastMaxBytes {
		return wrongf("--profiles-max-bytes must be at least %v", byteSize(watch.LeastMaxBytes))
	}
	return nil
}

// minStall is the least of --stall-threshold.
const minStall = 20 * time.Millisecond

// limits are those of a gateway's triggers.
func (f *loadFlags) limits(cpu float64) watch.Limits {
	return watch.Limits{Streams: f.WatchStreams, OutputDelay: f.WatchOutputDelay, QueueWait: f.WatchQueueWait, CPU: cpu}
}

// watcher is a process's watch and the profiles that it keeps.
type watcher struct {
	*watch.Watch
	profiles *watch.Profiles // nil: none are kept
	turn     *watch.Turn     // of whoever takes a profile
}

// newWatcher makes a watcher; o holds the options that depend on the process.
func (f *watchFlags) newWatcher(o watch.Options) (w watcher, err error) {
	w.turn = new(watch.Turn)
	if f.ProfilesDir != "" {
		w.profiles, err = watch.NewProfiles(watch.ProfileOptions{Dir: f.ProfilesDir, Keep: f.ProfilesKeep, MaxBytes: int64(f.ProfilesMaxBytes), PerHour: f.ProfilesPerHour, CPU: f.ProfilesDuration, Turn: w.turn, Log: o.Log})
		if err != nil {
			return w, fmt.Errorf("--profiles-dir %s: %w", f.ProfilesDir, err)
		}
	}
	o.StallThreshold, o.SlowOperation, o.Profiles = f.StallThreshold, f.SlowOperation, w.profiles
	w.Watch = watch.New(o)
	return w, nil
}

// close releases the kept profiles; the watch has ended.
func (w *watcher) close() {
	if w.profiles != nil {
		w.profiles.Close()
	}
}

// alone serves a profile only while weir itself takes none.
func (w *watcher) alone(h http.HandlerFunc) http.HandlerFunc {
	return func(to http.ResponseWriter, r *http.Request) {
		holder, ok := w.turn.Take("/debug/pprof/")
		if !ok {
			to.Header().Set("Retry-After", "10")
			http.Error(to, "a profile is being taken by "+holder+"; try again in some seconds", http.StatusServiceUnavailable)
			return
		}
		defer w.turn.Give()
		h(to, r)
	}
}

// canaryEnded logs that the watch has ended.
func canaryEnded(log *slog.Logger, err error) {
	log.Warn("no canary: "+watch.StallMetric+" stays empty, and no stall is seen", "error", err)
}

// engineWatch is the watch of a simulated engine, and its pages on the admin listener.
func (f *watchFlags) engineWatch(log *slog.Logger, admin string, state func() simserver.State) (self watcher, h http.Handler, err error) {
	if err := f.check(); err != nil {
		return self, nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	self, err = f.newWatcher(watch.Options{Registry: registry, Log: log, Limits: watch.Limits{CPU: f.WatchCPU}, Load: func() watch.Load {
		return watch.Load{Streams: int64(state().Running)}
	}})
	if err != nil {
		return self, nil, err
	}
	mux := http.NewServeMux()
	hosts := hostNames(nil, admin)
	mux.Handle("GET /metrics", hosts.known(metrics.Serve(registry)))
	for pattern, page := range self.Handlers() {
		mux.Handle(pattern, hosts.known(page))
	}
	return self, mux, nil
}
