package openai

import (
	"fmt"
	"math"

	"weir/internal/infer"
)

// Bounds of a request.
const (
	maxStops   = 16
	maxStopIDs = 1024
)

// Request is a body decoded for an engine that takes ids. Raw JSON in it
// refers to the body.
type Request struct {
	Endpoint Endpoint
	Model    string

	// Messages is the JSON array of a chat, checked.
	Messages []byte
	// ChatTemplateKwargs is a JSON object, or nil.
	ChatTemplateKwargs []byte
	// Tools is the JSON array of the tools that the model may call, checked; nil
	// where there are none or tool_choice is none. With SingleCall the answer
	// ends with its first call. With ForcedTool or ForcedAny, Guide is such that
	// the answer is nothing but the arguments of that tool, or an array of objects
	// with name and parameters.
	Tools      []byte
	SingleCall bool
	ForcedTool string
	ForcedAny  bool
	// AddGenerationPrompt opens the assistant's turn after the messages. It
	// holds unless the caller says otherwise or continues the last message.
	AddGenerationPrompt  bool
	ContinueFinalMessage bool

	// Prompt or PromptIDs is the prompt of a completion; the other is empty.
	// Whether the ids are below the model's vocabulary is the caller's to check.
	Prompt    string
	PromptIDs []uint32

	// MaxTokens bounds the ids generated; 0 when the caller did not say.
	// Whether it fits the context is the caller's to check.
	MaxTokens int
	MinTokens int
	IgnoreEOS bool
	Stop      []string
	StopIDs   []uint32
	Sampling  infer.Sampling
	// Guide is what the output must match, nil when anything may come.
	Guide *infer.Guide

	Stream       bool
	IncludeUsage bool
	// ReturnTokenIDs asks for the ids of prompt and output beside the text.
	ReturnTokenIDs bool
}

// decoding is a request under way.
type decoding struct {
	Request
	kind          string // of engine, for refusals
	carries       infer.Carries
	guidedBy      string // the field that gave Guide
	streamOptions bool
	maxTokens     int // as the two fields gave it, 0 when not
	maxCompletion int
	addPrompt     *bool
	noTools       bool // tool_choice is none
	tools         []toolFunction

	tokenize   TokenizeRequest
	detokenize DetokenizeRequest
	hasTexts   bool

	addSpecial, skipSpecial *bool
}

// Request decodes every field for an engine of a kind that takes ids and carries
// so much; kind is named in refusals. Its error is an *infer.Error that names
// the field.
func (h *Head) Request(kind string, carries infer.Carries) (*Request, error) {
	if h.Endpoint != Chat && h.Endpoint != Completions {
		return nil, infer.Errorf(infer.CodeUnsupported, "engine kind %q serves %s and %s only", kind, Chat, Completions)
	}
	d, err := h.fields(kind, carries)
	if err != nil {
		return nil, err
	}
	if err := d.finish(); err != nil {
		return nil, err
	}
	return &d.Request, nil
}

