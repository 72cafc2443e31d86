package experiment

import (
	"fmt"
	"strconv"
	"strings"

	"weir/internal/infer"
)

// Fleet is the number of engines of each role: "4" is four engines that serve whole
// requests, "1+3" one prefill engine and three decode engines, and "1+2+1" has an
// additional engine that serves whole requests.
type Fleet struct{ Prefill, Decode, Whole int }

// ParseFleet reads a fleet of at most most engines.
func ParseFleet(text string, most int) (f Fleet, err error) {
	wrong := fmt.Errorf("%q is neither a number of engines from 1 to %d, nor numbers of prefill and decode engines, as in 1+3, with whole engines as a third number, as in 1+2+1", text, most)
	parts := strings.Split(text, "+")
	into := []*int{&f.Prefill, &f.Decode, &f.Whole}
	if len(parts) == 1 {
		into = into[2:]
	}
	if len(parts) > len(into) {
		return Fleet{}, wrong
	}
	for i, part := range parts {
		if *into[i], err = strconv.Atoi(part); err != nil || *into[i] < 1 || *into[i] > most {
			return Fleet{}, wrong
		}
	}
	if f.Engines() > most {
		return Fleet{}, wrong
	}
	return f, nil
}

// Engines is how many there are.
func (f Fleet) Engines() int { return f.Prefill + f.Decode + f.Whole }

// Apart reports whether some serve halves of requests.
func (f Fleet) Apart() bool { return f.Prefill > 0 }

// String describes the engines.
func (f Fleet) String() string {
	if !f.Apart() {
		return fmt.Sprintf("%d simulated engines", f.Whole)
	}
	text := fmt.Sprintf("%d prefill and %d decode engines", f.Prefill, f.Decode)
	if f.Whole > 0 {
		text += fmt.Sprintf(" and %d that serve whole requests", f.Whole)
	}
	return text + ", simulated,"
}

// Role returns the role of the n-th engine, from 1. Prefill engines come first, then decode
// engines.
func (f Fleet) Role(n int) infer.Role {
	switch {
	case n <= f.Prefill:
		return infer.RolePrefill
	case n <= f.Prefill+f.Decode:
		return infer.RoleDecode
	}
	return infer.RoleBoth
}
