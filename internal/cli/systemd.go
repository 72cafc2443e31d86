package cli

import (
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// reportTo tells the service manager that started the process about its state, as
// Type=notify and Type=notify-reload of systemd want it. Without NOTIFY_SOCKET in the environment it
// does nothing.
func reportTo(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("the service manager was not notified", "state", state, "error", err)
	}
}

// reloading is the state of a process that reads its configuration again. The time
// has systemd tell the report that belongs to its own request from an older one.
func reloading() string {
	return daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec()
}
