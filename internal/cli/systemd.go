package cli

import (
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// reportTo reports the process's state to the service manager that started it, as systemd's
// Type=notify and Type=notify-reload require. Without NOTIFY_SOCKET in the environment it
// does nothing.
func reportTo(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("the service manager was not notified", "state", state, "error", err)
	}
}

// reloading returns the state of a process that reads its configuration again. By the time
// systemd distinguishes the report on its own request from an older one.
func reloading() string {
	return daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec()
}
