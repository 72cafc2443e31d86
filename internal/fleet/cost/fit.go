package cost

import (
	"math"
	"slices"
)

// Coefficients say how long a step takes, in milliseconds.
type Coefficients struct {
	Step    float64 // of a step that prefills
	Token   float64 // of a prompt token in it
	Pair    float64 // of a prompt token for each token before it
	Decode  float64 // of a step that decodes
	Decoder float64 // of a request that decodes in it
}

// Amount is what an engine did in an interval, in the units of Coefficients: the sum
// of both's products is how long it takes.
type Amount struct {
	Steps   float64
	Tokens  float64
	Pairs   float64
	Decodes float64
	Decoded float64
}

const parameters = 5

func (c *Coefficients) vector() [parameters]float64 {
	return [parameters]float64{c.Step, c.Token, c.Pair, c.Decode, c.Decoder}
}

func (a *Amount) vector() [parameters]float64 {
	return [parameters]float64{a.Steps, a.Tokens, a.Pairs, a.Decodes, a.Decoded}
}

func coefficients(v [parameters]float64) Coefficients {
	return Coefficients{v[0], v[1], v[2], v[3], v[4]}
}

// Of returns how long the amount takes, in milliseconds.
func (c Coefficients) Of(a Amount) float64 {
	return c.Step*a.Steps + c.Token*a.Tokens + c.Pair*a.Pairs + c.Decode*a.Decodes + c.Decoder*a.Decoded
}

// Prefill is the amount of n tokens that end at position end of their prompt, in
// steps of at most budget tokens.
func Prefill(n, end, budget float64) Amount {
	if n <= 0 {
		return Amount{}
	}
	return Amount{Steps: math.Ceil(n / budget), Tokens: n, Pairs: n * (end - n/2)}
}

// Plus is both amounts together.
func (a Amount) Plus(b Amount) Amount {
	return Amount{a.Steps + b.Steps, a.Tokens + b.Tokens, a.Pairs + b.Pairs, a.Decodes + b.Decodes, a.Decoded + b.Decoded}
}

// Minus is what a has beyond b.
func (a Amount) Minus(b Amount) Amount {
	return Amount{a.Steps - b.Steps, a.Tokens - b.Tokens, a.Pairs - b.Pairs, a.Decodes - b.Decodes, a.Decoded - b.Decoded}
}

// Constants of the fit. They are shares and counts, and none has a unit that depends
// on the engine, but for the resolution of what is timed over a network.
const (
	// spread is how far the truth may lie from the prior, in units of it.
	spread = 5.0
	// relative and absolute are an interval's least error: a share of it, and
	// milliseconds. Where most are off by more, that counts.
	relative, absolute = 0.003, 0.1
	// kept is how many observations count, and memory how much less each does than the
	// one after it.
	kept   = 64
	memory = 0.98
	// An observation that is off by this many standard errors has half its weight. A
	// longer interval may contain unknown work; a shorter one cannot.
	longer, shorter = 2.0, 3.0
	// trusted is from how many observations on the fit is believed.
	trusted = 8
	// shift is by how much all of the last window intervals of a sort must be off, to
	// one side, so that the engine is believed to have changed, and only they count.
	// The work of others leaves some intervals alone, and so scatters them wider.
	window = 5
	shift  = 1.2
	wide   = 1.5
	// rounds is how often an observation's weight is found anew.
	rounds = 6
	// least keeps a coefficient above nothing, in units of its prior.
	least = 1e-4
)

// remembered is how much an observation counts by its age.
var remembered = func() (m [kept]float64) {
	for age := range m {
		m[age] = math.Pow(memory, float64(age))
	}
	return m
}()

type vector = [parameters]float64

type matrix = [parameters]vector

// Fit learns coefficients by robust least squares over the last observations, with a
// prior. It works in units of the prior, so that coefficients are about one. If the
// observations cannot separate several coefficients, these change in proportion to the
// prior. A coefficient that the observations do not depend on keeps the prior's value.
type Fit struct {
	sureness
	center vector // of the prior, in units of it
	theta  vector
	scale  float64 // by how much the errors are larger than the least
	last   [kept]observation
	n      int // since the beginning, or since the engine changed
	seen   int
	stale  bool   // there are observations that theta does not have
	off    [2]run // by sort
}

