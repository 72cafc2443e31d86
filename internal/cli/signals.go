package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// notifyOfSignals sends some of the process's own signals to a channel.
func notifyOfSignals(to chan<- os.Signal, some ...os.Signal) (stop func()) {
	signal.Notify(to, some...)
	return func() { signal.Stop(to) }
}

// interrupt returns a context that the first signal ends, and a channel with the further
// signals, by which the operator asks not to wait.
func (s *streams) interrupt() (ctx context.Context, again <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	received := make(chan os.Signal, 2)
	ignore := s.notify(received, os.Interrupt, syscall.SIGTERM)
	further := make(chan struct{}, 1)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-received:
			case <-done:
				return
			}
			if ctx.Err() == nil {
				cancel()
				continue
			}
			select {
			case further <- struct{}{}:
			default: // one waits to be heeded
			}
		}
	}()
	return ctx, further, func() {
		ignore()
		cancel()
		close(done)
		<-ended
	}
}

// signals are the signals that a gateway handles. It catches them before it loads models.
type signals struct {
	stopping context.Context  // ended by the first SIGINT or SIGTERM
	again    <-chan struct{}  // has each further one
	reload   <-chan os.Signal // SIGHUP
	stop     func()
}

// signals catches the signals of a gateway. A gateway ends neither when it loses its terminal
// nor when the reader of its output goes away.
func (s *streams) signals() *signals {
	reload := make(chan os.Signal, 1) // further ones, while one waits, ask for the same
	ignore := s.notify(reload, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE)
	ctx, again, stop := s.interrupt()
	return &signals{ctx, again, reload, func() { stop(); ignore() }}
}

// unlessStopped carries out the start of a command, which a signal ends at once, with the exit status for
// that: nothing that is still being read is needed then.
func unlessStopped[T any](stopping context.Context, status exitStatus, start func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := start()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-stopping.Done():
	}
	select {
	case r := <-done:
		return r.value, r.err
	default:
		var none T
		return none, status
	}
}
