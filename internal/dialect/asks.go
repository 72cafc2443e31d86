package dialect

import "weir/internal/infer"

// Judged is an Endpoint that engines serve by themselves, and not all alike: they differ
// in the fields that they read, and a mode of an engine may take some away.
type Judged interface {
	Endpoint
	// Asks returns the fields that are judged when the request is relayed.
	Asks() Asks
}

// Asks holds, by name, the fields of a body that some engines are known to read and
// not to act on. All other fields pass.
type Asks map[string]Ask

// An Ask states what an engine's own API must support for a field to have its effect.
type Ask struct {
	Needs infer.Carries
	// Defaults are the values besides null that ask for nothing, in canonical JSON
	// (RFC 8785).
	Defaults []string
	// Path leads from the field's value to the member that asks for it; empty: the
	// field itself does.
	Path string
	// Read returns what a value needs, where that is less than all of Needs. It returns
	// nothing for a value that it cannot read, which the engine refuses.
	Read func(h *Head, raw []byte) infer.Carries
}

// needs returns what the value of a field asks for.
func (a *Ask) needs(h *Head, raw []byte) infer.Carries {
	switch {
	case AsksForNothing(raw, a.Defaults):
		return 0
	case a.Read != nil:
		return a.Read(h, raw)
	}
	return a.Needs
}

// Needs returns what an engine's own API must support for a relayed body.
func (h *Head) Needs(asks Asks) (needs infer.Carries) {
	for i := range h.Fields {
		at := &h.Fields[i]
		if a, ok := asks[at.Name]; ok {
			needs |= a.needs(h, h.Body[at.Start:at.End])
		}
	}
	return needs
}

// Asking returns the first field that needs some of what is lacking, and all of what is
// lacking that this field needs.
func (h *Head) Asking(asks Asks, lacking infer.Carries) (path string, lacks infer.Carries) {
	for i := range h.Fields {
		at := &h.Fields[i]
		a, ok := asks[at.Name]
		if !ok {
			continue
		}
		if lacks = a.needs(h, h.Body[at.Start:at.End]) & lacking; lacks != 0 {
			if a.Path != "" {
				return a.Path, lacks
			}
			return at.Name, lacks
		}
	}
	return "", 0
}

// Value returns the value of a top-level field, the last one if the field occurs more
// than once. It is nil if the field is absent or null.
func (h *Head) Value(name string) (raw []byte) {
	for i := range h.Fields {
		if at := &h.Fields[i]; at.Name == name {
			raw = h.Body[at.Start:at.End]
		}
	}
	if raw == nil || KindOf(raw) == 'n' {
		return nil
	}
	return raw
}

// AskSeed is the Read of a seed. A seed asks for nothing if the request draws nothing
// at random.
func AskSeed(needs infer.Carries) func(*Head, []byte) infer.Carries {
	return func(h *Head, _ []byte) infer.Carries {
		if t := h.Value("temperature"); t != nil && AsksForNothing(t, []string{"0"}) {
			return 0
		}
		if k := h.Value("top_k"); k != nil && AsksForNothing(k, []string{"1"}) {
			return 0
		}
		return needs
	}
}

// AskType returns the member "type" of an object, empty if it has none.
func AskType(raw []byte) (kind string) {
	if KindOf(raw) != '{' {
		return ""
	}
	_ = EachMember(raw, func(name string, value []byte) error {
		if name == "type" && KindOf(value) == '"' {
			kind = NameOf(value)
		}
		return nil
	})
	return kind
}
