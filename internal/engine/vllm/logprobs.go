package vllm

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"weir/internal/engine/idstream"
	"weir/internal/infer"
)

// least is what the server writes for what cannot be, as JSON has no word for it.
const least = -9999

// entry is an id with its log probability.
type entry struct {
	id    uint32
	value float32
}

// scores reads the log probabilities of events. It keeps its memory from one to the next.
type scores struct {
	own   []float32
	names []entry // the ids themselves, as the engine says them
	tops  []entry // of all positions, one after another
	ends  []int   // of each position, in tops
	ranks []int   // of the ids themselves, 0 where it is not said
	line  []entry // of a position, in order
}

var errNoScores = errors.New("there are no log probabilities for the ids")

// read takes in the log probabilities of the new ids of an event, with so many
// alternatives for each.
func (c *scores) read(s *idstream.Scanner, text []byte, ids []uint32, top int, generate bool, l *infer.Logprobs) error {
	l.Reset()
	if text == nil {
		return errNoScores
	}
	c.own, c.names, c.tops, c.ends, c.ranks = c.own[:0], c.names[:0], c.tops[:0], c.ends[:0], c.ranks[:0]
	s.Reset(text)
	err := error(nil)
	if generate {
		err = c.generated(s)
	} else {
		err = c.completed(s)
	}
	if err != nil {
		return err
	}
	if len(c.own) != len(ids) || len(c.names) != len(ids) || len(c.ends) != len(ids) {
		return fmt.Errorf("log probabilities of %d, %d and %d positions for %d ids", len(c.own), len(c.names), len(c.ends), len(ids))
	}
	from := 0
	for i, id := range ids {
		if c.names[i].id != id {
			return fmt.Errorf("position %d: the log probability of id %d, where %d was received", i, c.names[i].id, id)
		}
		l.Own = append(l.Own, c.own[i])
		if err := c.place(c.tops[from:c.ends[i]], entry{id, c.own[i]}, c.ranks[i], top, l); err != nil {
			return fmt.Errorf("position %d: %w", i, err)
		}
		from = c.ends[i]
	}
	return nil
}

// place puts the alternatives of a position in their order. The engine has them so, but for
// the drawn id, which is the first whatever its rank, and is one of them only if its rank says
// so.
func (c *scores) place(all []entry, own entry, rank, top int, l *infer.Logprobs) error {
	if top == 0 {
		return nil
	}
	c.line = c.line[:0]
	for _, e := range all {
		if e.id != own.id {
			c.line = append(c.line, e)
		}
	}
	// If the drawn id is not among the top alternatives, it is listed in addition to
	// all of them.
	if rank == 0 && len(c.line) < top {
		rank = 1
		for rank <= len(c.line) && c.line[rank-1].value > own.value {
			rank++
		}
	}
	if rank > 0 && rank <= min(top, len(c.line)+1) {
		c.line = slices.Insert(c.line, rank-1, own)
	}
	if len(c.line) < top {
		return fmt.Errorf("%d alternatives of %d", len(c.line), top)
	}
	for _, e := range c.line[:top] {
		l.TopIDs, l.Top = append(l.TopIDs, e.id), append(l.Top, e.value)
	}
	return nil
}

// completed reads the lists of /v1/completions, whose tokens are "token_id:N".
func (c *scores) completed(s *idstream.Scanner) error {
	return s.Members(func(name []byte) error {
		switch string(name) {
		case "token_logprobs":
			return s.Elements(func() (err error) {
				v, err := value(s)
				c.own = append(c.own, v)
				return err
			})
		case "tokens":
			return s.Elements(func() error {
				id, err := named(s)
				c.names, c.ranks = append(c.names, entry{id: id}), append(c.ranks, 0)
				return err
			})
		case "top_logprobs":
			return s.Elements(func() error {
				err := s.Object(func(name []byte) error {
					id, err := parseName(name)
					if err != nil {
						return err
					}
					v, err := value(s)
					c.tops = append(c.tops, entry{id, v})
					return err
				})
				c.ends = append(c.ends, len(c.tops))
				return err
			})
		}
		return s.Dec.SkipValue()
	})
}

// generated reads the list of /inference/v1/generate.
func (c *scores) generated(s *idstream.Scanner) error {
	return s.Members(func(name []byte) error {
		if string(name) != "content" {
			return s.Dec.SkipValue()
		}
		return s.Elements(func() error {
			var own entry
			rank := 0
			err := s.Members(func(name []byte) error {
				if string(name) != "top_logprobs" {
					return own.member(s, name, &rank)
				}
				return s.Elements(func() error {
					var e entry
					err := s.Members(func(name []byte) error { return e.member(s, name, new(int)) })
					c.tops = append(c.tops, e)
					return err
				})
			})
			c.own, c.names, c.ranks, c.ends = append(c.own, own.value), append(c.names, own), append(c.ranks, rank), append(c.ends, len(c.tops))
			return err
		})
	})
}

// member reads a member of an entry.
func (e *entry) member(s *idstream.Scanner, name []byte, rank *int) (err error) {
	switch string(name) {
	case "token_id":
		return s.ID(&e.id)
	case "logprob":
		e.value, err = value(s)
		return err
	case "rank":
		return s.Count(rank)
	}
	return s.Dec.SkipValue()
}

// value reads a log probability.
func value(s *idstream.Scanner) (float32, error) {
	v, err := s.Dec.ReadValue()
	if err != nil {
		return 0, err
	}
	if v.Kind() == 'n' {
		return float32(math.Inf(-1)), nil
	}
	f, err := strconv.ParseFloat(string(v), 32)
	if err != nil {
		return 0, fmt.Errorf("%.20q is not a log probability", v)
	}
	if f <= least {
		return float32(math.Inf(-1)), nil
	}
	return float32(f), nil
}

// named reads an id that is written "token_id:N".
func named(s *idstream.Scanner) (uint32, error) {
	v, err := s.Dec.ReadValue()
	if err != nil {
		return 0, err
	}
	if v.Kind() != '"' {
		return 0, fmt.Errorf("%.20q is not a token", v)
	}
	return parseName(v[1 : len(v)-1])
}

func parseName(name []byte) (uint32, error) {
	digits, ok := bytes.CutPrefix(name, []byte("token_id:"))
	if !ok {
		return 0, fmt.Errorf("%.40q does not name its id", name)
	}
	return idstream.ParseID(digits)
}
