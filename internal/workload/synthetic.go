package workload

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Synthetic describes a workload without a trace.
type Synthetic struct {
	// Loop is an open loop; Closed, if set, is a closed one instead.
	Loop   Loop
	Closed *Closed
	// Requests and For bound the workload; 0 is no bound, and one is needed.
	Requests int
	For      time.Duration
	// Input is the length of a request's own part of the prompt, Output that of its output;
	// each is at least 1.
	Input, Output Lengths
	// Prefix is the length of the prefix that the requests of a group share; each group
	// draws once. Of the Groups, the k-th most popular one has a share of requests in
	// proportion to 1/k^Zipf: 0 makes all equal.
	Prefix Lengths
	Groups int
	Zipf   float64
	// Texts names a file of conversations that prompts and lengths are taken
	// from, in its order, in place of Input, Output and Prefix. The workload ends
	// with it.
	Texts string
}

// Closed is a closed loop: users who each send a request, wait for its end,
// think, and send the next.
type Closed struct {
	Users int
	Think time.Duration
	// Turns is the length of a user's sessions, in requests: each request but the first
	// contains the earlier turns. The zero value means sessions of one request.
	Turns Lengths
	// Branch is how many requests follow at once on each answer: more than one are the
	// parallel calls of an agent. The zero value is one.
	Branch Lengths
}

// ParseSynthetic reads settings separated by commas:
//
//	rate=R | ramp(FROM,TO,TIME) | steps(R:TIME,R:TIME,...)   requests per second
//	arrival=poisson | constant | gamma(CV)                   default poisson
//	concurrency=N                                            closed loop, instead of a rate
//	think=TIME, turns=LENGTHS, branch=LENGTHS                sessions, of a closed loop or at a rate
//	requests=N, duration=TIME                                bounds; ramp and steps have their own time
//	input=LENGTHS, output=LENGTHS                            see ParseLengths
//	prefix=LENGTHS, groups=N, zipf=S                         shared beginnings
//	texts=FILE                                               conversations instead of lengths
func ParseSynthetic(text string) (Synthetic, error) {
	s := Synthetic{Groups: 1}
	seen := map[string]bool{}
	for _, setting := range splitSettings(text) {
		name, value, ok := strings.Cut(setting, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if seen[name] {
			return s, fmt.Errorf("%s is set twice", name)
		}
		seen[name] = true
		set := synthetics[name]
		if set == nil {
			return s, fmt.Errorf("no setting %q; the settings are %s", name, strings.Join(syntheticNames(), ", "))
		}
		if !ok || value == "" {
			return s, fmt.Errorf("%s has no value", name)
		}
		if err := set(&s, value); err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
	}
	if s.For == 0 && s.Requests == 0 {
		s.For = s.Loop.Rate.Length()
	}
	return s, s.check(seen)
}

// splitSettings splits at the commas outside of parentheses.
func splitSettings(text string) (settings []string) {
	depth, start := 0, 0
	for i, c := range []byte(text) {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			settings = append(settings, text[start:i])
			start = i + 1
		}
	}
	return append(settings, text[start:])
}

