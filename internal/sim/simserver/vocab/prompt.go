package vocab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/dialect/media"
	"weir/internal/infer"
	"weir/internal/sim/simserver/fields"
)

// Chat renders and encodes the messages of a chat, with the tools that it offers and variables for the
// template. id is the request's, for the record of media.
func (v *Vocab) Chat(ctx context.Context, id string, messages, tools, kwargs jsontext.Value) ([]uint32, error) {
	if messages.Kind() != '[' {
		return nil, infer.Invalid("messages", "messages is missing; send a list of messages")
	}
	messages, shown, err := mediaOfChat(messages)
	if err != nil {
		return nil, err
	}
	text, err := v.tokenizer.Render(messages, tools, kwargs)
	if err != nil {
		return nil, fields.AsInvalid("messages", err)
	}
	ids, err := v.tokenizer.Encode(text, false)
	if err != nil {
		return nil, fields.AsInvalid("messages", err)
	}
	full, err := v.Expand(ctx, id, ids, shown)
	return full.IDs, err
}

// mediaOfChat takes media out of the messages of a chat, and leaves in their place the
// markers by which a chat template knows them.
func mediaOfChat(messages jsontext.Value) (rest jsontext.Value, all []Medium, err error) {
	if !bytes.Contains(messages, []byte("_url")) && !bytes.Contains(messages, []byte("input_audio")) {
		return messages, nil, nil
	}
	rest, err = eachMember(messages, func(name string, content jsontext.Value) (jsontext.Value, error) {
		if name != "content" || content.Kind() != '[' {
			return content, nil
		}
		var parts []jsontext.Value
		if err := json.Unmarshal(content, &parts); err != nil {
			return nil, infer.Invalid("messages", "messages: %v", err)
		}
		for i, raw := range parts {
			var p struct {
				Type  string         `json:"type"`
				Image jsontext.Value `json:"image_url"`
				Audio struct {
					Data   string `json:"data"`
					Format string `json:"format"`
				} `json:"input_audio"`
				AudioURL jsontext.Value `json:"audio_url"`
			}
			if err := json.Unmarshal(raw, &p); err != nil {
				return nil, infer.Invalid("messages", "messages: a part of content: %v", err)
			}
			var m infer.Media
			var err error
			switch p.Type {
			case "image_url":
				m, err = MediaURL("image_url", infer.MediaImage, p.Image)
			case "audio_url":
				m, err = MediaURL("audio_url", infer.MediaAudio, p.AudioURL)
			case "input_audio":
				m, err = media.FromFormat("input_audio.format", "input_audio.data", p.Audio.Format, []byte(p.Audio.Data))
			default:
				continue
			}
			if err != nil {
				return nil, err
			}
			one, err := MediumOf(&m)
			if err != nil {
				return nil, infer.Invalid("messages", "messages: %v", err)
			}
			all = append(all, one)
			parts[i] = jsontext.Value(`{"type":"` + m.Kind.String() + `"}`)
		}
		return json.Marshal(parts)
	})
	return rest, all, err
}

// MediaURL reads a URL, or an object that has it.
func MediaURL(field string, kind infer.MediaKind, v jsontext.Value) (infer.Media, error) {
	var at struct {
		URL string `json:"url"`
	}
	if json.Unmarshal(v, &at.URL) != nil && json.Unmarshal(v, &at) != nil {
		return infer.Media{}, infer.Invalid(field, "%s must be an object with url", field)
	}
	return media.FromURL(field, kind, []byte(at.URL))
}

// eachMember copies a list of objects with each member's value as change gives it.
func eachMember(list jsontext.Value, change func(name string, value jsontext.Value) (jsontext.Value, error)) (jsontext.Value, error) {
	var out bytes.Buffer
	dec, enc := jsontext.NewDecoder(bytes.NewReader(list)), jsontext.NewEncoder(&out)
	name := ""
	for {
		// A member's value stands at depth 2, after its name.
		kind, length := dec.StackIndex(dec.StackDepth())
		if dec.StackDepth() == 2 && kind == '{' && length%2 == 1 {
			value, err := dec.ReadValue()
			if err == nil {
				value, err = change(name, value)
			}
			if err == nil {
				err = enc.WriteValue(value)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		token, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return bytes.TrimSpace(out.Bytes()), nil
		}
		if err != nil {
			return nil, infer.Invalid("messages", "messages: %v", err)
		}
		if token.Kind() == '"' {
			name = token.String()
		}
		if err := enc.WriteToken(token); err != nil {
			return nil, infer.Invalid("messages", "messages: %v", err)
		}
	}
}

// Prompts reads a text completion's prompt or an embedding's input, called
// param: a string, ids, or a list of either.
func (v *Vocab) Prompts(param string, value jsontext.Value) ([][]uint32, error) {
	switch value.Kind() {
	case '"':
		ids, err := v.One(param, value)
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
	for i, one := range list {
		var err error
		if one.Kind() == '"' {
			prompts[i], err = v.One(param, one)
		} else {
			err = json.Unmarshal(one, &prompts[i])
		}
		if err != nil {
			return nil, infer.Invalid(fmt.Sprintf("%s[%d]", param, i), "%s[%d] must be a string or a list of token ids: %v", param, i, err)
		}
	}
	return prompts, nil
}

// One encodes a string.
func (v *Vocab) One(param string, value jsontext.Value) ([]uint32, error) {
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		return nil, infer.Invalid(param, "%s is not valid: %v", param, err)
	}
	ids, err := v.tokenizer.Encode(text, true)
	if err != nil {
		return nil, fields.AsInvalid(param, err)
	}
	return ids, nil
}
