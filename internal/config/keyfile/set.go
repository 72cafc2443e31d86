package keyfile

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir/internal/config"
	"weir/internal/infer/spell"
	"weir/internal/tenancy"
)

// Field is a field of a grant with the values that it is to have; none takes it out.
type Field struct {
	Name   string
	Values []string
}

// CheckFields reports the first field that a grant does not have, or that it cannot have with
// these values.
func CheckFields(fields []Field) error {
	known := Settable()
	scratch := Key{Caller: &tenancy.Caller{}}
	for _, f := range fields {
		if !slices.Contains(known, f.Name) {
			near := ""
			if is := spell.Nearest(f.Name, known, 1+len(f.Name)/4); is != "" {
				near = "; did you mean " + is + "?"
			}
			return fmt.Errorf("%s: there is no such limit; the limits are %s%s", f.Name, strings.Join(known, ", "), near)
		}
		if len(f.Values) == 0 {
			continue
		}
		if err := scratch.set(&config.Entry{Key: f.Name, Values: f.Values, Listed: f.Name == "models"}); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// Set changes fields of a grant in the lines of a file, and leaves all other lines as they are,
// comments included. An entry in braces is written as lines.
func Set(lines []string, file *File, root *config.Section, name string, fields []Field) ([]string, error) {
	path, err := file.pathOf(name)
	if err != nil {
		return nil, err
	}
	t := &text{lines: slices.Clone(lines)}
	for n := 1; n <= len(path); n++ {
		if err := t.open(path[:n]); err != nil {
			return nil, err
		}
	}
	for _, f := range fields {
		if err := t.set(path, f); err != nil {
			return nil, err
		}
	}
	return t.lines, nil
}

// Remove takes a key out of the lines of a file.
func Remove(lines []string, file *File, root *config.Section, name string) ([]string, error) {
	at := root.Find("keys")
	if at == nil || !file.Has(name) {
		return nil, fmt.Errorf("there is no key %q; weir keys list has them", name)
	}
	t := &text{lines: slices.Clone(lines)}
	if err := t.open([]string{"keys"}); err != nil {
		return nil, err
	}
	e, err := t.find([]string{"keys", name})
	if err != nil {
		return nil, err
	}
	from, to := t.span(e)
	for to < len(t.lines) && strings.TrimSpace(t.lines[to]) == "" {
		to++
	}
	err = t.remove([]string{"keys"}, from, to)
	return t.lines, err
}

// pathOf returns where the entry of a grant is, or is to be made.
func (f *File) pathOf(name string) ([]string, error) {
	if f.Has(name) {
		return []string{"keys", name}, nil
	}
	if of, ok := strings.CutPrefix(name, "certificate:"); ok && f.certs[of] != nil {
		return []string{"certificates", of}, nil
	}
	issuer, tenant, ok := strings.Cut(name, ":")
	i := f.issuers[issuer]
	switch {
	case !ok || i == nil:
		return nil, fmt.Errorf("%w %q; weir limits lists the names", ErrUnknown, name)
	case tenant == anyTenant:
		return []string{"issuers", issuer}, nil
	case i.tenantClaim == "":
		return nil, fmt.Errorf("the tokens of issuer %s name no tenants (tenant_claim), so they have one account: %s", issuer, tenantName(issuer, anyTenant))
	}
	if err := checkName("tenant", tenant); err != nil {
		return nil, err
	}
	return []string{"issuers", issuer, "tenants", tenant}, nil
}

// ErrUnknown is the error of a name that no grant of the file has.
var ErrUnknown = fmt.Errorf("no key, certificate or issuer's tenant of the keys file has the name")

// text is a YAML file as lines, of which some are changed.
type text struct{ lines []string }

// find returns the entry at a path, nil if there is none.
func (t *text) find(path []string) (*config.Entry, error) {
	s, err := config.ParseSections(textOfLines(t.lines))
	if err != nil {
		return nil, err
	}
	var e *config.Entry
	for _, name := range path {
		if e = s.Find(name); e == nil {
			return nil, nil
		}
		s = e.Section
	}
	return e, nil
}

// open makes an entry that is a mapping with lines of its own for each of its fields, if it is
// not one yet.
func (t *text) open(path []string) error {
	e, err := t.find(path)
	if err != nil {
		return err
	}
	switch {
	case e == nil:
		return t.insert(path[:len(path)-1], yamlKey(path[len(path)-1])+": {}")
	case e.Section == nil:
		return fmt.Errorf("line %d: %s: want fields", e.Line, e.Key)
	case len(e.Section.Entries) == 0, e.Section.Entries[0].Line > e.Line && !strings.Contains(t.lines[e.Line-1], "{"):
		return nil
	}
	from, to := t.span(e)
	width := indent(t.lines[from])
	t.lines = slices.Replace(t.lines, from, to, rendered(e, width)...)
	return nil
}

// insert adds a line at the end of an entry's section.
func (t *text) insert(path []string, line string) error {
	e, err := t.find(path)
	if err != nil {
		return err
	}
	if e == nil || e.Section == nil {
		return fmt.Errorf("there is no %s", strings.Join(path, " "))
	}
	at, width := e.Line, indent(t.lines[e.Line-1])+2
	if len(e.Section.Entries) == 0 {
		t.lines[e.Line-1] = strings.Repeat(" ", width-2) + yamlKey(e.Key) + ":"
	} else {
		last := &e.Section.Entries[len(e.Section.Entries)-1]
		from, to := t.span(last)
		at, width = to, indent(t.lines[from])
	}
	t.lines = slices.Insert(t.lines, at, strings.Repeat(" ", width)+line)
	return nil
}

// set returns a field of an entry its values.
func (t *text) set(path []string, f Field) error {
	field, err := t.find(append(slices.Clone(path), f.Name))
	if err != nil {
		return err
	}
	switch {
	case field == nil && len(f.Values) == 0:
		return nil
	case field == nil:
		return t.insert(path, yamlField(f))
	}
	from, to := t.span(field)
	if len(f.Values) == 0 {
		return t.remove(path, from, to)
	}
	line := t.lines[from]
	now := line[:indent(line)] + yamlField(f)
	if before, comment, ok := strings.Cut(line, " #"); ok && to == from+1 && !strings.ContainsAny(before, `"'`) {
		now += " #" + comment
	}
	t.lines = slices.Replace(t.lines, from, to, now)
	return nil
}

// remove takes lines out that are a field of an entry.
func (t *text) remove(path []string, from, to int) error {
	of, err := t.find(path)
	if err != nil {
		return err
	}
	if len(of.Section.Entries) == 1 { // YAML has no mapping without entries but this
		t.lines[of.Line-1] = strings.Repeat(" ", indent(t.lines[of.Line-1])) + yamlKey(of.Key) + ": {}"
	}
	t.lines = slices.Delete(t.lines, from, to)
	return nil
}

// span is the lines of an entry, without the blank ones and the comments behind it.
func (t *text) span(e *config.Entry) (from, to int) {
	from, to = e.Line-1, e.Line
	width := indent(t.lines[from])
	for at := to; at < len(t.lines); at++ {
		line := strings.TrimSpace(t.lines[at])
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case indent(t.lines[at]) > width, e.Listed && indent(t.lines[at]) == width && strings.HasPrefix(line, "-"), line == "}" || line == "]" || line == "}," || line == "],":
			to = at + 1
			continue
		}
		break
	}
	return from, to
}

// indent is how far a line is indented.
func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// rendered writes an entry as lines.
func rendered(e *config.Entry, width int) (lines []string) {
	margin := strings.Repeat(" ", width)
	if e.Section == nil {
		return []string{margin + yamlField(Field{e.Key, e.Values})}
	}
	lines = []string{margin + yamlKey(e.Key) + ":"}
	for i := range e.Section.Entries {
		lines = append(lines, rendered(&e.Section.Entries[i], width+2)...)
	}
	return lines
}

// yamlField writes a field on one line. models, audience and algorithms are lists.
func yamlField(f Field) string {
	var values []string
	for _, v := range f.Values {
		if f.Name != "share" && !slices.Contains(limitFields, f.Name) { // which are numbers
			v = strconv.Quote(v)
		}
		values = append(values, v)
	}
	if len(values) == 1 && f.Name != "models" {
		return yamlKey(f.Name) + ": " + values[0]
	}
	return yamlKey(f.Name) + ": [" + strings.Join(values, ", ") + "]"
}

// yamlKey writes a name as the key of an entry.
func yamlKey(name string) string {
	if name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r != '_' && r != '.' && (r < 'a' || r > 'z') }) {
		return name
	}
	return strconv.Quote(name)
}