// synthetics are the settings.
var synthetics = map[string]func(*Synthetic, string) error{
	"rate":    func(s *Synthetic, v string) (err error) { s.Loop.Rate, err = parseRate(v); return err },
	"arrival": func(s *Synthetic, v string) error { return s.Loop.parseArrival(v) },
	"concurrency": func(s *Synthetic, v string) (err error) {
		s.closed().Users, err = positive(v)
		return err
	},
	"branch":   func(s *Synthetic, v string) (err error) { s.closed().Branch, err = ParseLengths(v); return err },
	"turns":    func(s *Synthetic, v string) (err error) { s.closed().Turns, err = ParseLengths(v); return err },
	"think":    func(s *Synthetic, v string) (err error) { s.closed().Think, err = parseTime(v); return err },
	"requests": func(s *Synthetic, v string) (err error) { s.Requests, err = positive(v); return err },
	"duration": func(s *Synthetic, v string) (err error) { s.For, err = parseTime(v); return err },
	"input":    func(s *Synthetic, v string) (err error) { s.Input, err = ParseLengths(v); return err },
	"output":   func(s *Synthetic, v string) (err error) { s.Output, err = ParseLengths(v); return err },
	"prefix":   func(s *Synthetic, v string) (err error) { s.Prefix, err = ParseLengths(v); return err },
	"texts":    func(s *Synthetic, v string) error { s.Texts = v; return nil },
	"groups":   func(s *Synthetic, v string) (err error) { s.Groups, err = positive(v); return err },
	"zipf": func(s *Synthetic, v string) (err error) {
		s.Zipf, err = strconv.ParseFloat(v, 64)
		if err != nil || !(s.Zipf >= 0 && s.Zipf <= 100) {
			return fmt.Errorf("%q is not a number from 0 to 100", v)
		}
		return nil
	},
}

