package outputparse

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// CallID makes an id for a call that has none, where the model's template does not take any
// id; else it is empty. n is how many calls are before it in the conversation.
func (f Format) CallID(tool string, n int) string {
	switch {
	case f.tools == nil:
		return ""
	case f.tools.typedIDs:
		return functions + tool + ":" + strconv.Itoa(n)
	case f.tools.shortIDs:
		var b [8]byte
		rand.Read(b[:]) // never fails
		return shortID(binary.NativeEndian.Uint64(b[:]))
	}
	return ""
}

// shortID spells a number as an id of nine letters and digits.
func shortID(n uint64) string {
	var b [9]byte
	for i := range b {
		b[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[n%36]
		n /= 36
	}
	return string(b[:])
}

// takes reports whether the model's template takes the id of a call of a tool.
func (f Format) takes(id, tool string) bool {
	if f.tools.shortIDs {
		return len(id) == 9 && strings.IndexFunc(id, func(r rune) bool {
			return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) < 0
	}
	number, ok := strings.CutPrefix(id, functions+tool+":")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// HistoryIDs returns a conversation, a JSON array in OpenAI's shape, with ids of calls as the
// model's template takes them: those that come from elsewhere are replaced, in calls and in
// their results alike. The same conversation gives the same ids. It also counts the calls.
// Anything but such a conversation is returned as it is.
func (f Format) HistoryIDs(messages []byte) (_ []byte, calls int) {
	if f.tools == nil || !f.tools.typedIDs && !f.tools.shortIDs || !bytes.Contains(messages, []byte(`"tool_call`)) {
		return messages, 0
	}
	h := history{dec: jsontext.NewDecoder(bytes.NewBuffer(messages), jsontext.AllowDuplicateNames(true))}
	if h.list(h.message) != nil {
		return messages, 0
	}
	var out []byte
	at := 0
	known, used := map[string]string{}, map[string]bool{}
	for _, id := range h.ids {
		if id.call && f.takes(id.text, id.tool) {
			used[id.text] = true
		}
	}
	for _, id := range h.ids {
		own, ok := id.text, true
		switch {
		case !id.call && known[id.text] != "":
			own = known[id.text]
		case f.tools.shortIDs && !f.takes(id.text, ""):
			sum := fnv.New64a()
			sum.Write([]byte(id.text))
			own = shortID(sum.Sum64())
		case id.call && f.tools.typedIDs && !f.takes(id.text, id.tool):
			for n := calls; ; n++ {
				if own = f.CallID(id.tool, n); !used[own] {
					break
				}
			}
		default:
			ok = false
		}
		if id.call {
			known[id.text], used[own] = own, true
			calls++
		}
		if ok && own != id.text {
			out = append(out, messages[at:id.from]...)
			out, _ = jsontext.AppendQuote(out, own)
			at = id.to
		}
	}
	if at == 0 {
		return messages, calls
	}
	return append(out, messages[at:]...), calls
}

// history reads the ids of a conversation's calls.
type history struct {
	dec *jsontext.Decoder
	ids []historyID
}

// historyID is the id of a call, or that in a call's result, at its place.
type historyID struct {
	from, to   int
	text, tool string
	call       bool
}

// list reads the elements of an array; another value is passed over.
func (h *history) list(element func() error) error {
	if h.dec.PeekKind() != '[' {
		return h.dec.SkipValue()
	}
	if _, err := h.dec.ReadToken(); err != nil {
		return err
	}
	for h.dec.PeekKind() != ']' {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := h.dec.ReadToken()
	return err
}

// members reads the members of an object that are asked for; another value is passed over.
func (h *history) members(member func(name string) (read bool, err error)) error {
	if h.dec.PeekKind() != '{' {
		return h.dec.SkipValue()
	}
	if _, err := h.dec.ReadToken(); err != nil {
		return err
	}
	for h.dec.PeekKind() != '}' {
		name, err := h.dec.ReadToken()
		if err != nil {
			return err
		}
		read, err := member(name.String())
		if err == nil && !read {
			err = h.dec.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	_, err := h.dec.ReadToken()
	return err
}

// text reads a string and its place; another value is passed over.
func (h *history) text() (id historyID, err error) {
	if h.dec.PeekKind() != '"' {
		return id, h.dec.SkipValue()
	}
	value, err := h.dec.ReadValue()
	if err != nil {
		return id, err
	}
	text, err := jsontext.AppendUnquote(nil, value)
	id.text, id.to = string(text), int(h.dec.InputOffset())
	id.from = id.to - len(value)
	return id, err
}

func (h *history) message() error {
	return h.members(func(name string) (bool, error) {
		switch name {
		case "tool_calls":
			return true, h.list(h.call)
		case "tool_call_id":
			id, err := h.text()
			if id.to > 0 {
				h.ids = append(h.ids, id)
			}
			return true, err
		}
		return false, nil
	})
}

func (h *history) call() error {
	var id historyID
	tool := ""
	err := h.members(func(name string) (_ bool, err error) {
		switch name {
		case "id":
			id, err = h.text()
			return true, err
		case "function":
			return true, h.members(func(name string) (bool, error) {
				if name != "name" {
					return false, nil
				}
				text, err := h.text()
				tool = text.text
				return true, err
			})
		}
		return false, nil
	})
	if id.to > 0 {
		id.tool, id.call = tool, true
		h.ids = append(h.ids, id)
	}
	return err
}
