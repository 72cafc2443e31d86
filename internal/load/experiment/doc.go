// Package experiment says what is to be run when more than one load, or more
// than one fleet, is to be measured: the values of each factor, the grid of all
// combinations, and the order of the runs. It starts nothing.
//
// A [Factor] is something that is varied and its values; a [Cell] is a value of
// each. [Order] runs every cell once before any is run again, each time in
// another order drawn from the seed: what changes with time, and not with the
// factors, then shows as a difference between the repeats and not as one between
// cells.
//
// [Read] reads an experiment from a YAML file, whose sections hold flags of
// "weir bench", "weir engine" and "weir serve" under their own names. A value
// that is a list is a factor.
package experiment
