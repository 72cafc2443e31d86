package sglangipc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine/mux"
	"weir/internal/infer"
)

// kind is what a message is.
type kind uint8

const (
	other   kind = iota // nothing to us
	outputs             // what a step brought
	echo                // a request that ended outside of a step
	answer              // a fence has come back
	state               // what the scheduler says of itself
)

// batch is one message of a scheduler. It is decoded in one pass and without
// allocating, into room that is reused; what it points to lies in the message's
// bytes.
type batch struct {
	codec *codec

	kind    kind
	outputs []output
	ids     []uint32 // of all outputs
	stats   []byte   // the outputs' stamps as a pickle, which readStats reads; nil: none

	id   []byte // of an echo's request
	end  finish // of it
	call int64  // of an answer
	says about  // of a state
}

// about is what a scheduler says of itself; 0: it does not.
type about struct {
	maxRunning int // requests
	kv         int // tokens that its KV cache holds
	chunk      int // the most tokens of prompts in a step
}

// output is what a step brought for one request.
type output struct {
	id        []byte
	from, to  int // of the batch's ids
	end       finish
	prompt    int
	count     int // completion_tokens: all ids so far
	cached    int
	retracted int       // how often it went back to the queue so far
	times     times     // if the batch's stats were read
	scores    [4][]byte // columns of log probabilities, as they were encoded; nil: none
}

// finish is how a request ended.
type finish struct {
	how finishKind
	// If the reason is a stop: the id, the last of several, or the text.
	isID    bool
	matched int64
	word    []byte
	// If the reason is a length.
	length int
	// For an abort; a status of 0 means that none was reported.
	status  int
	message []byte
}

type finishKind uint8

const (
	running finishKind = iota
	stopped
	full // its length is reached
	aborted
)

var finishWords = [...]string{"", "stop", "length", "abort"}

// column is what stands at a position of the outputs.
type column uint8

const (
	skipped column = iota
	columnIDs
	columnEnds
	columnOutputIDs
	columnPrompt
	columnCount
	columnCached
	columnOwn    // log probabilities of the ids,
	columnOwnIDs // the ids,
	columnTop    // and of alternatives
	columnTopIDs
	columnRetracted
	columnStats
)

var columnNames = [...]string{columnIDs: "rids", columnEnds: "finished_reasons", columnOutputIDs: "output_ids",
	columnPrompt: "prompt_tokens", columnCount: "completion_tokens", columnCached: "cached_tokens",
	columnOwn: "output_token_logprobs_val", columnOwnIDs: "output_token_logprobs_idx",
	columnTop: "output_top_logprobs_val", columnTopIDs: "output_top_logprobs_idx", columnRetracted: "retraction_counts", columnStats: "time_stats"}

// setColumns finds the columns by name.
func (c *codec) setColumns(fields []string) error {
	c.columns = make([]column, len(fields))
	for col := columnIDs; int(col) < len(columnNames); col++ {
		found := false
		for i, name := range fields {
			if name == columnNames[col] {
				c.columns[i], found = col, true
			}
		}
		if !found && col < columnRetracted { // the others say nothing that is needed
			return fmt.Errorf("%s has no field %s", tagOutputs, columnNames[col])
		}
	}
	if c.columns[0] != columnIDs {
		return fmt.Errorf("%s begins with %s, not with rids", tagOutputs, fields[0])
	}
	return nil
}

var (
	errShort = errors.New("it is cut short")
	errNoID  = errors.New("an id that is not a 32-bit number")
)

// The room that a batch keeps after a message that filled more, in elements.
const (
	keepOutputs = 1 << 15
	keepIDs     = 1 << 16
)

