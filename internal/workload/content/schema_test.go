package content

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"
)

// validator is somebody else's reading of the same schema.
func validator(schema string) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", doc); err != nil {
		return nil, err
	}
	return c.Compile("schema.json")
}

func valid(v *jsonschema.Schema, document string) error {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(document))
	if err != nil {
		return err
	}
	return v.Validate(doc)
}

// document writes one by a schema.
func (s *Speaker) write(t testing.TB, schema *Schema, seed uint64) (string, error) {
	t.Helper()
	p := pen{speller: s.Speller, prompt: seed}
	p.start(s.Words, seed)
	p.document(schema)
	return s.asText(p.ids), p.err
}

// schemas that documents can be written by.
var schemas = []string{
	`{}`, `true`,
	`{"type":"null"}`, `{"type":"boolean"}`, `{"type":["string","null","boolean"]}`,
	`{"type":"integer"}`, `{"type":"integer","minimum":-5,"maximum":-3}`, `{"type":"integer","exclusiveMinimum":2,"exclusiveMaximum":4}`,
	`{"type":"integer","multipleOf":7}`, `{"type":"integer","multipleOf":2.5,"minimum":1e3}`, `{"type":"integer","maximum":-1000000000000000000000}`,
	`{"type":"number"}`, `{"type":"number","minimum":0.001,"maximum":0.002}`, `{"type":"number","multipleOf":0.01,"maximum":3}`,
	`{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1e-6}`, `{"type":"number","minimum":0.5,"maximum":0.5}`,
	`{"minimum":3}`,
	`{"type":"string"}`, `{"type":"string","minLength":1,"maxLength":2}`, `{"type":"string","minLength":100}`, `{"type":"string","maxLength":0}`,
	`{"type":"string","minLength":7,"maxLength":7}`,
	`{"type":"string","pattern":"^[A-Z]{3}-[0-9]{2,4}$"}`, `{"type":"string","pattern":"^(foo|bar)+\\.(com|net)$","minLength":16}`,
	`{"type":"string","pattern":"\\d"}`, `{"type":"string","pattern":"^[^a-z]+$"}`, `{"type":"string","pattern":"^\\S+@\\S+$","maxLength":9}`,
	`{"type":"string","pattern":"^[äöü]$"}`, `{"type":"string","pattern":"\\S","allOf":[{"pattern":"^[a-z]+$"},{"pattern":"[a-f]"}]}`,
	`{"type":"string","format":"date"}`, `{"type":"string","format":"time"}`, `{"type":"string","format":"date-time"}`, `{"type":"string","format":"duration"}`,
	`{"type":"string","format":"email"}`, `{"type":"string","format":"hostname"}`, `{"type":"string","format":"uri"}`, `{"type":"string","format":"uuid"}`,
	`{"type":"string","format":"ipv4"}`, `{"type":"string","format":"ipv6"}`,
	`{"enum":[1,"two",null,[3],{"four":4.0}]}`, `{"const":{"a":[1,{"b":null}]}}`, `{"type":"integer","enum":[1,2.0,"3",2.5]}`,
	`{"enum":["a","bb","ccc"],"minLength":2}`, `{"enum":[1,5,9],"minimum":4,"multipleOf":3}`, `{"const":1,"enum":[1.0,2]}`,
	`{"type":"array"}`, `{"type":"array","items":{"type":"integer"},"minItems":3,"maxItems":3}`, `{"type":"array","maxItems":0}`,
	`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}`,
	`{"type":"array","prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":5}`,
	`{"type":"array","items":{"enum":["a","b"]},"uniqueItems":true,"minItems":1}`, `{"items":{"type":"null"}}`,
	`{"type":"object"}`, `{"type":"object","additionalProperties":{"type":"integer"}}`, `{"type":"object","additionalProperties":false}`,
	`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["b"],"additionalProperties":false}`,
	`{"required":["x","y"],"additionalProperties":{"type":"boolean"}}`, `{"type":"object","required":["x"]}`,
	`{"properties":{"a":{},"b":{},"c":{},"d":{}},"minProperties":3,"maxProperties":3,"required":["c"]}`,
	`{"type":"object","properties":{"a/b~c d\"\u00e4":{"type":"boolean"}},"required":["a/b~c d\"\u00e4"]}`,
	`{"properties":{"no":false,"yes":{"const":1}},"required":["yes"]}`,
	`{"type":"object","propertyNames":{"type":"string"},"additionalProperties":{}}`, `{"type":"object","propertyNames":{"enum":["b"]},"additionalProperties":{"type":"integer"}}`,
	`{"properties":{"a":{},"bb":{},"c":{}},"propertyNames":{"maxLength":1},"required":["c"],"minProperties":2}`,
	`{"properties":{"a":{},"bb":{}},"propertyNames":{"anyOf":[{"pattern":"^b"},{"const":"z"}]}}`,
	`{"type":"object","patternProperties":{"^x-":{"type":"integer"}},"properties":{"x-a":{"minimum":3},"b":{"type":"string"}},"required":["x-a"],"additionalProperties":false}`,
	`{"type":"object","patternProperties":{"^S_":{"type":"string"}},"additionalProperties":{"type":"integer"},"required":["S_1","n"]}`,
	`{"type":"object","patternProperties":{"^a":false},"additionalProperties":{"type":"integer"}}`,
	`{"anyOf":[{"type":"integer","maximum":-1},{"type":"string","pattern":"^x"}]}`, `{"anyOf":[{"type":"null"},false]}`,
	`{"type":"object","properties":{"k":{"anyOf":[{"type":"string"},{"type":"null"}]}},"required":["k"]}`,
	`{"properties":{"a":{"type":"integer"}},"anyOf":[{"required":["a"]},{"properties":{"b":{"const":2}},"required":["b"]}]}`,
	`{"oneOf":[{"type":"integer"},{"type":"string"},{"type":"array","items":{"type":"integer"}}]}`,
	`{"oneOf":[{"properties":{"kind":{"const":"cat"},"lives":{"type":"integer"}},"required":["kind","lives"],"type":"object"},{"properties":{"kind":{"enum":["dog","wolf"]}},"required":["kind"],"type":"object"}]}`,
	`{"oneOf":[{"type":"number","maximum":1},{"type":"number","exclusiveMinimum":1}]}`,
	`{"oneOf":[{"type":"string"},{"type":"string","minLength":3},{"type":"null"}]}`,
	`{"oneOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false},{"type":"object","properties":{"b":{"type":"string"}},"required":["b"],"additionalProperties":false}]}`,
	`{"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"minimum":7},"b":{"type":"null"}},"required":["b"]}]}`,
	`{"allOf":[{"properties":{"a":{}},"additionalProperties":{"type":"integer"}},{"properties":{"b":{"minimum":3}},"required":["a","b"]}],"type":"object"}`,
	`{"allOf":[{"multipleOf":4},{"multipleOf":6},{"type":"integer","minimum":1}]}`,
	`{"allOf":[{"anyOf":[{"type":"integer"},{"type":"string"}]},{"anyOf":[{"type":"string"},{"type":"null"}]}]}`,
	`{"$defs":{"p":{"type":"integer","minimum":1}},"type":"array","items":{"$ref":"#/$defs/p"},"minItems":2}`,
	`{"definitions":{"a b/c":{"const":"x"}},"$ref":"#/definitions/a b~1c"}`,
	`{"properties":{"self":{"$ref":"#"},"v":{"type":"boolean"}},"required":["v"],"type":"object"}`,
	`{"$defs":{"expr":{"anyOf":[{"type":"object","properties":{"op":{"enum":["+","*"]},"l":{"$ref":"#/$defs/expr"},"r":{"$ref":"#/$defs/expr"}},"required":["op","l","r"],"additionalProperties":false},{"type":"number"}]}},"$ref":"#/$defs/expr"}`,
	`{"$defs":{"a":{"properties":{"b":{"$ref":"#/$defs/b"}},"type":"object"},"b":{"allOf":[{"$ref":"#/$defs/a"},{"properties":{"b":{"required":["n"]},"n":{"type":"integer"}}}]}},"$ref":"#/$defs/b"}`,
	`{"properties":{"v":{"type":"integer","minimum":2}},"type":"object","$ref":"#/$defs/x","required":["v"],"$defs":{"x":{"properties":{"v":{"maximum":3}}}}}`,
	`{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"T","description":"d","default":1,"examples":[1],"type":"integer","x-order":3}`,
	tree, anyObject,
}

