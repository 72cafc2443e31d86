package workload

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// Kind names the format of a workload.
type Kind string

// The kinds.
const (
	Mooncake      Kind = "mooncake"  // JSON lines with hash ids
	Azure         Kind = "azure"     // CSV: TIMESTAMP, ContextTokens, GeneratedTokens
	BurstGPT      Kind = "burstgpt"  // CSV: Timestamp, Request tokens, Response tokens
	SyntheticKind Kind = "synthetic" // settings, see ParseSynthetic
	unknown       Kind = ""
)

// Options say how to take a workload.
type Options struct {
	// Seed determines ids of prompts, and the draws of synthetic workloads.
	Seed uint64
	// Block is the number of tokens that a hash id of a Mooncake trace stands
	// for. Default 512.
	Block int
	// Speed divides the arrival times of a trace: 2 is twice its rate. Default 1.
	Speed float64
	// Requests bounds the number of requests, and For the time of their arrival,
	// after Speed. 0 is no bound.
	Requests int
	For      time.Duration
	// Open opens a file that a synthetic workload names, and Encode returns the ids
	// of its texts. Without them such a workload is an error.
	Open   func(name string) (io.Reader, error)
	Encode func(text string) ([]uint32, error)
	// Texts asks for the texts themselves beside their ids. Without Encode there are
	// then no ids, and lengths are numbers of words. Sessions allows users who hold
	// conversations of several turns.
	Texts, Sessions bool
}

func (o *Options) check() error {
	switch {
	case o.Block < 0:
		return fmt.Errorf("a block of %d tokens", o.Block)
	case o.Requests < 0 || o.For < 0:
		return errors.New("a negative number of requests or time")
	case !(o.Speed >= 0) || math.IsInf(o.Speed, 0):
		return fmt.Errorf("a speed of %v", o.Speed)
	}
	return nil
}

// Workload is a source of requests and how they are sent.
type Workload struct {
	Source
	Kind Kind
	// Texts reports whether its prompts are texts, as far as these were asked for.
	Texts bool
	// Closed is set for a closed loop, which ignores arrival times.
	Closed *Closed
	// Sessions are the conversations of the users of a closed loop, if these have
	// several turns. With Texts they state only the number of turns, and the source has
	// the texts.
	Sessions *Sessions
	// For is how long a closed loop begins requests; 0 is without a bound. An
	// open loop's source ends by itself.
	For time.Duration
}

// SplitSpec splits what a command line calls a trace: KIND:FILE, FILE, whose
// kind is found by its beginning, or synthetic:SETTINGS.
func SplitSpec(spec string) (kind Kind, rest string) {
	for _, k := range []Kind{Mooncake, Azure, BurstGPT, SyntheticKind} {
		if rest, ok := strings.CutPrefix(spec, string(k)+":"); ok {
			return k, rest
		}
	}
	return unknown, spec
}

// NewSynthetic returns a synthetic workload by its settings.
func NewSynthetic(settings string, o Options) (*Workload, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	s, err := ParseSynthetic(settings)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", SyntheticKind, err)
	}
	g, err := newSynthetic(s, o.Seed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", SyntheticKind, err)
	}
	if s.Texts != "" {
		if o.Open == nil || o.Encode == nil && !o.Texts {
			return nil, fmt.Errorf("%s: texts are not to be had here", SyntheticKind)
		}
		file, err := o.Open(s.Texts)
		if err != nil {
			return nil, fmt.Errorf("%s: texts: %w", SyntheticKind, err)
		}
		g.texts = newTexts(file, s.Texts, o.Encode, o.Texts)
	}
	switch {
	case s.Closed != nil && s.Closed.Users == 0:
		return nil, fmt.Errorf("%s: think and turns need concurrency=N, a closed loop", SyntheticKind)
	case s.Closed != nil && s.Closed.Branch != (Lengths{}):
		return nil, fmt.Errorf("%s: branch belongs to weir fleet", SyntheticKind)
	}
	w := &Workload{Source: limit(g, o), Kind: SyntheticKind, Texts: s.Texts != "" && o.Texts, Closed: s.Closed, For: s.For}
	if o.For > 0 && (w.For == 0 || o.For < w.For) {
		w.For = o.For
	}
	if s.Closed != nil && s.Closed.Turns != (Lengths{}) {
		if !o.Sessions {
			return nil, fmt.Errorf("%s: turns need a server to talk to, and there is none here", SyntheticKind)
		}
		if w.Sessions, err = newSessions(s, o.Seed); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// NewTrace reads a trace of a kind. If the kind is empty, the beginning of the trace
// shows it. name stands for the file in errors.
func NewTrace(r io.Reader, name string, kind Kind, o Options) (*Workload, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	b := bufio.NewReaderSize(r, lineBuffer)
	if kind == unknown {
		first, err := firstByte(b)
		if err != nil {
			return nil, &Error{File: name, Err: fmt.Errorf("read: %w", err)}
		}
		if first == '{' {
			kind = Mooncake
		}
	}
	w := &Workload{Kind: kind}
	if kind == Mooncake {
		w.Source = limit(newMooncake(b, name, o), o)
		return w, nil
	}
	t, err := newTable(b, name, kind, o)
	if err != nil {
		return nil, err
	}
	w.Source, w.Kind = limit(t, o), t.form.kind
	return w, nil
}

// firstByte returns the first byte that is not white space, without taking it;
// 0 where there is none.
func firstByte(b *bufio.Reader) (byte, error) {
	for n := 1; ; n++ {
		p, err := b.Peek(n)
		if len(p) < n {
			if err == io.EOF || errors.Is(err, bufio.ErrBufferFull) {
				return 0, nil
			}
			return 0, err
		}
		if c := p[n-1]; c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c, nil
		}
	}
}

// limited is a source cut and sped up.
type limited struct {
	Source
	o Options
	n int
}

func limit(s Source, o Options) Source {
	if o.Requests == 0 && o.For == 0 && (o.Speed == 0 || o.Speed == 1) {
		return s
	}
	return &limited{Source: s, o: o}
}

// Next implements Source.
func (l *limited) Next(r *Request) error {
	if l.o.Requests > 0 && l.n >= l.o.Requests {
		return io.EOF
	}
	if err := l.Source.Next(r); err != nil {
		return err
	}
	if l.o.Speed > 0 {
		// Never beyond what a Duration holds.
		r.At = time.Duration(min(float64(r.At)/l.o.Speed, math.MaxInt64/2))
	}
	if l.o.For > 0 && r.At >= l.o.For {
		return io.EOF
	}
	l.n++
	return nil
}