// sureness is how sure the coefficients are.
type sureness struct {
	prior  vector // the units
	factor matrix // the lower Cholesky factor of the normal equations
}

type observation struct {
	x     vector
	took  float64
	noise float64 // its standard error
	ours  float64
}

// run holds the recent intervals of a sort, each divided by its expected value, or 1 if
// the difference is within the errors of both.
type run struct {
	ratio [window]float64
	n     int
}

// Sort tells intervals that are mainly prefill from those that are mainly decode.
type Sort int

// The sorts of intervals.
const (
	Prefilling Sort = iota
	Decoding
)

// NewFit begins with the prior, each of whose coefficients is positive.
func NewFit(prior Coefficients) *Fit {
	f := &Fit{sureness: sureness{prior: prior.vector()}}
	for i := range f.center {
		f.center[i], f.theta[i] = 1, 1
	}
	f.refit()
	return f
}

// Coefficients are what has been learned so far.
func (f *Fit) Coefficients() Coefficients {
	v := f.theta
	for i := range v {
		v[i] *= f.prior[i]
	}
	return coefficients(v)
}

// Seen is the number of observations.
func (f *Fit) Seen() int { return f.seen }

// Error returns the standard error of Coefficients.Of for the amount, in milliseconds.
func (f *sureness) Error(a Amount) float64 { return math.Sqrt(f.variance(f.scaled(a))) }

// variance is |L^-1 x|^2, where L is the factor.
func (f *sureness) variance(x vector) (v float64) {
	for i := range x {
		for j := range i {
			x[i] -= f.factor[i][j] * x[j]
		}
		x[i] /= f.factor[i][i]
		v += x[i] * x[i]
	}
	return v
}

func (f *sureness) scaled(a Amount) vector {
	x := a.vector()
	for i := range x {
		x[i] *= f.prior[i]
	}
	return x
}

// Observe learns that an amount took so many milliseconds. unsure is its standard error
// in addition to the error of every interval. ours is the share of the engine's work
// that the amount represents, as far as other gateways' work is known. Their work can
// only have lengthened the interval, so the lower the share, the less weight has an
// interval that is too long.
func (f *Fit) Observe(sort Sort, a Amount, took, unsure, ours float64) {
	f.add(sort, a, took, unsure, ours)
	f.update()
}

// add is Observe without the fit, which update makes, unless the engine has changed: what comes
// next is compared with the engine as it is now.
func (f *Fit) add(sort Sort, a Amount, took, unsure, ours float64) {
	if !(took >= 0) || took > longest {
		return // a clock that jumped
	}
	x := f.scaled(a)
	expected := 0.0
	for i := range x {
		expected += f.theta[i] * x[i]
	}
	if !(expected > 0) || math.IsInf(expected, 0) {
		return
	}
	o := observation{
		x: x, took: took, ours: ours,
		noise: math.Sqrt(absolute*absolute + relative*relative*expected*took + unsure*unsure),
	}
	ratio := 1.0
	if f.n >= trusted && math.Abs(took-expected) > longer*math.Sqrt(f.variance(x)+f.scale*f.scale*o.noise*o.noise) {
		ratio = took / expected
	}
	f.last[f.n%kept] = o
	f.n++
	f.seen++
	f.stale = true
	if f.off[sort].shifted(ratio) {
		f.forget()
		f.refit()
	}
}

// update finds the coefficients anew if there are observations that they do not have.
func (f *Fit) update() {
	if f.stale {
		f.refit()
	}
}

// forget keeps only the latest observations. Coefficients that these do not determine
// start from their previous values.
func (f *Fit) forget() {
	var latest [window]observation
	for i := range latest {
		latest[i] = f.last[(f.n-window+i)%kept]
	}
	f.n = copy(f.last[:], latest[:])
	f.center = f.theta
}

// restart forgets all observations and goes on from other coefficients.
func (f *Fit) restart(c Coefficients) {
	v := c.vector()
	for i := range v {
		v[i] /= f.prior[i]
	}
	f.center, f.theta, f.n, f.off = v, v, 0, [2]run{}
	f.refit()
}