func TestDocuments(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{})
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	for _, text := range schemas {
		schema, err := CompileSchema([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		v, err := validator(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for seed := range seeds {
			doc, err := s.write(t, schema, seed)
			if err != nil {
				t.Errorf("%s: %v", text, err)
				break
			}
			if err := valid(v, doc); err != nil {
				t.Errorf("%s\nallows no %s\n%v", text, doc, err)
				break
			}
			if err := s.Proof().Document(schema, doc, true); err != nil {
				t.Errorf("%s: %s: %v", text, doc, err)
				break
			}
		}
	}
}

// A schema's bounds of length are held against one text of a format.
func TestFormatsHaveOneLength(t *testing.T) {
	for name, write := range formats {
		least, most := write(func(int) int { return 0 }), write(func(n int) int { return n - 1 })
		if len(least) != len(most) {
			t.Errorf("%s: %q and %q", name, least, most)
		}
	}
}

// A schema by which no document can be written is refused, with the place.
func TestSchemasRefused(t *testing.T) {
	for text, mention := range map[string]string{
		`{`:                               "not valid JSON",
		`{} {}`:                           "more follows",
		`7`:                               "must be an object",
		`false`:                           "the schema is false",
		`{"a":1}`:                         `"a" is not supported`,
		`{"properties":{"a":{"not":{}}}}`: `"not" is not supported, at /properties/a`,
		`{"if":{}}`:                       `"if"`,
		`{"patternProperties":[]}`:        `patternProperties must be an object`,
		`{"patternProperties":{"(":{}}}`:  `pattern "("`,
		`{"propertyNames":{"maxLength":1},"required":["ab"]}`:       `propertyNames does not surely admit "ab"`,
		`{"dependentSchemas":{}}`:                                   `"dependentSchemas"`,
		`{"type":"strin"}`:                                          `"strin" is no type`,
		`{"type":[]}`:                                               "type must be",
		`{"type":"string","minLength":3,"maxLength":2}`:             "minLength 3 is above maxLength 2",
		`{"type":"string","minLength":99999}`:                       "more than 16384",
		`{"type":"array","minItems":99999}`:                         "more than 4096",
		`{"type":"string","pattern":"(?=a)b"}`:                      "cannot be written by",
		`{"pattern":"` + strings.Repeat("K", 20000) + `"}`:          "too large",
		`{"type":"string","pattern":"a$b"}`:                         "no text for it was found",
		`{"type":"string","pattern":"^a{5}$","maxLength":3}`:        "no text for it was found",
		`{"type":"string","format":"iri"}`:                          `format "iri"`,
		`{"type":"string","format":"uuid","maxLength":3}`:           "does not fit",
		`{"type":"string","format":"ipv4","maxLength":9}`:           "does not fit",
		`{"type":"integer","minimum":1.2,"maximum":1.8}`:            "no number fits",
		`{"type":"integer","minimum":"1"}`:                          "minimum must be a number",
		`{"minimum":1e999999999}`:                                   "beyond 30",
		`{"multipleOf":0}`:                                          "above 0",
		`{"enum":[]}`:                                               "non-empty",
		`{"enum":[1],"type":"string"}`:                              "no value of the enum fits",
		`{"enum":[[1]],"minItems":2}`:                               "not checked",
		`{"type":"array","uniqueItems":true,"minItems":2}`:          "uniqueItems",
		`{"items":[{}]}`:                                            "prefixItems",
		`{"type":"object","minProperties":2,"properties":{"a":{}}}`: "minProperties 2",
		`{"properties":{"a":false},"required":["a"]}`:               "the schema is false, at /properties/a",
		`{"oneOf":[{"type":"integer"},{"type":"number"}]}`:          "no alternative that certainly excludes",
		`{"oneOf":[{"properties":{"a":{}}},{"type":"string"}]}`:     "no alternative that certainly excludes",
		`{"$ref":"other.json"}`:                                     "must be of the form",
		`{"$ref":"#/$defs/x"}`:                                      "leads nowhere",
		`{"$defs":{"l":{"type":"object","properties":{"next":{"$ref":"#/$defs/l"}},"required":["next"]}},"$ref":"#/$defs/l"}`: "without end",
		`{"$ref":"#"}`: "refers to itself",
		`{"anyOf":[{"$ref":"#"},{"type":"string"}]}`:               "refers to itself",
		`{"type":"object","required":["a","b"],"maxProperties":1}`: "no value fits",
		`{"type":"string","allOf":[{"type":"integer"}]}`:           "no type is left",
		`{"pattern":"a","allOf":[{"pattern":"b"}]}`:                "other patterns",
		`{"type":"object","type":"string"}`:                        "not valid JSON",
	} {
		_, err := CompileSchema([]byte(text))
		if err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%s: %v, want %q", text, err, mention)
		}
		var where *SchemaError
		if strings.Contains(mention, " at /") && (!errors.As(err, &where) || where.Path == "") {
			t.Errorf("%s: %v has no place", text, err)
		}
	}
}

// A schema that requires more than can be written ends in an error, and a
// schema with very many places in a refusal, both soon.
func TestHostileSchemas(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{})
	var wide strings.Builder
	wide.WriteString(`{"$defs":{"d9":{"const":1}`)
	for i := 8; i >= 0; i-- {
		fmt.Fprintf(&wide, `,"d%d":{"type":"array","minItems":10,"maxItems":10,"items":{"$ref":"#/$defs/d%d"}}`, i, i+1)
	}
	wide.WriteString(`},"$ref":"#/$defs/d0"}`)
	if _, err := s.write(t, mustSchema(t, wide.String()), 0); err == nil || !strings.Contains(err.Error(), "values") {
		t.Errorf("10^9 values: %v", err)
	}
	choices := `{"anyOf":[{"minimum":1},{"minimum":2},{"minimum":3},{"minimum":4}]}`
	many := `{"allOf":[` + strings.Repeat(choices+",", 9) + choices + `]}`
	if _, err := CompileSchema([]byte(many)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("4^10 alternatives: %v", err)
	}
	var chain strings.Builder
	chain.WriteString(`{"$defs":{"d4000":{"const":1}`)
	for i := range 4000 {
		fmt.Fprintf(&chain, `,"d%d":{"type":"array","minItems":1,"items":{"$ref":"#/$defs/d%d"}}`, i, i+1)
	}
	chain.WriteString(`},"$ref":"#/$defs/d0"}`)
	if _, err := CompileSchema([]byte(chain.String())); err != nil {
		t.Errorf("a chain of 4000: %v", err)
	}
}

