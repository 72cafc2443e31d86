package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Sessions are the conversations of a synthetic workload. Each begins with a prompt like
// one of NewSynthetic, and each later prompt contains the earlier ones and their answers.
// They come at the workload's rate, or from a closed loop's users, who begin the next one
// when theirs has ended.
type Sessions struct {
	Synthetic
	seed     uint64
	shares   []float64
	schedule *Schedule
}

// Turn is a request of a session.
type Turn struct {
	// Parts are the parts that it adds to the earlier turns.
	Parts  []Part
	Output int
	// After is the turn of the session whose answer it follows; -1 for the first.
	After int
}

// NewSessions reads settings as ParseSynthetic does.
func NewSessions(settings string, seed uint64) (*Sessions, error) {
	s, err := ParseSynthetic(settings)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", SyntheticKind, err)
	}
	if s.Texts != "" {
		return nil, fmt.Errorf("%s: texts are not to be had here", SyntheticKind)
	}
	return newSessions(s, seed)
}

func newSessions(s Synthetic, seed uint64) (w *Sessions, err error) {
	w = &Sessions{Synthetic: s, seed: seed}
	if s.open() {
		if w.schedule, err = NewSchedule(s.Loop, seed); err != nil {
			return nil, fmt.Errorf("%s: %w", SyntheticKind, err)
		}
	}
	var sum float64
	for k := range s.Groups {
		sum += math.Pow(float64(k+1), -s.Zipf)
		w.shares = append(w.shares, sum)
	}
	return w, nil
}

// Think is the pause between an answer and what follows on it.
func (w *Sessions) Think() time.Duration {
	if w.Closed == nil {
		return 0
	}
	return w.Closed.Think
}

// Users are those of a closed loop; 0 where sessions come at a rate.
func (w *Sessions) Users() int {
	if w.Closed == nil {
		return 0
	}
	return w.Closed.Users
}

// Next returns when the next session comes, and false where there is none. In a closed
// loop it means nothing.
func (w *Sessions) Next() (time.Duration, bool) {
	if w.schedule == nil {
		return 0, true
	}
	at := w.schedule.Next()
	return at, at != math.MaxInt64 && (w.For == 0 || at < w.For)
}

// mostTurns bounds a session whose turns branch.
const mostTurns = 1 << 12

// Session returns the turns of the n-th session. Those that follow on a turn come after
// it.
func (w *Sessions) Session(n int) []Turn {
	r := rand.New(rand.NewPCG(w.seed^sessionStream, uint64(n)))
	own := func(turn int) Turn {
		return Turn{
			Parts:  []Part{{key(w.seed, ownParts, uint64(n)*mostTurns+uint64(turn)), max(1, w.Input.draw(r))}},
			Output: max(1, w.Output.draw(r)), After: -1,
		}
	}
	first := own(0)
	if w.Prefix != (Lengths{}) {
		i, _ := slices.BinarySearch(w.shares, r.Float64()*w.shares[len(w.shares)-1])
		group := uint64(min(i, len(w.shares)-1))
		length := rand.New(rand.NewPCG(w.seed^lengthStream, group))
		if tokens := w.Prefix.draw(length); tokens > 0 {
			first.Parts = slices.Insert(first.Parts, 0, Part{key(w.seed, groupParts, group), tokens})
		}
	}
	turns, level := []Turn{first}, []int{0}
	depth := 1
	if w.Closed != nil && w.Closed.Turns != (Lengths{}) {
		depth = max(1, w.Closed.Turns.draw(r))
	}
	for range depth - 1 {
		var next []int
		for _, after := range level {
			branches := 1
			if w.Closed.Branch != (Lengths{}) {
				branches = max(1, w.Closed.Branch.draw(r))
			}
			for range branches {
				if len(turns) == mostTurns {
					return turns
				}
				t := own(len(turns))
				t.After = after
				next = append(next, len(turns))
				turns = append(turns, t)
			}
		}
		// One of the branches goes on, as an agent does with what its calls brought.
		level = next[:1]
	}
	return turns
}
