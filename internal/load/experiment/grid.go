package experiment

import (
	"math/rand/v2"
	"strings"
)

// Factor is a setting that varies.
type Factor struct {
	Name   string   `json:"factor"`
	Values []string `json:"values"`
}

// Cell is a combination: the index of each factor's value.
type Cell []int

// Grid returns every combination of the factors' values; the last factor varies
// fastest. Without factors it is one empty cell.
func Grid(factors []Factor) []Cell {
	cells := []Cell{{}}
	for _, f := range factors {
		var next []Cell
		for _, c := range cells {
			for i := range f.Values {
				next = append(next, append(append(Cell{}, c...), i))
			}
		}
		cells = next
	}
	return cells
}

// Value returns a cell's value of a factor; ok is false where it is not varied.
func (c Cell) Value(factors []Factor, name string) (value string, ok bool) {
	for i, f := range factors {
		if f.Name == name {
			return f.Values[c[i]], true
		}
	}
	return "", false
}

// Label names a cell by its values, leaving out some factors.
func (c Cell) Label(factors []Factor, without ...string) string {
	var parts []string
next:
	for i, f := range factors {
		for _, w := range without {
			if f.Name == w {
				continue next
			}
		}
		parts = append(parts, f.Name+"="+f.Values[c[i]])
	}
	return strings.Join(parts, " ")
}

// Run is one of an experiment's runs.
type Run struct {
	Cell   int `json:"cell"`   // its index in the grid
	Repeat int `json:"repeat"` // from 1
}

// orderStream separates the draws of the order from others of the same seed.
const orderStream = 0x6f72646572

// Order returns the runs: every cell once in an order drawn from the seed, then
// every cell once more in another one, and so on.
func Order(cells, repeats int, seed uint64) []Run {
	rng := rand.New(rand.NewPCG(seed, orderStream))
	runs := make([]Run, 0, cells*repeats)
	for repeat := range repeats {
		for _, cell := range rng.Perm(cells) {
			runs = append(runs, Run{Cell: cell, Repeat: repeat + 1})
		}
	}
	return runs
}