// decode takes in a message.
func (d *batch) decode(b []byte) error {
	d.kind, d.outputs, d.ids, d.stats = other, infer.Reuse(d.outputs, keepOutputs), infer.Reuse(d.ids, keepIDs), nil
	n, b, err := arrayHead(b)
	if err != nil || n == 0 {
		return fmt.Errorf("a message that is not an array: %w", errors.Join(err, errShort))
	}
	tag, b, err := msgp.ReadStringZC(b)
	if err != nil {
		return fmt.Errorf("a message without its name: %w", err)
	}
	n--
	switch string(tag) {
	case tagOutputs:
		d.kind = outputs
		b, err = d.columns(b, n)
	case tagAbort:
		d.kind = echo
		b, err = d.echo(b, n)
	case tagFence:
		b, err = d.answer(b, n)
	case tagStateOut:
		d.kind = state
		b, err = d.state(b, n)
	default:
		b, err = skipN(b, n)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", tag, err)
	}
	if len(b) > 0 {
		return fmt.Errorf("%s: %d bytes after the end", tag, len(b))
	}
	return nil
}

// columns takes in the columns of a step, each with an entry for each request.
func (d *batch) columns(b []byte, n int) (_ []byte, err error) {
	if n != len(d.codec.columns) {
		return b, fmt.Errorf("%d fields, and the launcher's manifest has %d", n, len(d.codec.columns))
	}
	for i, col := range d.codec.columns {
		if col == skipped {
			b, err = skip(b)
		} else {
			b, err = d.column(col, b)
		}
		if err != nil {
			if col == skipped {
				return b, fmt.Errorf("field %d: %w", i, err)
			}
			return b, fmt.Errorf("%s: %w", columnNames[col], err)
		}
	}
	return b, nil
}

func (d *batch) column(col column, b []byte) ([]byte, error) {
	if len(b) > 0 && b[0] == msgpNil && (col >= columnOwn || len(d.outputs) == 0 && (col == columnIDs || col == columnOutputIDs)) {
		return b[1:], nil // nobody asked for them; or an idle step
	}
	n, b, err := arrayHead(b)
	if err != nil {
		return b, err
	}
	if col == columnStats {
		return d.readPickle(b, n)
	}
	if col == columnIDs {
		switch {
		case n > len(b):
			return b, errShort
		case n > mux.MaxRequests:
			return b, fmt.Errorf("a step of %d requests, of at most %d", n, mux.MaxRequests)
		}
		for range n {
			d.outputs = append(d.outputs, output{})
		}
	}
	if n != len(d.outputs) {
		return b, fmt.Errorf("%d entries for %d requests", n, len(d.outputs))
	}
	switch col {
	case columnIDs:
		for i := range d.outputs {
			if d.outputs[i].id, b, err = readText(b); err != nil {
				return b, err
			}
		}
	case columnEnds:
		for i := range d.outputs {
			if len(b) > 0 && b[0] == msgpNil {
				b = b[1:]
				continue
			}
			if b, err = d.outputs[i].end.read(b); err != nil {
				return b, err
			}
		}
	case columnOutputIDs:
		for i := range d.outputs {
			o := &d.outputs[i]
			o.from = len(d.ids)
			if d.ids, b, err = readIDs(d.ids, b); err != nil {
				return b, err
			}
			o.to = len(d.ids)
		}
	case columnOwn, columnOwnIDs, columnTop, columnTopIDs:
		// How many there are to be is the request's to know.
		for i := range d.outputs {
			rest, err := skip(b)
			if err != nil {
				return b, err
			}
			d.outputs[i].scores[col-columnOwn] = b[:len(b)-len(rest)]
			b = rest
		}
	default:
		for i := range d.outputs {
			var v int
			if v, b, err = readCount(b); err != nil {
				return b, err
			}
			switch o := &d.outputs[i]; col {
			case columnPrompt:
				o.prompt = v
			case columnCount:
				o.count = v
			case columnCached:
				o.cached = v
			case columnRetracted:
				o.retracted = v
			}
		}
	}
	return b, nil
}

// readPickle takes in a value that SGLang has pickled, whose array of n members begins with the name
// of the structure. One of another shape is passed over.
func (d *batch) readPickle(b []byte, n int) ([]byte, error) {
	rest, err := skipN(b, n)
	if err != nil || n != 2 {
		return rest, err
	}
	if name, b, err := msgp.ReadStringZC(b); err == nil && string(name) == "PickleWrapper" {
		if d.stats, _, err = msgp.ReadBytesZC(b); err != nil {
			d.stats = nil
		}
	}
	return rest, nil
}

