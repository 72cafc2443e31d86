package vllmcore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/infer"
)

// maxLogprobs is how many alternatives an engine gives unless it was started for
// more. It leaves the bound to its front end, and computes whatever it is asked.
const maxLogprobs = 20

// table2D is an array of numbers as the engine encodes one: type, shape, data.
type table2D struct {
	dtype      string
	rows, cols int
	data       []byte
}

// rawView is the msgpack extension that holds an array's data in place. Larger
// data is a frame of the message, and stands there by its number.
const rawView = 3

func (t *table2D) read(b []byte, aux [][]byte) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil || n != 3 {
		return b, errors.Join(err, wantLength(n, 3))
	}
	dtype, b, err := msgp.ReadStringZC(b)
	if err != nil {
		return b, err
	}
	if t.dtype, err = knownType(dtype); err != nil {
		return b, err
	}
	if n, b, err = msgp.ReadArrayHeaderBytes(b); err != nil || n != 2 {
		return b, errors.Join(err, wantLength(n, 2))
	}
	if t.rows, b, err = msgp.ReadIntBytes(b); err != nil {
		return b, err
	}
	if t.cols, b, err = msgp.ReadIntBytes(b); err != nil {
		return b, err
	}
	if len(b) > 0 && isExtension(b[0]) {
		t.data, b, err = readRaw(b)
	} else {
		var at int
		if at, b, err = msgp.ReadIntBytes(b); err == nil && (at < 1 || at > len(aux)) {
			err = fmt.Errorf("data in frame %d of %d", at, len(aux)+1)
		}
		if err == nil {
			t.data = aux[at-1]
		}
	}
	if err != nil {
		return b, err
	}
	if t.rows < 0 || t.cols < 0 || t.rows > math.MaxInt32 || t.cols > math.MaxInt32 || len(t.data) != t.rows*t.cols*t.size() {
		return b, fmt.Errorf("%d bytes of data for %d by %d of type %s", len(t.data), t.rows, t.cols, t.dtype)
	}
	return b, nil
}

// isExtension is asked in place of msgp.NextType, which knows some extensions by
// its own names for them.
func isExtension(c byte) bool { return 0xc7 <= c && c <= 0xc9 || 0xd4 <= c && c <= 0xd8 }

// readRaw reads an extension's bytes where they stand.
func readRaw(b []byte) (data, rest []byte, err error) {
	rest, err = msgp.Skip(b)
	if err != nil {
		return nil, b, err
	}
	whole := b[:len(b)-len(rest)]
	head := 2 // a fixed length: the lead byte and the type
	switch whole[0] {
	case 0xc7:
		head = 3
	case 0xc8:
		head = 4
	case 0xc9:
		head = 6
	}
	if kind := int8(whole[head-1]); kind != rawView {
		return nil, b, fmt.Errorf("data in extension %d", kind)
	}
	return whole[head:], rest, nil
}

func wantLength(n, want uint32) error {
	if n == want {
		return nil
	}
	return fmt.Errorf("%d fields, want %d", n, want)
}

// knownType returns the one name of a type of numbers, which may be written in two
// ways.
func knownType(name []byte) (string, error) {
	switch string(name) {
	case "<i4", "int32":
		return "<i4", nil
	case "<i8", "int64":
		return "<i8", nil
	case "<f4", "float32":
		return "<f4", nil
	}
	return "", fmt.Errorf("numbers of type %.20q", name)
}

func (t *table2D) size() int { return int(t.dtype[2] - '0') }

// id returns a number that must be an id; false when it is none.
func (t *table2D) id(i int) (uint32, bool) {
	var v int64
	switch t.dtype {
	case "<i4":
		v = int64(int32(binary.LittleEndian.Uint32(t.data[4*i:])))
	case "<i8":
		v = int64(binary.LittleEndian.Uint64(t.data[8*i:]))
	default:
		return 0, false
	}
	return uint32(v), v >= 0 && v <= math.MaxUint32
}

// readLogprobs takes in new_logprobs: the ids and their log probabilities, a row
// for each new id, the id itself in the first column and the most probable ones
// in those after it. There may be more columns than were asked for, as many as
// the request of the step that wants the most. The slices in l afterwards lie in
// room that is reused.
func readLogprobs(b []byte, aux [][]byte, ids []uint32, top int, l *infer.Logprobs) error {
	l.Reset()
	if len(b) == 0 {
		if len(ids) == 0 {
			return nil
		}
		return fmt.Errorf("none for %d ids", len(ids))
	}
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil || n < 2 {
		return errors.Join(err, wantLength(n, 4))
	}
	var tokens, values table2D
	if b, err = tokens.read(b, aux); err != nil {
		return fmt.Errorf("their ids: %w", err)
	}
	if _, err = values.read(b, aux); err != nil {
		return fmt.Errorf("their values: %w", err)
	}
	switch {
	case values.dtype != "<f4":
		return fmt.Errorf("values of type %s", values.dtype)
	case tokens.rows != len(ids) || values.rows != len(ids):
		return fmt.Errorf("%d ids and %d values for %d new ids", tokens.rows, values.rows, len(ids))
	case len(ids) > 0 && (tokens.cols != values.cols || tokens.cols < top+1):
		return fmt.Errorf("%d ids and %d values at each position, want %d", tokens.cols, values.cols, top+1)
	}
	for row, id := range ids {
		at := row * tokens.cols
		for col := range top + 1 {
			of, ok := tokens.id(at + col)
			value := math.Float32frombits(binary.LittleEndian.Uint32(values.data[4*(at+col):]))
			switch {
			case !ok:
				return fmt.Errorf("position %d: no id in column %d", row, col)
			case col > 0:
				l.TopIDs, l.Top = append(l.TopIDs, of), append(l.Top, value)
			case of != id:
				return fmt.Errorf("position %d: that of id %d, where %d was received", row, of, id)
			default:
				l.Own = append(l.Own, value)
			}
		}
	}
	return nil
}
