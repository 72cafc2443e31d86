package plane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
)

// frame is one decoded Step. It is reused from step to step: the columns keep
// their arrays, so that decoding allocates nothing per stream or per id once
// the largest step was seen. Its fields are valid until the next decode.
//
// The generated decoder would allocate each column anew and costs about twice
// the time; a fuzz test holds the two to the same result.
type frame struct {
	sequence uint64
	sendTime int64
	slot     []uint32
	count    []uint32
	total    []uint32
	id       []uint32
	own      []float32 // logprob
	topID    []uint32
	top      []float32
	notices  []*planepb.Notice
	running  uint32
	waiting  uint32

	received int64 // gateway's clock when the frame was read
	size     int   // bytes on the wire
	err      error // why the bytes are not a Step
}

// The field numbers of Step.
const (
	fieldSequence = 1
	fieldSendTime = 2
	fieldSlot     = 3
	fieldCount    = 4
	fieldTotal    = 5
	fieldID       = 6
	fieldNotice   = 7
	fieldRunning  = 8
	fieldWaiting  = 9
	fieldLogprob  = 10
	fieldTopID    = 11
	fieldTop      = 12
)

// maxNotices bounds the notices of a step, of which a slot has one or two: an empty one
// has two bytes and costs a hundred times that.
const maxNotices = 2 * maxSlots

var (
	errShortPacked = errors.New("packed column ends inside a number")
	errFieldNumber = errors.New("decode step: field number out of range")
)

// keepColumn is how many elements a column may have room for that a step has not filled.
const keepColumn = 1 << 16

func (f *frame) reset() {
	f.sequence, f.sendTime, f.running, f.waiting = 0, 0, 0, 0
	for _, column := range []*[]uint32{&f.slot, &f.count, &f.total, &f.id, &f.topID} {
		*column = infer.Reuse(*column, keepColumn)
	}
	f.own, f.top = infer.Reuse(f.own, keepColumn), infer.Reuse(f.top, keepColumn)
	f.notices = infer.Reuse(f.notices, keepColumn)
}

// decode replaces the frame's content by the Step in b. It accepts what the
// generated decoder accepts, unknown fields and unpacked columns included, and
// keeps no reference to b. After an error the content is undefined.
func (f *frame) decode(b []byte) error {
	f.reset()
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("decode step: tag: %w", protowire.ParseError(n))
		}
		if num > protowire.MaxValidNumber {
			return errFieldNumber
		}
		b = b[n:]
		var err error
		if n, err = f.field(num, typ, b); err != nil {
			return fmt.Errorf("decode step: field %d: %w", num, err)
		}
		b = b[n:]
	}
	return nil
}

// field takes in the value of one field at the head of b and returns its
// length.
func (f *frame) field(num protowire.Number, typ protowire.Type, b []byte) (int, error) {
	switch typ {
	case protowire.VarintType:
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		switch num {
		case fieldSequence:
			f.sequence = v
		case fieldRunning:
			f.running = uint32(v)
		case fieldWaiting:
			f.waiting = uint32(v)
		default:
			if col := f.column(num); col != nil {
				*col = append(*col, uint32(v))
			}
		}
		return n, nil
	case protowire.Fixed64Type:
		v, n := protowire.ConsumeFixed64(b)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		if num == fieldSendTime {
			f.sendTime = int64(v)
		}
		return n, nil
	case protowire.Fixed32Type:
		v, n := protowire.ConsumeFixed32(b)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		if col := f.floats(num); col != nil {
			*col = append(*col, math.Float32frombits(v))
		}
		return n, nil
	case protowire.BytesType:
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		if num == fieldNotice {
			return n, f.notice(v)
		}
		if col := f.column(num); col != nil {
			var err error
			*col, err = appendPacked(*col, v)
			return n, err
		}
		if col := f.floats(num); col != nil {
			var err error
			*col, err = appendFloats(*col, v)
			return n, err
		}
		return n, nil
	}
	n := protowire.ConsumeFieldValue(num, typ, b)
	if n < 0 {
		return 0, protowire.ParseError(n)
	}
	return n, nil
}

