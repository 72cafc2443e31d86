package jinja

import (
	"slices"
	"time"
)

// Options bounds a rendering and gives it what it may not fetch itself. The
// zero value is usable.
type Options struct {
	// MaxOutput bounds the text rendered, in bytes; 0 means 64 MiB.
	MaxOutput int
	// MaxSteps bounds the statements, loop turns and items worked on; 0 means
	// ten million.
	MaxSteps int
	// MaxAlloc bounds the sum of all strings and lists that the rendering
	// creates, in bytes; 0 means 1 GiB. It is a sum, not what is alive at
	// once.
	MaxAlloc int
	// Now is what strftime_now formats.
	Now time.Time
	// Check is called at the start and every 1024 steps; an error from it
	// ends the rendering (KindStopped).
	Check func() error
}

// maxDepth bounds the calls of macros within each other, near where Python's
// recursion limit ends them, and the nesting of values that are printed.
const (
	maxDepth  = 200
	checkStep = 1024
	valueSize = 16
)

// Template is a compiled template. It is immutable.
type Template struct {
	fn    *function
	run   exec
	names []string
	// builtins are what stands behind the names, nil where nothing does.
	builtins []Value
}

// Parse compiles a template. The error is an *Error of KindSyntax or
// KindUnsupported with the line.
func Parse(source string) (*Template, error) {
	toks, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{toks: toks}
	body, err := p.subparse(nil)
	if err != nil {
		return nil, err
	}
	c := &compiler{globals: map[string]int{}, body: body}
	fn, run, err := c.template(body)
	if err != nil {
		return nil, err
	}
	t := &Template{fn: fn, run: run, names: c.names, builtins: make([]Value, len(c.names))}
	for i, name := range c.names {
		t.builtins[i] = builtin(name)
	}
	return t, nil
}

// Names reports whether the template reads a variable of that name.
func (t *Template) Names(variable string) bool { return slices.Contains(t.names, variable) }

// Render appends the rendered text to dst. vars are the template's variables;
// the built-in ones stand behind them. The error is an *Error.
func (t *Template) Render(dst []byte, vars map[string]Value, o Options) ([]byte, error) {
	globals, slots := len(t.names), len(t.fn.slots)
	values := make([]Value, globals+slots)
	st := &state{out: dst, base: len(dst), opt: o, globals: values[:globals:globals], top: scope{slots: values[globals:]}}
	if st.opt.MaxOutput == 0 {
		st.opt.MaxOutput = 64 << 20
	}
	if st.opt.MaxSteps == 0 {
		st.opt.MaxSteps = 10_000_000
	}
	if st.opt.MaxAlloc == 0 {
		st.opt.MaxAlloc = 1 << 30
	}
	for i, name := range t.names {
		if v, ok := vars[name]; ok {
			st.globals[i] = v
		} else {
			st.globals[i] = t.builtins[i]
		}
	}
	if err := st.check(); err != nil {
		return dst, err
	}
	if _, err := t.run(st, &st.top); err != nil {
		return dst, err
	}
	return st.out, nil
}

// state is one rendering.
type state struct {
	out       []byte
	base      int
	opt       Options
	globals   []Value
	top       scope
	block     Value // the text that a filter block or set block filters
	steps     int
	nextCheck int
	allocated int
	depth     int
}

func (st *state) check() error {
	st.nextCheck = st.steps + checkStep
	if st.opt.Check == nil {
		return nil
	}
	if err := st.opt.Check(); err != nil {
		return &Error{Kind: KindStopped, Message: "the rendering was stopped", Cause: err}
	}
	return nil
}

// step accounts for n units of work.
func (st *state) step(n int) error {
	if st.steps += n; st.steps < st.nextCheck {
		return nil
	}
	if st.steps > st.opt.MaxSteps {
		return errorf(KindLimit, "the template takes more than %d steps", st.opt.MaxSteps)
	}
	return st.check()
}

// alloc accounts for n bytes about to be created, and for the work of it.
func (st *state) alloc(n int) error {
	if n < 0 || n > st.opt.MaxAlloc-st.allocated {
		return errorf(KindLimit, "the template creates more than %d bytes of values", st.opt.MaxAlloc)
	}
	st.allocated += n
	return st.step(n >> 10)
}

// scan accounts for reading through s; counting code points is what is
// slowest of it, at some 2 GB/s.
func (st *state) scan(s string) error { return st.step(len(s) >> 8) }

// str accounts for a new string.
func (st *state) str(s string) (Value, error) {
	if err := st.alloc(len(s)); err != nil {
		return nil, err
	}
	return Str(s), nil
}

// write appends text to the output.
func (st *state) write(s string) error {
	if len(s) > st.opt.MaxOutput-(len(st.out)-st.base) {
		return errorf(KindLimit, "the template renders more than %d bytes", st.opt.MaxOutput)
	}
	st.out = append(st.out, s...)
	return nil
}

// print appends what Python's str() makes of v to the output.
func (st *state) print(v Value) error {
	switch v := v.(type) {
	case Str:
		return st.write(string(v))
	case *Undefined:
		return nil
	}
	b, err := appendStr(st, st.out, v)
	if err != nil {
		return err
	}
	if len(b)-st.base > st.opt.MaxOutput {
		return errorf(KindLimit, "the template renders more than %d bytes", st.opt.MaxOutput)
	}
	st.out = b
	return nil
}

// writeText appends v, which must be a string: the results of call blocks and
// filter blocks are not converted.
func (st *state) writeText(v Value) error {
	s, ok := asText(v)
	if !ok {
		return typeErrorf("sequence item 0: expected str instance, %s found", v.typeName())
	}
	return st.write(s)
}

// cut takes what was written since mark back out of the output.
func (st *state) cut(mark int) (Str, error) {
	if err := st.alloc(len(st.out) - mark); err != nil {
		return "", err
	}
	s := Str(st.out[mark:])
	st.out = st.out[:mark]
	return s, nil
}

// capture runs a block and takes what it writes.
func (st *state) capture(sc *scope, body exec) (Str, signal, error) {
	mark := len(st.out)
	sig, err := body(st, sc)
	if err != nil {
		return "", goOn, err
	}
	s, err := st.cut(mark)
	return s, sig, err
}

// push and pop bound the depth of calls.
func (st *state) push() error {
	if st.depth++; st.depth > maxDepth {
		return errorf(KindLimit, "maximum recursion depth exceeded")
	}
	return st.step(1)
}

func (st *state) pop() { st.depth-- }
