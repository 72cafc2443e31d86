package openai

import (
	"fmt"

	"weir/internal/api"
	"weir/internal/infer"
)

// sampling takes a sampling parameter.
func sampling(name string, take api.Parameter) func(*decoding, []byte) error {
	return func(d *decoding, raw []byte) error { return take(&d.Sampling, name, raw) }
}

func takeResponseFormat(d *decoding, raw []byte) error {
	const field = "response_format"
	if api.KindOf(raw) != '{' {
		return api.WrongType(field, "an object", raw)
	}
	if err := api.CheckStrict(field, raw); err != nil {
		return err
	}
	var kind, other string
	var schema []byte
	err := api.EachMember(raw, func(name string, value []byte) (err error) {
		switch {
		case name == "type":
			kind, err = api.StringOf(field+".type", value)
		case api.KindOf(value) == 'n':
		case name == "json_schema":
			schema = value
		default:
			other = field + "." + api.Clip(name, 64)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case kind == "structural_tag": // its other members are the tag
	case other == field+".schema":
		return infer.Invalid(other, "%s has no place there; send the type json_schema, and the schema in %s.json_schema.schema", other, field)
	case other != "":
		return d.Unsupported(other)
	case schema != nil && kind != "json_schema" && kind != "":
		return infer.Invalid(field+".json_schema", "%s.json_schema belongs to the type json_schema, and the type is %s", field, api.Clip(kind, 32))
	}
	switch kind {
	case "text":
		return nil
	case "json_object":
		return d.Schema(field, api.AnyObject)
	case "json_schema":
		return d.namedSchema(schema)
	case "structural_tag":
		return d.Guided(field, infer.Guide{Kind: infer.GuideStructuralTag, Text: string(raw)})
	case "":
		return infer.Invalid(field+".type", "%s.type is required: send text, json_object, json_schema or structural_tag", field)
	}
	return infer.Invalid(field+".type", "%s.type is %q; it must be text, json_object, json_schema or structural_tag", field, api.Clip(kind, 32))
}

// namedSchema reads response_format.json_schema, which holds the schema beside
// its name. That the output matches it is never optional here.
func (d *decoding) namedSchema(raw []byte) error {
	const field = "response_format.json_schema"
	if raw == nil || api.KindOf(raw) != '{' {
		return infer.Invalid(field, "%s is required with the type json_schema: send an object with a schema", field)
	}
	var schema []byte
	err := api.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "schema":
			schema = value
		case "name", "description", "strict":
		default:
			return d.unsupported(field+"."+api.Clip(name, 64), nil)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case schema == nil || api.KindOf(schema) == 'n':
		return infer.Invalid(field+".schema", "%s.schema is required: send the JSON schema", field)
	}
	return d.schema(field+".schema", schema)
}

// schema takes a JSON schema, as itself or as its text.
func (d *decoding) schema(path string, raw []byte) error {
	text, err := api.SchemaOf(path, raw)
	if err != nil {
		return err
	}
	return d.Schema(path, text)
}

// textGuide takes a guide that is a text.
func (d *decoding) textGuide(path string, kind infer.GuideKind, raw []byte) error {
	text, err := api.StringOf(path, raw)
	if err == nil && text == "" {
		err = infer.Invalid(path, "%s is empty; leave it out", path)
	}
	if err != nil {
		return err
	}
	return d.Guided(path, infer.Guide{Kind: kind, Text: text})
}

// maxChoicesGuide bounds the texts to choose from.
const maxChoicesGuide = 1024

func (d *decoding) choices(path string, raw []byte) error {
	if api.KindOf(raw) != '[' {
		return api.WrongType(path, "an array of strings", raw)
	}
	var list []string
	err := api.EachItem(raw, func(i int, item []byte) error {
		if i == maxChoicesGuide {
			return infer.Invalid(path, "%s may hold at most %d strings", path, maxChoicesGuide)
		}
		s, err := api.StringOf(fmt.Sprintf("%s[%d]", path, i), item)
		list = append(list, s)
		return err
	})
	if err == nil && len(list) == 0 {
		err = infer.Invalid(path, "%s is empty; there must be something to choose from", path)
	}
	if err != nil {
		return err
	}
	return d.Guided(path, infer.Guide{Kind: infer.GuideChoice, Choices: list})
}

func takeGuidedJSON(d *decoding, raw []byte) error { return d.schema("guided_json", raw) }
func takeJSONSchema(d *decoding, raw []byte) error { return d.schema("json_schema", raw) }
func takeGuidedRegex(d *decoding, raw []byte) error {
	return d.textGuide("guided_regex", infer.GuideRegex, raw)
}
func takeRegex(d *decoding, raw []byte) error { return d.textGuide("regex", infer.GuideRegex, raw) }
func takeGuidedGrammar(d *decoding, raw []byte) error {
	return d.textGuide("guided_grammar", infer.GuideGrammar, raw)
}
func takeEBNF(d *decoding, raw []byte) error { return d.textGuide("ebnf", infer.GuideGrammar, raw) }
func takeGuidedChoice(d *decoding, raw []byte) error {
	return d.choices("guided_choice", raw)
}

// takeStructuredOutputs reads vLLM's one field for all of them.
func takeStructuredOutputs(d *decoding, raw []byte) error {
	const field = "structured_outputs"
	if api.KindOf(raw) != '{' {
		return api.WrongType(field, "an object", raw)
	}
	if err := api.CheckStrict(field, raw); err != nil {
		return err
	}
	return api.EachMember(raw, func(name string, value []byte) error {
		path := field + "." + api.Clip(name, 64)
		if api.KindOf(value) == 'n' {
			return nil
		}
		switch name {
		case "json":
			return d.schema(path, value)
		case "json_object":
			on, err := api.BoolOf(path, value)
			if err != nil || !on {
				return err
			}
			return d.Schema(path, api.AnyObject)
		case "regex":
			return d.textGuide(path, infer.GuideRegex, value)
		case "grammar":
			return d.textGuide(path, infer.GuideGrammar, value)
		case "choice":
			return d.choices(path, value)
		case "structural_tag":
			text := string(value)
			if api.KindOf(value) == '"' {
				return d.textGuide(path, infer.GuideStructuralTag, value)
			}
			return d.Guided(path, infer.Guide{Kind: infer.GuideStructuralTag, Text: text})
		}
		return d.unsupported(path, nil)
	})
}
