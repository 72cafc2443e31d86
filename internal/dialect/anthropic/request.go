package anthropic

import (
	"bytes"
	"fmt"
	"math"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// decoding is a request under way.
type decoding struct {
	dialect.Decoding
	endpoint Endpoint

	system, messages []byte // as they came
	think            *bool
	budget           int64
	omit             bool // thinking is not shown
	effort           string
	kwargs           []byte
}

func (d *decoding) carrier() string { return d.Carrier() }

// finish checks what fields say together, and writes the conversation.
func (d *decoding) finish() error {
	switch {
	case d.messages == nil:
		return infer.Invalid("messages", "messages is required: send an array with at least one message")
	case d.endpoint == Messages && d.MaxTokens == 0:
		return infer.Invalid("max_tokens", "max_tokens is required: send the most tokens that the answer may have")
	case d.endpoint == Messages && d.budget >= int64(d.MaxTokens) && d.budget > 0:
		return infer.Invalid("thinking.budget_tokens", "thinking.budget_tokens is %d; it must be below max_tokens, which is %d", d.budget, d.MaxTokens)
	}
	if err := d.conversation(); err != nil {
		return err
	}
	if err := d.FinishTools("tool_choice.name", "the last message is the assistant's", strictTool); err != nil {
		return err
	}
	d.AddGenerationPrompt = !d.ContinueFinalMessage
	if err := d.templateKwargs(); err != nil {
		return err
	}
	d.Encoder = newEncoder(d.Stream, d.omit)
	return nil
}

// templateKwargs puts what the template is told of thinking beside what the
// caller hands to it, which wins. Templates have two names for it.
func (d *decoding) templateKwargs() error {
	if d.think == nil && d.effort == "" {
		d.ChatTemplateKwargs = d.kwargs
		return nil
	}
	given := map[string]bool{}
	rest := []byte("{}")
	if d.kwargs != nil {
		rest = d.kwargs
		err := dialect.EachMember(d.kwargs, func(name string, _ []byte) error {
			given[name] = true
			return nil
		})
		if err != nil {
			return err
		}
	}
	out := []byte{'{'}
	add := func(name, value string) {
		if !given[name] {
			out = fmt.Appendf(out, "%q:%s,", name, value)
		}
	}
	if d.think != nil {
		add("enable_thinking", fmt.Sprint(*d.think))
		add("thinking", fmt.Sprint(*d.think))
	}
	if d.effort != "" && (d.think == nil || *d.think) {
		add("reasoning_effort", `"`+d.effort+`"`)
	}
	inside := bytes.TrimSpace(rest[1 : len(rest)-1])
	if len(inside) == 0 {
		out = bytes.TrimSuffix(out, []byte{','})
	}
	d.ChatTemplateKwargs = append(append(out, inside...), '}')
	return nil
}

// nothing takes a field that ParseHead has read.
func nothing(*decoding, []byte) error { return nil }

func takeMaxTokens(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("max_tokens", raw, 1, math.MaxInt32)
	d.MaxTokens = int(n)
	return err
}

// sampling takes a sampling parameter.
func sampling(name string, take dialect.Parameter) func(*decoding, []byte) error {
	return func(d *decoding, raw []byte) error { return take(&d.Sampling, name, raw) }
}

func takeTopK(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("top_k", raw, 0, math.MaxInt32)
	k := int(n)
	if k == 0 {
		k = -1 // engines disagree on 0; all read -1 as no limit
	}
	d.Sampling.TopK = &k
	return err
}

// maxStops bounds the stop sequences.
const maxStops = 64

func takeStops(d *decoding, raw []byte) (err error) {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType("stop_sequences", "an array of strings", raw)
	}
	d.Stop, err = dialect.StopsOf("stop_sequences", raw, maxStops)
	return err
}

// object walks an object that must be one and strict.
func object(path string, raw []byte, visit func(name string, value []byte) error) error {
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(path, "an object", raw)
	}
	if err := dialect.CheckStrict(path, raw); err != nil {
		return err
	}
	return dialect.EachMember(raw, visit)
}

