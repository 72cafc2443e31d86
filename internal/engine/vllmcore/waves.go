package vllmcore

// waves keeps a lockstep group awake. Its ranks step together and park together;
// a parked group has to be woken as one, or the rank that was given a request
// waits for the others for ever. Nobody else does it where there is no
// coordinator.
type waves struct {
	running bool
	last    int64 // wave that was started last; -1: none
	seen    int64 // wave that has ended last; -1: none
}

// submitted returns which wave to start for a new request; ok is false when the group
// is awake.
func (w *waves) submitted() (wave int64, ok bool) {
	if w.running {
		return 0, false
	}
	w.running = true
	w.last = max(w.seen+1, w.last+1)
	return w.last, true
}

// ended takes in that a wave has ended. Word of an older one than runs is late.
func (w *waves) ended(wave int64) {
	w.seen = max(w.seen, wave)
	if wave >= w.last {
		w.running = false
	}
}

// wake wakes the group for a new request.
func (e *Engine) wake() {
	if !e.opts.Lockstep {
		return
	}
	e.mu.Lock()
	wave, ok := e.waves.submitted()
	e.mu.Unlock()
	if ok {
		e.startWave(wave)
	}
}

func (e *Engine) startWave(wave int64) {
	for _, r := range e.ranks {
		if s := r.current.Load(); s != nil {
			s.Out.Post(typeWave, appendWave(nil, wave))
		}
	}
}

// wave takes in a rank's word of waves; -1 is none.
func (e *Engine) wave(complete, start int64) {
	if !e.opts.Lockstep {
		return
	}
	if start >= 0 {
		e.mu.Lock()
		e.waves.running, e.waves.last = true, max(e.waves.last, start)
		e.mu.Unlock()
		e.startWave(start)
	}
	if complete < 0 {
		return
	}
	e.mu.Lock()
	e.waves.ended(complete)
	e.mu.Unlock()
	for _, r := range e.ranks { // a request that crossed the word
		if s := r.current.Load(); s != nil && s.Table.Live() > 0 {
			e.wake()
			return
		}
	}
}