// echo takes in word of a request that ended outside of a step.
func (d *batch) echo(b []byte, n int) (_ []byte, err error) {
	d.id, d.end = nil, finish{how: aborted}
	for i := range n {
		switch {
		case i == 0:
			d.id, b, err = readText(b)
		case i == d.codec.finish && len(b) > 0 && b[0] != msgpNil:
			b, err = d.end.read(b)
		default:
			b, err = skip(b)
		}
		if err != nil {
			return b, err
		}
	}
	if len(d.id) == 0 {
		return b, errors.New("no rid")
	}
	return b, nil
}

// answer takes in a fence that has come back. Other messages that set up logging are not
// ours.
func (d *batch) answer(b []byte, n int) (_ []byte, err error) {
	if n > 0 && msgp.NextType(b) == msgp.StrType {
		var id []byte
		if id, b, err = msgp.ReadStringZC(b); err != nil {
			return b, err
		}
		n--
		if hex, ours := bytes.CutPrefix(id, []byte(fenceName)); ours && len(hex) <= 16 {
			if call, err := strconv.ParseInt(string(hex), 16, 64); err == nil {
				d.kind, d.call = answer, call
			}
		}
	}
	return skipN(b, n)
}

// state reads the scheduler's description of itself: a map of all its settings, three
// of which are used.
func (d *batch) state(b []byte, n int) (_ []byte, err error) {
	d.says = about{}
	for range n {
		if len(b) == 0 || !isMap(b[0]) {
			if b, err = skip(b); err != nil {
				return b, err
			}
			continue
		}
		if b, err = d.says.read(b, true); err != nil {
			return b, err
		}
	}
	return b, nil
}

// read takes in a map: that of the settings, or one that stands in it.
func (a *about) read(b []byte, outer bool) ([]byte, error) {
	fields, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return b, err
	}
	for range fields {
		var name []byte
		if name, b, err = readText(b); err != nil {
			return b, err
		}
		switch {
		case outer && string(name) == "effective_max_running_requests_per_dp" && len(b) > 0 && b[0] != msgpNil:
			a.maxRunning, b, err = readCount(b)
		case outer && string(name) == "chunked_prefill_size":
			a.chunk, b, err = readSetting(b)
		case outer && string(name) == "memory_usage" && len(b) > 0 && isMap(b[0]):
			b, err = a.read(b, false)
		case !outer && string(name) == "token_capacity":
			a.kv, b, err = readSetting(b)
		default:
			b, err = skip(b)
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

// read takes in a finish reason.
func (f *finish) read(b []byte) ([]byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return b, err
	}
	f.how = running
	for range n {
		var name []byte
		if name, b, err = readText(b); err != nil {
			return b, err
		}
		isNil := len(b) > 0 && b[0] == msgpNil
		switch {
		case isNil:
			b = b[1:]
		case string(name) == "type":
			var word []byte
			if word, b, err = readText(b); err == nil {
				err = f.setHow(word)
			}
		case string(name) == "matched":
			b, err = f.readMatched(b)
		case string(name) == "length":
			f.length, b, err = readCount(b)
		case string(name) == "status_code":
			f.status, b, err = readCount(b)
		case string(name) == "message" && msgp.NextType(b) == msgp.StrType:
			f.message, b, err = msgp.ReadStringZC(b)
		default:
			b, err = skip(b)
		}
		if err != nil {
			return b, fmt.Errorf("%q: %w", name, err)
		}
	}
	if f.how == running {
		return b, errors.New("no type")
	}
	return b, nil
}

func (f *finish) setHow(word []byte) error {
	for how := stopped; how <= aborted; how++ {
		if string(word) == finishWords[how] {
			f.how = how
			return nil
		}
	}
	return fmt.Errorf("%q is not a known finish reason", word)
}

// readMatched reads what a generation stopped at: an id, several in a row, or text.
func (f *finish) readMatched(b []byte) (rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.StrType:
		f.word, rest, err = msgp.ReadStringZC(b)
		return rest, err
	case msgp.ArrayType:
		n, b, err := arrayHead(b)
		if err != nil || n == 0 {
			return b, err
		}
		f.isID = true
		for range n {
			if f.matched, b, err = msgp.ReadInt64Bytes(b); err != nil {
				return b, err
			}
		}
		return b, nil
	}
	f.isID = true
	f.matched, rest, err = msgp.ReadInt64Bytes(b)
	return rest, err
}

