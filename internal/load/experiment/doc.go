// Package experiment describes measurements of more than one load or fleet: the values of
// each factor, the grid of all combinations, and the order of the runs. It starts nothing.
//
// A [Factor] is a setting that varies, with its values; a [Cell] has one value of each.
// [Order] runs every cell once before any cell is repeated, each time in another order
// drawn from the seed. So a change over time shows as a difference between the repeats and
// not as one between cells.
//
// [Read] reads an experiment from a YAML file. Its sections hold flags of "weir bench",
// "weir engine" and "weir serve" under their own names. A value that is a list is a factor.
package experiment