// fields decodes every field by itself.
func (h *Head) fields(kind string, carries infer.Carries) (*decoding, error) {
	if h.duplicate != "" {
		return nil, infer.Invalid(h.duplicate, "%s is given twice; give it once", h.duplicate)
	}
	d := &decoding{kind: kind, carries: carries, Request: Request{
		Endpoint:     h.Endpoint,
		Model:        h.Model,
		Stream:       h.Stream,
		IncludeUsage: h.IncludeUsage,
	}}
	for _, at := range h.Fields {
		if err := d.field(at.Name, h.Body[at.Start:at.End]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// field decodes one top-level field.
func (d *decoding) field(name string, raw []byte) error {
	i, ok := tables[d.Endpoint][name]
	if !ok {
		return d.unknown(name)
	}
	f := &fields[i]
	treatment := f.Treatment
	if f.Needs&^d.carries != 0 {
		treatment = Refused
	}
	switch treatment {
	case Carried:
		if kindOf(raw) == 'n' && (d.Endpoint.Tokenizes() || name != "messages" && name != "prompt") {
			return nil
		}
		return f.take(d, raw)
	case Refused:
		if !f.asksForNothing(raw) {
			return d.unsupported(name, f.Defaults)
		}
	}
	return nil
}

// unsupported refuses a field that the engine kind cannot carry.
func (d *decoding) unsupported(path string, defaults []string) error {
	hint := "leave it out"
	if len(defaults) > 0 {
		hint += " or send " + defaults[0]
	}
	return &infer.Error{
		Code:    infer.CodeUnsupported,
		Param:   path,
		Message: fmt.Sprintf("%s is not supported by %s; %s", path, d.carrier(), hint),
	}
}

// carrier names who a field is for.
func (d *decoding) carrier() string {
	if d.Endpoint.Tokenizes() {
		return d.Endpoint.String()
	}
	return fmt.Sprintf("engine kind %q", d.kind)
}

// unknown refuses a field by a name that is not in the table.
func (d *decoding) unknown(name string) error {
	e := &infer.Error{Code: infer.CodeUnsupported, Param: clip(name, 64)}
	other := Other
	for at := Chat; at < numEndpoints && other == Other; at++ {
		if _, ok := tables[at][name]; ok {
			other = at
		}
	}
	switch {
	case other != Other:
		e.Message = fmt.Sprintf("%s is a field of %s, not of %s; leave it out", name, other, d.Endpoint)
	case nearest(d.Endpoint, name) != "":
		e.Message = fmt.Sprintf("there is no field %q that %s can carry; did you mean %s?", e.Param, d.carrier(), nearest(d.Endpoint, name))
	default:
		e.Message = fmt.Sprintf("there is no field %q that %s can carry; leave it out", e.Param, d.carrier())
	}
	return e
}

// finish checks what fields say together.
func (d *decoding) finish() error {
	switch {
	case d.Endpoint == Chat && d.Messages == nil:
		return infer.Invalid("messages", "messages is required: send an array with at least one message")
	case d.Endpoint == Completions && d.Prompt == "" && d.PromptIDs == nil:
		return infer.Invalid("prompt", "prompt is required: send a string or an array of token ids")
	case d.streamOptions && !d.Stream:
		return infer.Invalid("stream_options", "stream_options needs stream to be true")
	case d.maxTokens > 0 && d.maxCompletion > 0 && d.maxTokens != d.maxCompletion:
		return infer.Invalid("max_completion_tokens", "max_completion_tokens is %d and max_tokens is %d; give one of them", d.maxCompletion, d.maxTokens)
	}
	d.MaxTokens = max(d.maxTokens, d.maxCompletion)
	if d.MaxTokens > 0 && d.MinTokens > d.MaxTokens {
		return infer.Invalid("min_tokens", "min_tokens is %d, above the limit of %d tokens", d.MinTokens, d.MaxTokens)
	}
	if err := d.finishTools(); err != nil {
		return err
	}
	if d.Endpoint == Chat {
		return d.finishPrompt()
	}
	return nil
}

// finishPrompt says how a conversation's prompt ends.
func (d *decoding) finishPrompt() error {
	d.AddGenerationPrompt = !d.ContinueFinalMessage
	if d.addPrompt != nil {
		if *d.addPrompt && d.ContinueFinalMessage {
			return infer.Invalid("continue_final_message", "continue_final_message and add_generation_prompt cannot both be true")
		}
		d.AddGenerationPrompt = *d.addPrompt
	}
	return nil
}

// nothing takes a field that ParseHead has read.
func nothing(*decoding, []byte) error { return nil }

func takeStreamOptions(d *decoding, raw []byte) error {
	if err := checkStrict("stream_options", raw); err != nil {
		return err
	}
	d.streamOptions = true
	return eachMember(raw, func(name string, value []byte) error {
		switch name {
		case "include_usage":
			return nil
		case "include_obfuscation", "continuous_usage_stats":
			off := FieldInfo{Defaults: []string{"false"}}
			if off.asksForNothing(value) {
				return nil
			}
			return d.unsupported("stream_options."+name, off.Defaults)
		}
		return d.unsupported("stream_options."+clip(name, 64), nil)
	})
}

func takeMaxTokens(d *decoding, raw []byte) error {
	n, err := intOf("max_tokens", raw, 1, math.MaxInt32)
	d.maxTokens = int(n)
	return err
}

func takeMaxCompletionTokens(d *decoding, raw []byte) error {
	n, err := intOf("max_completion_tokens", raw, 1, math.MaxInt32)
	d.maxCompletion = int(n)
	return err
}

func takeMinTokens(d *decoding, raw []byte) error {
	n, err := intOf("min_tokens", raw, 0, math.MaxInt32)
	d.MinTokens = int(n)
	return err
}

func takeTemperature(d *decoding, raw []byte) error {
	v, err := floatOf("temperature", raw, 0, 2, false)
	d.Sampling.Temperature = &v
	return err
}

func takeTopP(d *decoding, raw []byte) error {
	v, err := floatOf("top_p", raw, 0, 1, true)
	d.Sampling.TopP = &v
	return err
}

func takeTopK(d *decoding, raw []byte) error {
	n, err := intOf("top_k", raw, -1, math.MaxInt32)
	k := int(n)
	if k == 0 {
		k = -1 // engines disagree on 0; all read -1 as no limit
	}
	d.Sampling.TopK = &k
	return err
}

func takeSeed(d *decoding, raw []byte) error {
	n, err := intOf("seed", raw, math.MinInt64, math.MaxInt64)
	d.Sampling.Seed = &n
	return err
}

func takeIgnoreEOS(d *decoding, raw []byte) (err error) {
	d.IgnoreEOS, err = boolOf("ignore_eos", raw)
	return err
}

func takeReturnTokenIDs(d *decoding, raw []byte) (err error) {
	d.ReturnTokenIDs, err = boolOf("return_token_ids", raw)
	return err
}

func takeAddGenerationPrompt(d *decoding, raw []byte) error {
	v, err := boolOf("add_generation_prompt", raw)
	d.addPrompt = &v
	return err
}

func takeContinueFinal(d *decoding, raw []byte) (err error) {
	d.ContinueFinalMessage, err = boolOf("continue_final_message", raw)
	return err
}

func takeTemplateKwargs(d *decoding, raw []byte) error {
	if kindOf(raw) != '{' {
		return wrongType("chat_template_kwargs", "an object", raw)
	}
	d.ChatTemplateKwargs = raw
	return checkStrict("chat_template_kwargs", raw)
}

func takeStop(d *decoding, raw []byte) error {
	switch kindOf(raw) {
	case '"':
		return d.addStop("stop", raw)
	case '[':
		return eachItem(raw, func(i int, item []byte) error {
			if i == maxStops {
				return infer.Invalid("stop", "stop may hold at most %d strings", maxStops)
			}
			return d.addStop(fmt.Sprintf("stop[%d]", i), item)
		})
	}
	return wrongType("stop", "a string or an array of strings", raw)
}

func (d *decoding) addStop(path string, raw []byte) error {
	s, err := stringOf(path, raw)
	if err != nil {
		return err
	}
	if s == "" {
		return infer.Invalid(path, "%s is empty; every text would end at once", path)
	}
	d.Stop = append(d.Stop, s)
	return nil
}

func takeStopIDs(d *decoding, raw []byte) (err error) {
	if kindOf(raw) != '[' {
		return wrongType("stop_token_ids", "an array of token ids", raw)
	}
	d.StopIDs, err = idsOf("stop_token_ids", raw)
	if err == nil && len(d.StopIDs) > maxStopIDs {
		return infer.Invalid("stop_token_ids", "stop_token_ids may hold at most %d ids, found %d", maxStopIDs, len(d.StopIDs))
	}
	return err
}