// readIDs appends the ids of a Python array("q"): an extension, or in earlier
// releases a pair of the type code and bytes.
func readIDs(ids []uint32, b []byte) ([]uint32, []byte, error) {
	if len(b) == 0 {
		return ids, b, errShort
	}
	var raw []byte
	if b[0] == 0xc7 && len(b) >= 3 { // up to 255 bytes, which is 31 ids
		n := int(b[1])
		if b[2] != extIDs || len(b) < 3+n {
			return ids, b, errShort
		}
		raw, b = b[3:3+n], b[3+n:]
	} else if b[0]&0xf0 == 0x90 {
		return readPair(ids, b)
	} else {
		size, head, err := extHead(b)
		if err != nil {
			return ids, b, err
		}
		raw, b = b[head:head+size], b[head+size:]
	}
	if len(raw) < len(idsHead) || string(raw[:len(idsHead)]) != idsHead {
		return ids, b, errors.New(`not an array of 64-bit integers`)
	}
	ids, err := appendInt64s(ids, raw[len(idsHead):])
	return ids, b, err
}

func readPair(ids []uint32, b []byte) ([]uint32, []byte, error) {
	n, b, err := arrayHead(b)
	if err != nil || n != 2 {
		return ids, b, errors.New("not a pair of type and bytes")
	}
	code, b, err := readText(b)
	if err != nil || string(code) != "q" {
		return ids, b, fmt.Errorf("an array of type %q, not of 64-bit integers", code)
	}
	raw, b, err := msgp.ReadBytesZC(b)
	if err != nil {
		return ids, b, err
	}
	ids, err = appendInt64s(ids, raw)
	return ids, b, err
}

