package sglangipc

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/infer"
)

// readScores takes in the log probabilities of ids, from the columns of them: values
// and ids of the ids themselves, then of so many alternatives at each.
func readScores(columns *[4][]byte, ids []uint32, top int, l *infer.Logprobs) (err error) {
	l.Reset()
	n := len(ids)
	if l.Own, err = appendRow(l.Own, columns[0], n, readValue); err != nil {
		return fmt.Errorf("of the ids: %w", err)
	}
	// They are of the ids that were sent, or of others.
	own, b, err := arrayHead(columns[1])
	if err != nil || own != n {
		return fmt.Errorf("%d ids with log probabilities (%v), and %d ids", own, err, n)
	}
	for i := range n {
		var id uint32
		if id, b, err = readID(b); err != nil || id != ids[i] {
			return fmt.Errorf("that of id %d where id %d stands (%v)", id, ids[i], err)
		}
	}
	if top == 0 {
		return nil
	}
	if l.Top, err = appendRows(l.Top, columns[2], n, top, readValue); err != nil {
		return fmt.Errorf("of alternatives: %w", err)
	}
	if l.TopIDs, err = appendRows(l.TopIDs, columns[3], n, top, readID); err != nil {
		return fmt.Errorf("ids of alternatives: %w", err)
	}
	return nil
}

// appendRows appends n rows of k values each.
func appendRows[T any](to []T, b []byte, n, k int, read func([]byte) (T, []byte, error)) ([]T, error) {
	rows, b, err := arrayHead(b)
	if err != nil || rows != n {
		return to, fmt.Errorf("%d positions (%v), want %d", rows, err, n)
	}
	for range n {
		rest, err := skip(b)
		if err != nil {
			return to, err
		}
		if to, err = appendRow(to, b[:len(b)-len(rest)], k, read); err != nil {
			return to, err
		}
		b = rest
	}
	return to, nil
}

// appendRow appends a row of n values.
func appendRow[T any](to []T, b []byte, n int, read func([]byte) (T, []byte, error)) ([]T, error) {
	have, b, err := arrayHead(b)
	if err != nil || have != n {
		return to, fmt.Errorf("%d values (%v), want %d", have, err, n)
	}
	for range n {
		var v T
		if v, b, err = read(b); err != nil {
			return to, err
		}
		to = append(to, v)
	}
	return to, nil
}

// readValue reads a log probability. Python may have written an integer.
func readValue(b []byte) (float32, []byte, error) {
	switch msgp.NextType(b) {
	case msgp.IntType, msgp.UintType:
		v, b, err := msgp.ReadInt64Bytes(b)
		return float32(v), b, err
	}
	v, b, err := msgp.ReadFloat64Bytes(b)
	return float32(v), b, err
}

func readID(b []byte) (uint32, []byte, error) { return msgp.ReadUint32Bytes(b) }