func (f *frame) column(num protowire.Number) *[]uint32 {
	switch num {
	case fieldSlot:
		return &f.slot
	case fieldCount:
		return &f.count
	case fieldTotal:
		return &f.total
	case fieldID:
		return &f.id
	case fieldTopID:
		return &f.topID
	}
	return nil
}

func (f *frame) floats(num protowire.Number) *[]float32 {
	switch num {
	case fieldLogprob:
		return &f.own
	case fieldTop:
		return &f.top
	}
	return nil
}

// notice decodes one Notice. There are about two per request, so the generated
// decoder is good enough; the messages themselves are reused.
func (f *frame) notice(b []byte) error {
	if len(f.notices) == maxNotices {
		return fmt.Errorf("more than %d notices", maxNotices)
	}
	n := len(f.notices)
	if n < cap(f.notices) {
		f.notices = f.notices[:n+1]
	} else {
		f.notices = slices.Grow(f.notices, 1)[:n+1]
	}
	if f.notices[n] == nil {
		f.notices[n] = new(planepb.Notice)
	}
	return proto.Unmarshal(b, f.notices[n]) // resets it first
}

// appendPacked decodes a packed column. Nearly all numbers are one to three
// bytes long: slots and counts are small, and vocabularies are below 2^21.
func appendPacked(dst []uint32, b []byte) ([]uint32, error) {
	for i := 0; i < len(b); {
		c := b[i]
		if c < 0x80 {
			dst = append(dst, uint32(c))
			i++
			continue
		}
		if i+2 < len(b) {
			v := uint32(c&0x7f) | uint32(b[i+1]&0x7f)<<7
			if b[i+1] < 0x80 {
				dst = append(dst, v)
				i += 2
				continue
			}
			if b[i+2] < 0x80 {
				dst = append(dst, v|uint32(b[i+2])<<14)
				i += 3
				continue
			}
		}
		v, n := protowire.ConsumeVarint(b[i:])
		if n < 0 {
			return dst, errShortPacked
		}
		dst = append(dst, uint32(v))
		i += n
	}
	return dst, nil
}

// appendFloats decodes a packed column of floats.
func appendFloats(dst []float32, b []byte) ([]float32, error) {
	if len(b)%4 != 0 {
		return dst, errShortPacked
	}
	for ; len(b) > 0; b = b[4:] {
		dst = append(dst, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return dst, nil
}

// scores is how far the columns of log probabilities were handed out.
type scores struct{ own, top int }

// take returns the next n positions, with so many alternatives at each; false when
// there are not so many left.
func (c *scores) take(f *frame, n, top int) (l infer.Logprobs, ok bool) {
	own, end := c.own+n, c.top+n*top
	if own > len(f.own) || end > len(f.top) || end > len(f.topID) {
		return l, false
	}
	l = infer.Logprobs{Own: f.own[c.own:own], TopIDs: f.topID[c.top:end], Top: f.top[c.top:end]}
	c.own, c.top = own, end
	return l, true
}

// check reports whether the columns fit each other.
func (f *frame) check() error {
	if len(f.total) != len(f.slot) {
		return fmt.Errorf("%d totals for %d slots", len(f.total), len(f.slot))
	}
	if len(f.count) == 0 {
		if len(f.id) != len(f.slot) {
			return fmt.Errorf("%d ids for %d slots of one id each", len(f.id), len(f.slot))
		}
		return nil
	}
	if len(f.count) != len(f.slot) {
		return fmt.Errorf("%d counts for %d slots", len(f.count), len(f.slot))
	}
	var sum uint64
	for _, n := range f.count {
		sum += uint64(n)
	}
	if sum != uint64(len(f.id)) {
		return fmt.Errorf("counts add up to %d for %d ids", sum, len(f.id))
	}
	return nil
}
