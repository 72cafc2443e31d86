package trace

// MaxStalls is how many stalls a record keeps, the latest.
const MaxStalls = 8

// Stall is a time in a request's life for which the gateway read nothing, whatever was
// ready. It belongs to no stage: whatever stage the request was in took so much longer.
type Stall struct {
	Start, End int64
	Why        string // what held the core; empty where the request ended before that was known
}

// Stalled is how much of the request's time was in stalls that it keeps.
func (r *Record) Stalled() (ns int64) {
	for _, s := range r.Stalls {
		ns += max(0, min(s.End, r.Finished)-max(s.Start, r.Arrival))
	}
	return ns
}
