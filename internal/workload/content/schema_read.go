package content

import (
	"strconv"
	"strings"
)

// read makes the atom of one schema.
func (c *compiler) read(p place) (*atom, error) {
	a := &atom{path: p.path, kinds: kindAny, length: countRange{0, -1}, items: countRange{0, -1}, size: countRange{0, -1}}
	switch p.value.kind {
	case 't':
		return a, nil
	case 'f':
		a.never = true
		return a, nil
	case '{':
	default:
		return nil, refuse(p.path, "a schema must be an object, true or false")
	}
	for _, m := range p.value.members {
		if err := c.keyword(a, m.name, m.value); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// keyword adds one keyword to an atom.
func (c *compiler) keyword(a *atom, name string, v value) (err error) {
	switch name {
	case "$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "title", "description", "default",
		"examples", "example", "deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding":
		return nil // they say nothing about which values fit
	case "type":
		return a.takeType(v)
	case "enum":
		if v.kind != '[' || len(v.items) == 0 {
			return refuse(a.path, "enum must be a non-empty array")
		}
		a.addEnum(v.items)
	case "const":
		a.addEnum([]value{v})
	case "properties":
		if v.kind != '{' {
			return refuse(a.path, "properties must be an object")
		}
		for _, m := range v.members {
			a.members = append(a.members, memberPlace{m.name, place{value: m.value, path: a.path + "/properties/" + pointerEscape(m.name)}})
		}
	case "required":
		return a.takeRequired(v)
	case "additionalProperties":
		a.others = &place{value: v, path: a.path + "/additionalProperties"}
	case "propertyNames":
		a.names = &place{value: v, path: a.path + "/propertyNames"}
	case "patternProperties":
		return a.takePatterns(v)
	case "items":
		if v.kind == '[' {
			return refuse(a.path, "items must be a schema; a list of them is called prefixItems")
		}
		a.each = &place{value: v, path: a.path + "/items"}
	case "prefixItems":
		a.prefix, err = list(a, name, v)
	case "allOf":
		var all []place
		all, err = list(a, name, v)
		a.all = append(a.all, all...)
	case "anyOf", "oneOf":
		var of []place
		of, err = list(a, name, v)
		a.choices = append(a.choices, choice{a.path + "/" + name, of, name == "oneOf"})
	case "$ref":
		return c.takeRef(a, v)
	case "minProperties":
		a.size.min, err = least(a, name, v, maxCount)
	case "minItems":
		a.items.min, err = least(a, name, v, maxCount)
	case "minLength":
		a.length.min, err = least(a, name, v, maxStringLength)
	case "maxProperties":
		a.size.max, err = count(v, a.path, name)
	case "maxItems":
		a.items.max, err = count(v, a.path, name)
	case "maxLength":
		a.length.max, err = count(v, a.path, name)
	case "uniqueItems":
		if v.kind != 't' && v.kind != 'f' {
			return refuse(a.path, "uniqueItems must be true or false")
		}
		a.unique = v.kind == 't'
	case "pattern":
		if v.kind != '"' {
			return refuse(a.path, "pattern must be a string")
		}
		a.pattern, err = compilePattern(v.text(), a.path)
	case "format":
		if v.kind != '"' {
			return refuse(a.path, "format must be a string")
		}
		a.format = v.text()
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf":
		return a.takeNumber(name, v)
	default:
		if !strings.HasPrefix(name, "x-") {
			return refuse(a.path, "%q is not supported", name)
		}
	}
	return err
}

func (a *atom) takeType(v value) error {
	names := v.items
	if v.kind == '"' {
		names = []value{v}
	}
	a.kinds = 0
	for _, n := range names {
		if n.kind != '"' || kindNames(n.text()) == 0 {
			return refuse(a.path, "type: %s is no type; they are null, boolean, integer, number, string, array and object", n.raw)
		}
		a.kinds |= kindNames(n.text())
	}
	if len(names) == 0 {
		return refuse(a.path, "type must be a string or a non-empty array of strings")
	}
	return nil
}

func kindNames(name string) kinds {
	switch name {
	case "null":
		return kindNull
	case "boolean":
		return kindBoolean
	case "integer":
		return kindInteger
	case "number":
		return kindInteger | kindNumber
	case "string":
		return kindString
	case "array":
		return kindArray
	case "object":
		return kindObject
	}
	return 0
}

// addEnum intersects the atom's enum with another one, or with a const.
func (a *atom) addEnum(values []value) {
	n := node{enum: a.enum, hasEnum: a.hasEnum}
	n.meetEnum(values)
	a.enum, a.hasEnum = n.enum, true
}

// takePatterns reads patternProperties.
func (a *atom) takePatterns(v value) error {
	if v.kind != '{' {
		return refuse(a.path, "patternProperties must be an object")
	}
	for _, m := range v.members {
		expr, err := compilePattern(m.name, a.path)
		if err != nil {
			return err
		}
		a.patterns = append(a.patterns, patternPlace{expr, place{value: m.value, path: a.path + "/patternProperties/" + pointerEscape(m.name)}})
	}
	return nil
}

func (a *atom) takeRequired(v value) error {
	if v.kind != '[' || len(v.items) > maxCount {
		return refuse(a.path, "required must be an array of at most %d names", maxCount)
	}
	for _, n := range v.items {
		if n.kind != '"' {
			return refuse(a.path, "required must be an array of strings")
		}
		a.require = append(a.require, n.text())
	}
	return nil
}

func (a *atom) takeNumber(name string, v value) error {
	r, err := number(v, a.path, name)
	if err != nil {
		return err
	}
	switch name {
	case "minimum":
		a.numbers.meet(numberRange{min: r})
	case "maximum":
		a.numbers.meet(numberRange{max: r})
	case "exclusiveMinimum":
		a.numbers.meet(numberRange{min: r, openMin: true})
	case "exclusiveMaximum":
		a.numbers.meet(numberRange{max: r, openMax: true})
	case "multipleOf":
		if r.Sign() <= 0 {
			return refuse(a.path, "multipleOf must be above 0")
		}
		a.numbers.meet(numberRange{multiple: r})
	}
	return nil
}

// list returns the schemas of a keyword that holds a list of them.
func list(a *atom, name string, v value) ([]place, error) {
	if v.kind != '[' || len(v.items) == 0 {
		return nil, refuse(a.path, "%s must be a non-empty array of schemas", name)
	}
	out := make([]place, len(v.items))
	for i := range v.items {
		out[i] = place{value: v.items[i], path: a.path + "/" + name + "/" + strconv.Itoa(i)}
	}
	return out, nil
}

// least reads a count that a document must have, and that is bounded.
func least(a *atom, name string, v value, bound int) (int, error) {
	n, err := count(v, a.path, name)
	if err == nil && n > bound {
		err = refuse(a.path, "%s %s is more than %d", name, v.raw, bound)
	}
	return n, err
}

// takeRef adds the schema that a reference within the document names.
func (c *compiler) takeRef(a *atom, v value) error {
	if v.kind != '"' {
		return refuse(a.path, "$ref must be a string")
	}
	ref := v.text()
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok || pointer != "" && pointer[0] != '/' {
		return refuse(a.path, "$ref %q is not supported; references must be of the form #/$defs/name", ref)
	}
	at, path := c.root, ""
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		if pointer == "" {
			break
		}
		name := strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		next, ok := at.get(name)
		if i, err := strconv.Atoi(name); at.kind == '[' && err == nil && i >= 0 && i < len(at.items) {
			next, ok = at.items[i], true
		}
		if !ok {
			return refuse(a.path, "$ref %q leads nowhere", ref)
		}
		at, path = next, path+"/"+pointerEscape(name)
	}
	a.all = append(a.all, place{value: at, path: path})
	return nil
}

func pointerEscape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
