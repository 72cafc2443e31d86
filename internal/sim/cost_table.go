package sim

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Table is a cost model of measured points, read from CSV by ReadTable.
//
// Each phase has a grid over the number of requests in the step and their mean number of
// tokens. A step costs the sum of its prefill part and its decode part. Values between
// points are interpolated bilinearly. Below the first point of an axis the cost is that of
// the point; above the last it continues with the slope of the last two points, but never
// falls. An axis of tokens with a single point is ignored.
type Table struct {
	prefill, decode grid
}

// StepTime implements CostModel.
func (t *Table) StepTime(b Batch) time.Duration {
	var ms float64
	if b.Prefill > 0 {
		ms += t.prefill.at(float64(b.Prefill), float64(b.Chunks))
	}
	if b.Decode > 0 {
		ms += t.decode.at(float64(b.Context), float64(b.Decode))
	}
	return milliseconds(ms)
}

// grid is the table of one phase: ms[i*len(tokens)+j] is the cost of batch[i] requests of
// tokens[j] each. If the rows leave out one of the two columns, its axis is empty and the
// other column describes the whole step: tokens are then all tokens of the step.
type grid struct {
	batch, tokens []float64
	ms            []float64
}

// at returns the cost of a step with this many tokens and requests.
func (g *grid) at(tokens, requests float64) float64 {
	if len(g.batch) > 0 {
		tokens /= requests
	}
	i, u := locate(g.batch, requests)
	j, v := locate(g.tokens, tokens)
	// Never below the grid's edge, whatever the slope there.
	return max(0, g.between(i, j, u, v), g.between(i, j, min(u, 1), min(v, 1)))
}

// between goes on from the point (i, j) by shares of the way to the next ones.
func (g *grid) between(i, j int, u, v float64) float64 {
	width := max(1, len(g.tokens))
	row := func(i int) float64 {
		a := g.ms[i*width+j]
		if v == 0 {
			return a
		}
		return a + v*(g.ms[i*width+j+1]-a)
	}
	a := row(i)
	if u == 0 {
		return a
	}
	return a + u*(row(i+1)-a)
}

// locate returns the index of the point before x, and the position of x between it and the
// next point as a fraction. The fraction is above 1 beyond the last point.
func locate(axis []float64, x float64) (int, float64) {
	if len(axis) < 2 || x <= axis[0] {
		return 0, 0
	}
	i, found := slices.BinarySearch(axis, x)
	if !found || i == len(axis)-1 {
		i--
	}
	i = min(i, len(axis)-2)
	return i, (x - axis[i]) / (axis[i+1] - axis[i])
}

// tableColumns are the columns of the CSV.
var tableColumns = []string{"phase", "tokens", "batch", "ms"}

const (
	phaseColumn = iota
	tokensColumn
	batchColumn
	msColumn
)

// ReadTable reads a cost model from CSV with the header phase,tokens,batch,ms, with its
// columns in any order. Lines that begin with # are comments. phase is prefill or decode,
// and each needs at least one row. tokens are counted per request: the prompt tokens of its
// chunk in a prefill row, its tokens so far in a decode row. batch is the number of
// requests. The rows of a phase form a complete grid, in any order. All of them may leave
// batch empty; then tokens are those of the whole step. Or all may leave tokens empty. name
// stands for the file in errors.
func ReadTable(r io.Reader, name string) (*Table, error) {
	t := tableReader{name: name, csv: csv.NewReader(r)}
	t.csv.Comment = '#'
	t.csv.TrimLeadingSpace = true
	if err := t.header(); err != nil {
		return nil, err
	}
	for {
		row, err := t.csv.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, t.broken(err)
		}
		if err := t.row(row); err != nil {
			return nil, err
		}
	}
	var table Table
	for phase, g := range []*grid{&table.prefill, &table.decode} {
		if err := t.build(phase, g); err != nil {
			return nil, err
		}
	}
	return &table, nil
}

var tablePhases = []string{"prefill", "decode"}

// tableReader collects the rows of a table.
type tableReader struct {
	name   string
	csv    *csv.Reader
	column [4]int
	points [2][]point
}

// point is a row. A coordinate that is left out is NaN.
type point struct {
	tokens, batch, ms float64
	line              int
}

// wrong returns an error with its place: a column of the row that was read last, or the
// whole row if column is -1.
func (t *tableReader) wrong(column int, format string, args ...any) error {
	if column < 0 {
		line, _ := t.csv.FieldPos(0)
		return fmt.Errorf("%s:%d: %s", t.name, line, fmt.Sprintf(format, args...))
	}
	line, at := t.csv.FieldPos(t.column[column])
	return fmt.Errorf("%s:%d:%d: %s: %s", t.name, line, at, tableColumns[column], fmt.Sprintf(format, args...))
}

func (t *tableReader) broken(err error) error {
	var parse *csv.ParseError
	if !errors.As(err, &parse) {
		return fmt.Errorf("%s: read: %w", t.name, err)
	}
	if errors.Is(parse.Err, csv.ErrFieldCount) {
		return fmt.Errorf("%s:%d: it does not have the %d columns of the header", t.name, parse.Line, t.csv.FieldsPerRecord)
	}
	return fmt.Errorf("%s:%d:%d: %w", t.name, parse.Line, parse.Column, parse.Err)
}