func appendInt64s(ids []uint32, raw []byte) ([]uint32, error) {
	if len(raw)%8 != 0 {
		return ids, fmt.Errorf("%d bytes of 64-bit integers", len(raw))
	}
	for ; len(raw) > 0; raw = raw[8:] {
		id := binary.LittleEndian.Uint64(raw)
		if id > math.MaxUint32 {
			return ids, errNoID
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}

// extHead reads the head of an extension with ids, all of whose bytes are there.
func extHead(b []byte) (size, head int, err error) {
	switch c := b[0]; {
	case c == 0xc8 && len(b) >= 4:
		size, head = int(binary.BigEndian.Uint16(b[1:])), 4
	case c == 0xc9 && len(b) >= 6:
		size, head = int(binary.BigEndian.Uint32(b[1:])), 6
	case c >= 0xd4 && c <= 0xd8 && len(b) >= 2:
		size, head = 1<<(c-0xd4), 2
	default:
		return 0, 0, fmt.Errorf("not an array of integers, but %v", msgp.NextType(b))
	}
	if b[head-1] != extIDs {
		return 0, 0, fmt.Errorf("an extension of type %d where ids stand", b[head-1])
	}
	if size > len(b)-head {
		return 0, 0, errShort
	}
	return size, head, nil
}

// readText reads a string without copying it.
func readText(b []byte) (text, rest []byte, err error) {
	if len(b) > 0 && b[0]&0xe0 == 0xa0 {
		if n := 1 + int(b[0]&0x1f); n <= len(b) {
			return b[1:n], b[n:], nil
		}
		return nil, b, errShort
	}
	if msgp.NextType(b) != msgp.StrType {
		return nil, b, fmt.Errorf("%v where a text should stand", msgp.NextType(b))
	}
	return msgp.ReadStringZC(b)
}

// readCount reads an integer that counts something.
func readCount(b []byte) (int, []byte, error) {
	if len(b) > 0 && b[0] < 0x80 {
		return int(b[0]), b[1:], nil
	}
	if len(b) >= 3 && b[0] == 0xcd {
		return int(b[1])<<8 | int(b[2]), b[3:], nil
	}
	v, b, err := msgp.ReadInt64Bytes(b)
	if err == nil && (v < 0 || v > math.MaxInt32) {
		err = fmt.Errorf("a count of %d", v)
	}
	return int(v), b, err
}

// readSetting reads what may be a count, and gives 0 where it is none, as of a setting
// that is -1 or None.
func readSetting(b []byte) (int, []byte, error) {
	if t := msgp.NextType(b); t != msgp.IntType && t != msgp.UintType {
		rest, err := skip(b)
		return 0, rest, err
	}
	v, rest, err := msgp.ReadInt64Bytes(b)
	if v < 0 || v > math.MaxInt32 {
		v = 0
	}
	return int(v), rest, err
}

const msgpNil = 0xc0

func isMap(c byte) bool { return c&0xf0 == 0x80 || c == 0xde || c == 0xdf }

func arrayHead(b []byte) (int, []byte, error) {
	if len(b) > 0 && b[0]&0xf0 == 0x90 {
		return int(b[0] & 0x0f), b[1:], nil
	}
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	return int(n), b, err
}

// skip passes over a value, however deep.
func skip(b []byte) ([]byte, error) { return skipN(b, 1) }

// skipN passes over values. Most of what is skipped are columns of small integers,
// a byte each.
func skipN(b []byte, n int) ([]byte, error) {
	for left := n; left > 0; left-- {
		if len(b) == 0 {
			return b, errShort
		}
		c := b[0]
		size := 1
		switch {
		case c < 0x80, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3:
		case c&0xe0 == 0xa0:
			size += int(c & 0x1f)
		case c&0xf0 == 0x90:
			left += int(c & 0x0f)
		case c&0xf0 == 0x80:
			left += 2 * int(c&0x0f)
		default:
			head, body, values, err := sizeOf(b)
			if err != nil {
				return b, err
			}
			size = head + body
			left += values
		}
		if size > len(b) {
			return b, errShort
		}
		b = b[size:]
	}
	return b, nil
}

// sizeOf returns the size of a value's head and body, and how many values are in it.
func sizeOf(b []byte) (head, body, values int, err error) {
	c := b[0]
	number := func(at, width int) int {
		if len(b) < at+width {
			err = errShort
			return 0
		}
		switch width {
		case 1:
			return int(b[at])
		case 2:
			return int(binary.BigEndian.Uint16(b[at:]))
		}
		return int(binary.BigEndian.Uint32(b[at:]))
	}
	switch c {
	case 0xc4, 0xd9:
		head, body = 2, number(1, 1)
	case 0xc5, 0xda:
		head, body = 3, number(1, 2)
	case 0xc6, 0xdb:
		head, body = 5, number(1, 4)
	case 0xc7:
		head, body = 3, number(1, 1)
	case 0xc8:
		head, body = 4, number(1, 2)
	case 0xc9:
		head, body = 6, number(1, 4)
	case 0xcc, 0xd0:
		head = 2
	case 0xcd, 0xd1:
		head = 3
	case 0xca, 0xce, 0xd2:
		head = 5
	case 0xcb, 0xcf, 0xd3:
		head = 9
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		head, body = 2, 1<<(c-0xd4)
	case 0xdc:
		head, values = 3, number(1, 2)
	case 0xdd:
		head, values = 5, number(1, 4)
	case 0xde:
		head, values = 3, 2*number(1, 2)
	case 0xdf:
		head, values = 5, 2*number(1, 4)
	default:
		err = fmt.Errorf("a byte %#02x where a value should begin", c)
	}
	return head, body, values, err
}
