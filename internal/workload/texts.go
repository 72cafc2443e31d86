package workload

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// texts reads conversations in ShareGPT's form, one JSON list or objects one
// after another: each has conversations, a list of turns with from and value,
// or messages with role and content. What comes before the first answer is a
// prompt, and the answer's length is that of the output. Conversations without a
// prompt or an answer are passed over. A file without any other is an error.
type texts struct {
	name   string
	encode func(string) ([]uint32, error) // nil: lengths are of words
	keep   bool                           // the text itself is wanted
	lines  *lineReader
	dec    *jsontext.Decoder
	list   bool
	begun  bool
	used   bool // a request was made
	passed int  // conversations that were passed over
}

type conversation struct {
	ShareGPT []struct {
		From  string `json:"from"`
		Value string `json:"value"`
	} `json:"conversations"`
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
	Prompt       *string `json:"prompt"`
	Completion   string  `json:"completion"`
	OutputTokens int     `json:"output_tokens"`
}

func newTexts(r io.Reader, name string, encode func(string) ([]uint32, error), keep bool) *texts {
	lines := &lineReader{r: r, line: 1}
	return &texts{name: name, encode: encode, keep: keep, lines: lines, dec: jsontext.NewDecoder(lines)}
}

// next sets r to the next prompt and the length of its answer.
func (t *texts) next(r *Request) error {
	for {
		raw, err := t.value()
		switch {
		case err == io.EOF && !t.used:
			return t.useless()
		case err != nil:
			return err
		}
		begin := t.dec.InputOffset() - int64(len(raw))
		wrong := func(field string, err error) error {
			return &Error{File: t.name, Line: t.lines.at(begin), Field: field, Err: err}
		}
		t.lines.at(begin) // forgets the lines before
		var c conversation
		if err := json.Unmarshal(raw, &c); err != nil {
			field, err := jsonFault(err)
			return wrong(field, err)
		}
		if c.ShareGPT == nil && c.Messages == nil && c.Prompt == nil {
			return wrong("", errors.New("a conversation has conversations, a list of turns with from and value, messages, with role and content, or a prompt"))
		}
		question, answer := c.split()
		if question == "" || answer == "" && c.OutputTokens == 0 {
			t.passed++
			continue
		}
		*r = Request{Output: c.OutputTokens}
		if t.keep {
			r.Text = question
		}
		if t.encode == nil {
			r.Words = len(strings.Fields(question))
			if r.Output == 0 {
				r.Output = len(strings.Fields(answer))
			}
		} else {
			if r.IDs, err = t.encode(question); err != nil {
				return wrong("", err)
			}
			if r.Output == 0 {
				ids, err := t.encode(answer)
				if err != nil {
					return wrong("", err)
				}
				r.Output = len(ids)
			}
		}
		if r.Output < 0 || r.Output > maxTokens {
			return wrong("output_tokens", fmt.Errorf("%d is not a number of tokens from 0 to %d", r.Output, maxTokens))
		}
		if r.Input() > 0 && r.Output > 0 {
			t.used = true
			return nil
		}
		t.passed++
	}
}

// useless returns the error of a file of which no request can be made.
func (t *texts) useless() error {
	err := errors.New("the file has no conversation")
	if t.passed > 0 {
		err = fmt.Errorf("no conversation has a prompt and an answer after it (%d passed over), and the length of the answer is that of the output: add answers (turns from gpt, or of role assistant), or write {\"prompt\": TEXT, \"output_tokens\": N}", t.passed)
	}
	return &Error{File: t.name, Err: err}
}

// value reads the next conversation's JSON.
func (t *texts) value() (jsontext.Value, error) {
	if !t.begun {
		t.begun = true
		if t.list = t.dec.PeekKind() == '['; t.list {
			if _, err := t.dec.ReadToken(); err != nil {
				return nil, t.broken(err)
			}
		}
	}
	if t.list && t.dec.PeekKind() == ']' {
		return nil, io.EOF
	}
	raw, err := t.dec.ReadValue()
	switch {
	case err == io.EOF && !t.list:
		return nil, io.EOF
	case err != nil:
		return nil, t.broken(err)
	}
	return raw, nil
}

func (t *texts) broken(err error) error {
	var syn *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), err == io.EOF:
		return &Error{File: t.name, Line: t.lines.line, Err: errors.New("the JSON ends too early")}
	case errors.As(err, &syn):
		return &Error{File: t.name, Line: t.lines.at(syn.ByteOffset), Err: fmt.Errorf("not valid JSON: %w", syn.Err)}
	}
	return &Error{File: t.name, Line: t.lines.line, Err: fmt.Errorf("read: %w", err)}
}

// answerers are who gives answers, in both forms.
var answerers = []string{"gpt", "chatgpt", "bing", "bard", "assistant", "model"}

// split returns what was said before the first answer, and that answer.
func (c *conversation) split() (question, answer string) {
	if c.Prompt != nil {
		return *c.Prompt, c.Completion
	}
	var b strings.Builder
	turn := func(who, text string) bool {
		if slices.Contains(answerers, who) {
			answer = text
			return true
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(text)
		return false
	}
	for _, x := range c.ShareGPT {
		if turn(x.From, x.Value) {
			return b.String(), answer
		}
	}
	for _, x := range c.Messages {
		if turn(x.Role, x.Content) {
			return b.String(), answer
		}
	}
	return "", ""
}

// lineReader knows the lines of what was read through it.
type lineReader struct {
	r    io.Reader
	read int64
	line int     // of where reading is
	ends []int64 // offsets of the line ends that at has not passed
	past int     // line ends that it has
	from int64   // the offset that at was asked for last, where the present value is
}

// maxConversation bounds a conversation of a file, in bytes.
const maxConversation = 16 << 20

var errLongConversation = fmt.Errorf("the conversation is longer than %d MiB", maxConversation>>20)

// Read implements io.Reader.
func (l *lineReader) Read(p []byte) (int, error) {
	if l.read-l.from > maxConversation {
		return 0, errLongConversation
	}
	n, err := l.r.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.line++
			l.ends = append(l.ends, l.read+int64(i))
		}
	}
	l.read += int64(n)
	return n, err
}

// at returns the line of an offset, counted from 1. Offsets must not fall.
func (l *lineReader) at(offset int64) int {
	i, _ := slices.BinarySearch(l.ends, offset)
	l.past, l.from = l.past+i, offset
	l.ends = slices.Delete(l.ends, 0, i)
	return l.past + 1
}
