package tokenizer

import (
	"fmt"
	"slices"
)

// regexWriter writes the program.
type regexWriter struct {
	prog []instruction
}

func (c *regexWriter) add(i instruction) (int, error) {
	if len(c.prog) >= maxProgram {
		return 0, fmt.Errorf("its counted repetitions make more than %d steps", maxProgram)
	}
	c.prog = append(c.prog, i)
	return len(c.prog) - 1, nil
}

func (c *regexWriter) write(t *regexTree) error {
	switch t.op {
	case treeSet:
		_, err := c.add(instruction{op: opSet, set: t.set})
		return err
	case treeSequence:
		for _, sub := range t.subs {
			if err := c.write(sub); err != nil {
				return err
			}
		}
		return nil
	case treeAlternatives:
		return c.alternatives(t.subs)
	case treeRepeat:
		return c.repeat(t)
	case treeEdge:
		_, err := c.add(t.edge)
		return err
	}
	i := instruction{op: opAtomic, behind: t.behind, negative: t.negative}
	if t.op == treeLook {
		i.op = opLook
	}
	for _, sub := range t.subs {
		inner := &regexWriter{}
		if err := inner.write(sub); err != nil {
			return err
		}
		least, _ := sub.width()
		i.sub = append(i.sub, append(inner.prog, instruction{op: opMatched}))
		i.back = append(i.back, least)
	}
	_, err := c.add(i)
	return err
}

func (c *regexWriter) alternatives(subs []*regexTree) error {
	var ends []int
	for k, sub := range subs {
		split := -1
		var err error
		if k < len(subs)-1 {
			if split, err = c.add(instruction{op: opSplit}); err != nil {
				return err
			}
			c.prog[split].x = int32(len(c.prog))
		}
		if err := c.write(sub); err != nil {
			return err
		}
		if split >= 0 {
			end, err := c.add(instruction{op: opJump})
			if err != nil {
				return err
			}
			ends = append(ends, end)
			c.prog[split].y = int32(len(c.prog))
		}
	}
	for _, end := range ends {
		c.prog[end].x = int32(len(c.prog))
	}
	return nil
}

func (c *regexWriter) repeat(t *regexTree) error {
	sub := t.subs[0]
	if sub.op == treeSet {
		_, err := c.add(instruction{op: opRun, set: sub.set, min: int32(t.min), max: int32(t.max), greed: t.greed})
		return err
	}
	if t.greed == possessive {
		plain := *t
		plain.greed = greedy
		return c.write(&regexTree{op: treeAtomic, subs: []*regexTree{&plain}})
	}
	for range t.min {
		if err := c.write(sub); err != nil {
			return err
		}
	}
	if t.max < 0 {
		split, err := c.add(instruction{op: opSplit})
		if err != nil {
			return err
		}
		if err := c.write(sub); err != nil {
			return err
		}
		if _, err := c.add(instruction{op: opJump, x: int32(split)}); err != nil {
			return err
		}
		c.choose(split, t.greed)
		return nil
	}
	var splits []int
	for range t.max - t.min {
		split, err := c.add(instruction{op: opSplit})
		if err != nil {
			return err
		}
		splits = append(splits, split)
		if err := c.write(sub); err != nil {
			return err
		}
	}
	slices.Reverse(splits)
	for _, split := range splits {
		c.choose(split, t.greed)
	}
	return nil
}

// choose lets a split go on with what follows it or behind the program so far.
func (c *regexWriter) choose(split int, g greed) {
	in, out := int32(split+1), int32(len(c.prog))
	if g == lazy {
		in, out = out, in
	}
	c.prog[split].x, c.prog[split].y = in, out
}
