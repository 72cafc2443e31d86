//go:build linux

package client

import (
	"bytes"
	"strconv"

	"weir/internal/lab/cell"
)

// verdict is how a stream ended, or that it did not.
type verdict uint8

const (
	open     verdict = iota // not ended
	complete                // finish, usage, [DONE], and the body's end
	errored                 // an error event, or a response that is none
	cut                     // the connection ended before the body did
)

// account is what a stream has sent so far.
type account struct {
	next      int // number of the token that must come
	received  int
	missing   int // tokens that were jumped over
	wrong     int // tokens repeated, out of order, or unreadable
	events    int // with content
	usage     int // tokens by the usage, -1: not reported
	finished  bool
	done      bool
	errorText string
}

// lost returns the number of tokens missing from a stream that ended as complete, by its
// usage or by its own numbering.
func (a *account) lost() int { return max(a.usage-a.received, a.missing, 0) }

// verifier checks a stream's events and hands each token's number and send
// time to seen.
type verifier struct {
	relayed bool
	words   *cell.Words
	board   *cell.Board
	seen    func(sent int64)
}

var (
	contentMark = []byte(`"content":"`)
	usageMark   = []byte(`"completion_tokens":`)
	finishMark  = []byte(`"finish_reason":"`)
	errorMark   = []byte(`data: {"error"`)
	dataMark    = []byte("data: ")
	doneEvent   = []byte("data: [DONE]")
)

// event takes in one event of a stream.
func (v *verifier) event(a *account, stream int, e []byte) {
	if a.done {
		a.wrong++
		return
	}
	if i := bytes.Index(e, contentMark); i >= 0 {
		text := e[i+len(contentMark):]
		text = text[:max(0, bytes.IndexByte(text, '"'))]
		if len(text) > 0 {
			a.events++
			if v.relayed {
				v.numbered(a, text)
			} else {
				v.worded(a, stream, text)
			}
		}
		return
	}
	switch {
	case bytes.Equal(e, doneEvent):
		a.done = true
	case bytes.HasPrefix(e, errorMark):
		a.errorText = string(e)
	case bytes.Contains(e, finishMark):
		a.finished = true
	case bytes.Contains(e, usageMark):
		digits := e[bytes.Index(e, usageMark)+len(usageMark):]
		n := 0
		for n < len(digits) && '0' <= digits[n] && digits[n] <= '9' {
			n++
		}
		count, err := strconv.Atoi(string(digits[:n]))
		if err != nil {
			a.wrong++
			return
		}
		a.usage = count
	case !bytes.HasPrefix(e, dataMark):
		a.wrong++ // nothing here sends comments
	}
}

// numbered takes in the content of a relayed engine's event: its number and
// its send time.
func (v *verifier) numbered(a *account, text []byte) {
	if len(text) != cell.NumberedLen || text[0] != ' ' || text[9] != ' ' {
		a.wrong++
		return
	}
	number, ok1 := digits(text[1:9])
	sent, ok2 := digits(text[10:])
	if !ok1 || !ok2 || int(number) < a.next {
		a.wrong++
		return
	}
	a.missing += int(number) - a.next
	a.next = int(number) + 1
	a.received++
	v.seen(sent)
}

func digits(b []byte) (n int64, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// worded takes in the content of a plane's event: one word or several.
func (v *verifier) worded(a *account, stream int, text []byte) {
	for len(text) > 0 {
		want := v.words.Text(stream, a.next)
		if len(text) >= len(want) && string(text[:len(want)]) == want && (len(text) == len(want) || text[len(want)] == ' ') {
			text = text[len(want):]
			v.take(a, stream)
			continue
		}
		end := len(text)
		if i := bytes.IndexByte(text[1:], ' '); i >= 0 {
			end = 1 + i
		}
		ahead, ok := v.words.Ahead(stream, a.next, text[:end])
		text = text[end:]
		if !ok {
			a.wrong++
			continue
		}
		a.missing += ahead
		a.next += ahead
		v.take(a, stream)
	}
}

// take counts the token that was expected.
func (v *verifier) take(a *account, stream int) {
	sent, ok := v.board.SentAt(stream, a.next)
	a.next++
	if !ok {
		a.wrong++ // never sent
		return
	}
	a.received++
	v.seen(sent)
}

// judge returns how a stream ended, given the end of its response.
func (a *account) judge(r *response, broken error) verdict {
	switch {
	case a.errorText != "" || broken != nil:
		return errored
	case !r.complete():
		return cut
	case a.finished && a.done && a.usage >= 0:
		return complete
	}
	return errored
}
