package trace

// MaxStalls is how many stalls a record keeps. The latest are kept.
const MaxStalls = 8

// Stall is an interval during a request in which the gateway read nothing, whatever was
// ready. It belongs to no stage: the stage of the request at that time took so much
// longer.
type Stall struct {
	Start, End int64
	Why        string // what held the core; empty if the request ended before that was known
}

// Stalled returns how much of the request's time was in the stalls that it keeps.
func (r *Record) Stalled() (ns int64) {
	for _, s := range r.Stalls {
		ns += max(0, min(s.End, r.Finished)-max(s.Start, r.Arrival))
	}
	return ns
}