// randomSchema draws a schema of what is supported, and now and then of what
// cannot be written by.
func randomSchema(t *rapid.T, depth int) map[string]any {
	m := map[string]any{}
	maybe := func(p int) bool { return rapid.IntRange(0, 9).Draw(t, "maybe") < p }
	number := func() any {
		return rapid.SampledFrom([]any{-3, 0, 1, 2, 5, 10, 0.5, 1.25, -7.5, 100}).Draw(t, "number")
	}
	count := func() int { return rapid.IntRange(0, 6).Draw(t, "count") }
	sub := func() map[string]any { return randomSchema(t, depth-1) }
	kind := rapid.SampledFrom([]string{"null", "boolean", "integer", "number", "string", "array", "object", "any", "several"}).Draw(t, "kind")
	has := func(k string) bool { return kind == k || kind == "any" || kind == "several" && maybe(3) }
	switch kind {
	case "any":
	case "several":
		m["type"] = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"null", "boolean", "integer", "string", "array", "object"}), 1, 3, rapid.ID).Draw(t, "types")
	default:
		m["type"] = kind
	}
	if has("integer") || has("number") {
		for _, k := range []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} {
			if maybe(2) {
				m[k] = number()
			}
		}
		if maybe(2) {
			m["multipleOf"] = rapid.SampledFrom([]any{1, 2, 3, 0.5, 0.1, 0.01, 2.5}).Draw(t, "multiple")
		}
	}
	if has("string") {
		if maybe(3) {
			m["minLength"] = count()
		}
		if maybe(3) {
			m["maxLength"] = 3 * count()
		}
		if maybe(2) {
			m["pattern"] = rapid.SampledFrom([]string{"^a+$", "b|c", "^[a-f0-9]{4}$", "^(x|yy)*z?$", `^\d{3}-\d{2}$`, "", "^.$"}).Draw(t, "pattern")
		} else if maybe(1) {
			m["format"] = rapid.SampledFrom([]string{"date", "date-time", "email", "uuid", "ipv4"}).Draw(t, "format")
		}
	}
	if depth > 0 && has("array") {
		if maybe(6) {
			m["items"] = sub()
		}
		if maybe(3) {
			m["prefixItems"] = []any{sub(), sub()}
		}
		if maybe(3) {
			m["minItems"] = count()
		}
		if maybe(3) {
			m["maxItems"] = count()
		}
		if maybe(1) {
			m["uniqueItems"] = true
		}
	}
	if depth > 0 && has("object") {
		properties := map[string]any{}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 3, rapid.ID).Draw(t, "names") {
			properties[name] = sub()
		}
		if len(properties) > 0 {
			m["properties"] = properties
		}
		if maybe(5) {
			m["required"] = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "e"}), 0, 2, rapid.ID).Draw(t, "required")
		}
		if maybe(3) {
			m["additionalProperties"] = rapid.SampledFrom([]any{false, true, map[string]any{"type": "integer"}}).Draw(t, "others")
		}
		if maybe(1) {
			m["propertyNames"] = rapid.SampledFrom([]any{true, map[string]any{"enum": []any{"a", "b", "e"}}, map[string]any{"type": "string"}, map[string]any{"pattern": "^[ab]$"}}).Draw(t, "propertyNames")
		}
		if maybe(1) {
			m["patternProperties"] = map[string]any{rapid.SampledFrom([]string{"^a", "[bc]", "z"}).Draw(t, "names by pattern"): sub()}
		}
		if maybe(2) {
			m["maxProperties"] = count()
		}
		if maybe(1) {
			m["minProperties"] = count()
		}
	}
	if maybe(1) {
		m["enum"] = []any{1, "a", nil, "aa", 2.5, true}
	}
	if depth > 0 && maybe(1) {
		m[rapid.SampledFrom([]string{"anyOf", "oneOf", "allOf"}).Draw(t, "combine")] = []any{sub(), sub()}
	}
	if depth > 0 && maybe(1) {
		m["$ref"] = rapid.SampledFrom([]string{"#/$defs/x", "#/$defs/y"}).Draw(t, "ref")
	}
	return m
}

