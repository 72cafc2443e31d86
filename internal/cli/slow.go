package cli

import "time"

// slowAfter is the time after which a command that prepares itself reports what it waits for.
const slowAfter = time.Second

// ifSlow calls report unless stop is called within slowAfter. Once stop has returned, report
// has ended or will not be called.
func ifSlow(report func()) (stop func()) {
	ended := make(chan struct{})
	timer := time.AfterFunc(slowAfter, func() {
		defer close(ended)
		report()
	})
	return func() {
		if !timer.Stop() {
			<-ended
		}
	}
}
