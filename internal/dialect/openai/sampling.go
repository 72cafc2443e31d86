package openai

import (
	"fmt"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// sampling takes a sampling parameter.
func sampling(name string, take dialect.Parameter) func(*decoding, []byte) error {
	return func(d *decoding, raw []byte) error { return take(&d.Sampling, name, raw) }
}

func takeResponseFormat(d *decoding, raw []byte) error {
	const field = "response_format"
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(field, "an object", raw)
	}
	if err := dialect.CheckStrict(field, raw); err != nil {
		return err
	}
	var kind, other string
	var schema []byte
	err := dialect.EachMember(raw, func(name string, value []byte) (err error) {
		switch {
		case name == "type":
			kind, err = dialect.StringOf(field+".type", value)
		case dialect.KindOf(value) == 'n':
		case name == "json_schema":
			schema = value
		default:
			other = field + "." + dialect.Clip(name, 64)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case kind == "structural_tag": // its other members are the tag
	case other == field+".schema":
		return infer.Invalid(other, "%s has no place there; send the type json_schema, and the schema in %s.json_schema.schema", other, field)
	case other != "" && !d.Passes(other):
		return d.UnknownMember(other, "type", "json_schema")
	case schema != nil && kind != "json_schema" && kind != "":
		return infer.Invalid(field+".json_schema", "%s.json_schema belongs to the type json_schema, and the type is %s", field, dialect.Clip(kind, 32))
	}
	switch kind {
	case "text":
		return nil
	case "json_object":
		return d.Format(field, field, dialect.AnyObject)
	case "json_schema":
		return d.namedSchema(schema)
	case "structural_tag":
		return d.Guided(field, infer.Guide{Kind: infer.GuideStructuralTag, Text: string(raw)})
	case "":
		return infer.Invalid(field+".type", "%s.type is required: send text, json_object, json_schema or structural_tag", field)
	}
	return infer.Invalid(field+".type", "%s.type is %q; it must be text, json_object, json_schema or structural_tag", field, dialect.Clip(kind, 32))
}

// namedSchema reads response_format.json_schema, which holds the schema beside
// its name. That the output matches it is never optional here.
func (d *decoding) namedSchema(raw []byte) error {
	const field = "response_format.json_schema"
	if raw == nil || dialect.KindOf(raw) != '{' {
		return infer.Invalid(field, "%s is required with the type json_schema: send an object with a schema", field)
	}
	var schema []byte
	err := dialect.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "schema":
			schema = value
		case "name", "description", "strict":
		default:
			return d.UnknownMember(field+"."+dialect.Clip(name, 64), "schema", "name", "description", "strict")
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case schema == nil || dialect.KindOf(schema) == 'n':
		return infer.Invalid(field+".schema", "%s.schema is required: send the JSON schema", field)
	}
	text, err := dialect.SchemaOf(field+".schema", schema)
	if err != nil {
		return err
	}
	return d.Format("response_format", field+".schema", text)
}

// maxChoicesGuide bounds the texts to choose from.
const maxChoicesGuide = 1024

func (d *decoding) choices(path string, raw []byte) error {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType(path, "an array of strings", raw)
	}
	var list []string
	err := dialect.EachItem(raw, func(i int, item []byte) error {
		if i == maxChoicesGuide {
			return infer.Invalid(path, "%s may hold at most %d strings", path, maxChoicesGuide)
		}
		s, err := dialect.StringOf(fmt.Sprintf("%s[%d]", path, i), item)
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

func takeGuidedJSON(d *decoding, raw []byte) error { return d.SchemaValue("guided_json", raw) }
func takeJSONSchema(d *decoding, raw []byte) error { return d.SchemaValue("json_schema", raw) }
func takeGuidedRegex(d *decoding, raw []byte) error {
	return d.TextGuide("guided_regex", infer.GuideRegex, raw)
}
func takeRegex(d *decoding, raw []byte) error { return d.TextGuide("regex", infer.GuideRegex, raw) }
func takeGuidedGrammar(d *decoding, raw []byte) error {
	return d.TextGuide("guided_grammar", infer.GuideGrammar, raw)
}
func takeEBNF(d *decoding, raw []byte) error { return d.TextGuide("ebnf", infer.GuideGrammar, raw) }
func takeGuidedChoice(d *decoding, raw []byte) error {
	return d.choices("guided_choice", raw)
}

// takeStructuredOutputs reads vLLM's one field for all of them.
func takeStructuredOutputs(d *decoding, raw []byte) error {
	const field = "structured_outputs"
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(field, "an object", raw)
	}
	if err := dialect.CheckStrict(field, raw); err != nil {
		return err
	}
	return dialect.EachMember(raw, func(name string, value []byte) error {
		path := field + "." + dialect.Clip(name, 64)
		if dialect.KindOf(value) == 'n' {
			return nil
		}
		switch name {
		case "json":
			return d.SchemaValue(path, value)
		case "json_object":
			on, err := dialect.BoolOf(path, value)
			if err != nil || !on {
				return err
			}
			return d.Schema(path, dialect.AnyObject)
		case "regex":
			return d.TextGuide(path, infer.GuideRegex, value)
		case "grammar":
			return d.TextGuide(path, infer.GuideGrammar, value)
		case "choice":
			return d.choices(path, value)
		case "structural_tag":
			text := string(value)
			if dialect.KindOf(value) == '"' {
				return d.TextGuide(path, infer.GuideStructuralTag, value)
			}
			return d.Guided(path, infer.Guide{Kind: infer.GuideStructuralTag, Text: text})
		}
		return d.unsupported(path, nil)
	})
}