// For any schema that is not refused, its documents are valid for a second implementation, pass
// their proof, and are found again by ids that go on anywhere.
func TestRandomSchemas(t *testing.T) {
	s := newSpeaker(t, SpeakerOptions{})
	written, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		m := randomSchema(t, 2)
		m["$defs"] = map[string]any{"x": randomSchema(t, 1), "y": randomSchema(t, 1)}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		schema, err := CompileSchema(text)
		var why *SchemaError
		switch {
		case errors.As(err, &why):
			refused++
			return
		case err != nil:
			t.Fatalf("%s: %v", text, err)
		}
		v, err := validator(string(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for range 4 {
			seed := rapid.Uint64().Draw(t, "seed")
			p := pen{speller: s.Speller, prompt: seed}
			p.start(s.Words, seed)
			p.document(schema)
			if p.err != nil {
				t.Fatalf("%s: %v", text, p.err)
			}
			doc := s.asText(p.ids)
			if err := valid(v, doc); err != nil {
				t.Fatalf("%s\nallows no %s\n%v", text, doc, err)
			}
			if err := s.Proof().Document(schema, doc, true); err != nil {
				t.Fatalf("%s: %s: %v", text, doc, err)
			}
		}
		written++
	})
	t.Logf("%d schemas were written by, %d refused", written, refused)
}

// No schema makes compiling panic, or writing by it. go test -fuzz ends one that
// takes longer than 10 s by itself.
func FuzzCompileSchema(f *testing.F) {
	for _, text := range schemas {
		f.Add([]byte(text))
	}
	s := newSpeaker(f, SpeakerOptions{})
	f.Fuzz(func(t *testing.T, text []byte) {
		schema, err := CompileSchema(text)
		if err != nil {
			return
		}
		if math.IsInf(schema.root.cost, 1) {
			t.Fatalf("%s: taken, though nothing fits", text)
		}
		doc, err := s.write(t, schema, 1)
		if err != nil {
			return
		}
		if !json.Valid([]byte(doc)) {
			t.Fatalf("%s: %s is not valid JSON", text, doc)
		}
		v, err := validator(string(text))
		if err != nil || bytes.Contains(text, []byte(`"$id"`)) || bytes.Contains(text, []byte(`"$schema"`)) || bytes.Contains(text, []byte(`"$anchor"`)) {
			return // the other reader is stricter, or reads it by other rules
		}
		if err := valid(v, doc); err != nil {
			t.Fatalf("%s\nallows no %s\n%v", text, doc, err)
		}
	})
}
