package chat

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"

	"weir/internal/infer"
	"weir/internal/model/chat/jinja"
)

// continueTag marks the end of the final message in the rendered text, as in
// transformers. Its trailing space shows whether the template trims.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// continuation finds where the final message ends in the rendered text.
type continuation struct {
	final string
}

func continueError(format string, args ...any) error {
	return infer.Invalid("continue_final_message", format, args...)
}

// prepareContinue marks the end of the final message.
func (t *Template) prepareContinue(messages *jinja.List) (*continuation, error) {
	n := len(messages.Items)
	if n == 0 {
		return nil, continueError("continue_final_message is set but messages is empty; add the message to continue")
	}
	m := messages.Items[n-1].(*jinja.Dict)
	content, ok := m.Get("content")
	if !ok || content == jinja.None {
		return nil, continueError("continue_final_message is set but the final message has no content to continue")
	}
	if !strings.Contains(t.source, "content") {
		return nil, continueError("continue_final_message is set but the model's chat template does not use content")
	}
	switch c := content.(type) {
	case jinja.Str:
		m.Set("content", c+continueTag)
		return &continuation{final: string(c)}, nil
	case *jinja.List:
		for i := len(c.Items) - 1; i >= 0; i-- {
			part, ok := c.Items[i].(*jinja.Dict)
			if !ok {
				continue
			}
			if v, ok := part.Get("text"); ok {
				s, ok := v.(jinja.Str)
				if !ok {
					return nil, infer.Invalid(fmt.Sprintf("messages[%d].content[%d].text", n-1, i), "text must be a string")
				}
				part.Set("text", s+continueTag)
				return &continuation{final: string(s)}, nil
			}
		}
		return nil, continueError("continue_final_message is set but the final message has no text part to continue")
	}
	return nil, infer.Invalid(fmt.Sprintf("messages[%d].content", n-1), "content must be a string or an array of parts")
}

// cut returns the length of the prompt up to the end of the final message.
func (c *continuation) cut(out []byte) (int, error) {
	at := bytes.LastIndex(out, []byte(strings.TrimSpace(continueTag)))
	if at < 0 || !bytes.Contains(out, []byte(trimSpace(c.final))) {
		return 0, continueError("continue_final_message is set but the model's chat template changes or drops the end of the" +
			" final message, so it cannot be continued")
	}
	if bytes.HasPrefix(out[at:], []byte(continueTag)) {
		return at, nil
	}
	return len(bytes.TrimRightFunc(out[:at], isSpace)), nil
}

func trimSpace(s string) string { return strings.TrimFunc(s, isSpace) }

// isSpace is Python's str.isspace: it also counts the four ASCII separators.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
