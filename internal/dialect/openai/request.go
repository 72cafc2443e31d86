package openai

import (
	"fmt"
	"math"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// decoding is a request under way.
type decoding struct {
	dialect.Decoding
	endpoint      Endpoint
	streamOptions bool
	includeUsage  bool
	countAlong    bool // each chunk has the usage so far
	maxTokens     int  // as the two fields gave it, 0 when not
	maxCompletion int
	addPrompt     *bool
	tokenIDs      bool // they are to be told
	bestOf        int  // 0 when not given
	wantLogprobs  bool
	top           int      // alternatives of a token
	allowed       []string // of tool_choice; nil: all

	tokenize   TokenizeRequest
	detokenize DetokenizeRequest
	hasTexts   bool

	addSpecial, skipSpecial *bool
}

// Request implements dialect.Endpoint.
func (e Endpoint) Request(h *dialect.Head, kind string, carries infer.Carries) (*dialect.Request, error) {
	if e != Chat && e != Completions {
		return nil, infer.Errorf(infer.CodeUnsupported, "engine kind %q serves %s and %s only", kind, Chat, Completions)
	}
	d, err := e.decode(h, kind, carries)
	if err != nil {
		return nil, err
	}
	if err := d.finish(); err != nil {
		return nil, err
	}
	return &d.Request, nil
}

var chatNames = dialect.FieldNames{Prompt: "messages", MaxTokens: "max_tokens", MinTokens: "min_tokens", Effort: "reasoning_effort", StopIDs: "stop_token_ids", LogitBias: "logit_bias", Seed: "seed", Choices: "n", Logprobs: "top_logprobs"}

var completionNames = completionsOf(chatNames)

func completionsOf(names dialect.FieldNames) dialect.FieldNames {
	names.Prompt, names.Logprobs = "prompt", "logprobs"
	return names
}

// decode decodes every field by itself.
func (e Endpoint) decode(h *dialect.Head, kind string, carries infer.Carries) (*decoding, error) {
	if err := h.Unambiguous(); err != nil {
		return nil, err
	}
	names := &chatNames
	if e == Completions {
		names = &completionNames
	}
	d := &decoding{endpoint: e, Decoding: dialect.NewDecoding(e, h, kind, carries, names)}
	d.CallPrefix = "call_"
	for _, at := range h.Fields {
		if err := d.field(at.Name, h.Body[at.Start:at.End]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// field decodes one top-level field.
func (d *decoding) field(name string, raw []byte) error {
	i, ok := tables[d.endpoint][name]
	if !ok {
		return d.unknown(name)
	}
	f := &fields[i.Index]
	if read, err := d.Judge(&f.Field, name, raw); !read {
		return err
	}
	if dialect.KindOf(raw) == 'n' && (d.endpoint.tokenizes() || name != "messages" && name != "prompt") {
		return nil
	}
	return f.Take(d, raw)
}

// unsupported refuses a field that cannot be carried.
func (d *decoding) unsupported(path string, defaults []string) error {
	return d.Unsupported(path, defaults...)
}

// unknown refuses a field by a name that is not in the table.
func (d *decoding) unknown(name string) error {
	for at := Chat; at < numEndpoints; at++ {
		if _, ok := tables[at][name]; ok {
			if d.Passes(name) {
				return nil
			}
			return &infer.Error{Code: infer.CodeUnsupported, Param: dialect.Clip(name, 64),
				Message: fmt.Sprintf("%s is a field of %s, not of %s; leave it out", name, at, d.endpoint)}
		}
	}
	return d.UnknownField(name, tables[d.endpoint])
}

// finish checks what fields say together.
func (d *decoding) finish() error {
	switch {
	case d.endpoint == Chat && d.Messages == nil:
		return infer.Invalid("messages", "messages is required: send an array with at least one message")
	case d.endpoint == Completions && d.Prompt == "" && d.PromptIDs == nil:
		return infer.Invalid("prompt", "prompt is required: send a string or an array of token ids")
	case d.streamOptions && !d.Stream:
		return infer.Invalid("stream_options", "stream_options needs stream to be true")
	case d.maxTokens > 0 && d.maxCompletion > 0 && d.maxTokens != d.maxCompletion:
		return infer.Invalid("max_completion_tokens", "max_completion_tokens is %d and max_tokens is %d; give one of them", d.maxCompletion, d.maxTokens)
	}
	d.MaxTokens = max(d.maxTokens, d.maxCompletion)
	if d.MaxTokens == 0 && d.endpoint == Completions {
		d.MaxTokens = defaultCompletion
	}
	if d.MaxTokens > 0 && d.MinTokens > d.MaxTokens {
		return infer.Invalid("min_tokens", "min_tokens is %d, above the limit of %d tokens", d.MinTokens, d.MaxTokens)
	}
	if d.countAlong && !d.includeUsage {
		d.countAlong = false
		d.Ignore(continuousUsage)
	}
	if err := d.finishTools(); err != nil {
		return err
	}
	if err := d.finishChoices(); err != nil {
		return err
	}
	d.CountAlong = d.countAlong
	d.Tokens = d.tokenIDs || d.Logprobs != nil
	d.Encoder = newEncoder(streamOptions{endpoint: d.endpoint, includeUsage: d.includeUsage, countAlong: d.countAlong, tokenIDs: d.tokenIDs, logprobs: d.Logprobs}, d.Stream)
	if d.endpoint == Chat {
		return d.finishPrompt()
	}
	return nil
}

// finishPrompt reports how a conversation's prompt ends.
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

// defaultCompletion is the max_tokens of a completion that does not say, as in OpenAI's
// and the engines' own APIs have it; a chat goes on to the end of the context.
const defaultCompletion = 16

// nothing takes a field that ParseHead has read.
func nothing(*decoding, []byte) error { return nil }

func takeStreamOptions(d *decoding, raw []byte) error {
	if err := d.CheckStrict("stream_options", raw); err != nil {
		return err
	}
	d.streamOptions = true
	var err error
	if d.includeUsage, err = includeUsage(raw); err != nil {
		return err
	}
	return dialect.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "include_usage":
			return nil
		case "continuous_usage_stats":
			if dialect.KindOf(value) != 'n' {
				d.countAlong, err = dialect.BoolOf(continuousUsage, value)
			}
			return err
		case "include_obfuscation":
			_, err := d.Judge(inner(obfuscation), obfuscation, value)
			return err
		}
		return d.UnknownMember("stream_options."+dialect.Clip(name, 64), "include_usage", "continuous_usage_stats", "include_obfuscation")
	})
}

func takeMaxTokens(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("max_tokens", raw, 1, math.MaxInt32)
	d.maxTokens = int(n)
	return err
}

func takeMaxCompletionTokens(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("max_completion_tokens", raw, 1, math.MaxInt32)
	d.maxCompletion = int(n)
	return err
}

func takeMinTokens(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("min_tokens", raw, 0, math.MaxInt32)
	d.MinTokens = int(n)
	return err
}

func takePriority(d *decoding, raw []byte) (err error) {
	d.Priority, err = dialect.PriorityOf("priority", raw)
	return err
}

func takeIgnoreEOS(d *decoding, raw []byte) (err error) {
	d.IgnoreEOS, err = dialect.BoolOf("ignore_eos", raw)
	return err
}

func takeReturnTokenIDs(d *decoding, raw []byte) (err error) {
	d.tokenIDs, err = dialect.BoolOf("return_token_ids", raw)
	return err
}

func takeAddGenerationPrompt(d *decoding, raw []byte) error {
	v, err := dialect.BoolOf("add_generation_prompt", raw)
	d.addPrompt = &v
	return err
}

func takeContinueFinal(d *decoding, raw []byte) (err error) {
	d.ContinueFinalMessage, err = dialect.BoolOf("continue_final_message", raw)
	return err
}

func takeTemplateKwargs(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType("chat_template_kwargs", "an object", raw)
	}
	d.ChatTemplateKwargs = raw
	return d.CheckStrict("chat_template_kwargs", raw)
}

func takeStop(d *decoding, raw []byte) (err error) {
	d.Stop, err = dialect.StopsOf("stop", raw, dialect.MaxStops)
	return err
}

func takeStopIDs(d *decoding, raw []byte) (err error) {
	d.StopIDs, err = dialect.StopIDsOf("stop_token_ids", raw)
	return err
}

func takeEffort(d *decoding, raw []byte) (err error) {
	d.Effort, err = dialect.EffortOf("reasoning_effort", raw)
	return err
}
