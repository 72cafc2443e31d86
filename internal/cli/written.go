package cli

import (
	"errors"
	"log/slog"

	"weir/internal/observe/otlp"
	"weir/internal/observe/timeline"
)

// written is where the records of requests go as they end. It lives as long as requests may.
type written struct {
	timeline *timeline.Recorder // nil: no records are kept
	usage    *timeline.Recorder // nil: no usage log is written
	spans    *otlp.Exporter     // nil: there are none
}

// reopen opens the files again, after another program has renamed them, and prints each. It
// reports whether there is one.
func (w *written) reopen(log *slog.Logger, say func(format string, args ...any)) (any bool) {
	for _, f := range []struct {
		name string
		of   *timeline.Recorder
	}{{"timeline", w.timeline}, {"usage log", w.usage}} {
		had, err := f.of.Reopen()
		if any = any || had; err != nil {
			log.Error("the "+f.name+"'s file cannot be opened again, the old one stays", "error", err)
			say("reload    the %s's old file stays: %v", f.name, err)
		} else if had {
			say("reload    %s opened again", f.name)
		}
	}
	return any
}

// finish writes what is left, and closes the files.
func (w *written) finish() error {
	return errors.Join(closed(w.spans), w.timeline.Close(), w.usage.Close())
}