func takeTemplateKwargs(d *decoding, raw []byte) error {
	d.kwargs = raw
	return object("chat_template_kwargs", raw, func(string, []byte) error { return nil })
}

func takeThinking(d *decoding, raw []byte) error {
	var kind string
	err := object("thinking", raw, func(name string, value []byte) (err error) {
		path := "thinking." + dialect.Clip(name, 64)
		switch name {
		case "type":
			kind, err = dialect.StringOf(path, value)
		case "budget_tokens":
			if dialect.KindOf(value) != 'n' {
				d.budget, err = dialect.IntOf(path, value, 1024, math.MaxInt32)
				d.Ignore(thinkingBudget)
			}
		case "display":
			if dialect.KindOf(value) == 'n' {
				return nil
			}
			var word string
			if word, err = dialect.StringOf(path, value); err == nil && word != "summarized" && word != "updates" && word != "omitted" {
				err = infer.Invalid(path, "%s must be \"summarized\", \"updates\" or \"omitted\", found %q", path, dialect.Clip(word, 32))
			}
			d.omit = word == "omitted"
		default:
			return d.within(path, path, value, "type", "budget_tokens", "display")
		}
		return err
	})
	if err != nil {
		return err
	}
	var on bool
	switch kind {
	case "enabled":
		on = true
		if d.budget == 0 {
			return infer.Invalid("thinking.budget_tokens", "thinking.budget_tokens is required with the type \"enabled\": send an integer from 1024")
		}
	case "adaptive", "between_tools":
		on = true
	case "disabled":
	case "":
		return infer.Invalid("thinking.type", "thinking.type is required: send enabled, adaptive, between_tools or disabled")
	default:
		return infer.Invalid("thinking.type", "thinking.type must be enabled, adaptive, between_tools or disabled, found %q", dialect.Clip(kind, 32))
	}
	d.think = &on
	return nil
}

func takeOutputConfig(d *decoding, raw []byte) error {
	return object("output_config", raw, func(name string, value []byte) error {
		path := "output_config." + dialect.Clip(name, 64)
		switch {
		case name != "effort" && name != "format":
			return d.within(path, path, value, "effort", "format", "task_budget")
		case dialect.KindOf(value) == 'n':
			return nil
		case name == "format":
			return d.format(outputFormat, path, value)
		}
		word, err := dialect.StringOf(path, value)
		if err != nil {
			return err
		}
		switch word {
		case "low", "medium", "high":
			d.effort = word
		case "xhigh", "max":
			d.effort = "high" // as much as templates know
		default:
			return infer.Invalid(path, "%s must be low, medium, high, xhigh or max, found %q", path, dialect.Clip(word, 32))
		}
		return nil
	})
}

func takeOutputFormat(d *decoding, raw []byte) error {
	return d.format("output_format", "output_format", raw)
}

// format reads what the answer's text must match.
func (d *decoding) format(field, path string, raw []byte) error {
	var kind string
	var schema []byte
	err := object(path, raw, func(name string, value []byte) (err error) {
		switch name {
		case "type":
			kind, err = dialect.StringOf(path+".type", value)
		case "schema":
			schema = value
		default:
			return d.UnknownMember(path+"."+dialect.Clip(name, 64), "type", "schema")
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case kind == "":
		return infer.Invalid(path+".type", "%s.type is required: send \"json_schema\"", path)
	case kind != "json_schema":
		return infer.Invalid(path+".type", "%s.type must be \"json_schema\", found %q", path, dialect.Clip(kind, 32))
	case schema == nil:
		return infer.Invalid(path+".schema", "%s.schema is required: send the JSON schema", path)
	case dialect.KindOf(schema) != '{':
		return dialect.WrongType(path+".schema", "a JSON schema, which is an object", schema)
	}
	return d.Format(field, path, string(schema))
}