func (t *tableReader) header() error {
	row, err := t.csv.Read()
	if err == io.EOF {
		return fmt.Errorf("%s: the file is empty; it begins with the header %s", t.name, strings.Join(tableColumns, ","))
	}
	if err != nil {
		return t.broken(err)
	}
	t.column = [4]int{-1, -1, -1, -1}
	row[0] = strings.TrimPrefix(row[0], "\ufeff")
	for i, cell := range row {
		c := slices.Index(tableColumns, strings.ToLower(strings.TrimSpace(cell)))
		line, at := t.csv.FieldPos(i)
		switch {
		case c < 0:
			return fmt.Errorf("%s:%d:%d: unknown column %q; the header is %s", t.name, line, at, cell, strings.Join(tableColumns, ","))
		case t.column[c] >= 0:
			return fmt.Errorf("%s:%d:%d: a second column %s", t.name, line, at, tableColumns[c])
		}
		t.column[c] = i
	}
	for c, i := range t.column {
		if i < 0 {
			return t.wrong(-1, "no column %s; the header is %s", tableColumns[c], strings.Join(tableColumns, ","))
		}
	}
	return nil
}

func (t *tableReader) row(row []string) error {
	cell := func(c int) string { return strings.TrimSpace(row[t.column[c]]) }
	phase := slices.Index(tablePhases, cell(phaseColumn))
	if phase < 0 {
		return t.wrong(phaseColumn, "%q is neither prefill nor decode", cell(phaseColumn))
	}
	number := func(c int, optional bool) (float64, error) {
		if optional && cell(c) == "" {
			return math.NaN(), nil
		}
		v, err := strconv.ParseFloat(cell(c), 64)
		if err != nil || !(v >= 0) || v > maxTableNumber {
			return 0, t.wrong(c, "%q is not a number from 0 to %g", cell(c), maxTableNumber)
		}
		return v, nil
	}
	var p point
	var err error
	p.line, _ = t.csv.FieldPos(0)
	if p.tokens, err = number(tokensColumn, true); err != nil {
		return err
	}
	if p.batch, err = number(batchColumn, true); err != nil {
		return err
	}
	if p.ms, err = number(msColumn, false); err != nil {
		return err
	}
	if math.IsNaN(p.tokens) && math.IsNaN(p.batch) {
		return t.wrong(tokensColumn, "tokens and batch are both empty; give one of them")
	}
	if points := t.points[phase]; len(points) > 0 {
		first := points[0]
		for c, pair := range map[int][2]float64{tokensColumn: {p.tokens, first.tokens}, batchColumn: {p.batch, first.batch}} {
			if math.IsNaN(pair[0]) != math.IsNaN(pair[1]) {
				return t.wrong(c, "all %s rows have it or none; line %d is otherwise", tablePhases[phase], first.line)
			}
		}
	}
	t.points[phase] = append(t.points[phase], p)
	return nil
}

// maxTableNumber bounds the values of a table. As milliseconds it is a step of 11 days.
const maxTableNumber = 1e9

// build makes a phase's grid of its points.
func (t *tableReader) build(phase int, g *grid) error {
	points := t.points[phase]
	if len(points) == 0 {
		return fmt.Errorf("%s: no row of phase %s", t.name, tablePhases[phase])
	}
	for _, p := range points {
		if !math.IsNaN(p.tokens) {
			g.tokens = append(g.tokens, p.tokens)
		}
		if !math.IsNaN(p.batch) {
			g.batch = append(g.batch, p.batch)
		}
	}
	slices.Sort(g.tokens)
	slices.Sort(g.batch)
	g.tokens, g.batch = slices.Compact(g.tokens), slices.Compact(g.batch)
	if len(g.batch) == 1 {
		return fmt.Errorf("%s: all %s rows have a batch of %v, so the cost of more requests is unknown; add rows with another batch, or leave batch empty, and tokens then count the whole step",
			t.name, tablePhases[phase], g.batch[0])
	}
	g.ms = make([]float64, 0, len(points))
	width := max(1, len(g.tokens))
	index := func(p point) int {
		i, _ := slices.BinarySearch(g.batch, p.batch) // 0 where it is left out: NaN comes before all
		j, _ := slices.BinarySearch(g.tokens, p.tokens)
		return i*width + j
	}
	hole := func(k int) error {
		return fmt.Errorf("%s: no %s row for %v tokens and a batch of %v, though other rows have each of them; the rows of a phase must form a whole grid",
			t.name, tablePhases[phase], g.tokens[k%width], g.batch[k/width])
	}
	slices.SortStableFunc(points, func(a, b point) int { return index(a) - index(b) })
	for k, p := range points {
		at := index(p)
		if k > 0 && at == index(points[k-1]) {
			return fmt.Errorf("%s:%d: the same point as on line %d", t.name, p.line, points[k-1].line)
		}
		if at != k {
			return hole(k)
		}
		g.ms = append(g.ms, p.ms)
	}
	if len(points) < width*max(1, len(g.batch)) {
		return hole(len(points))
	}
	return nil
}