// refit finds the coefficients that explain the observations best, giving less weight
// to those that are off by more than others are.
func (f *Fit) refit() {
	f.stale = false
	n := min(f.n, kept)
	var off [kept]float64
	for range rounds {
		for i := range n {
			o := &f.last[i]
			off[i] = (o.took - dot(&f.theta, &o.x)) / o.noise
		}
		f.scale = max(1, 1.5*median(off[:n]))
		var normal matrix
		var moment vector
		for i := range n {
			o := &f.last[i]
			z := off[i] / f.scale
			if z > 0 {
				z /= longer * o.ours
			} else {
				z /= shorter
			}
			age := (f.n - 1 - i) % kept
			e := o.noise * f.scale
			w := remembered[age] / (1 + z*z) / (e * e)
			for j, x := range o.x {
				if x == 0 { // an interval is mostly of one sort
					continue
				}
				moment[j] += w * x * o.took
				for k, y := range o.x[:j+1] {
					normal[j][k] += w * x * y
				}
			}
		}
		before := f.theta
		f.solve(&normal, &moment)
		if n == 0 || near(&before, &f.theta) {
			break
		}
	}
}

func dot(a, b *vector) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func near(a, b *vector) bool {
	for i := range a {
		if math.Abs(a[i]-b[i]) > 1e-4*b[i] {
			return false
		}
	}
	return true
}

// median is that of the absolute values, the upper one of two. It selects and does not sort,
// since each request has it found several times.
func median(values []float64) float64 {
	var room [kept]float64
	v := room[:len(values)]
	for i, x := range values {
		v[i] = math.Abs(x)
	}
	at := len(v) / 2
	for low, high := 0, len(v)-1; low < high; {
		pivot := v[(low+high)/2]
		i, j := low, high
		for i <= j {
			for v[i] < pivot {
				i++
			}
			for v[j] > pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i, j = i+1, j-1
			}
		}
		switch { // what is between j and i equals the pivot
		case at <= j:
			high = j
		case at >= i:
			low = i
		default:
			return v[at]
		}
	}
	return room[at]
}

// longest is the longest interval that is believed, in milliseconds.
const longest = 1e7

// solve finds the coefficients of least squares with none below least: a coefficient
// that would be below is set to least, and the others are solved again. Only the lower
// half of normal is used.
func (f *Fit) solve(normal *matrix, moment *vector) {
	const weight = 1 / (spread * spread)
	var fixed [parameters]bool
	for {
		a, b := *normal, *moment
		for i := range a {
			a[i][i] += weight
			b[i] += weight * f.center[i]
			for j := range i {
				a[j][i] = a[i][j]
			}
		}
		if fixed == [parameters]bool{} {
			f.factor = cholesky(a)
		}
		for i := range a {
			if !fixed[i] {
				continue
			}
			for j := range a {
				b[j] -= a[j][i] * least
				a[i][j], a[j][i] = 0, 0
			}
			a[i][i], b[i] = 1, least
		}
		f.theta = substitute(cholesky(a), b)
		lowest := -1
		for i, x := range f.theta {
			if x < least && !fixed[i] && (lowest < 0 || x < f.theta[lowest]) {
				lowest = i
			}
		}
		if lowest < 0 {
			return
		}
		fixed[lowest] = true
	}
}

// cholesky returns the lower factor of a positive definite matrix.
func cholesky(a matrix) (l matrix) {
	for i := range a {
		for j := range i + 1 {
			sum := a[i][j]
			for k := range j {
				sum -= l[i][k] * l[j][k]
			}
			if i == j {
				// Rounding may leave nothing of a direction that is seen very well.
				l[i][i] = math.Sqrt(max(sum, 1e-12*a[i][i]))
			} else {
				l[i][j] = sum / l[j][j]
			}
		}
	}
	return l
}

// substitute solves L L' x = b.
func substitute(l matrix, b vector) vector {
	for i := range b {
		for j := range i {
			b[i] -= l[i][j] * b[j]
		}
		b[i] /= l[i][i]
	}
	for i := parameters - 1; i >= 0; i-- {
		for j := i + 1; j < parameters; j++ {
			b[i] -= l[j][i] * b[j]
		}
		b[i] /= l[i][i]
	}
	return b
}

// shifted notes a ratio. It is true, and begins anew, where all of the last ones are
// off to one side.
func (r *run) shifted(ratio float64) bool {
	r.ratio[r.n%window] = ratio
	r.n++
	if r.n < window {
		return false
	}
	low, high := slices.Min(r.ratio[:]), slices.Max(r.ratio[:])
	if (low > shift || high < 1/shift) && high < wide*low {
		r.n = 0
		return true
	}
	return false
}