func syntheticNames() []string {
	var names []string
	for name := range synthetics {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (s *Synthetic) closed() *Closed {
	if s.Closed == nil {
		s.Closed = &Closed{}
	}
	return s.Closed
}

func positive(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > math.MaxInt32 {
		return 0, fmt.Errorf("%q is not a positive number", v)
	}
	return n, nil
}

func parseTime(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 || d > maxTime {
		return 0, fmt.Errorf("%q is not a time such as 90s or 1h", v)
	}
	return d, nil
}

func parseRate(v string) (Rate, error) {
	number := func(text string) (float64, error) {
		r, err := strconv.ParseFloat(text, 64)
		if err != nil || !(r >= 0 && r <= 1e9) {
			return 0, fmt.Errorf("%q is not a number of requests per second", text)
		}
		return r, nil
	}
	name, args, call := splitCall(v)
	switch {
	case !call:
		r, err := number(v)
		return ConstantRate(r), err
	case name == "ramp" && len(args) == 3:
		from, err := number(args[0])
		if err != nil {
			return Rate{}, err
		}
		to, err := number(args[1])
		if err != nil {
			return Rate{}, err
		}
		in, err := parseTime(args[2])
		return RampRate(from, to, in), err
	case name == "steps":
		var steps []RateStep
		for _, arg := range args {
			rate, held, _ := strings.Cut(arg, ":")
			r, err := number(rate)
			if err != nil {
				return Rate{}, err
			}
			d, err := parseTime(held)
			if err != nil {
				return Rate{}, fmt.Errorf("%s: %w", arg, err)
			}
			steps = append(steps, RateStep{r, d})
		}
		return StepRates(steps...), nil
	}
	return Rate{}, fmt.Errorf("%q is not R, ramp(FROM,TO,TIME) or steps(R:TIME,...)", v)
}

func (l *Loop) parseArrival(v string) error {
	name, args, call := splitCall(v)
	switch a := Arrival(name); {
	case !call && (a == Poisson || a == Constant):
		l.Arrival = a
		return nil
	case call && a == Gamma && len(args) == 1:
		cv, err := strconv.ParseFloat(args[0], 64)
		if err != nil || !(cv > 0 && cv <= 1000) {
			return fmt.Errorf("%q is not a positive coefficient of variation", args[0])
		}
		l.Arrival, l.CV = a, cv
		return nil
	}
	return fmt.Errorf("%q is not poisson, constant or gamma(CV)", v)
}

// check refuses settings that contradict each other.
func (s *Synthetic) check(seen map[string]bool) error {
	for _, name := range []string{"input", "output", "prefix", "groups", "zipf"} {
		if seen["texts"] && seen[name] {
			return fmt.Errorf("texts has its own prompts and lengths; drop %s", name)
		}
	}
	for _, name := range []string{"input", "output"} {
		if !seen[name] && !seen["texts"] {
			return fmt.Errorf("%s is missing; say how many tokens, as in %s=lognormal(800,600)", name, name)
		}
	}
	switch {
	case seen["concurrency"] && (seen["rate"] || seen["arrival"]):
		return errors.New("rate and arrival are an open loop and concurrency is a closed one; give one of them")
	case !seen["concurrency"] && !seen["rate"]:
		return errors.New("rate=R or concurrency=N is missing")
	case s.For == 0 && s.Requests == 0 && s.Texts == "":
		return errors.New("duration=TIME or requests=N is missing")
	case (seen["groups"] || seen["zipf"]) && !seen["prefix"]:
		return errors.New("groups and zipf are about shared beginnings; say how long these are with prefix=LENGTHS")
	case s.Groups > maxGroups:
		return fmt.Errorf("groups: %d is more than %d", s.Groups, maxGroups)
	}
	if s.open() {
		_, err := NewSchedule(s.Loop, 0)
		return err
	}
	return nil
}

// open reports whether requests, or sessions, come at a rate.
func (s *Synthetic) open() bool { return s.Closed == nil || s.Closed.Users == 0 }

// maxGroups bounds the memory for shares of popularity.
const maxGroups = 1 << 20

// synthetic is the source of a Synthetic.
type synthetic struct {
	s        Synthetic
	seed     uint64
	schedule *Schedule // nil in a closed loop
	n        int
	lengths  *rand.Rand
	choices  *rand.Rand
	shares   []float64 // cumulative, of the groups in the order of popularity
	texts    *texts
	parts    [2]Part
}

// The draws of lengths and of groups are apart from those of arrivals, so that
// the same seed asks for the same requests at any rate.
const (
	lengthStream = 0x6c656e67746873
	choiceStream = 0x63686f696365

	sessionStream = 0x73657373696f6e
)

func newSynthetic(s Synthetic, seed uint64) (*synthetic, error) {
	g := &synthetic{
		s: s, seed: seed,
		lengths: rand.New(rand.NewPCG(seed, lengthStream)),
		choices: rand.New(rand.NewPCG(seed, choiceStream)),
	}
	if s.Closed == nil {
		var err error
		if g.schedule, err = NewSchedule(s.Loop, seed); err != nil {
			return nil, err
		}
	}
	var sum float64
	for k := range s.Groups {
		sum += math.Pow(float64(k+1), -s.Zipf)
		g.shares = append(g.shares, sum)
	}
	return g, nil
}

// Next implements Source.
func (g *synthetic) Next(r *Request) error {
	if g.s.Requests > 0 && g.n >= g.s.Requests {
		return io.EOF
	}
	var at time.Duration
	if g.schedule != nil {
		if at = g.schedule.Next(); at == math.MaxInt64 || g.s.For > 0 && at >= g.s.For {
			return io.EOF
		}
	}
	if g.texts != nil {
		if err := g.texts.next(r); err != nil {
			return err
		}
		g.n++
		r.At = at
		return nil
	}
	parts := g.parts[:0]
	if g.s.Prefix != (Lengths{}) {
		group := uint64(g.group())
		// A group's length is its own draw, the same whenever it comes.
		rng := rand.NewPCG(g.seed^lengthStream, group)
		if n := g.s.Prefix.draw(rand.New(rng)); n > 0 {
			parts = append(parts, Part{key(g.seed, groupParts, group), n})
		}
	}
	own := max(1, g.s.Input.draw(g.lengths))
	parts = append(parts, Part{key(g.seed, ownParts, uint64(g.n)), own})
	g.n++
	*r = Request{At: at, Parts: parts, Output: max(1, g.s.Output.draw(g.lengths))}
	return nil
}

// group draws one by popularity.
func (g *synthetic) group() int {
	x := g.choices.Float64() * g.shares[len(g.shares)-1]
	i, _ := slices.BinarySearch(g.shares, x)
	return min(i, len(g.shares)-1)
}
