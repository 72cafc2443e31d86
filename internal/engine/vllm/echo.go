package vllm

import "bytes"

// echo drops the ids of the prompt from the first event of an answer of /v1/completions,
// as they come: some 250 KB of 40,000 ids, of which not one is news. Dropped, they need no
// room, and cost a look for the end of the array.
//
// A quote inside of a JSON string is escaped, so that the key cannot be found in a text.
type echo struct {
	state echoState
	tail  [len(echoKey) - 1]byte // the end of what came, where a key may have begun
	kept  int                    // bytes of tail
}

type echoState uint8

const (
	echoAhead  echoState = iota // the array has not begun
	echoInside                  // its end has not come
	echoOver
)

const echoKey = `"prompt_token_ids":[`

// trim takes the ids out of the next bytes of an answer, in place.
func (x *echo) trim(chunk []byte) []byte {
	from := 0
	switch x.state {
	case echoOver:
		return chunk
	case echoAhead:
		if from = x.find(chunk); from < 0 {
			return chunk
		}
		x.state = echoInside
	}
	end := bytes.IndexByte(chunk[from:], ']')
	if end < 0 {
		return chunk[:from]
	}
	x.state = echoOver
	return append(chunk[:from], chunk[from+end:]...)
}

// find returns the place behind the key, of which the beginning may have come before; -1
// is nowhere yet.
func (x *echo) find(chunk []byte) int {
	var room [2 * len(echoKey)]byte
	seam := append(room[:0], x.tail[:x.kept]...)
	seam = append(seam, chunk[:min(len(chunk), len(echoKey)-1)]...)
	if at := bytes.Index(seam, []byte(echoKey)); at >= 0 {
		return at + len(echoKey) - x.kept
	}
	if at := bytes.Index(chunk, []byte(echoKey)); at >= 0 {
		return at + len(echoKey)
	}
	if len(chunk) >= len(x.tail) {
		x.kept = copy(x.tail[:], chunk[len(chunk)-len(x.tail):])
		return -1
	}
	from := max(0, len(seam)-len(x.tail)) // it holds all of chunk
	x.kept = copy(x.tail[:], seam[from:])
	return -1
}
