package simserver

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// maxChoices bounds the choices of one request.
const maxChoices = 128

// completionRequest is what the face reads of a chat or text completion; all
// other fields are accepted and have no effect, as temperature has none.
type completionRequest struct {
	Model               string         `json:"model"`
	Messages            jsontext.Value `json:"messages"`
	Prompt              jsontext.Value `json:"prompt"`
	MaxTokens           *int           `json:"max_tokens"`
	MaxCompletionTokens *int           `json:"max_completion_tokens"`
	MinTokens           int            `json:"min_tokens"`
	IgnoreEOS           bool           `json:"ignore_eos"`
	Stop                jsontext.Value `json:"stop"`
	StopTokenIDs        []uint32       `json:"stop_token_ids"`
	Seed                *int64         `json:"seed"`
	N                   *int           `json:"n"`
	Stream              bool           `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// limit gives max_tokens under either name; 0 when it was not given.
func (r *completionRequest) limit() (int, error) {
	n, param := r.MaxCompletionTokens, "max_completion_tokens"
	if n == nil {
		n, param = r.MaxTokens, "max_tokens"
	}
	if n == nil {
		return 0, nil
	}
	if *n < 1 {
		return 0, infer.Invalid(param, "%s is %d; it must be at least 1", param, *n)
	}
	return *n, nil
}

// choices gives n.
func (r *completionRequest) choices() (int, error) {
	if r.N == nil {
		return 1, nil
	}
	if *r.N < 1 || *r.N > maxChoices {
		return 0, infer.Invalid("n", "n is %d; it must be between 1 and %d", *r.N, maxChoices)
	}
	return *r.N, nil
}

// stops gives the stop strings.
func (r *completionRequest) stops() ([]string, error) {
	var list []string
	switch r.Stop.Kind() {
	case 0, 'n':
		return nil, nil
	case '"':
		list = []string{""}
		if err := json.Unmarshal(r.Stop, &list[0]); err != nil {
			return nil, infer.Invalid("stop", "stop is not valid: %v", err)
		}
	default:
		if err := json.Unmarshal(r.Stop, &list); err != nil {
			return nil, infer.Invalid("stop", "stop must be a string or a list of strings: %v", err)
		}
	}
	for i, s := range list {
		if s == "" {
			return nil, infer.Invalid("stop", "stop[%d] is empty; leave it out", i)
		}
	}
	return list, nil
}

// chatPrompt renders and encodes the messages of a chat.
func (e *Engine) chatPrompt(r *completionRequest) ([][]uint32, error) {
	if r.Messages.Kind() != '[' {
		return nil, infer.Invalid("messages", "messages is missing; send a list of messages")
	}
	text, err := e.tokenizer.Render(r.Messages)
	if err != nil {
		return nil, asInvalid("messages", err)
	}
	ids, err := e.tokenizer.Encode(text)
	if err != nil {
		return nil, asInvalid("messages", err)
	}
	return [][]uint32{ids}, nil
}

// textPrompts reads a text completion's prompt or an embedding's input, called
// param: a string, ids, or a list of either.
func (e *Engine) textPrompts(param string, value jsontext.Value) ([][]uint32, error) {
	switch value.Kind() {
	case '"':
		ids, err := e.textPrompt(param, value)
		return [][]uint32{ids}, err
	case '[':
	default:
		return nil, infer.Invalid(param, "%s is missing; send a string, a list of token ids, or a list of either", param)
	}
	var ids []uint32
	if json.Unmarshal(value, &ids) == nil {
		return [][]uint32{ids}, nil
	}
	var list []jsontext.Value
	if err := json.Unmarshal(value, &list); err != nil {
		return nil, infer.Invalid(param, "%s is not valid: %v", param, err)
	}
	prompts := make([][]uint32, len(list))
	for i, v := range list {
		var err error
		if v.Kind() == '"' {
			prompts[i], err = e.textPrompt(param, v)
		} else {
			err = json.Unmarshal(v, &prompts[i])
		}
		if err != nil {
			return nil, infer.Invalid(fmt.Sprintf("%s[%d]", param, i), "%s[%d] must be a string or a list of token ids: %v", param, i, err)
		}
	}
	return prompts, nil
}

func (e *Engine) textPrompt(param string, v jsontext.Value) ([]uint32, error) {
	var text string
	if err := json.Unmarshal(v, &text); err != nil {
		return nil, infer.Invalid(param, "%s is not valid: %v", param, err)
	}
	ids, err := e.tokenizer.Encode(text)
	if err != nil {
		return nil, asInvalid(param, err)
	}
	return ids, nil
}

// asInvalid makes an error of the tokenizer the caller's, unless it has a code
// of its own.
func asInvalid(param string, err error) error {
	if e := infer.AsError(err); e.Code != infer.CodeInternal {
		return e
	}
	return &infer.Error{Code: infer.CodeInvalid, Param: param, Message: param + ": " + err.Error(), Cause: err}
}
