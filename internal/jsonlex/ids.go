package jsonlex

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
)

// AppendIDs appends token ids as the inside of an array.
//
// A prompt has ids by the ten thousand, of four to six digits in no order, so that a branch for
// each length would mostly be guessed wrongly. They are therefore all written alike, which does
// not pay for the one or two ids of an event.
func AppendIDs(dst []byte, ids []uint32) []byte {
	if len(ids) > 4 {
		return appendMany(dst, ids)
	}
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return dst
}

func appendMany(dst []byte, ids []uint32) []byte {
	const (
		together = 64
		longest  = len("4294967295,") // and room for a word
	)
	for i := 0; i < len(ids); i += together {
		part := ids[i:min(i+together, len(ids))]
		n, room := len(dst), longest*len(part)
		dst = slices.Grow(dst, room)[:n+room]
		for _, id := range part {
			if id >= 1e8 {
				n = len(strconv.AppendUint(dst[:n], uint64(id), 10))
			} else {
				d := digits8(uint64(id))
				zeros := bits.TrailingZeros64(d|1<<56) >> 3 // the last digit is written, if it is 0 too
				binary.LittleEndian.PutUint64(dst[n:], (d|'0'*ones)>>(zeros*8))
				n += 8 - zeros
			}
			dst[n] = ','
			n++
		}
		dst = dst[:n]
	}
	return dst[:len(dst)-1]
}

// digits8 returns the eight digits of a number below 1e8, a byte each, the first one lowest. It
// halves groups of digits: four and four, then two and two in each, then one and one. A
// quotient by 100 or 10 is a product and a shift, which is exact for numbers this small.
func digits8(v uint64) uint64 {
	v = v/10000 | v%10000<<32
	q := v * 10486 >> 20 & 0x7F0000007F
	v = q | (v-q*100)<<16
	q = v * 103 >> 10 & 0x0F000F000F000F
	return q | (v-q*10)<<8
}
