package vllmcore

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tinylib/msgp/msgp"
)

// maxParams bounds the kv_transfer_params of an answer: a million blocks fit.
const maxParams = 8 << 20

// paramsJSON returns an output's kv_transfer_params as JSON, nil where there are none
// that JSON has words for.
func paramsJSON(b []byte) []byte {
	if len(b) == 0 || !isMap(b[0]) || len(b) > maxParams {
		return nil
	}
	var out bytes.Buffer
	if rest, err := msgp.UnmarshalAsJSON(&out, b); err != nil || len(rest) > 0 || !jsontext.Value(out.Bytes()).IsValid() {
		return nil
	}
	return out.Bytes()
}

// appendJSON appends a value that is known to be JSON. Integers that 64 bits hold stay
// integers.
func appendJSON(b []byte, value []byte) []byte {
	dec := jsontext.NewDecoder(bytes.NewReader(value))
	type open struct {
		head   int // where the count goes
		n      uint32
		object bool
	}
	var stack []open
	for {
		t, err := dec.ReadToken()
		if err != nil { // io.EOF
			return b
		}
		kind := t.Kind()
		if kind == '}' || kind == ']' {
			top := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if top.object {
				top.n /= 2
			}
			binary.BigEndian.PutUint32(b[top.head:], top.n)
			continue
		}
		if len(stack) > 0 {
			stack[len(stack)-1].n++
		}
		switch kind {
		case '{', '[':
			lead := byte(0xdd) // an array of up to 2^32 items
			if kind == '{' {
				lead = 0xdf // a map
			}
			b = append(b, lead, 0, 0, 0, 0)
			stack = append(stack, open{head: len(b) - 4, object: kind == '{'})
		case '"':
			b = msgp.AppendString(b, t.String())
		case '0':
			if n, err := strconv.ParseInt(t.String(), 10, 64); err == nil {
				b = msgp.AppendInt64(b, n)
			} else if n, err := strconv.ParseUint(t.String(), 10, 64); err == nil {
				b = msgp.AppendUint64(b, n)
			} else {
				f, _ := t.Float()
				b = msgp.AppendFloat64(b, max(-math.MaxFloat64, min(f, math.MaxFloat64))) // the nearest that there is
			}
		case 't', 'f':
			b = msgp.AppendBool(b, kind == 't')
		default:
			b = msgp.AppendNil(b)
		}
	}
}
